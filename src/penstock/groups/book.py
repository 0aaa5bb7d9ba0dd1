"""What the log says of the groups of one shard: which there are, and what they have committed.

Both kinds of group share one space of names. A record of one kind turns the name over to it: that is
how a group that changed its protocol is read back.

Rule 1: whatever has offsets is a group, if only a name without members.
"""

from penstock.coordinator.outcome import StateRecord
from penstock.errors import ApiError, CorruptData, ErrorCode
from penstock.groups.classic_group import ClassicGroup
from penstock.groups.consumer_group import CONSUMER_KEYS, ConsumerGroup
from penstock.groups.migration import Group
from penstock.groups.offsets import Offsets
from penstock.groups.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    Key,
    LegacyOffsetCommitKey,
    OffsetCommitKey,
    UnknownKey,
    decode_key,
    decode_value,
)
from penstock.protocol.schema import Struct


class Book:
    __slots__ = ("groups", "is_living", "offsets", "records_skipped")

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.offsets = Offsets()
        self.is_living = False
        """The log has been read: what is replayed from now on was just decided."""
        self.records_skipped = 0
        """Records that nobody could read."""

    def find(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id}")
        return group

    # The log

    def replay(self, record: StateRecord, timestamp_ms: int) -> None:
        try:
            self._replay(decode_key(record.key), record.value, timestamp_ms)
        except CorruptData:
            self.records_skipped += 1

    def _replay(self, key: Key[Struct] | UnknownKey, data: bytes | None, timestamp_ms: int) -> None:
        if isinstance(key, OffsetCommitKey | LegacyOffsetCommitKey):
            self.offsets.replay(key, data)
            self._keep_holder(key.group)
        elif isinstance(key, GroupMetadataKey):
            self._replay_classic(key.group, decode_value(key, data))
        elif isinstance(key, CONSUMER_KEYS):
            self._replay_consumer(key, decode_value(key, data), timestamp_ms)

    def _replay_classic(self, group_id: str, value: GroupMetadataValue | None) -> None:
        group = self.groups.get(group_id)
        if value is None:
            # Of a group that became a consumer group, this is only what it left behind.
            if isinstance(group, ClassicGroup):
                self._drop(group_id)
            return
        if not isinstance(group, ClassicGroup):
            group = self._add_classic(group_id)
        group.restore(value)

    def _replay_consumer(self, key: Key[Struct], value: Struct | None, timestamp_ms: int) -> None:
        group_id: str = key.group_id  # type: ignore[attr-defined]  # every key of these has it
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
        self._keep_holder(group_id)

    def _keep_holder(self, group_id: str) -> None:
        if group_id not in self.groups and self.offsets.has_any(group_id):
            self._add_classic(group_id)

    def _add_classic(self, group_id: str) -> ClassicGroup:
        group = self.groups[group_id] = ClassicGroup(group_id)
        group.is_living = self.is_living
        return group

    # Between records

    def settle(self, group: Group) -> None:
        """The group is this one from now on; the records that say so are being written."""
        self.groups[group.group_id] = group

    def forget_if_unused(self, group: Group) -> None:
        """Of a client that asked for an id and never came back nothing stays."""
        is_unused = isinstance(group, ClassicGroup) and group.is_unused
        if is_unused and not self.offsets.has_any(group.group_id):
            self.groups.pop(group.group_id, None)
