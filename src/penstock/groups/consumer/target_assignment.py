"""What everybody shall read: the target assignment of a consumer group, made anew for an epoch."""

from collections.abc import Callable, Collection, Iterable, Mapping
from hashlib import blake2b
from typing import NamedTuple

from penstock.groups.assignors import ASSIGNORS, GroupSpec, MemberSpec
from penstock.groups.consumer.assignment import EMPTY, Assignment
from penstock.groups.consumer.consumer_member import ConsumerMember, Subscription
from penstock.groups.group_context import Topics
from penstock.types import TopicId


class Prospect(NamedTuple):
    """The group as it will be when what was decided has been replayed."""

    members: Mapping[str, ConsumerMember]
    target: Mapping[str, Assignment]
    topics_of: Callable[[Subscription], frozenset[str]]


def topics_hash(names: Iterable[str], topics: Topics) -> int:
    """Changes when a subscribed topic comes, goes, grows, or is replaced by one of the same name."""
    digest = blake2b(digest_size=8)
    for name in sorted(names):
        topic = topics.by_name.get(name)
        if topic is not None:
            digest.update(f"{name} {len(topic.partitions)} ".encode() + topic.id)
    return int.from_bytes(digest.digest(), "big", signed=True)


def preferred_assignor(votes: Mapping[str, int], allowed: Collection[str]) -> str:
    """The one most members ask for; of those with as many votes, the one that is configured first."""
    default = next(iter(allowed))
    return max(allowed, key=lambda name: votes.get(name, 0), default=default)


def votes_of(members: Iterable[ConsumerMember]) -> dict[str, int]:
    votes: dict[str, int] = {}
    for member in members:
        name = member.about.assignor
        if name is not None:
            votes[name] = votes.get(name, 0) + 1
    return votes


def make_target(prospect: Prospect, topics: Topics, assignors: Collection[str]) -> dict[str, Assignment]:
    wanted: dict[Subscription, frozenset[TopicId]] = {}
    ids: dict[frozenset[str], frozenset[TopicId]] = {}  # many subscriptions mean the same
    specs: dict[str, MemberSpec] = {}
    for member_id, member in prospect.members.items():
        subscription = member.about.subscription
        topic_ids = wanted.get(subscription)
        if topic_ids is None:
            names = prospect.topics_of(subscription)
            topic_ids = ids.get(names)
            if topic_ids is None:
                topic_ids = frozenset(topics.by_name[name].id for name in names if name in topics.by_name)
                ids[names] = topic_ids
            wanted[subscription] = topic_ids
        assignment = prospect.target.get(member_id, EMPTY)
        specs[member_id] = MemberSpec(topic_ids, assignment, member.about.instance_id)
    counts = {
        topic_id: len(topics.by_id[topic_id].partitions)
        for topic_id in frozenset[TopicId]().union(*wanted.values())
    }
    assignor = preferred_assignor(votes_of(prospect.members.values()), assignors)
    return ASSIGNORS[assignor](GroupSpec(specs, counts))
