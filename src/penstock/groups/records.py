# ruff: noqa: RUF012 - msgspec makes a new empty list for every instance
"""The records of `__consumer_offsets`, in the format of Kafka 4.2.

A key is a type (int16) and its fields; a value is a version (int16) and its fields. A record without a
value is a tombstone: it deletes the key. The codecs are compiled like those of messages.

    type  key                                            value
    0     group, topic, partition (before Kafka 0.9)     committed offset
    1     group, topic, partition                        committed offset
    2     group                                          classic group and its members
    3     group                                          epoch of a consumer group
    4     group                                          its topics (before Kafka 4.1, now the hash in 3)
    5     group, member                                  subscription of a member
    6     group                                          epoch of the target assignment
    7     group, member                                  target assignment of a member
    8     group, member                                  current assignment of a member
    16    group, regular expression                      the topics that it matched

Rule 1: every version that Kafka ever wrote is read. The versions of Kafka 4.2 are written:
        `version_to_write`.
Rule 2: a type that is not in the table decodes to UnknownKey and is ignored. Newer software wrote it.
Rule 3: everything else that cannot be read is CorruptData: no Kafka version has written it.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Final, Generic, TypeVar, cast

import msgspec

from penstock.coordinator.record_codec import PENSTOCK_TAG, PREFIX, decode_fields, read_prefix
from penstock.errors import CorruptData
from penstock.protocol.compiler import Encoder, encoder
from penstock.protocol.schema import (
    Bytes,
    FrozenStruct,
    Int8,
    Int32,
    Int64,
    String,
    Struct,
    TopicUuid,
    tagged,
    versions,
)
from penstock.types import NO_TIMESTAMP, NO_TOPIC_ID, Buffer

_KEY_VERSION: Final = 0

Value_co = TypeVar("Value_co", bound=Struct, covariant=True)


class RecordKey(FrozenStruct, Generic[Value_co], frozen=True):
    """A record key, generic in the class of its values. Keys are hashable."""


class UnknownKey(msgspec.Struct, frozen=True, gc=False):
    """The key of a record of an unknown type. The record is ignored, and stays in the log."""

    type: int


# Offsets


class LegacyOffsetCommitValue(Struct):
    offset: Int64 = 0
    metadata: String = ""
    commit_timestamp_ms: Int64 = 0


class LegacyOffsetCommitKey(RecordKey[LegacyOffsetCommitValue], frozen=True):
    group: String = ""
    topic: String = ""
    partition: Int32 = 0


class OffsetCommitValue(Struct):
    offset: Int64 = 0
    leader_epoch: Annotated[Int32, versions(3)] = -1
    metadata: String = ""
    commit_timestamp_ms: Int64 = 0
    expire_timestamp_ms: Annotated[Int64, versions(1, 1)] = NO_TIMESTAMP
    topic_id: Annotated[TopicUuid, versions(4), tagged(0)] = NO_TOPIC_ID
    kept_until_ms: Annotated[Int64, versions(4), tagged(PENSTOCK_TAG)] = NO_TIMESTAMP
    """Expiry that a client requested, stored beside the topic id. Kafka skips unknown tags. Kafka itself
    can store an expiry only in version 1, which has no topic id."""


class OffsetCommitKey(RecordKey[OffsetCommitValue], frozen=True):
    group: String = ""
    topic: String = ""
    partition: Int32 = 0


# Classic groups


class MemberMetadata(Struct):
    member_id: String = ""
    group_instance_id: Annotated[String | None, versions(3)] = None
    client_id: String = ""
    client_host: String = ""
    rebalance_timeout_ms: Annotated[Int32, versions(1)] = -1
    session_timeout_ms: Int32 = 0
    subscription: Bytes = b""
    assignment: Bytes = b""


class GroupMetadataValue(Struct):
    protocol_type: String = ""
    generation: Int32 = 0
    protocol: String | None = None
    leader: String | None = None
    current_state_timestamp_ms: Annotated[Int64, versions(2)] = NO_TIMESTAMP
    members: list[MemberMetadata] = []


class GroupMetadataKey(RecordKey[GroupMetadataValue], frozen=True):
    group: String = ""


# Consumer groups (KIP-848)


class ConsumerGroupMetadataValue(Struct):
    epoch: Int32 = 0
    metadata_hash: Annotated[Int64, tagged(0)] = 0


class ConsumerGroupMetadataKey(RecordKey[ConsumerGroupMetadataValue], frozen=True):
    group_id: String = ""


class PartitionRacks(Struct):
    partition: Int32 = 0
    racks: list[String] = []


class SubscribedTopicMetadata(Struct):
    topic_id: TopicUuid = NO_TOPIC_ID
    topic_name: String = ""
    num_partitions: Int32 = 0
    partition_metadata: list[PartitionRacks] = []


class ConsumerGroupPartitionMetadataValue(Struct):
    topics: list[SubscribedTopicMetadata] = []


class ConsumerGroupPartitionMetadataKey(RecordKey[ConsumerGroupPartitionMetadataValue], frozen=True):
    group_id: String = ""


class RecordedClassicProtocol(Struct):
    name: String = ""
    metadata: Bytes = b""


class ClassicMemberMetadata(Struct):
    """Extra state of a classic-protocol member in a consumer group."""

    session_timeout_ms: Int32 = 0
    supported_protocols: list[RecordedClassicProtocol] = []


class ConsumerGroupMemberMetadataValue(Struct):
    instance_id: String | None = None
    rack_id: String | None = None
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = []
    subscribed_topic_regex: String | None = None
    rebalance_timeout_ms: Int32 = -1
    server_assignor: String | None = None
    classic_member_metadata: Annotated[ClassicMemberMetadata | None, tagged(0, always=True)] = None
    """Always written: Kafka reads a record without this field as a classic member without protocols."""


class ConsumerGroupMemberMetadataKey(RecordKey[ConsumerGroupMemberMetadataValue], frozen=True):
    group_id: String = ""
    member_id: String = ""


class ConsumerGroupTargetAssignmentMetadataValue(Struct):
    assignment_epoch: Int32 = 0
    assignment_timestamp_ms: Annotated[Int64, tagged(0)] = 0


class ConsumerGroupTargetAssignmentMetadataKey(
    RecordKey[ConsumerGroupTargetAssignmentMetadataValue], frozen=True
):
    group_id: String = ""


class TargetTopicPartitions(Struct):
    topic_id: TopicUuid = NO_TOPIC_ID
    partitions: list[Int32] = []


class ConsumerGroupTargetAssignmentMemberValue(Struct):
    topic_partitions: list[TargetTopicPartitions] = []


class ConsumerGroupTargetAssignmentMemberKey(
    RecordKey[ConsumerGroupTargetAssignmentMemberValue], frozen=True
):
    group_id: String = ""
    member_id: String = ""


class CurrentTopicPartitions(Struct):
    topic_id: TopicUuid = NO_TOPIC_ID
    partitions: list[Int32] = []
    assignment_epochs: Annotated[list[Int32] | None, tagged(0)] = None
    """Written by Kafka 4.3 and later: the epoch at which each partition was assigned. Kafka 4.2 writes
    None."""


class ConsumerGroupCurrentMemberAssignmentValue(Struct):
    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    assigned_partitions: list[CurrentTopicPartitions] = []
    partitions_pending_revocation: list[CurrentTopicPartitions] = []


class ConsumerGroupCurrentMemberAssignmentKey(
    RecordKey[ConsumerGroupCurrentMemberAssignmentValue], frozen=True
):
    group_id: String = ""
    member_id: String = ""


class ConsumerGroupRegularExpressionValue(Struct):
    topics: list[String] = []
    version: Int64 = 0
    timestamp_ms: Int64 = 0


class ConsumerGroupRegularExpressionKey(RecordKey[ConsumerGroupRegularExpressionValue], frozen=True):
    group_id: String = ""
    regular_expression: String = ""


class RecordType(msgspec.Struct, frozen=True):
    """One row of the table above: the classes, and the first flexible version of the value."""

    number: int
    key: type[RecordKey[Struct]]
    value: type[Struct]
    version_max: int = 0
    flexible: int | None = 0

    def is_flexible(self, version: int) -> bool:
        return self.flexible is not None and version >= self.flexible


RECORD_TYPES: Final = (
    RecordType(0, LegacyOffsetCommitKey, LegacyOffsetCommitValue, flexible=None),
    RecordType(1, OffsetCommitKey, OffsetCommitValue, version_max=4, flexible=4),
    RecordType(2, GroupMetadataKey, GroupMetadataValue, version_max=4, flexible=4),
    RecordType(3, ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
    RecordType(4, ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue),
    RecordType(5, ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
    RecordType(6, ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
    RecordType(7, ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
    RecordType(8, ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
    RecordType(16, ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
)

_BY_NUMBER: Final = {row.number: row for row in RECORD_TYPES}
_BY_KEY: Final[dict[type, RecordType]] = {row.key: row for row in RECORD_TYPES}
_BY_VALUE: Final[dict[type, RecordType]] = {row.value: row for row in RECORD_TYPES}


@cache
def _key_encoder(kind: type[RecordKey[Struct]]) -> tuple[bytes, Encoder[RecordKey[Struct]]]:
    return PREFIX.pack(_BY_KEY[kind].number), encoder(kind, _KEY_VERSION, False)


@cache
def _value_encoder(kind: type[Struct], version: int) -> tuple[bytes, Encoder[Struct]]:
    row = _BY_VALUE[kind]
    assert 0 <= version <= row.version_max, f"{kind.__name__} has no version {version}"
    return PREFIX.pack(version), encoder(kind, version, row.is_flexible(version))


def encode_key(key: RecordKey[Struct]) -> bytes:
    prefix, encode = _key_encoder(type(key))
    return prefix + cast(bytes, encode(key)[0])


def encode_value(value: Struct, version: int | None = None) -> bytes:
    """Encode a value in the version that Kafka 4.2 writes, or in `version`."""
    prefix, encode = _value_encoder(type(value), version_to_write(value) if version is None else version)
    return prefix + cast(bytes, encode(value)[0])


def version_to_write(value: Struct) -> int:
    """Version in which Kafka 4.2 writes this value."""
    if isinstance(value, OffsetCommitValue):
        # Kafka writes an expiry in version 1, which has neither leader epoch nor topic id.
        return 4 if value.expire_timestamp_ms == NO_TIMESTAMP else 1
    if isinstance(value, GroupMetadataValue):
        return 3
    return 0


def decode_key(data: Buffer) -> RecordKey[Struct] | UnknownKey:
    number = read_prefix(data, "key")
    row = _BY_NUMBER.get(number)
    if row is None:
        return UnknownKey(number)
    return decode_fields(row.key, _KEY_VERSION, False, data)


def decode_value(key: RecordKey[Value_co], data: Buffer | None) -> Value_co | None:
    """Decode the value of `key`. None is a tombstone."""
    if data is None:
        return None
    row = _BY_KEY[type(key)]
    version = read_prefix(data, row.value.__name__)
    if not 0 <= version <= row.version_max:
        raise CorruptData(f"{row.value.__name__}: version {version} is not in 0 to {row.version_max}")
    return cast(Value_co, decode_fields(row.value, version, row.is_flexible(version), data))
