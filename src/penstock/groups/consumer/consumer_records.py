"""Builders of the records of a consumer group."""

from collections.abc import Iterable

from penstock.coordinator.outcome import StateRecord
from penstock.groups.consumer.assignment import Assignment, sorted_topics
from penstock.groups.consumer.consumer_group import ConsumerGroup
from penstock.groups.consumer.consumer_member import ConsumerMember
from penstock.groups.consumer.regex import ResolvedRegularExpression
from penstock.groups.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    RecordKey,
    TargetTopicPartitions,
    encode_key,
    encode_value,
)
from penstock.protocol.schema import Struct


def _record(key: RecordKey[Struct], value: Struct | None) -> StateRecord:
    return StateRecord(encode_key(key), None if value is None else encode_value(value))


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> StateRecord:
    return _record(ConsumerGroupMetadataKey(group_id), ConsumerGroupMetadataValue(epoch, metadata_hash))


def member_metadata_record(group_id: str, member: ConsumerMember) -> StateRecord:
    return _record(ConsumerGroupMemberMetadataKey(group_id, member.member_id), member.metadata.to_value())


def current_assignment_record(group_id: str, member: ConsumerMember) -> StateRecord:
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id, member.member_id)
    return _record(key, member.current_assignment.to_value())


def target_record(group_id: str, member_id: str, assignment: Assignment) -> StateRecord:
    topics = [TargetTopicPartitions(*topic) for topic in sorted_topics(assignment)]
    key = ConsumerGroupTargetAssignmentMemberKey(group_id, member_id)
    return _record(key, ConsumerGroupTargetAssignmentMemberValue(topics))


def assignment_epoch_record(group_id: str, epoch: int, now_ms: int) -> StateRecord:
    key = ConsumerGroupTargetAssignmentMetadataKey(group_id)
    return _record(key, ConsumerGroupTargetAssignmentMetadataValue(epoch, now_ms))


def regex_record(group_id: str, regex: str, resolution: ResolvedRegularExpression) -> StateRecord:
    value = ConsumerGroupRegularExpressionValue(
        sorted(resolution.topics), resolution.version, resolution.timestamp_ms
    )
    return _record(ConsumerGroupRegularExpressionKey(group_id, regex), value)


def regex_tombstone(group_id: str, regex: str) -> StateRecord:
    return _record(ConsumerGroupRegularExpressionKey(group_id, regex), None)


def member_tombstones(group_id: str, member_id: str) -> list[StateRecord]:
    return [
        _record(ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id), None),
        _record(ConsumerGroupTargetAssignmentMemberKey(group_id, member_id), None),
        _record(ConsumerGroupMemberMetadataKey(group_id, member_id), None),
    ]


def group_tombstones(group: ConsumerGroup) -> list[StateRecord]:
    """Build the records that delete a group. The last one makes it Dead, so a partly replayed deletion is
    still a group."""
    group_id = group.group_id
    member_ids: Iterable[str] = {**group.members, **group.target}
    return [
        *(record for member_id in member_ids for record in member_tombstones(group_id, member_id)),
        *(regex_tombstone(group_id, regex) for regex in group.regexes),
        _record(ConsumerGroupTargetAssignmentMetadataKey(group_id), None),
        _record(ConsumerGroupMetadataKey(group_id), None),
    ]
