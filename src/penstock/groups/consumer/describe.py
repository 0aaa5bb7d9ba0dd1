"""ConsumerGroupDescribe: the description of a consumer group."""

from collections.abc import Collection
from typing import Final

from penstock.groups.consumer.assignment import Assignment, sorted_topics
from penstock.groups.consumer.consumer_group import ConsumerGroup
from penstock.groups.consumer.consumer_member import ConsumerMember
from penstock.groups.consumer.target_assignment import preferred_assignor
from penstock.groups.group_context import TopicsImage
from penstock.protocol.messages.consumer_group_describe import (
    DescribedAssignment,
    DescribedConsumerGroup,
    DescribedMember,
    DescribedTopicPartitions,
)

_CLASSIC: Final = 0
_CONSUMER: Final = 1


def describe(group: ConsumerGroup, topics: TopicsImage, assignors: Collection[str]) -> DescribedConsumerGroup:
    return DescribedConsumerGroup(
        group_id=group.group_id,
        group_state=str(group.state),
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=preferred_assignor(group.members.values(), assignors),
        members=[_member(group, member, topics) for member in group.members.values()],
    )


def _member(group: ConsumerGroup, member: ConsumerMember, topics: TopicsImage) -> DescribedMember:
    metadata = member.metadata
    return DescribedMember(
        member_id=member.member_id,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        member_epoch=member.epoch,
        client_id=metadata.client.client_id,
        client_host=metadata.client.host,
        subscribed_topic_names=list(metadata.subscription.names),
        subscribed_topic_regex=metadata.subscription.regex or "",
        assignment=_assignment(member.current_assignment.assigned, topics),
        target_assignment=_assignment(group.target_of(member.member_id), topics),
        member_type=_CONSUMER if metadata.classic is None else _CLASSIC,
    )


def _assignment(assignment: Assignment, topics: TopicsImage) -> DescribedAssignment:
    """Convert an assignment; deleted topics have no name and are left out."""
    return DescribedAssignment(
        [
            DescribedTopicPartitions(topic_id, topics.by_id[topic_id].name, partitions)
            for topic_id, partitions in sorted_topics(assignment)
            if topic_id in topics.by_id
        ]
    )
