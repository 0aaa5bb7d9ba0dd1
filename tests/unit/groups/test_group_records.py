"""The records of `__consumer_offsets`, against bytes that Kafka 4.2's own classes made."""

from contextlib import suppress
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptData
from penstock.groups.records import (
    RECORD_TYPES,
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    CurrentTopicPartitions,
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    RecordedClassicProtocol,
    RecordKey,
    RecordType,
    TargetTopicPartitions,
    UnknownKey,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from penstock.protocol.schema import Struct
from penstock.types import TopicId
from tests.protocol.samples import sample

TOPIC_ID = TopicId(bytes(range(16)))
NOW_MS = 1754000000123
MEMBER_KEY = "000167 00026d31"
OFFSET_KEY = "0001 000167 00066f7264657273 00000003"
VERSIONS = [(row, version) for row in RECORD_TYPES for version in range(row.version_max + 1)]


def member(classic: ClassicMemberMetadata | None) -> ConsumerGroupMemberMetadataValue:
    return ConsumerGroupMemberMetadataValue(
        client_id="c",
        client_host="/h",
        subscribed_topic_names=["orders"],
        subscribed_topic_regex="",
        rebalance_timeout_ms=300_000,
        server_assignor="uniform",
        classic_member_metadata=classic,
    )


WRITTEN_BY_KAFKA: dict[str, tuple[RecordKey[Struct], Struct, str, str]] = {
    "an offset with a topic id": (
        OffsetCommitKey("g", "orders", 3),
        OffsetCommitValue(42, 6, "meta", NOW_MS, topic_id=TOPIC_ID),
        OFFSET_KEY,
        f"0004 000000000000002a 00000006 056d657461 00000198628c047b 010010 {TOPIC_ID.hex()}",
    ),
    "an offset without a topic id": (
        OffsetCommitKey("g", "orders", 3),
        OffsetCommitValue(42, -1, "", NOW_MS),
        OFFSET_KEY,
        "0004 000000000000002a ffffffff 01 00000198628c047b 00",
    ),
    "an offset that expires": (
        OffsetCommitKey("g", "orders", 3),
        OffsetCommitValue(42, -1, "meta", NOW_MS, expire_timestamp_ms=NOW_MS + 600_000),
        OFFSET_KEY,
        "0001 000000000000002a 00046d657461 00000198628c047b 0000019862952c3b",
    ),
    "a classic group": (
        GroupMetadataKey("g"),
        GroupMetadataValue(
            "consumer",
            7,
            "range",
            "m1",
            NOW_MS,
            [MemberMetadata("m1", "i1", "c", "/h", 300_000, 45_000, b"\x00\x01", b"\x00\x03")],
        ),
        "0002 000167",
        "0003 0008636f6e73756d6572 00000007 000572616e6765 00026d31 00000198628c047b 00000001"
        "00026d31 00026931 000163 00022f68 000493e0 0000afc8 000000020001 000000020003",
    ),
    "an empty classic group": (
        GroupMetadataKey("g"),
        GroupMetadataValue(current_state_timestamp_ms=NOW_MS),
        "0002 000167",
        "0003 0000 00000000 ffff ffff 00000198628c047b 00000000",
    ),
    "the epoch of a consumer group": (
        ConsumerGroupMetadataKey("g"),
        ConsumerGroupMetadataValue(5, -2),
        "0003 000167",
        "0000 00000005 01 0008 fffffffffffffffe",
    ),
    "a member of a consumer group": (
        ConsumerGroupMemberMetadataKey("g", "m1"),
        member(classic=None),
        f"0005 {MEMBER_KEY}",
        "0000 00 00 0263 032f68 02 076f7264657273 01 000493e0 08756e69666f726d 01 0001 00",
    ),
    "a member that speaks the classic protocol": (
        ConsumerGroupMemberMetadataKey("g", "m1"),
        member(ClassicMemberMetadata(45_000, [RecordedClassicProtocol("range", b"\x00\x01")])),
        f"0005 {MEMBER_KEY}",
        "0000 00 00 0263 032f68 02 076f7264657273 01 000493e0 08756e69666f726d"
        "01 0011 01 0000afc8 02 0672616e6765 030001 00 00",
    ),
    "the epoch of a target assignment": (
        ConsumerGroupTargetAssignmentMetadataKey("g"),
        ConsumerGroupTargetAssignmentMetadataValue(5),
        "0006 000167",
        "0000 00000005 00",
    ),
    "the target assignment of a member": (
        ConsumerGroupTargetAssignmentMemberKey("g", "m1"),
        ConsumerGroupTargetAssignmentMemberValue([TargetTopicPartitions(TOPIC_ID, [3])]),
        f"0007 {MEMBER_KEY}",
        f"0000 02 {TOPIC_ID.hex()} 02 00000003 00 00",
    ),
    "the current assignment of a member": (
        ConsumerGroupCurrentMemberAssignmentKey("g", "m1"),
        ConsumerGroupCurrentMemberAssignmentValue(5, 4, 0, [CurrentTopicPartitions(TOPIC_ID, [3])]),
        f"0008 {MEMBER_KEY}",
        f"0000 00000005 00000004 00 02 {TOPIC_ID.hex()} 02 00000003 00 01 00",
    ),
    "a regular expression": (
        ConsumerGroupRegularExpressionKey("g", "ord.*"),
        ConsumerGroupRegularExpressionValue(["orders"], 7, NOW_MS),
        "0010 000167 00056f72642e2a",
        "0000 02 076f7264657273 0000000000000007 00000198628c047b 00",
    ),
}


@pytest.mark.parametrize("name", WRITTEN_BY_KAFKA)
def test_a_record_is_written_and_read_as_kafka_writes_it(name: str) -> None:
    key, value, key_bytes, value_bytes = WRITTEN_BY_KAFKA[name]
    assert encode_key(key).hex() == bytes.fromhex(key_bytes).hex()
    assert encode_value(value).hex() == bytes.fromhex(value_bytes).hex()
    assert decode_key(bytes.fromhex(key_bytes)) == key
    assert decode_value(key, bytes.fromhex(value_bytes)) == value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0000 000000000000002a 0001 6d 0000000000000007", OffsetCommitValue(42, -1, "m", 7)),
        (
            "0001 000000000000002a 0001 6d 0000000000000007 0000000000000009",
            OffsetCommitValue(42, -1, "m", 7, expire_timestamp_ms=9),
        ),
        ("0002 000000000000002a 0001 6d 0000000000000007", OffsetCommitValue(42, -1, "m", 7)),
        ("0003 000000000000002a 00000006 0001 6d 0000000000000007", OffsetCommitValue(42, 6, "m", 7)),
    ],
    ids=["0", "1", "2", "3"],
)
def test_offsets_of_older_kafkas_are_read(value: str, expected: OffsetCommitValue) -> None:
    assert decode_value(OffsetCommitKey("g", "t", 0), bytes.fromhex(value)) == expected


def test_an_offset_from_before_there_were_types_is_read() -> None:
    key = decode_key(bytes.fromhex("0000 000167 000174 00000003"))
    assert key == LegacyOffsetCommitKey("g", "t", 3)
    assert isinstance(key, LegacyOffsetCommitKey)
    value = decode_value(key, bytes.fromhex("0000 000000000000002a 0000 0000000000000007"))
    assert value == LegacyOffsetCommitValue(42, "", 7)


def test_a_group_of_the_first_version_is_read_without_what_came_later() -> None:
    value = "0000 0001 63 00000007 0001 72 0001 6d 00000001 0001 6d 0000 0000 00000bb8 00000001 73 00000000"
    expected = MemberMetadata("m", None, "", "", -1, 3000, b"s", b"")
    assert decode_value(GroupMetadataKey("g"), bytes.fromhex(value)) == GroupMetadataValue(
        "c", 7, "r", "m", -1, [expected]
    )


def test_a_member_without_a_word_about_the_classic_protocol_does_not_speak_it() -> None:
    key, _, _, written = WRITTEN_BY_KAFKA["a member of a consumer group"]
    silent = bytes.fromhex(written)[: -len(b"\x01\x00\x01\x00")] + b"\x00"
    assert decode_value(key, silent) == member(classic=None)


def test_what_newer_kafkas_add_in_tags_is_read_or_skipped() -> None:
    key = ConsumerGroupCurrentMemberAssignmentKey("g", "m")
    epochs = CurrentTopicPartitions(TOPIC_ID, [3, 4], [7, 8])
    assert decode_value(
        key,
        bytes.fromhex(
            f"0000 00000005 00000004 00 02 {TOPIC_ID.hex()} 03 00000003 00000004"
            "01 0009 03 00000007 00000008 01 01 63 02 ffff"
        ),
    ) == ConsumerGroupCurrentMemberAssignmentValue(5, 4, 0, [epochs])


@pytest.mark.parametrize("number", [-1, 9, 15, 17, 32767])
def test_a_key_of_a_type_to_come_is_unknown_and_no_error(number: int) -> None:
    assert decode_key(number.to_bytes(2, signed=True) + b"whatever") == UnknownKey(number)


@pytest.mark.parametrize("row", RECORD_TYPES, ids=lambda row: row.key.__name__)
def test_no_value_is_a_tombstone(row: RecordType) -> None:
    assert decode_value(row.key(), None) is None


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("", "key: 0 bytes are too few"),
        ("00", "key: 1 bytes are too few"),
        ("0001 000167 0001", "OffsetCommitKey: .*"),
        ("0001 000167 000174 000000", "OffsetCommitKey: .*"),
        ("0001 ffff 000174 00000003", "OffsetCommitKey: group is null"),
        ("0001 0001ff 000174 00000003", "OffsetCommitKey: .*utf-8"),
        ("0001 000167 000174 00000003 00", "OffsetCommitKey: 1 bytes follow its end"),
    ],
)
def test_a_key_that_nobody_wrote_is_corrupt(data: str, complaint: str) -> None:
    with pytest.raises(CorruptData, match=complaint):
        decode_key(bytes.fromhex(data))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("", "OffsetCommitValue: 0 bytes are too few"),
        ("0005 000000000000002a", "OffsetCommitValue: version 5 is not in 0 to 4"),
        ("ffff 000000000000002a", "OffsetCommitValue: version -1 is not in 0 to 4"),
        ("0003 000000000000002a 00000006 0000", "OffsetCommitValue: .*"),
        ("0003 000000000000002a 00000006 0000 0000000000000007 ff", "OffsetCommitValue: 1 bytes follow"),
        ("0004 000000000000002a 00000006 00 0000000000000007 00", "OffsetCommitValue: metadata is null"),
    ],
)
def test_a_value_that_nobody_wrote_is_corrupt(data: str, complaint: str) -> None:
    with pytest.raises(CorruptData, match=complaint):
        decode_value(OffsetCommitKey("g", "t", 0), bytes.fromhex(data))


def test_keys_serve_as_keys() -> None:
    state = {OffsetCommitKey("g", "t", 1): 1, LegacyOffsetCommitKey("g", "t", 1): 0}
    assert len(state) == 2
    found = decode_key(memoryview(encode_key(OffsetCommitKey("g", "t", 1))))
    assert isinstance(found, OffsetCommitKey)
    assert state[found] == 1


@given(st.sampled_from(VERSIONS), st.integers(0, 2**32))
def test_every_record_comes_back_in_every_version(row_and_version: tuple[RecordType, int], seed: int) -> None:
    row, version = row_and_version
    random = Random(seed)
    key, value = sample(row.key, 0, random), sample(row.value, version, random)
    for buffer in (bytes, bytearray, memoryview):
        assert decode_key(buffer(encode_key(key))) == key
        assert decode_value(key, buffer(encode_value(value, version))) == value


@given(st.sampled_from(VERSIONS), st.integers(0, 2**32))
def test_a_record_cut_short_is_corrupt(row_and_version: tuple[RecordType, int], seed: int) -> None:
    row, version = row_and_version
    random = Random(seed)
    key = sample(row.key, 0, random)
    key_bytes, value_bytes = encode_key(key), encode_value(sample(row.value, version, random), version)
    with pytest.raises(CorruptData):
        decode_key(key_bytes[: random.randrange(len(key_bytes))])
    with pytest.raises(CorruptData):
        decode_value(key, value_bytes[: random.randrange(len(value_bytes))])


@given(st.sampled_from(VERSIONS), st.binary(max_size=200))
def test_any_bytes_are_a_record_or_corrupt(row_and_version: tuple[RecordType, int], noise: bytes) -> None:
    row, version = row_and_version
    for start in (b"", row.number.to_bytes(2)):
        with suppress(CorruptData):
            decode_key(start + noise)
    for start in (b"", version.to_bytes(2)):
        with suppress(CorruptData):
            decode_value(row.key(), start + noise)
