"""The target assignment of a consumer group, computed for a new group epoch."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from hashlib import blake2b
from typing import NamedTuple

from penstock.groups.assignors import ASSIGNORS, GroupSpec, MemberSpec
from penstock.groups.consumer.assignment import EMPTY, Assignment
from penstock.groups.consumer.consumer_member import ConsumerMember, Subscription
from penstock.groups.group_context import TopicsImage
from penstock.types import TopicId


class ProspectiveGroup(NamedTuple):
    """The group as it will be after the pending records are replayed."""

    members: Mapping[str, ConsumerMember]
    target: Mapping[str, Assignment]
    topics_of: Callable[[Subscription], frozenset[str]]


def topics_hash(names: Iterable[str], topics: TopicsImage) -> int:
    """Hash that changes when a subscribed topic is created, deleted, extended, or recreated."""
    digest = blake2b(digest_size=8)
    for name in sorted(names):
        topic = topics.by_name.get(name)
        if topic is not None:
            digest.update(f"{name} {len(topic.partitions)} ".encode() + topic.id)
    return int.from_bytes(digest.digest(), "big", signed=True)


def preferred_assignor(members: Iterable[ConsumerMember], allowed: Collection[str]) -> str:
    """The assignor with the most votes; on a tie, the first one in the configuration."""
    votes = Counter(member.metadata.assignor for member in members)
    return max(allowed, key=lambda name: votes[name])


def compute_target(
    group: ProspectiveGroup, topics: TopicsImage, assignors: Collection[str]
) -> dict[str, Assignment]:
    topic_ids_of: dict[Subscription, frozenset[TopicId]] = {}
    ids: dict[frozenset[str], frozenset[TopicId]] = {}  # many subscriptions match the same topics
    specs: dict[str, MemberSpec] = {}
    for member_id, member in group.members.items():
        subscription = member.metadata.subscription
        topic_ids = topic_ids_of.get(subscription)
        if topic_ids is None:
            names = group.topics_of(subscription)
            topic_ids = ids.get(names)
            if topic_ids is None:
                topic_ids = frozenset(topics.by_name[name].id for name in names if name in topics.by_name)
                ids[names] = topic_ids
            topic_ids_of[subscription] = topic_ids
        assignment = group.target.get(member_id, EMPTY)
        specs[member_id] = MemberSpec(topic_ids, assignment, member.metadata.instance_id)
    counts = {
        topic_id: len(topics.by_id[topic_id].partitions)
        for topic_id in frozenset[TopicId]().union(*topic_ids_of.values())
    }
    assignor = preferred_assignor(group.members.values(), assignors)
    return ASSIGNORS[assignor](GroupSpec(specs, counts))
