"""Reading of record headers, those of many records at once.

All records with headers are read in step: the first header of each, then the second, and so on. A few
records with very many headers would need many steps with little work each, so the last few records are read
to their ends one by one.

Rule 1: A record's headers end where the record ends. Reading them proves that they are complete, so they
        are checked whether or not the column is selected.
Rule 2: A header key that is not UTF-8 is decoded as far as possible, as protocol/records.py does.
Rule 3: A record without headers has null for them, as in Spark's own source for Kafka.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.errors import CorruptData
from penstock.spark.records.binary_extraction import NULL_LENGTH, extract_strings, validity
from penstock.spark.records.varints import ByteArray, IntArray, read_varint, read_varint_at_each

HEADERS_TYPE = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)

_HEADER_BYTES_MIN = 2
_ROWS_IN_STEP_MIN = 8


class HeaderSpans(NamedTuple):
    """The headers of some records, in order."""

    key_start: IntArray
    key_length: IntArray
    value_start: IntArray
    value_length: IntArray
    firsts: IntArray
    """The index of each record's first header, followed by the number of headers."""


def read_headers(raw: ByteArray, counts: IntArray, at: IntArray, ends: IntArray) -> HeaderSpans:
    """Read the headers. CorruptData unless the headers of every record fill it to its end."""
    # Counts are checked against the bytes left before memory is allocated for them.
    room = (ends - at) // _HEADER_BYTES_MIN
    if ((counts < 0) | (counts > np.maximum(room, 0))).any():
        raise CorruptData("the headers of a record do not fit it")
    firsts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=firsts[1:])
    empty = np.empty((4, firsts[-1]), np.int64)
    spans = HeaderSpans(empty[0], empty[1], empty[2], empty[3], firsts)
    at = at.copy()
    rows, done = counts.nonzero()[0], 0
    while len(rows) >= _ROWS_IN_STEP_MIN:
        at[rows] = _read_one_each(raw, at[rows], firsts[rows] + done, spans)
        done += 1
        rows = rows[counts[rows] > done]
        if (at[rows] > ends[rows]).any():
            break  # the rest belongs to other records; the check below raises
    else:
        for row in rows.tolist():
            targets = slice(int(firsts[row]) + done, int(firsts[row + 1]))
            at[row] = _read_rest(raw.data, int(at[row]), targets, spans)
    if (at != ends).any():
        raise CorruptData("the fields of a record do not end where it does")
    return spans


def headers_array(buffer: pa.Buffer, spans: HeaderSpans) -> pa.ListArray:
    keys = extract_strings(buffer, spans.key_start, spans.key_length)
    values = extract_strings(buffer, spans.value_start, spans.value_length)
    pairs = pa.StructArray.from_arrays([_as_text(keys), values], fields=list(HEADERS_TYPE.value_type))
    firsts = spans.firsts.astype(np.int32)
    present = validity(firsts[1:] > firsts[:-1])
    return pa.Array.from_buffers(
        HEADERS_TYPE, len(firsts) - 1, [present, pa.py_buffer(firsts)], children=[pairs]
    )


def no_headers(count: int) -> pa.ListArray:
    return pa.nulls(count, HEADERS_TYPE)


def _read_one_each(raw: ByteArray, at: IntArray, target: IntArray, spans: HeaderSpans) -> IntArray:
    key_length, key_start = read_varint_at_each(raw, at)
    if key_length.min() < 0:
        raise CorruptData("a header has no key")
    value_length, value_start = read_varint_at_each(raw, key_start + key_length)
    if value_length.min() < NULL_LENGTH:
        raise CorruptData("a header has a value of negative length")
    spans.key_start[target], spans.key_length[target] = key_start, key_length
    spans.value_start[target], spans.value_length[target] = value_start, value_length
    return value_start + np.maximum(value_length, 0)


def _read_rest(view: memoryview, at: int, targets: slice, spans: HeaderSpans) -> int:
    """The same for the headers of one record. Returns where they end."""
    found = []
    for _ in range(targets.start, targets.stop):
        key_length, key_start = read_varint(view, at)
        if key_length < 0:
            raise CorruptData("a header has no key")
        value_length, value_start = read_varint(view, key_start + key_length)
        if value_length < NULL_LENGTH:
            raise CorruptData("a header has a value of negative length")
        found.append((key_start, key_length, value_start, value_length))
        at = value_start + max(value_length, 0)
    for column, values in zip(spans[:4], zip(*found, strict=True), strict=True):
        column[targets] = values
    return at


def _as_text(keys: pa.BinaryArray) -> pa.StringArray:
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode(errors="replace") for key in keys.to_pylist()], pa.string())
