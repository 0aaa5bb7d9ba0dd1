"""The uniform assignor for members with different subscriptions.

A member gets only topics that it subscribes to, so equal shares may not exist. The result: no partition
could move from its member to another subscriber that has at least two fewer.

    1  Every member keeps its partitions of subscribed topics.
    2  Free partitions go to the subscriber with the fewest, topics with fewest subscribers first.
    3  Partitions move from the most to the least loaded member, until no move helps.

Each move reduces the sum of squares of the members' counts, so the third step ends.
"""

from collections import defaultdict
from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace

from penstock.groups.assignors.spec import GroupSpec
from penstock.groups.consumer.assignment import Assignment
from penstock.types import TopicId


def assign_mixed(spec: GroupSpec) -> dict[str, Assignment]:
    builder = _AssignmentBuilder(spec)
    builder.retain_current()
    for topic_id in builder.topics:
        builder.assign_free(topic_id)
    while sum(map(builder.level, builder.topics)):
        pass
    return builder.result()


def _subscribers(spec: GroupSpec) -> dict[TopicId, list[str]]:
    """Subscribers by topic. Members are grouped by subscription first: most groups have few distinct ones."""
    alike: defaultdict[frozenset[TopicId], list[str]] = defaultdict(list)
    for member_id, member in spec.members.items():
        alike[member.topics].append(member_id)
    subscribers: defaultdict[TopicId, list[str]] = defaultdict(list)
    for topics, member_ids in alike.items():
        for topic_id in topics:
            subscribers[topic_id] += member_ids
    return dict(subscribers)


class _AssignmentBuilder:
    def __init__(self, spec: GroupSpec) -> None:
        self._spec = spec
        self._loads = dict.fromkeys(spec.members, 0)
        self._subscribers = _subscribers(spec)
        self.topics = sorted(
            self._subscribers, key=lambda topic_id: (len(self._subscribers[topic_id]), topic_id)
        )
        self._assigned: dict[TopicId, dict[str, set[int]]] = {topic_id: {} for topic_id in self.topics}
        """Partitions by topic and member."""

    def retain_current(self) -> None:
        taken: dict[TopicId, set[int]] = {topic_id: set() for topic_id in self.topics}
        for member_id, member in self._spec.members.items():
            for topic_id, had in member.assignment.items():
                if topic_id not in member.topics:
                    continue
                partitions = had - taken[topic_id]
                if partitions and max(partitions) >= (count := self._spec.partitions[topic_id]):
                    partitions = frozenset(index for index in partitions if index < count)
                if partitions:
                    taken[topic_id] |= partitions
                    self._assigned[topic_id][member_id] = set(partitions)
                    self._loads[member_id] += len(partitions)

    def assign_free(self, topic_id: TopicId) -> None:
        held = self._assigned[topic_id]
        taken = set[int]().union(*held.values())
        free = [index for index in range(self._spec.partitions[topic_id]) if index not in taken]
        if not free:
            return
        least = self._by_load(self._subscribers[topic_id])
        for index in free:
            load, number, member_id = least[0]
            held.setdefault(member_id, set()).add(index)
            heapreplace(least, (load + 1, number, member_id))
        self._loads.update((member_id, load) for load, _, member_id in least)

    def level(self, topic_id: TopicId) -> bool:
        """Move partitions of this topic while that makes loads more equal. False: no partition moved."""
        loads, held = self._loads, self._assigned[topic_id]
        subscribers = self._subscribers[topic_id]
        if not held or max(map(loads.__getitem__, held)) - min(map(loads.__getitem__, subscribers)) < 2:
            return False
        least = self._by_load(subscribers)
        most = self._by_load(held, -1)
        while most:
            load, number, source = most[0]
            # A stale heap entry: the load changed since. Push it again if the member still has partitions
            # here.
            if -load != loads[source] or not held.get(source):
                heappop(most)
                if held.get(source):
                    heappush(most, (-loads[source], number, source))
                continue
            destination = self._least_loaded(least)
            if loads[source] - loads[destination] < 2:
                break
            self._move(topic_id, source, destination)
        return True

    def _least_loaded(self, least: list[tuple[int, int, str]]) -> str:
        while least[0][0] != self._loads[least[0][2]]:
            _, number, member_id = least[0]
            heapreplace(least, (self._loads[member_id], number, member_id))
        return least[0][2]

    def _move(self, topic_id: TopicId, source: str, destination: str) -> None:
        held = self._assigned[topic_id]
        held.setdefault(destination, set()).add(held[source].pop())
        if not held[source]:
            del held[source]
        self._loads[source] -= 1
        self._loads[destination] += 1

    def _by_load(self, members: Iterable[str], sign: int = 1) -> list[tuple[int, int, str]]:
        heap = [
            (sign * self._loads[member_id], number, member_id) for number, member_id in enumerate(members)
        ]
        heapify(heap)
        return heap

    def result(self) -> dict[str, Assignment]:
        assignments: dict[str, dict[TopicId, frozenset[int]]] = {
            member_id: {} for member_id in self._spec.members
        }
        for topic_id, held in self._assigned.items():
            for member_id, partitions in held.items():
                assignments[member_id][topic_id] = frozenset(partitions)
        return dict(assignments)
