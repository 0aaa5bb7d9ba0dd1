"""A group as people see it, whichever protocol it speaks: its members, its rebalances, its offsets."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.coordinator.outcome import Now
from penstock.groups.embedded_protocol import decode_assignment
from penstock.groups.offsets.committed_offsets import OffsetAndMetadata
from penstock.groups.rebalance_history import RebalanceHistory
from penstock.protocol.messages.consumer_group_describe import DescribedConsumerGroup
from penstock.protocol.messages.describe_groups import DescribedGroup
from penstock.types import TopicPartition


class MemberStatus(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assigned: Sequence[TopicPartition] | None
    """None: what it was given is not in a form that is known here."""


class RebalanceStatus(NamedTuple):
    """Since this broker leads the group."""

    total: int
    reason: str
    """Of the last one; empty if there was none."""
    duration_ms: int | None
    """Of the last one; None if there was none or it is under way."""
    under_way_ms: int | None
    """For how long it has been; None if the group is at rest."""


class OffsetStatus(NamedTuple):
    partition: TopicPartition
    committed: OffsetAndMetadata
    rate: float


class GroupStatus(NamedTuple):
    group_id: str
    type: str
    state: str
    assignor: str
    """Or the classic protocol that the members agreed on; empty if none yet."""
    members: Sequence[MemberStatus]
    rebalances: RebalanceStatus
    positions: Sequence[OffsetStatus]


def rebalance_status(rebalances: RebalanceHistory, now: Now) -> RebalanceStatus:
    under_way_ms = None
    if rebalances.is_under_way and rebalances.began_at is not None:
        under_way_ms = round((now.monotonic - rebalances.began_at) * 1000)
    return RebalanceStatus(rebalances.count, rebalances.reason, rebalances.duration_ms, under_way_ms)


def classic_status(
    group: DescribedGroup, rebalances: RebalanceStatus, positions: Sequence[OffsetStatus]
) -> GroupStatus:
    members = [
        MemberStatus(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            _decode_assigned(member.member_assignment),
        )
        for member in group.members
    ]
    return GroupStatus(
        group.group_id, "classic", group.group_state, group.protocol_data, members, rebalances, positions
    )


def consumer_status(
    group: DescribedConsumerGroup, rebalances: RebalanceStatus, positions: Sequence[OffsetStatus]
) -> GroupStatus:
    members = [
        MemberStatus(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            [
                TopicPartition(topic.topic_name, index)
                for topic in member.assignment.topic_partitions
                for index in topic.partitions
            ],
        )
        for member in group.members
    ]
    return GroupStatus(
        group.group_id, "consumer", group.group_state, group.assignor_name, members, rebalances, positions
    )


def _decode_assigned(assignment: bytes) -> list[TopicPartition] | None:
    if not assignment:
        return []
    decoded = decode_assignment(assignment)
    if decoded is None:
        return None
    return [
        TopicPartition(held.topic, index) for held in decoded.assigned_partitions for index in held.partitions
    ]
