"""The uniform assignor: everybody gets as much as everybody else, and keeps what it has.

If all subscribe to the same topics, each member gets the same number of partitions, or one more.
Whoever has too many gives some up, whoever has too few takes from what is free; nothing else moves.
That costs one look at each partition. If subscriptions differ, see `uniform_mixed.py`.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice, zip_longest

from penstock.groups.assignors.spec import GroupSpec, MemberSpec
from penstock.groups.assignors.uniform_mixed import assign_mixed
from penstock.groups.consumer_assignment import Assignment, size
from penstock.types import TopicId

Place = tuple[TopicId, int]


def assign(spec: GroupSpec) -> dict[str, Assignment]:
    if not spec.is_homogeneous:
        return assign_mixed(spec)
    topics = next((member.topics for member in spec.members.values()), frozenset[TopicId]())
    if not topics:
        return {member_id: {} for member_id in spec.members}
    kept, seats, taken = _keep(spec, {topic_id: spec.partitions[topic_id] for topic_id in topics})
    return _fill(kept, seats, _free(topics, spec.partitions, taken))


def _keep(
    spec: GroupSpec, counts: Mapping[TopicId, int]
) -> tuple[dict[str, Assignment], dict[str, int], dict[TopicId, set[int]]]:
    """What each member keeps, how many more it gets, and what is kept by anybody."""
    quota, extra = divmod(sum(counts.values()), len(spec.members))
    kept: dict[str, Assignment] = {}
    seats: dict[str, int] = {}
    taken: dict[TopicId, set[int]] = {topic_id: set() for topic_id in counts}
    for member_id, member in spec.members.items():
        assignment = still_valid(member, counts, taken)
        count = size(assignment)
        allowed = quota
        if count > quota and extra:
            # Whoever has one more already is the one to have it.
            allowed, extra = quota + 1, extra - 1
        if count > allowed:
            assignment, count = _cut(assignment, allowed), allowed
        for topic_id, partitions in assignment.items():
            taken[topic_id] |= partitions
        kept[member_id] = assignment
        seats[member_id] = quota - count
    for member_id in seats:
        if extra and seats[member_id] >= 0:
            seats[member_id] += 1
            extra -= 1
    return kept, seats, taken


def still_valid(
    member: MemberSpec, counts: Mapping[TopicId, int], taken: Mapping[TopicId, set[int]]
) -> Assignment:
    """What it had that it still subscribes to and that exists; the same object if that is all of it."""
    had = member.assignment
    is_whole = all(
        topic_id in counts
        and topic_id in member.topics
        and max(partitions) < counts[topic_id]
        and partitions.isdisjoint(taken[topic_id])
        for topic_id, partitions in had.items()
    )
    if is_whole:
        return had
    left = (
        (topic_id, frozenset(index for index in had[topic_id] - taken[topic_id] if index < counts[topic_id]))
        for topic_id in had
        if topic_id in counts and topic_id in member.topics
    )
    return {topic_id: partitions for topic_id, partitions in left if partitions}


def _cut(assignment: Assignment, count: int) -> Assignment:
    """So many of it, of each topic about as many as of the others."""
    by_topic = [
        [(topic_id, index) for index in sorted(assignment[topic_id])] for topic_id in sorted(assignment)
    ]
    in_turn = chain.from_iterable(zip_longest(*by_topic))
    return _gathered(islice((place for place in in_turn if place is not None), count))


def _gathered(places: Iterable[Place]) -> Assignment:
    topics: dict[TopicId, list[int]] = {}
    for topic_id, index in places:
        topics.setdefault(topic_id, []).append(index)
    return {topic_id: frozenset(partitions) for topic_id, partitions in topics.items()}


def _free(
    topics: Iterable[TopicId], counts: Mapping[TopicId, int], taken: Mapping[TopicId, set[int]]
) -> Iterator[Place]:
    for topic_id in sorted(topics):
        held = taken[topic_id]
        if len(held) < counts[topic_id]:
            yield from ((topic_id, index) for index in range(counts[topic_id]) if index not in held)


def _fill(
    kept: dict[str, Assignment], seats: Mapping[str, int], free: Iterator[Place]
) -> dict[str, Assignment]:
    """Hand out what is free in turn, so that each topic is spread over the members."""
    waiting = deque((member_id, count) for member_id, count in seats.items() if count > 0)
    added: dict[str, list[Place]] = {member_id: [] for member_id, _ in waiting}
    for place in free:
        member_id, count = waiting.popleft()
        added[member_id].append(place)
        if count > 1:
            waiting.append((member_id, count - 1))
    for member_id, places in added.items():
        held = ((topic_id, index) for topic_id, partitions in kept[member_id].items() for index in partitions)
        kept[member_id] = _gathered(chain(held, places))
    return kept
