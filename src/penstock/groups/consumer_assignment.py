"""Which partitions, by topic id: what a member of a consumer group shall read, reads, or gives up.

Rule 1: an assignment is never changed, only replaced; members and groups share them.
Rule 2: no topic is in it without a partition, so that two that say the same are equal.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from penstock.types import TopicId

Assignment = Mapping[TopicId, frozenset[int]]
EMPTY: Assignment = {}


class TopicPartitions(Protocol):
    """As messages and records say it."""

    @property
    def topic_id(self) -> bytes: ...

    @property
    def partitions(self) -> list[int]: ...


def read(topics: Iterable[TopicPartitions]) -> Assignment:
    assignment: dict[TopicId, frozenset[int]] = {}
    for topic in topics:
        topic_id = TopicId(bytes(topic.topic_id))
        partitions = frozenset(topic.partitions) | assignment.get(topic_id, frozenset())
        if partitions:
            assignment[topic_id] = partitions
    return assignment


def in_order(assignment: Assignment) -> Iterable[tuple[TopicId, list[int]]]:
    """Topics and partitions in the same order however they were put together."""
    return ((topic_id, sorted(assignment[topic_id])) for topic_id in sorted(assignment))


def size(assignment: Assignment) -> int:
    return sum(map(len, assignment.values()))


def common(one: Assignment, other: Assignment) -> Assignment:
    shared = (
        (topic_id, partitions & other[topic_id]) for topic_id, partitions in one.items() if topic_id in other
    )
    return {topic_id: partitions for topic_id, partitions in shared if partitions}


def without(one: Assignment, other: Assignment) -> Assignment:
    rest = ((topic_id, partitions - other.get(topic_id, frozenset())) for topic_id, partitions in one.items())
    return {topic_id: partitions for topic_id, partitions in rest if partitions}


def joined(one: Assignment, other: Assignment) -> Assignment:
    both = dict(one)
    for topic_id, partitions in other.items():
        both[topic_id] = partitions | both.get(topic_id, frozenset())
    return both


def is_within(inner: Assignment, outer: Assignment) -> bool:
    return all(partitions <= outer.get(topic_id, frozenset()) for topic_id, partitions in inner.items())


def overlaps(one: Assignment, other: Assignment) -> bool:
    return any(
        not partitions.isdisjoint(other[topic_id])
        for topic_id, partitions in one.items()
        if topic_id in other
    )
