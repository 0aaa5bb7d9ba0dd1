"""The quick reader of records against the thorough one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptData
from penstock.log.compaction.record_spans import (
    NO_KEY,
    spans,
    timestamp_delta,
    with_timestamp_delta,
    zigzag_varint,
    zigzag_varint_bytes,
)
from penstock.protocol.batches import HEADER_BYTES, parse_header
from penstock.protocol.records import Record, build_batch
from penstock.types import Offset

TIMES = st.integers(-(2**40), 2**41)
BLOBS = st.one_of(st.none(), st.binary(max_size=300), st.just(bytes(20_000)))
RECORDS = st.lists(
    st.builds(Record, st.just(Offset(0)), TIMES, BLOBS, BLOBS, st.just((("header", b"value"),))),
    min_size=1,
    max_size=150,
)


@given(RECORDS)
def test_keys_offsets_and_tombstones_are_where_they_were_written(records: list[Record]) -> None:
    batch = build_batch(records)
    header, payload = parse_header(batch), batch[HEADER_BYTES:]
    found = list(spans(payload, header.record_count, header.last_offset_delta))
    assert [delta for _, delta, *_ in found] == list(range(len(records)))
    keys = [None if start == NO_KEY else payload[start:end] for _, _, start, end, _, _ in found]
    assert keys == [record.key for record in records]
    assert [tombstone for *_, tombstone, _ in found] == [record.value is None for record in records]
    assert b"".join(payload[start:end] for start, *_, end in found) == payload


@given(RECORDS, TIMES)
def test_a_record_with_another_time_is_otherwise_the_same(records: list[Record], delta: int) -> None:
    batch = build_batch(records)
    header, payload = parse_header(batch), batch[HEADER_BYTES:]
    moved = b"".join(
        with_timestamp_delta(payload, start, end, delta)
        for start, *_, end in spans(payload, header.record_count, header.last_offset_delta)
    )
    again = list(spans(moved, header.record_count, header.last_offset_delta))
    assert [timestamp_delta(moved, start)[0] for start, *_ in again] == [delta] * len(records)
    assert [moved[start:end] for _, _, start, end, *_ in again if start != NO_KEY] == [
        record.key for record in records if record.key is not None
    ]


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_varint_is_read_as_it_was_written(value: int) -> None:
    encoded = zigzag_varint_bytes(value)
    assert zigzag_varint(encoded, 0) == (value, len(encoded))


@given(st.binary(max_size=60), st.integers(0, 5))
def test_nonsense_is_refused_or_read_within_its_bounds(payload: bytes, count: int) -> None:
    try:
        found = list(spans(payload, count, 10))
    except CorruptData:
        return
    assert all(0 <= start < end <= len(payload) for start, *_, end in found)
    assert all(key_start <= key_end < end for _, _, key_start, key_end, _, end in found)


@pytest.mark.parametrize("at", [0, 3, 4])
def test_a_negative_length_or_offset_is_refused(at: int) -> None:
    payload = bytearray(build_batch([Record(Offset(0), 0, b"key", b"value")])[HEADER_BYTES:])
    payload[at] |= 1
    with pytest.raises(CorruptData):
        list(spans(bytes(payload), 1, 0))
