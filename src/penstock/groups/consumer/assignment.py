"""Sets of partitions by topic id: the target of a consumer group member, what it reads, what it must
revoke.

Rule 1: an assignment is never modified, only replaced; members and groups share the objects.
Rule 2: an assignment has no topic without partitions, so that equal assignments compare equal.
Rule 3: there can be very many partitions, so equal parts are stored once: one int object per partition
        number, and one set that a member's target and its current assignment share.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Protocol

from penstock.groups.memory_estimates import partitions_memory
from penstock.limits import PARTITIONS_PER_TOPIC_MAX
from penstock.types import TopicId

Assignment = Mapping[TopicId, frozenset[int]]
EMPTY: Assignment = {}


class AssignedTopic(Protocol):
    """A topic and its assigned partitions, as a message or a record names them."""

    @property
    def topic_id(self) -> bytes: ...

    @property
    def partitions(self) -> list[int]: ...


def parse_assignment(topics: Iterable[AssignedTopic]) -> Assignment:
    assignment: dict[TopicId, frozenset[int]] = {}
    for topic in topics:
        topic_id = TopicId(bytes(topic.topic_id))
        partitions = _numbers(topic.partitions) | assignment.get(topic_id, frozenset())
        if partitions:
            assignment[topic_id] = partitions
    return assignment


def _numbers(partitions: list[int]) -> frozenset[int]:
    known = _known_numbers()
    # The second argument is the default: a number above the table maps to itself.
    return frozenset(map(known.get, partitions, partitions))


@cache
def _known_numbers() -> dict[int, int]:
    """One shared int object per number: an int takes more memory than its slot in a set."""
    return {number: number for number in range(PARTITIONS_PER_TOPIC_MAX)}


def reuse_equal_parts(one: Assignment, other: Assignment) -> Assignment:
    """An assignment equal to `one` that reuses the equal sets of `other`."""
    if one == other:
        return other
    return {
        topic_id: other[topic_id] if other.get(topic_id) == partitions else partitions
        for topic_id, partitions in one.items()
    }


def assignment_memory(assignment: Assignment) -> int:
    """Estimated memory of an assignment."""
    return partitions_memory(topics=len(assignment), partitions=size(assignment))


def sorted_topics(assignment: Assignment) -> Iterable[tuple[TopicId, list[int]]]:
    """Topics and partitions in sorted order, so that equal assignments are encoded alike."""
    return ((topic_id, sorted(assignment[topic_id])) for topic_id in sorted(assignment))


def size(assignment: Assignment) -> int:
    return sum(map(len, assignment.values()))


def intersection(one: Assignment, other: Assignment) -> Assignment:
    shared = (
        (topic_id, partitions & other[topic_id]) for topic_id, partitions in one.items() if topic_id in other
    )
    return {topic_id: partitions for topic_id, partitions in shared if partitions}


def difference(one: Assignment, other: Assignment) -> Assignment:
    rest = ((topic_id, partitions - other.get(topic_id, frozenset())) for topic_id, partitions in one.items())
    return {topic_id: partitions for topic_id, partitions in rest if partitions}


def union(one: Assignment, other: Assignment) -> Assignment:
    both = dict(one)
    for topic_id, partitions in other.items():
        both[topic_id] = partitions | both.get(topic_id, frozenset())
    return both


def is_subset(inner: Assignment, outer: Assignment) -> bool:
    return all(partitions <= outer.get(topic_id, frozenset()) for topic_id, partitions in inner.items())


def overlaps(one: Assignment, other: Assignment) -> bool:
    return any(
        not partitions.isdisjoint(other[topic_id])
        for topic_id, partitions in one.items()
        if topic_id in other
    )
