"""The header of a batch: read, checked, stamped, and found one after another in a buffer."""

import struct
import warnings

import pytest

from penstock.errors import CorruptData
from penstock.protocol.batches import (
    HEADER,
    HEADER_BYTES,
    BatchHeader,
    check_client_shape,
    check_shape,
    crc_matches,
    parse_header,
    parse_only_header,
    seal_in_place,
    split_batches,
    stamp_in_place,
    with_log_append_time,
)

with warnings.catch_warnings():
    # kafka-python reads its schemas in a way that Python 3.11 deprecated and 3.13 restored.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch

TWO_RECORDS = bytes.fromhex(
    "000000000000000000000048ffffffff02fde865790000000000010000018bcfe568000000018bcfe56805"
    "ffffffffffffffffffffffffffff0000000212000000026b0476310018000a02010476320202680278"
)
COMMIT_MARKER = bytes.fromhex(
    "0000000000000002000000420000000402ad320ccb0030000000000000018bcfe568000000018bcfe568000"
    "0000000000003e80003ffffffff000000012000000008000000010c00000000000700"
)
SENT_MS = 1_700_000_000_000


def header_with(**fields: int) -> BatchHeader:
    return parse_header(TWO_RECORDS)._replace(**fields)  # type: ignore[arg-type]


def test_a_producers_header_is_read_field_by_field() -> None:
    header = parse_header(TWO_RECORDS)

    assert header == (0, 72, -1, 2, 0xFDE86579, 0, 1, SENT_MS, SENT_MS + 5, -1, -1, -1, 2)
    assert (header.size, header.last_offset, header.next_offset, header.codec) == (84, 1, 2, 0)
    assert (header.is_transactional, header.is_control, header.has_log_append_time) == (False, False, False)


def test_a_markers_header_is_read_field_by_field() -> None:
    header = parse_header(COMMIT_MARKER)

    assert (header.base_offset, header.last_offset, header.next_offset) == (2, 2, 3)
    assert (header.leader_epoch, header.producer_id, header.producer_epoch) == (4, 1000, 3)
    assert header.is_transactional
    assert header.is_control
    assert not header.has_log_append_time


@pytest.mark.parametrize("codec", range(8))
def test_the_codec_is_the_low_three_bits(codec: int) -> None:
    assert header_with(attributes=0x38 | codec).codec == codec


@pytest.mark.parametrize(
    ("base_sequence", "last_offset_delta", "last_sequence"),
    [(0, 4, 4), (2**31 - 1, 0, 2**31 - 1), (2**31 - 1, 1, 0), (2**31 - 3, 5, 2), (-1, 4, -1)],
)
def test_sequences_return_to_zero_after_the_largest(
    base_sequence: int, last_offset_delta: int, last_sequence: int
) -> None:
    header = header_with(base_sequence=base_sequence, last_offset_delta=last_offset_delta)

    assert header.last_sequence == last_sequence


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1])
def test_a_header_cut_short_is_corrupt(size: int) -> None:
    with pytest.raises(CorruptData, match=f"{size} remain"):
        parse_header(TWO_RECORDS[:size])


@pytest.mark.parametrize("batch_length", [48, 0, -1, -(2**31)])
def test_a_length_too_small_for_a_header_is_corrupt(batch_length: int) -> None:
    batch = bytearray(TWO_RECORDS)
    struct.pack_into(">i", batch, 8, batch_length)

    with pytest.raises(CorruptData, match="batch length"):
        parse_header(batch)


def test_a_buffer_with_more_or_less_than_one_batch_is_corrupt() -> None:
    assert parse_only_header(TWO_RECORDS).record_count == 2
    for buffer in (TWO_RECORDS + b"\x00", TWO_RECORDS[:-1]):
        with pytest.raises(CorruptData):
            parse_only_header(buffer)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_the_checksum_holds_wherever_the_batch_lies(kind: type[bytes | bytearray | memoryview]) -> None:
    buffer = kind(b"x" * 7 + TWO_RECORDS + COMMIT_MARKER)

    assert crc_matches(buffer, parse_header(buffer, 7), 7)
    assert crc_matches(buffer, parse_header(buffer, 91), 91)


def test_any_flipped_bit_under_the_checksum_is_noticed() -> None:
    for at in range(17, len(TWO_RECORDS)):
        damaged = bytearray(TWO_RECORDS)
        damaged[at] ^= 1
        assert not crc_matches(damaged, parse_header(damaged)), f"byte {at}"


def test_a_batch_cut_short_fails_its_checksum() -> None:
    assert not crc_matches(TWO_RECORDS[:-1], parse_header(TWO_RECORDS))

    # The length is not under the checksum, so a length that lies could leave it intact.
    claims_more = bytearray(TWO_RECORDS)
    struct.pack_into(">i", claims_more, 8, 73)
    assert not crc_matches(claims_more, parse_header(claims_more))


def test_stamping_changes_offset_and_epoch_and_nothing_else() -> None:
    buffer = bytearray(b"before" + TWO_RECORDS + b"after")

    stamp_in_place(memoryview(buffer)[6:-5], 2**40, 9)

    header = parse_header(buffer, 6)
    assert header == parse_header(TWO_RECORDS)._replace(base_offset=2**40, leader_epoch=9)  # type: ignore[arg-type]
    assert crc_matches(buffer, header, 6)
    assert buffer[6 + HEADER_BYTES :] == TWO_RECORDS[HEADER_BYTES:] + b"after"
    assert buffer[:6] == b"before"


def test_the_brokers_time_replaces_the_time_of_every_record() -> None:
    stamped = with_log_append_time(memoryview(TWO_RECORDS), SENT_MS + 1000)

    header = parse_header(stamped)
    assert header.has_log_append_time
    assert (header.base_timestamp, header.max_timestamp) == (SENT_MS, SENT_MS + 1000)
    assert crc_matches(stamped, header)
    theirs = DefaultRecordBatch(bytes(stamped))
    assert theirs.validate_crc()
    assert [record.timestamp for record in theirs] == [SENT_MS + 1000, SENT_MS + 1000]


def test_the_brokers_time_keeps_the_other_attributes() -> None:
    header = parse_header(with_log_append_time(COMMIT_MARKER, 5))

    assert header.attributes == 0x38


def test_batches_are_found_one_after_another() -> None:
    buffer = TWO_RECORDS + COMMIT_MARKER + TWO_RECORDS
    walk = split_batches(buffer)

    assert [(position, header.size) for position, header in walk] == [(0, 84), (84, 78), (162, 84)]
    assert walk.position == len(buffer)


def test_a_walk_may_start_at_a_later_batch() -> None:
    walk = split_batches(TWO_RECORDS + COMMIT_MARKER, 84)

    assert [position for position, _ in walk] == [84]


@pytest.mark.parametrize("tail_bytes", [1, 11, 12, 60, 61, 77])
def test_a_walk_stops_before_an_incomplete_tail_and_says_where(tail_bytes: int) -> None:
    walk = split_batches(TWO_RECORDS + COMMIT_MARKER[:tail_bytes])

    assert [position for position, _ in walk] == [0]
    assert walk.position == len(TWO_RECORDS)


def test_a_walk_over_nothing_finds_nothing() -> None:
    walk = split_batches(b"")

    assert list(walk) == []
    assert walk.position == 0


def test_a_walk_cannot_pass_a_length_that_cannot_be() -> None:
    walk = split_batches(TWO_RECORDS + bytes(100))

    assert next(walk)[0] == 0
    with pytest.raises(CorruptData):
        next(walk)
    assert walk.position == len(TWO_RECORDS)


CONTRADICTIONS = {
    "magic 0": {"magic": 0},
    "magic 1": {"magic": 1},
    "magic 3": {"magic": 3},
    "codec 5": {"attributes": 5},
    "codec 7": {"attributes": 7},
    "negative count": {"record_count": -1},
    "more records than offsets": {"record_count": 3},
    "negative last offset delta": {"record_count": 0, "last_offset_delta": -1},
    "negative offset": {"base_offset": -1},
    "offsets past the last": {"base_offset": 2**63 - 2},
}


@pytest.mark.parametrize("fields", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_header_that_contradicts_itself_is_corrupt(fields: dict[str, int]) -> None:
    for check in (check_shape, check_client_shape):
        with pytest.raises(CorruptData):
            check(header_with(**fields))


COMPACTED_OR_OURS = {
    "a gap": {"record_count": 1},
    "no record left": {"record_count": 0},
    "control": {"attributes": 0x30},
    "a delete horizon": {"attributes": 0x40},
    "a producer without a sequence": {"producer_id": 7},
}


@pytest.mark.parametrize("fields", COMPACTED_OR_OURS.values(), ids=COMPACTED_OR_OURS)
def test_what_only_the_broker_may_write_is_refused_from_a_client(fields: dict[str, int]) -> None:
    check_shape(header_with(**fields))
    with pytest.raises(CorruptData):
        check_client_shape(header_with(**fields))


def test_ordinary_batches_pass_every_check() -> None:
    check_client_shape(parse_header(TWO_RECORDS))
    check_client_shape(header_with(producer_id=7, producer_epoch=0, base_sequence=0))
    check_client_shape(header_with(base_offset=2**63 - 3))
    check_shape(parse_header(COMMIT_MARKER))
    with pytest.raises(CorruptData):
        check_client_shape(parse_header(COMMIT_MARKER))


def test_sealing_gives_the_checksum_that_clients_expect() -> None:
    batch = bytearray(TWO_RECORDS)
    HEADER.pack_into(batch, 0, *header_with(crc=0, producer_id=7, base_sequence=3))

    seal_in_place(batch)

    assert crc_matches(batch, parse_header(batch))
    assert DefaultRecordBatch(bytes(batch)).validate_crc()
