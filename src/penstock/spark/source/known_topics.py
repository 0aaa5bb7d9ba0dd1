"""The topics that a query reads, from the metadata that brokers returned over time. Pure.

One metadata reply of one broker proves little: a broker that has just started, or that has no connection to
the metadata store, may lack a topic that exists, or may still describe one that was deleted. So the topic
id in the query's position decides. A topic that a reply lacks, or returns with another id, is absent at
first and keeps its entry in the position. It counts as deleted when all replies lacked its id for
`topic_gone_after_s`, from the first such reply to the newest. A task needs the same time to find that the
topic of its range is gone (wire/retry_policy.py).

Rule 1: Partitions are never removed. Within one topic id their number only grows.
Rule 2: Another topic id is another topic. A position in the old one has no meaning in the new one.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.types import NO_TOPIC_ID, TopicId, TopicPartition

Ids = Mapping[str, TopicId]


class TopicsSnapshot(NamedTuple):
    """The topics of a query at one time."""

    present: frozenset[TopicPartition]
    """Partitions whose leaders can be queried for offsets. Those of recreated topics are among them."""
    ids: dict[str, TopicId]
    """The current id of each topic of the query, as far as brokers have topic ids."""
    absent: frozenset[str]
    """Topics that the newest reply lacked, and that may come back."""
    deleted: frozenset[str]
    """Topics that were deleted, and that no longer exist or are another topic with the same name."""
    recreated: frozenset[str]
    """The deleted topics that exist again, with another id."""


class KnownTopics:
    """Topics of one query, with what the brokers' replies said of them so far."""

    def __init__(self, topic_gone_after_s: float) -> None:
        self._gone_after_s = topic_gone_after_s
        self._expected: dict[str, TopicId | None] = {}
        self._latest_partitions: frozenset[TopicPartition] = frozenset()
        self._latest_ids: dict[str, TopicId] = {}
        self._updated_at = 0.0
        self._absent_since: dict[str, float] = {}

    def track(self, topics: Iterable[str], ids: Ids) -> None:
        """Add the topics of a position, with the ids that it has for them."""
        self._expected |= {topic: ids.get(topic, self._expected.get(topic)) for topic in topics}

    def ids(self) -> dict[str, TopicId]:
        """The ids that the position has for its topics, as far as brokers have topic ids."""
        return {topic: each for topic, each in self._expected.items() if each is not None}

    def apply_metadata(self, partitions: Iterable[TopicPartition], ids: Ids, now_s: float) -> TopicsSnapshot:
        """Apply the newest metadata reply. Returns the result of this and all earlier replies."""
        self._latest_partitions = frozenset(partitions)
        self._latest_ids = known_ids(ids)
        self._updated_at = now_s
        found = {partition.topic for partition in self._latest_partitions}
        for topic in found:
            # The first reply that contains a topic sets its id.
            if self._expected.get(topic) is None:
                self._expected[topic] = self._latest_ids.get(topic)
        return self.snapshot(now_s)

    def snapshot(self, now_s: float) -> TopicsSnapshot:
        """The state without a new reply, for example after the position changed."""
        found = {partition.topic for partition in self._latest_partitions}
        same = {topic for topic in found if self._is_same(topic)}
        absent = self._expected.keys() - same
        self._absent_since = {topic: self._absent_since.get(topic, now_s) for topic in absent}
        # Time that passes without a reply proves nothing.
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
    """The ids without those of brokers that have no topic ids."""
    return {topic: each for topic, each in ids.items() if each != NO_TOPIC_ID}


def changed_ids(before: Ids, after: Ids) -> frozenset[str]:
    """Topics whose id was known before and differs afterwards."""
    return frozenset(topic for topic, each in before.items() if after.get(topic, each) != each)
