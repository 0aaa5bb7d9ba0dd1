"""Validation of records and positions of their fields, as columns of numbers, before data is extracted.

Rule 1: Every field of every record is checked, whichever columns are selected, so a batch is accepted or
        rejected for every query alike. What protocol/records.py rejects is rejected here.
Rule 2: Lengths are never negative except for null, so positions only move forward. If the last field ends
        where its record does, all fields lie inside the record. Until that check, positions are not
        trusted.
"""

from typing import NamedTuple

import numpy as np

from penstock.errors import CorruptData
from penstock.protocol.batches import LOG_APPEND_TIME_BIT
from penstock.spark.records.batch_table import BatchTable
from penstock.spark.records.binary_extraction import NULL_LENGTH
from penstock.spark.records.record_headers import HeaderSpans, read_headers
from penstock.spark.records.record_starts import RecordSpans
from penstock.spark.records.varints import LONG_BYTES_MAX, BoolArray, ByteArray, IntArray, read_varint_at_each

_FAR = 1 << 62
"""The sum of two numbers below this limit does not wrap around."""


class FieldSpans(NamedTuple):
    """Position of one field in each record."""

    start: IntArray
    length: IntArray
    """The length of the field, -1 for null."""


class Rows(NamedTuple):
    """Offset, timestamp and positions of the fields of each record."""

    offset: IntArray
    timestamp: IntArray
    is_append_time: BoolArray | None
    """None if no record has the broker's time."""
    key: FieldSpans
    value: FieldSpans
    headers: HeaderSpans | None
    """None if no record has headers."""


class BatchRows:
    """The assignment of rows to the batches of a group."""

    def __init__(self, batches: BatchTable) -> None:
        self.batches = batches
        self._firsts = np.zeros(batches.size + 1, np.int64)
        np.cumsum(batches.record_count, out=self._firsts[1:])

    @property
    def count(self) -> int:
        return int(self._firsts[-1])

    def block(self, start: int, end: int) -> tuple[BatchTable, IntArray]:
        """The batches with rows from `start` to `end`, and the number of these rows in each."""
        first = int(np.searchsorted(self._firsts, start, side="right")) - 1
        last = int(np.searchsorted(self._firsts, end, side="left"))
        borders = self._firsts[first : last + 1].clip(start, end)
        return self.batches.where(slice(first, last)), np.diff(borders)


def read_rows(raw: ByteArray, framed: RecordSpans, batches: BatchTable, counts: IntArray) -> Rows:
    """The records of these batches. `counts` has the number of records of each batch."""
    timestamp_delta, at = read_varint_at_each(raw, framed.body + 1, LONG_BYTES_MAX)
    offset_delta, at = read_varint_at_each(raw, at)
    key = _field(raw, at)
    value = _field(raw, _after(key))
    header_count, at = read_varint_at_each(raw, _after(value))
    headers = None
    if header_count.any():
        headers = read_headers(raw, header_count, at, framed.end)
    elif (at != framed.end).any():
        raise CorruptData("the fields of a record do not end where it does")
    timestamp, is_append_time = _timestamps(timestamp_delta, batches, counts)
    return Rows(_offsets(offset_delta, batches, counts), timestamp, is_append_time, key, value, headers)


def _field(raw: ByteArray, at: IntArray) -> FieldSpans:
    length, start = read_varint_at_each(raw, at)
    if length.min(initial=0) < NULL_LENGTH:
        raise CorruptData("a field has a negative length")
    return FieldSpans(start, length)


def _after(field: FieldSpans) -> IntArray:
    return field.start + np.maximum(field.length, 0)


def _offsets(deltas: IntArray, batches: BatchTable, counts: IntArray) -> IntArray:
    offsets = np.repeat(batches.base_offset, counts)
    beyond = deltas > np.repeat(batches.last_offset_delta, counts)
    offsets += deltas
    # Batches do not overlap, so offsets ascend across them if they ascend inside each of them.
    if beyond.any() or deltas.min(initial=0) < 0 or (offsets[1:] <= offsets[:-1]).any():
        raise CorruptData(f"the offsets of the records behind {batches.base_offset[0]} do not ascend")
    return offsets


def _timestamps(deltas: IntArray, batches: BatchTable, counts: IntArray) -> tuple[IntArray, BoolArray | None]:
    base = np.repeat(batches.base_timestamp, counts)
    timestamps = base + deltas
    append_time = batches.attributes & LOG_APPEND_TIME_BIT != 0
    rows = np.repeat(append_time, counts) if append_time.any() else None
    wrapped = _wrapped(base, deltas, timestamps)
    if wrapped is not None and (wrapped if rows is None else wrapped & ~rows).any():
        raise CorruptData("a timestamp delta leaves the range of timestamps")
    if rows is not None:
        timestamps = np.where(rows, np.repeat(batches.max_timestamp, counts), timestamps)
    return timestamps, rows


def _wrapped(base: IntArray, deltas: IntArray, sums: IntArray) -> BoolArray | None:
    near = all(part.min(initial=0) > -_FAR and part.max(initial=0) < _FAR for part in (base, deltas))
    return None if near else ((base ^ sums) & (deltas ^ sums)) < 0
