"""The uniform assignor: all members get equal shares, and keep what they have.

If all members subscribe to the same topics, each member gets the same number of partitions, or one more. A
member with too many partitions gives some up, a member with too few gets free ones; no other partition
moves. That visits each partition once. If subscriptions differ, see `uniform_mixed.py`.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice, zip_longest

from penstock.groups.assignors.spec import GroupSpec
from penstock.groups.assignors.uniform_mixed import assign_mixed
from penstock.groups.consumer.assignment import Assignment, size
from penstock.types import TopicId

TopicIdPartition = tuple[TopicId, int]


def assign(spec: GroupSpec) -> dict[str, Assignment]:
    if not spec.is_homogeneous:
        return assign_mixed(spec)
    topics = next((member.topics for member in spec.members.values()), frozenset[TopicId]())
    if not topics:
        return {member_id: {} for member_id in spec.members}
    free = {topic_id: set(range(spec.partitions[topic_id])) for topic_id in sorted(topics)}
    kept, open_slots = _retain(spec, free)
    return _fill(
        kept, open_slots, ((topic_id, index) for topic_id in free for index in sorted(free[topic_id]))
    )


def _retain(
    spec: GroupSpec, free: Mapping[TopicId, set[int]]
) -> tuple[dict[str, Assignment], dict[str, int]]:
    """Take what each member keeps out of `free`, and return it with how many partitions each member still
    gets."""
    quota, extra = divmod(sum(map(len, free.values())), len(spec.members))
    kept: dict[str, Assignment] = {}
    open_slots: dict[str, int] = {}
    for member_id, member in spec.members.items():
        assignment = _still_valid(member.assignment, free)
        count = size(assignment)
        allowed = quota
        if count > quota and extra:
            # Extra partitions stay with the members that already have one more than the quota.
            allowed, extra = quota + 1, extra - 1
        if count > allowed:
            assignment, count = _limit(assignment, allowed), allowed
        for topic_id, partitions in assignment.items():
            free[topic_id] -= partitions
        kept[member_id] = assignment
        open_slots[member_id] = quota - count
    for member_id in open_slots:
        if extra and open_slots[member_id] >= 0:
            open_slots[member_id] += 1
            extra -= 1
    return kept, open_slots


def _still_valid(had: Assignment, free: Mapping[TopicId, set[int]]) -> Assignment:
    """Partitions that exist and no other member keeps; the same object if that is all of them."""
    # This runs for each topic of each member, so the test avoids a Python loop.
    if had.keys() <= free.keys() and all(map(frozenset.issubset, had.values(), map(free.__getitem__, had))):
        return had
    left = ((topic_id, had[topic_id] & free[topic_id]) for topic_id in had if topic_id in free)
    return {topic_id: partitions for topic_id, partitions in left if partitions}


def _limit(assignment: Assignment, count: int) -> Assignment:
    """Reduce an assignment to `count` partitions, about equally many of each topic."""
    by_topic = [
        [(topic_id, index) for index in sorted(assignment[topic_id])] for topic_id in sorted(assignment)
    ]
    in_turn = chain.from_iterable(zip_longest(*by_topic))
    return _to_assignment(islice((place for place in in_turn if place is not None), count))


def _to_assignment(places: Iterable[TopicIdPartition]) -> Assignment:
    topics: dict[TopicId, list[int]] = {}
    for topic_id, index in places:
        topics.setdefault(topic_id, []).append(index)
    return {topic_id: frozenset(partitions) for topic_id, partitions in topics.items()}


def _fill(
    kept: dict[str, Assignment], open_slots: Mapping[str, int], free: Iterator[TopicIdPartition]
) -> dict[str, Assignment]:
    """Assign free partitions round robin, so that each topic is spread over the members."""
    waiting = deque((member_id, count) for member_id, count in open_slots.items() if count > 0)
    added: dict[str, list[TopicIdPartition]] = {member_id: [] for member_id, _ in waiting}
    for place in free:
        member_id, count = waiting.popleft()
        added[member_id].append(place)
        if count > 1:
            waiting.append((member_id, count - 1))
    for member_id, places in added.items():
        held = ((topic_id, index) for topic_id, partitions in kept[member_id].items() for index in partitions)
        kept[member_id] = _to_assignment(chain(held, places))
    return kept
