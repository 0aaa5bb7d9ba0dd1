"""Topics that a query reads, as brokers described them over time. Pure.

One answer of one broker proves little: a broker that has just started, or that is cut off from the metadata
store, may not know a topic that exists, or may still describe one that was deleted. So what counts is the
topic id in the query's position. A topic that an answer lacks, or has under another id, is absent at first
and keeps its place in the position. It is gone when all answers lacked its id for `topic_gone_after_s`, from
the
first of them to the newest. That time is also what a task needs to find that the topic of its range is gone
(wire/retry_policy.py).

Rule 1: partitions are never forgotten. Within one topic id their number only grows.
Rule 2: another topic id is another topic. A position in the old one means nothing in the new one.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.types import NO_TOPIC_ID, TopicId, TopicPartition

Ids = Mapping[str, TopicId]


class TopicsSnapshot(NamedTuple):
    """The topics of a query at one time."""

    present: frozenset[TopicPartition]
    """Partitions whose leaders can be asked for offsets. Those of topics made anew are among them."""
    ids: dict[str, TopicId]
    """The id that each topic of the query has now, as far as brokers have topic ids."""
    absent: frozenset[str]
    """Topics that the newest answer lacked, and that may come back."""
    deleted: frozenset[str]
    """Topics that were deleted, and that do not exist any more or are another topic by the same name."""
    recreated: frozenset[str]
    """Those of the topics that are gone which exist again, with another id."""


class KnownTopics:
    def __init__(self, topic_gone_after_s: float) -> None:
        self._gone_after_s = topic_gone_after_s
        self._expected: dict[str, TopicId | None] = {}
        self._latest_partitions: frozenset[TopicPartition] = frozenset()
        self._latest_ids: dict[str, TopicId] = {}
        self._updated_at = 0.0
        self._absent_since: dict[str, float] = {}

    def track(self, topics: Iterable[str], ids: Ids) -> None:
        """Take the topics of a position, with the ids that it has for them."""
        self._expected |= {topic: ids.get(topic, self._expected.get(topic)) for topic in topics}

    def ids(self) -> dict[str, TopicId]:
        """The ids that the position has for its topics, as far as brokers have topic ids."""
        return {topic: each for topic, each in self._expected.items() if each is not None}

    def apply_metadata(self, partitions: Iterable[TopicPartition], ids: Ids, now_s: float) -> TopicsSnapshot:
        """Take the newest answer of the cluster. What it means, together with those before it."""
        self._latest_partitions = frozenset(partitions)
        self._latest_ids = known_ids(ids)
        self._updated_at = now_s
        found = {partition.topic for partition in self._latest_partitions}
        for topic in found:
            if self._expected.get(topic) is None:
                self._expected[topic] = self._latest_ids.get(topic)
        return self.snapshot(now_s)

    def snapshot(self, now_s: float) -> TopicsSnapshot:
        """The same without a new answer, such as after the position changed."""
        found = {partition.topic for partition in self._latest_partitions}
        same = {topic for topic in found if self._is_same(topic)}
        absent = self._expected.keys() - same
        self._absent_since = {topic: self._absent_since.get(topic, now_s) for topic in absent}
        # Time that passes without an answer proves nothing.
        deleted = {
            topic
            for topic, since in self._absent_since.items()
            if self._updated_at - since >= self._gone_after_s
        }
        recreated = deleted & found
        usable = same | recreated
        return TopicsSnapshot(
            frozenset(partition for partition in self._latest_partitions if partition.topic in usable),
            {
                topic: each
                for topic, expected in self._expected.items()
                if (each := self._latest_ids.get(topic, expected) if topic in usable else expected)
                is not None
            },
            frozenset(absent - deleted),
            frozenset(deleted),
            frozenset(recreated),
        )

    def _is_same(self, topic: str) -> bool:
        expected = self._expected.get(topic)
        return expected is None or self._latest_ids.get(topic, expected) == expected


def known_ids(ids: Ids) -> dict[str, TopicId]:
    """Without those of brokers that have no topic ids."""
    return {topic: each for topic, each in ids.items() if each != NO_TOPIC_ID}


def changed_ids(before: Ids, after: Ids) -> frozenset[str]:
    """Topics whose id is known from before and is another one after."""
    return frozenset(topic for topic, each in before.items() if after.get(topic, each) != each)
