"""Encoding of Arrow columns to record batches, many records at a time.

The frame of a record (its length, deltas, and the lengths of its fields) is computed for all records as
columns of bytes. Arrow joins these with the keys and values, row by row, in one call. Its result has the
memory layout of a batch: one record after the other.

Rule 1: No batch exceeds the limit, except a batch with a single record, which may be larger. Records are
        gathered by their maximum size, so sizes are computed only once. If compression makes a batch larger
        than the limit, the batch stays uncompressed.
Rule 2: The order of records is kept, and no record is in two batches.
Rule 3: Memory is bounded: about GROUP_BYTES of records are encoded at once, in addition to the result.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from penstock.host.clock import SystemClock
from penstock.limits import MIB
from penstock.protocol.batches import CHECKSUM_FROM, HEADER, HEADER_BYTES, LOG_OVERHEAD, MAGIC, NO_SEQUENCE
from penstock.protocol.compression import Codec, compress
from penstock.spark.records.binary_columns import BinaryColumn, binary_column
from penstock.spark.records.varints import BoolArray, ByteArray, IntArray, varint_columns, varint_sizes
from penstock.types import NO_EPOCH, NO_PRODUCER

GROUP_BYTES = 32 * MIB
BATCH_RECORDS_MAX = 1 << 20
"""A limit that keeps an offset delta within three bytes."""

_OFFSET_DELTA_BYTES_MAX = 3
_LENGTH_BYTES_MAX = 5
_ATTRIBUTES_BYTES = 1
_TIMESTAMP_END = 1 << 62
"""The difference of two timestamps must fit into 64 bits."""
_DELTAS_BYTES_MIN = 2
"""The delta bytes of the first record of a batch, whose deltas are both 0."""


class RecordTooLarge(Exception):
    """A record does not fit into a batch of the allowed size."""

    def __init__(self, *, row: int, record_bytes: int, batch_bytes_max: int) -> None:
        super().__init__(
            f"row {row} needs a batch of {record_bytes} bytes, and the limit is {batch_bytes_max}: "
            "raise max.message.bytes of the topic and max.request.size of the writer, or write less"
        )
        self.row = row
        self.record_bytes = record_bytes
        self.batch_bytes_max = batch_bytes_max


class _EncodeColumns(NamedTuple):
    key: BinaryColumn
    value: BinaryColumn
    header_counts: IntArray | None
    header_bytes: BinaryColumn | None
    """The encoded headers of each record, without their count."""
    timestamp: IntArray

    def rows(self, start: int, end: int) -> "_EncodeColumns":
        def part(column: BinaryColumn) -> BinaryColumn:
            return binary_column(column.array.slice(start, end - start))

        return _EncodeColumns(
            part(self.key),
            part(self.value),
            None if self.header_counts is None else self.header_counts[start:end],
            None if self.header_bytes is None else part(self.header_bytes),
            self.timestamp[start:end],
        )


def encode(
    keys: pa.Array | None,
    values: pa.Array,
    headers: pa.ListArray | None,
    timestamps_ms: pa.Int64Array | None,
    *,
    codec: Codec,
    batch_bytes_max: int,
    single_record_batch_bytes_max: int = 0,
    now_ms: int | None = None,
) -> list[bytes]:
    """The encoded batches in order, each with base offset 0, as a producer sends them to a broker.

    `single_record_batch_bytes_max` limits a batch of one record, which may be larger than others. Records
    without a timestamp get `now_ms`, or the current time. Raises RecordTooLarge.
    """
    if not len(values):
        return []
    columns = _columns(keys, values, headers, _timestamps(timestamps_ms, len(values), now_ms))
    sizes = _sizes_max(columns, batch_bytes_max - HEADER_BYTES)
    firsts = _first_rows(sizes, batch_bytes_max, max(single_record_batch_bytes_max, batch_bytes_max))
    batches: list[bytes] = []
    for group in _groups(firsts, sizes):
        start, end = int(group[0]), int(group[-1])
        batches += _encode_group(columns.rows(start, end), group - start, codec, batch_bytes_max)
    return batches


# Columns --------------------------------------------------------------------------------------------


def _columns(
    keys: pa.Array | None, values: pa.Array, headers: pa.ListArray | None, timestamps: IntArray
) -> _EncodeColumns:
    if keys is None:
        keys = pa.nulls(len(values), pa.binary())
    assert len(keys) == len(values) == len(timestamps), "columns are of equal length"
    counts = encoded = None
    if headers is not None:
        assert len(headers) == len(values), "columns are of equal length"
        counts, encoded = _headers(headers)
    return _EncodeColumns(binary_column(keys), binary_column(values), counts, encoded, timestamps)


def _timestamps(timestamps_ms: pa.Int64Array | None, count: int, now_ms: int | None) -> IntArray:
    now = SystemClock().wall_ms() if now_ms is None else now_ms
    if timestamps_ms is None:
        return np.full(count, now, np.int64)
    timestamps = np.asarray(timestamps_ms.fill_null(now), np.int64)
    beyond = (timestamps <= -_TIMESTAMP_END) | (timestamps >= _TIMESTAMP_END)
    if beyond.any():
        row = int(beyond.argmax())
        raise ValueError(f"row {row} has the timestamp {timestamps[row]} ms, which is out of range")
    return timestamps


def _headers(headers: pa.ListArray | pa.ChunkedArray) -> tuple[IntArray, BinaryColumn]:
    """The number of headers of each record, and all headers of a record encoded one after the other."""
    array = headers.combine_chunks() if isinstance(headers, pa.ChunkedArray) else headers
    counts = np.asarray(pc.fill_null(pc.list_value_length(array), 0), np.int64)
    pairs = array.flatten()
    if pairs.null_count or pairs.field(0).null_count:
        raise ValueError("a header is null or has no key: every header needs a key")
    key, value = (binary_column(pairs.field(index)) for index in range(2))
    written = _join(
        [_byte_strings([key.lengths]), key.array, _byte_strings([value.wire_lengths]), value.array]
    )
    borders = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=borders[1:])
    _, offsets, data = written.buffers()
    of_pairs = np.frombuffer(offsets, np.int32) if len(written) else np.zeros(1, np.int32)
    of_rows = np.ascontiguousarray(of_pairs[borders])
    data = pa.py_buffer(b"") if data is None else data
    rows = pa.Array.from_buffers(pa.binary(), len(counts), [None, pa.py_buffer(of_rows), data])
    return counts, binary_column(rows)


# Sizes ----------------------------------------------------------------------------------------------


def _sizes_max(columns: _EncodeColumns, room: int) -> IntArray:
    """The most bytes that each record may take, wherever in a batch it is placed.

    A record that fits into a batch only alone counts as a full batch.
    """
    contents = columns.key.lengths + columns.value.lengths + _ATTRIBUTES_BYTES
    contents += varint_sizes(columns.key.lengths) + varint_sizes(columns.value.lengths)
    if columns.header_counts is not None and columns.header_bytes is not None:
        contents += varint_sizes(columns.header_counts) + columns.header_bytes.lengths
    else:
        contents += 1
    # No timestamp delta within a batch exceeds the spread of all timestamps.
    spread = int(columns.timestamp.max()) - int(columns.timestamp.min())
    delta_bytes = int(varint_sizes(np.array([-spread]))[0])
    sizes = contents + (_LENGTH_BYTES_MAX + delta_bytes + _OFFSET_DELTA_BYTES_MAX)
    doubtful = (sizes > room).nonzero()[0]
    if len(doubtful):
        body = contents[doubtful] + _DELTAS_BYTES_MIN
        alone = body + varint_sizes(body)
        sizes[doubtful] = np.maximum(alone, room)
    return sizes


def _first_rows(sizes: IntArray, batch_bytes_max: int, single_record_batch_bytes_max: int) -> IntArray:
    """The first row of each batch, followed by the number of rows."""
    room = batch_bytes_max - HEADER_BYTES
    too_large = sizes > single_record_batch_bytes_max - HEADER_BYTES
    if too_large.any():
        row = int(too_large.argmax())
        needed = int(sizes[row]) + HEADER_BYTES
        raise RecordTooLarge(row=row, record_bytes=needed, batch_bytes_max=single_record_batch_bytes_max)
    ends = np.cumsum(sizes)
    firsts, row, before = [0], 0, 0
    while row < len(sizes):
        fitting = int(np.searchsorted(ends, before + room, side="right"))
        # A record that does not fit with others gets a batch of its own.
        row = min(max(fitting, row + 1), row + BATCH_RECORDS_MAX)
        before = int(ends[row - 1])
        firsts.append(row)
    return np.array(firsts, np.int64)


def _groups(firsts: IntArray, sizes: IntArray) -> Iterator[IntArray]:
    """The borders of batches that are encoded together."""
    ends = np.concatenate(([0], np.cumsum(sizes)))[firsts]
    first = 0
    while first < len(firsts) - 1:
        last = int(np.searchsorted(ends, ends[first] + GROUP_BYTES, side="right")) - 1
        last = max(last, first + 1)
        yield firsts[first : last + 1]
        first = last


# Writing --------------------------------------------------------------------------------------------


def _encode_group(
    columns: _EncodeColumns, borders: IntArray, codec: Codec, batch_bytes_max: int
) -> list[bytes]:
    counts = np.diff(borders)
    base = columns.timestamp[borders[:-1]]
    timestamp_deltas = columns.timestamp - np.repeat(base, counts)
    offset_deltas = np.arange(len(timestamp_deltas)) - np.repeat(borders[:-1], counts)
    written = _records(columns, timestamp_deltas, offset_deltas)
    _, offsets, data = written.buffers()
    ends = np.frombuffer(offsets, np.int32)[borders].tolist()
    newest = np.maximum.reduceat(columns.timestamp, borders[:-1]).tolist()
    view = memoryview(data)
    batches = []
    for index, (count, first_ms, newest_ms) in enumerate(
        zip(counts.tolist(), base.tolist(), newest, strict=True)
    ):
        payload = view[ends[index] : ends[index + 1]]
        batches.append(_batch(payload, count, (first_ms, newest_ms), codec, batch_bytes_max))
    return batches


def _records(columns: _EncodeColumns, timestamp_deltas: IntArray, offset_deltas: IntArray) -> pa.BinaryArray:
    key, value = columns.key.wire_lengths, columns.value.wire_lengths
    sizes = _ATTRIBUTES_BYTES + varint_sizes(timestamp_deltas) + varint_sizes(offset_deltas)
    sizes += varint_sizes(key) + columns.key.lengths + varint_sizes(value) + columns.value.lengths
    tail: list[pa.Array | pa.Scalar] = [pa.scalar(b"\0", pa.binary())]
    if columns.header_counts is not None and columns.header_bytes is not None:
        sizes += varint_sizes(columns.header_counts) + columns.header_bytes.lengths
        tail = [_byte_strings([columns.header_counts]), columns.header_bytes.array]
    else:
        sizes += 1
    attributes = np.zeros(len(sizes), np.int64)
    head = _byte_strings([sizes, attributes, timestamp_deltas, offset_deltas, key])
    return _join([head, columns.key.array, _byte_strings([value]), columns.value.array, *tail])


def _join(parts: list[pa.Array | pa.Scalar]) -> pa.BinaryArray:
    """The parts of each row joined. Null is empty."""
    separator = pa.scalar(b"", pa.binary())
    return pc.binary_join_element_wise(*parts, separator, null_handling="replace", null_replacement="")


def _byte_strings(numbers: list[IntArray]) -> pa.BinaryArray:
    """The numbers of each row as varints, joined."""
    columns: list[ByteArray] = []
    used: list[BoolArray] = []
    for number in numbers:
        bytes_of, used_of = varint_columns(number)
        columns.append(bytes_of)
        used.append(used_of)
    taken = np.hstack(used)
    borders = np.zeros(len(taken) + 1, np.int32)
    np.cumsum(taken.sum(axis=1), out=borders[1:])
    data = np.hstack(columns)[taken]
    return pa.Array.from_buffers(pa.binary(), len(taken), [None, pa.py_buffer(borders), pa.py_buffer(data)])


def _batch(
    payload: memoryview, count: int, times_ms: tuple[int, int], codec: Codec, batch_bytes_max: int
) -> bytes:
    body: bytes | memoryview = payload
    if codec != Codec.NONE:
        body = compress(codec, payload)
        # Compression can make a batch larger. Sizes were planned for the uncompressed one.
        if HEADER_BYTES + len(body) > batch_bytes_max:
            codec, body = Codec.NONE, payload
    fields = (
        0,
        HEADER_BYTES - LOG_OVERHEAD + len(body),
        NO_EPOCH,
        MAGIC,
        0,
        int(codec),
        count - 1,
        *times_ms,
        NO_PRODUCER,
        -1,
        NO_SEQUENCE,
        count,
    )
    header = HEADER.pack(*fields)
    checksum = crc32c(body, crc32c(header[CHECKSUM_FROM:]))
    return b"".join((HEADER.pack(*fields[:4], checksum, *fields[5:]), body))
