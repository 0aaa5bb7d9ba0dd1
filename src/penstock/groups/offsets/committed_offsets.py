"""The committed offsets of the groups of one shard.

A hundred thousand committed offsets are common, so each is small: a struct in a dict in a dict. All groups
share one string and one id per topic.

Rule 1: the offsets change only through `replay`. Commands build records; replaying them makes the change.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from penstock.coordinator.outcome import StateRecord
from penstock.groups.memory_estimates import text_memory
from penstock.groups.records import (
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_value,
    encode_key,
    encode_value,
)
from penstock.types import NO_EPOCH, NO_TIMESTAMP, NO_TOPIC_ID, LeaderEpoch, Offset, TopicId, TopicPartition


# Not tracked by the garbage collector: it holds only numbers and strings, and there are very many.
class OffsetAndMetadata(msgspec.Struct, frozen=True, gc=False):
    offset: Offset
    leader_epoch: LeaderEpoch
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_TIMESTAMP
    """Expiry that the client requested, if any."""
    topic_id: TopicId = NO_TOPIC_ID

    @property
    def memory_bytes(self) -> int:
        return _OFFSET_BYTES + text_memory(self.metadata)

    def is_for_topic(self, topic_id: TopicId) -> bool:
        """Whether this offset is of that topic, and not of an earlier topic of the same name."""
        return NO_TOPIC_ID in (self.topic_id, topic_id) or self.topic_id == topic_id


class PartitionCommit(NamedTuple):
    """One validated partition of a commit."""

    partition: TopicPartition
    committed: OffsetAndMetadata


_OFFSET_BYTES: Final = 300
_GROUP_BYTES: Final = 1_000
"""Estimated memory of an offset beside its metadata, and of a group that has offsets."""

GroupOffsets = Mapping[str, Mapping[int, OffsetAndMetadata]]
_NO_OFFSETS: GroupOffsets = {}


class CommittedOffsets:
    def __init__(self) -> None:
        self._by_group: dict[str, dict[str, dict[int, OffsetAndMetadata]]] = {}
        self._topics: dict[str, str] = {}
        self._ids: dict[TopicId, TopicId] = {}
        self.memory_bytes = 0
        """Estimated memory of all offsets."""

    # Queries

    def find(self, group_id: str, topic: str, partition: int) -> OffsetAndMetadata | None:
        return self._by_group.get(group_id, _NO_OFFSETS).get(topic, {}).get(partition)

    def of_group(self, group_id: str) -> GroupOffsets:
        return self._by_group.get(group_id, _NO_OFFSETS)

    def groups(self) -> Iterable[str]:
        return self._by_group.keys()

    def has_any(self, group_id: str) -> bool:
        return group_id in self._by_group

    def partitions(self, group_id: str) -> Iterator[tuple[TopicPartition, OffsetAndMetadata]]:
        for topic, partitions in self.of_group(group_id).items():
            for index, committed in partitions.items():
                yield TopicPartition(topic, index), committed

    # Updates

    def replay(self, key: OffsetCommitKey | LegacyOffsetCommitKey, data: bytes | None) -> None:
        """Apply a record. Raises CorruptData if the value cannot be read; then nothing changes."""
        if isinstance(key, OffsetCommitKey):
            value: OffsetCommitValue | LegacyOffsetCommitValue | None = decode_value(key, data)
        else:
            value = decode_value(key, data)
        if value is None:
            self._remove(key.group, key.topic, key.partition)
            return
        topic = self._topics.setdefault(key.topic, key.topic)
        if key.group not in self._by_group:
            self.memory_bytes += _GROUP_BYTES
        partitions = self._by_group.setdefault(key.group, {}).setdefault(topic, {})
        before, after = partitions.get(key.partition), self._committed(value)
        self.memory_bytes += after.memory_bytes - (before.memory_bytes if before else 0)
        partitions[key.partition] = after

    def _committed(self, value: OffsetCommitValue | LegacyOffsetCommitValue) -> OffsetAndMetadata:
        if isinstance(value, LegacyOffsetCommitValue):
            return OffsetAndMetadata(
                Offset(value.offset), NO_EPOCH, value.metadata, value.commit_timestamp_ms
            )
        topic_id = TopicId(value.topic_id)
        return OffsetAndMetadata(
            Offset(value.offset),
            LeaderEpoch(value.leader_epoch),
            value.metadata,
            value.commit_timestamp_ms,
            value.expire_timestamp_ms if value.kept_until_ms == NO_TIMESTAMP else value.kept_until_ms,
            self._ids.setdefault(topic_id, topic_id),
        )

    def _remove(self, group_id: str, topic: str, partition: int) -> None:
        topics = self._by_group.get(group_id)
        partitions = topics.get(topic) if topics is not None else None
        if topics is None or partitions is None:
            return
        committed = partitions.pop(partition, None)
        self.memory_bytes -= committed.memory_bytes if committed else 0
        if not partitions:
            del topics[topic]
        if not topics:
            del self._by_group[group_id]
            self.memory_bytes -= _GROUP_BYTES


def commit_records(group_id: str, commits: Iterable[PartitionCommit]) -> list[StateRecord]:
    return [
        StateRecord(
            encode_key(OffsetCommitKey(group_id, partition.topic, partition.partition)),
            encode_value(
                OffsetCommitValue(
                    committed.offset,
                    committed.leader_epoch,
                    committed.metadata,
                    committed.commit_timestamp_ms,
                    topic_id=committed.topic_id,
                    kept_until_ms=committed.expire_timestamp_ms,
                )
            ),
        )
        for partition, committed in commits
    ]


def offset_tombstones(group_id: str, partitions: Iterable[TopicPartition]) -> list[StateRecord]:
    return [
        StateRecord(encode_key(OffsetCommitKey(group_id, topic, index)), None) for topic, index in partitions
    ]
