"""The groups and committed offsets of one shard, as replayed from the log.

Classic and consumer groups share one namespace. A record of one kind converts the name to that kind: this
is how a group that changed its protocol is loaded.

Rule 1: a name that has committed offsets is a group, if only an empty one.
"""

from collections.abc import Iterator
from typing import Final

from penstock.coordinator.outcome import StateRecord
from penstock.errors import ApiError, CorruptData, ErrorCode
from penstock.groups.classic.classic_group import ClassicGroup
from penstock.groups.consumer.consumer_group import CONSUMER_KEYS, ConsumerGroup
from penstock.groups.migration import Group
from penstock.groups.offsets.committed_offsets import CommittedOffsets
from penstock.groups.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    OffsetCommitKey,
    RecordKey,
    UnknownKey,
    decode_key,
    decode_value,
)
from penstock.groups.unreadable_records import UnreadableRecords, group_id_of
from penstock.protocol.schema import Struct
from penstock.types import NO_TIMESTAMP, TopicPartition

_GROUP_BYTES: Final = 2_000
"""Estimated memory of a group without its members."""


class GroupStore:
    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.offsets = CommittedOffsets()
        self.is_active = False
        """True: the log has been loaded, so replayed records are new decisions."""
        self.unreadable = UnreadableRecords()
        self.last_timestamp_ms = NO_TIMESTAMP
        """Timestamp of the newest record."""
        self._memory_by_group: dict[str, int] = {}
        self.memory_bytes = 0
        """Estimated memory of all groups, without offsets."""

    def find(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id}")
        return group

    # The log

    def replay(self, record: StateRecord, timestamp_ms: int) -> None:
        self.last_timestamp_ms = max(self.last_timestamp_ms, timestamp_ms)
        try:
            key = decode_key(record.key)
        except CorruptData as problem:
            self.unreadable.add_key(record.key, problem)
            return
        if isinstance(key, UnknownKey):
            return
        try:
            self._replay(key, record.value, timestamp_ms)
            # Only after a successful replay: this drops an earlier unreadable record of the same key.
            self.unreadable.settle(key)
        except CorruptData as problem:
            self.unreadable.add_record(key, problem)
        self._keep_group_with_offsets(group_id_of(key))
        self.update_memory_bytes(group_id_of(key))

    def _replay(self, key: RecordKey[Struct], data: bytes | None, timestamp_ms: int) -> None:
        if isinstance(key, OffsetCommitKey | LegacyOffsetCommitKey):
            self.offsets.replay(key, data)
        elif isinstance(key, GroupMetadataKey):
            self._replay_classic(key.group, decode_value(key, data))
        elif isinstance(key, CONSUMER_KEYS):
            self._replay_consumer(key, decode_value(key, data), timestamp_ms)

    def _replay_classic(self, group_id: str, value: GroupMetadataValue | None) -> None:
        group = self.groups.get(group_id)
        if value is None:
            # After a migration this tombstone only ends the classic group; the consumer group stays.
            if isinstance(group, ClassicGroup):
                self._drop(group_id)
            return
        if not isinstance(group, ClassicGroup):
            group = self._add_classic(group_id)
        group.restore(value)

    def _replay_consumer(self, key: RecordKey[Struct], value: Struct | None, timestamp_ms: int) -> None:
        group_id: str = key.group_id  # type: ignore[attr-defined]  # every key in CONSUMER_KEYS has it
        group = self.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return
            group = self.groups[group_id] = ConsumerGroup(group_id)
        group.replay(key, value, timestamp_ms)
        if group.is_deleted:
            self._drop(group_id)

    def _drop(self, group_id: str) -> None:
        self.groups.pop(group_id, None)

    def has_offsets(self, group_id: str) -> bool:
        """Whether the group has committed offsets, unreadable ones included."""
        return self.offsets.has_any(group_id) or bool(self.unreadable.offsets_of(group_id))

    def partitions_with_offsets(self, group_id: str) -> Iterator[TopicPartition]:
        """Partitions for which the group has a committed offset."""
        for partition, _ in self.offsets.partitions(group_id):
            yield partition
        yield from self.unreadable.offsets_of(group_id)

    def _keep_group_with_offsets(self, group_id: str) -> None:
        if group_id not in self.groups and self.has_offsets(group_id):
            self._add_classic(group_id)

    def _add_classic(self, group_id: str) -> ClassicGroup:
        group = self.groups[group_id] = ClassicGroup(group_id)
        group.is_active = self.is_active
        return group

    # Between records

    def settle(self, group: Group) -> None:
        """Put this group under its name. The records of the change are appended afterwards."""
        self.groups[group.group_id] = group
        self.remove_if_unused(group)

    def update_memory_bytes(self, group_id: str) -> None:
        """Update the memory estimate after the group changed or was deleted."""
        group = self.groups.get(group_id)
        after = 0 if group is None else _GROUP_BYTES + group.memory_bytes
        self.memory_bytes += after - self._memory_by_group.pop(group_id, 0)
        if after:
            self._memory_by_group[group_id] = after

    def remove_if_unused(self, group: Group) -> None:
        """Drop a group whose only client requested a member id and did not join."""
        is_unused = isinstance(group, ClassicGroup) and group.is_unused
        if is_unused and not self.has_offsets(group.group_id):
            self.groups.pop(group.group_id, None)
        self.update_memory_bytes(group.group_id)
