"""Batches for tests of decoding: made by hypothesis, by hand, and read by others for comparison."""

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

from penstock.errors import CorruptData
from penstock.protocol.batches import (
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_BIT,
    check_shape,
    parse_header,
    seal_in_place,
    split_batches,
)
from penstock.protocol.compression import Codec, compress
from penstock.protocol.records import Record, iterate_records
from penstock.spark.records.decode import ColumnSelection, DecodedRecords, RecordBatchDecoder
from penstock.spark.records.record_starts import LANE_SIZES, LaneSizes
from penstock.types import Offset, ProducerId

LIMIT_BYTES = 8 << 20
FOREVER = Offset(2**63 - 1)
SMALL_LANES = LaneSizes(lanes_min=1, steps_at_once=2, lane_records=2)
"""Small batches go the ways of large ones: they are read in step, with guesses every few records."""
ALL = ColumnSelection(key=True, value=True, headers=True, timestamp=True, timestamp_type=True)

Row = tuple[int, int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Offset, timestamp, type of the timestamp, key, value, headers."""


class Fetched(NamedTuple):
    data: memoryview
    aborted: tuple[tuple[ProducerId, Offset], ...] = ()


class Made(NamedTuple):
    """A record as it is written: deltas, and how many bytes too many its varints take."""

    offset_delta: int
    timestamp_delta: int = 0
    key: bytes | None = None
    value: bytes | None = b""
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    padding: int = 0
    behind: bytes = b""
    """What follows the last field, and should not."""


class Stamp(NamedTuple):
    """The header of a batch that is made."""

    base_offset: int = 0
    base_timestamp: int = 1_700_000_000_000
    max_timestamp: int = 1_700_000_000_000
    attributes: int = 0
    producer_id: int = -1
    offsets_behind: int = 0
    """Offsets behind the last record that compaction took away."""


def varint(number: int, padding: int = 0, bytes_max: int = 5) -> bytes:
    raw = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while raw > 0x7F:
        encoded.append(raw & 0x7F | 0x80)
        raw >>= 7
    encoded.append(raw)
    for _ in range(min(padding, bytes_max - len(encoded))):
        encoded[-1] |= 0x80
        encoded.append(0)
    return bytes(encoded)


def nullable(data: bytes | None, padding: int = 0) -> bytes:
    return varint(-1, padding) if data is None else varint(len(data), padding) + data


def made_record(record: Made) -> bytes:
    body = b"".join(
        (
            b"\0",
            varint(record.timestamp_delta, record.padding, 10),
            varint(record.offset_delta, record.padding),
            nullable(record.key, record.padding),
            nullable(record.value, record.padding),
            varint(len(record.headers), record.padding),
            *(nullable(key) + nullable(value) for key, value in record.headers),
            record.behind,
        )
    )
    return varint(len(body), record.padding) + body


FIRST = Stamp()


def made_batch(records: Sequence[Made], stamp: Stamp = FIRST, codec: Codec = Codec.NONE) -> bytes:
    payload = b"".join(map(made_record, records))
    if records or codec == Codec.NONE:
        payload = compress(codec, payload)
    last_delta = (records[-1].offset_delta if records else 0) + stamp.offsets_behind
    batch = bytearray(
        HEADER.pack(
            stamp.base_offset,
            HEADER_BYTES - LOG_OVERHEAD + len(payload),
            0,
            MAGIC,
            0,
            stamp.attributes | codec,
            last_delta,
            stamp.base_timestamp,
            stamp.max_timestamp,
            stamp.producer_id,
            0,
            -1,
            len(records),
        )
        + payload
    )
    seal_in_place(batch)
    return bytes(batch)


def end_transaction(offset: int, producer_id: int, *, commit: bool) -> bytes:
    stamp = Stamp(offset, attributes=CONTROL_BIT | TRANSACTIONAL_BIT, producer_id=producer_id)
    return made_batch([Made(0, 0, struct.pack(">hh", 0, commit), struct.pack(">hi", 0, 0))], stamp)


def sealed(batch: bytes | bytearray) -> bytes:
    again = bytearray(batch)
    seal_in_place(again)
    return bytes(again)


# Reading --------------------------------------------------------------------------------------------


def pieces_of(
    data: bytes,
    columns: ColumnSelection = ALL,
    *,
    start: int = 0,
    end: int = FOREVER,
    read_committed: bool = False,
    aborted: tuple[tuple[int, int], ...] = (),
    lanes: LaneSizes = LANE_SIZES,
) -> list[DecodedRecords]:
    decoder = RecordBatchDecoder(
        columns, read_committed=read_committed, decompressed_bytes_max=LIMIT_BYTES, lanes=lanes
    )
    named = tuple((ProducerId(producer), Offset(first)) for producer, first in aborted)
    decoded = list(decoder.decode(Fetched(memoryview(data), named), Offset(start), Offset(end)))
    for piece in decoded:
        for column in piece[:-1]:
            if column is not None:
                column.validate(full=True)
    return decoded


def rows_in(decoded: Iterable[DecodedRecords]) -> list[Row]:
    rows: list[Row] = []
    for piece in decoded:
        columns = [column.to_pylist() for column in piece[:5] if column is not None]
        assert isinstance(piece.headers, pa.ListArray)
        headers = [
            [(header["key"], header["value"]) for header in row or []] for row in piece.headers.to_pylist()
        ]
        rows += zip(*columns, headers, strict=True)
    return rows


def rows_of_house(data: bytes) -> list[Row]:
    """What protocol/records.py reads, batch by batch."""
    rows: list[Row] = []
    next_offset = 0
    for position, header in split_batches(data):
        batch = data[position : position + header.size]
        check_shape(header)
        if header.base_offset < next_offset:
            raise CorruptData("batches overlap")
        next_offset = header.next_offset
        if header.is_control:
            continue
        rows += (
            _row(record, header.has_log_append_time)
            for record in iterate_records(batch, limit_bytes=LIMIT_BYTES)
        )
    return rows


def _row(record: Record, is_append_time: bool) -> Row:
    return (
        record.offset,
        record.timestamp,
        int(is_append_time),
        record.key,
        record.value,
        list(record.headers),
    )


def rows_of_kafka_python(data: bytes) -> list[Row]:
    from kafka.record.default_records import DefaultRecordBatch

    rows: list[Row] = []
    for position, header in split_batches(data):
        batch = DefaultRecordBatch(data[position : position + header.size])
        assert batch.validate_crc()
        if header.is_control or not header.record_count:
            continue
        rows += (
            (
                record.offset,
                record.timestamp,
                record.timestamp_type,
                record.key,
                record.value,
                list(record.headers),
            )
            for record in batch
        )
    return rows


def rows_or_corrupt(read: Callable[[bytes], list[Row]], data: bytes) -> list[Row] | None:
    """What a reader gives, or None if it refuses."""
    try:
        return read(data)
    except CorruptData:
        return None


def check_against_house(data: bytes, in_lanes: bool) -> None:
    """What protocol/records.py refuses is refused, and what it reads is read."""
    lanes = SMALL_LANES if in_lanes else LANE_SIZES
    found = rows_or_corrupt(lambda data: rows_in(pieces_of(data, lanes=lanes)), data)
    assert found == rows_or_corrupt(rows_of_house, data)


# Making up --------------------------------------------------------------------------------------------

_lengths = st.one_of(st.integers(0, 12), st.sampled_from([55, 63, 64, 120, 127, 128, 300, 8191, 8192, 9000]))
texts = st.one_of(
    st.binary(max_size=12),
    st.builds(
        lambda piece, length: (piece * (length + 1))[:length], st.binary(min_size=1, max_size=5), _lengths
    ),
)
timestamp_deltas = st.one_of(
    st.integers(-3, 300),
    st.integers(-(2**40), 2**40),
    st.sampled_from([63, 64, -64, -65, 8191, 8192, 2**31, -(2**31), 2**34, 2**35, 2**42, 2**49, 2**56]),
)
records = st.builds(
    Made,
    offset_delta=st.integers(1, 3),
    timestamp_delta=timestamp_deltas,
    key=st.none() | texts,
    value=st.none() | texts,
    headers=st.one_of(
        st.just(()),
        st.lists(st.tuples(st.text(max_size=6).map(str.encode), st.none() | texts), max_size=4).map(tuple),
    ),
    padding=st.sampled_from([0, 0, 0, 1, 4]),
    behind=st.just(b""),
)
stamps = st.builds(
    Stamp,
    base_offset=st.integers(0, 5),
    base_timestamp=st.sampled_from([0, -1, 1_700_000_000_000, 2**62]),
    max_timestamp=st.sampled_from([5, 1_700_000_000_000]),
    attributes=st.sampled_from([0, 0, LOG_APPEND_TIME_BIT, DELETE_HORIZON_BIT]),
    producer_id=st.just(-1),
    offsets_behind=st.sampled_from([0, 0, 4]),
)


@st.composite
def chunks(draw: st.DrawFn, batches_max: int = 6) -> bytes:
    """Batches that follow each other, with gaps between and inside, empty ones among them."""
    at = draw(st.sampled_from([0, 7, 2**40]))
    made = []
    for _ in range(draw(st.integers(1, batches_max))):
        stamp = draw(stamps)
        stamp = stamp._replace(base_offset=at + stamp.base_offset)
        codec = draw(st.sampled_from([Codec.NONE, *Codec]))
        gaps = draw(st.lists(records, max_size=12))
        repeated = draw(st.sampled_from([1, 1, 1, 20]))
        batch = made_batch(_ascending(gaps * repeated), stamp, codec)
        at = parse_header(batch).next_offset
        made.append(batch)
    return b"".join(made)


def _ascending(gaps: Sequence[Made]) -> list[Made]:
    delta, placed = -1, []
    for record in gaps:
        delta += record.offset_delta
        placed.append(record._replace(offset_delta=delta))
    return placed
