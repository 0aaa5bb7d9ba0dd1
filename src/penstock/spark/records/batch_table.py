"""The headers of all batches of one fetch, as columns.

A fetch may return many thousand small batches. Python steps from one batch to the next and computes
checksums; everything else about headers is computed for all of them at once.

Rule 1: The rules of protocol/batches.py hold: an incomplete last batch ends the table without an error; an
        impossible length is CorruptData, and so are fields that contradict each other.
Rule 2: Nothing here reads beyond a header, except the checksum, which covers the records too.
"""

from struct import Struct
from typing import NamedTuple

import numpy as np
from crc32c import crc32c

from penstock.errors import CorruptData
from penstock.protocol.batches import (
    BATCH_LENGTH_AT,
    CHECKSUM_FROM,
    CODEC_MASK,
    CODEC_MAX,
    CONTROL_BIT,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    OFFSET_MAX,
    TRANSACTIONAL_BIT,
)
from penstock.spark.records.varints import BoolArray, ByteArray, IntArray

_BATCH_LENGTH = Struct(">i")
_BATCH_LENGTH_MIN = HEADER_BYTES - LOG_OVERHEAD

_FIELDS = np.dtype(
    [
        ("base_offset", ">i8"),
        ("batch_length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("record_count", ">i4"),
    ]
)
assert _FIELDS.itemsize == HEADER_BYTES


class BatchTable(NamedTuple):
    """One array for each header field that decoding needs, with one element for each batch."""

    position: IntArray
    end: IntArray
    base_offset: IntArray
    next_offset: IntArray
    last_offset_delta: IntArray
    attributes: IntArray
    base_timestamp: IntArray
    max_timestamp: IntArray
    producer_id: IntArray
    record_count: IntArray
    crc: IntArray

    @property
    def size(self) -> int:
        """The number of batches."""
        return len(self.position)

    @property
    def codec(self) -> IntArray:
        return self.attributes & CODEC_MASK

    @property
    def is_control(self) -> BoolArray:
        flags: BoolArray = self.attributes & CONTROL_BIT != 0
        return flags

    @property
    def is_transactional(self) -> BoolArray:
        flags: BoolArray = self.attributes & TRANSACTIONAL_BIT != 0
        return flags

    def where(self, chosen: BoolArray | slice) -> "BatchTable":
        return BatchTable._make(column[chosen] for column in self)


def read_table(view: memoryview, raw: ByteArray) -> BatchTable:
    """The complete batches of a fetch, in order. Their checksums are not checked yet."""
    positions = _positions(view)
    starts = np.array(positions[:-1], np.int64)
    rows = np.empty((len(starts), HEADER_BYTES), np.uint8)
    # With mode="clip" numpy writes to `out` directly. Every batch here has a complete header.
    np.take(raw, starts[:, None] + np.arange(HEADER_BYTES), out=rows, mode="clip")
    fields = rows.reshape(-1).view(_FIELDS)

    def column(name: str) -> IntArray:
        return fields[name].astype(np.int64)

    base_offset, last_offset_delta = column("base_offset"), column("last_offset_delta")
    table = BatchTable(
        position=starts,
        end=np.array(positions[1:], np.int64),
        base_offset=base_offset,
        next_offset=base_offset + last_offset_delta + 1,
        last_offset_delta=last_offset_delta,
        attributes=column("attributes"),
        base_timestamp=column("base_timestamp"),
        max_timestamp=column("max_timestamp"),
        producer_id=column("producer_id"),
        record_count=column("record_count"),
        crc=column("crc"),
    )
    _check(table, column("magic"))
    return table


def check_crcs(view: memoryview, table: BatchTable) -> None:
    """CorruptData if a batch does not match its checksum."""
    spans = zip((table.position + CHECKSUM_FROM).tolist(), table.end.tolist(), strict=True)
    found = np.array([crc32c(view[start:end]) for start, end in spans], np.int64)
    _raise_corrupt_if(table, found != table.crc, "does not match its checksum")


def _positions(view: memoryview) -> list[int]:
    """The position of each complete batch, and where the last one ends."""
    unpack_from = _BATCH_LENGTH.unpack_from
    position, size = 0, len(view)
    positions = [0]
    while size - position >= HEADER_BYTES:
        (length,) = unpack_from(view, position + BATCH_LENGTH_AT)
        if length < _BATCH_LENGTH_MIN:
            raise CorruptData(f"batch length {length} is below {_BATCH_LENGTH_MIN}")
        position += LOG_OVERHEAD + length
        # A fetch may end within a batch.
        if position > size:
            break
        positions.append(position)
    return positions


def _check(table: BatchTable, magic: IntArray) -> None:
    _raise_corrupt_if(table, magic != MAGIC, f"does not have magic {MAGIC}")
    _raise_corrupt_if(table, table.codec > CODEC_MAX, "has a compression type that does not exist")
    _raise_corrupt_if(table, table.record_count < 0, "has a negative number of records")
    too_many = (table.last_offset_delta < 0) | (table.last_offset_delta < table.record_count - 1)
    _raise_corrupt_if(table, too_many, "has more records than offsets")
    # The next offset must be representable too. A sum that is too large would have wrapped around.
    out_of_range = (table.base_offset < 0) | (table.base_offset > OFFSET_MAX - 1 - table.last_offset_delta)
    _raise_corrupt_if(table, out_of_range, "has offsets that are out of range")
    backwards = np.zeros(table.size, np.bool_)
    backwards[1:] = table.base_offset[1:] < table.next_offset[:-1]
    _raise_corrupt_if(table, backwards, "has offsets that come before those of the batch in front of it")


def _raise_corrupt_if(table: BatchTable, wrong: BoolArray, what: str) -> None:
    if wrong.any():
        raise CorruptData(f"the batch at offset {table.base_offset[wrong.argmax()]} {what}")
