"""What people are shown of a consumer group: ConsumerGroupDescribe."""

from collections.abc import Collection
from typing import Final

from penstock.groups.consumer.assignment import Assignment, in_order
from penstock.groups.consumer.consumer_group import ConsumerGroup
from penstock.groups.consumer.consumer_member import ConsumerMember
from penstock.groups.consumer.target_assignment import preferred_assignor
from penstock.groups.group_context import Topics
from penstock.protocol.messages.consumer_group_describe import (
    DescribedAssignment,
    DescribedConsumerGroup,
    DescribedMember,
    DescribedTopicPartitions,
)

_CLASSIC: Final = 0
_CONSUMER: Final = 1


def describe(group: ConsumerGroup, topics: Topics, assignors: Collection[str]) -> DescribedConsumerGroup:
    return DescribedConsumerGroup(
        group_id=group.group_id,
        group_state=str(group.state),
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=preferred_assignor(group.assignor_votes, assignors),
        members=[_member(group, member, topics) for member in group.members.values()],
    )


def _member(group: ConsumerGroup, member: ConsumerMember, topics: Topics) -> DescribedMember:
    about = member.about
    return DescribedMember(
        member_id=member.member_id,
        instance_id=about.instance_id,
        rack_id=about.rack_id,
        member_epoch=member.epoch,
        client_id=about.client.client_id,
        client_host=about.client.host,
        subscribed_topic_names=list(about.subscription.names),
        subscribed_topic_regex=about.subscription.regex or "",
        assignment=_assignment(member.position.assigned, topics),
        target_assignment=_assignment(group.target_of(member.member_id), topics),
        member_type=_CONSUMER if about.classic is None else _CLASSIC,
    )


def _assignment(assignment: Assignment, topics: Topics) -> DescribedAssignment:
    """Topics that are gone have no name to show."""
    return DescribedAssignment(
        [
            DescribedTopicPartitions(topic_id, topics.by_id[topic_id].name, partitions)
            for topic_id, partitions in in_order(assignment)
            if topic_id in topics.by_id
        ]
    )
