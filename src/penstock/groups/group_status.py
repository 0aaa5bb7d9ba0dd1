"""The status of a group for the operator, whatever its protocol: members, rebalances, committed offsets."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.coordinator.outcome import Now
from penstock.groups.embedded_protocol import decode_assignment
from penstock.groups.offsets.committed_offsets import OffsetAndMetadata
from penstock.groups.rebalance_statistics import RebalanceStatistics
from penstock.protocol.messages.consumer_group_describe import DescribedConsumerGroup
from penstock.protocol.messages.describe_groups import DescribedGroup
from penstock.types import TopicPartition


class MemberStatus(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assigned: Sequence[TopicPartition] | None
    """None: the assignment is in an unknown format."""


class RebalanceStatus(NamedTuple):
    """Rebalances since this broker became the group's coordinator."""

    total: int
    reason: str
    """Reason of the last rebalance; empty without one."""
    duration_ms: int | None
    """Duration of the last rebalance; None without one, or while one is in progress."""
    under_way_ms: int | None
    """Elapsed time of the rebalance in progress; None without one."""


class OffsetStatus(NamedTuple):
    partition: TopicPartition
    committed: OffsetAndMetadata
    rate: float


class GroupStatus(NamedTuple):
    group_id: str
    type: str
    state: str
    assignor: str
    """Assignor name, or the protocol that the members of a classic group agreed on; empty before that."""
    members: Sequence[MemberStatus]
    rebalances: RebalanceStatus
    positions: Sequence[OffsetStatus]


def rebalance_status(rebalances: RebalanceStatistics, now: Now) -> RebalanceStatus:
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
