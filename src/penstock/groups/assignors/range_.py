"""The range assignor: each topic is split into as many ranges as it has subscribers.

The order of the members is the same for every topic. So topics with equal partition counts and the same
subscribers are split alike: one member reads partition 7 of both topics, and can join the two.

The order is that of Kafka: static members first, by instance id, then the other members by member id. So a
static member keeps its ranges when it rejoins with a new member id.
"""

from collections.abc import Iterable

from penstock.groups.assignors.spec import GroupSpec
from penstock.groups.consumer.assignment import Assignment
from penstock.types import TopicId


def assign(spec: GroupSpec) -> dict[str, Assignment]:
    assignments: dict[str, dict[TopicId, frozenset[int]]] = {member_id: {} for member_id in spec.members}
    for topic_id, subscribers in _subscribers(spec).items():
        ranges = _ranges(spec.partitions[topic_id], len(subscribers))
        for member_id, partitions in zip(subscribers, ranges, strict=False):
            assignments[member_id][topic_id] = partitions
    return dict(assignments)


def _subscribers(spec: GroupSpec) -> dict[TopicId, list[str]]:
    subscribers: dict[TopicId, list[str]] = {}
    for member_id in sorted(spec.members, key=lambda member_id: _rank(spec, member_id)):
        for topic_id in spec.members[member_id].topics:
            subscribers.setdefault(topic_id, []).append(member_id)
    return subscribers


def _rank(spec: GroupSpec, member_id: str) -> tuple[bool, str]:
    instance_id = spec.members[member_id].instance_id
    return (instance_id is None, member_id if instance_id is None else instance_id)


def _ranges(partitions: int, parts: int) -> Iterable[frozenset[int]]:
    """Ranges whose sizes differ by at most one, the longer ones first; none is empty."""
    quota, longer = divmod(partitions, parts)
    start = 0
    for number in range(min(parts, partitions)):
        end = start + quota + (number < longer)
        yield frozenset(range(start, end))
        start = end
