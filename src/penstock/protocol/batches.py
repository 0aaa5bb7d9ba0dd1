"""Record batch headers: parsing, checks and stamping, without reading the records.

A broker stores and serves batches without opening them. The 61 bytes of the header have all that it needs
(offsets, size, producer, sequence, codec, checksum). The fields that it changes on append (base offset,
leader epoch) are outside the range of the checksum. So an append reads one struct, computes one checksum
and writes twelve bytes.

Rule 1: nothing here copies a batch, except `with_log_append_time`, which returns a new one.
Rule 2: a header from `parse_header` has a plausible length, and nothing else is guaranteed. `check_shape`
        checks whether its fields are consistent; `crc_matches` whether the bytes are intact.
Rule 3: a parameter `batch` is exactly one batch; a parameter `buffer` may hold more.

Not here: reading records (`records.py`), and authorization of appends.
"""

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from crc32c import crc32c

from penstock.errors import CorruptData
from penstock.types import Buffer, LeaderEpoch, Offset, ProducerId

HEADER_BYTES = 61
LOG_OVERHEAD = 12
"""Size of base offset and batch length, which the batch length does not count."""

MAGIC = 2
CODEC_MAX = 4
NO_SEQUENCE = -1
SEQUENCE_MAX = 2**31 - 1
OFFSET_MAX = 2**63 - 1

CODEC_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40
"""Set by compaction: the base timestamp is the time when tombstones in the batch may be removed."""

BATCH_LENGTH_AT = 8
LEADER_EPOCH_AT = 12
CRC_AT = 17
CHECKSUM_FROM = 21
ATTRIBUTES_AT = 21
MAX_TIMESTAMP_AT = 35

HEADER = Struct(">qiibIhiqqqhii")
_STAMP = Struct(">qii")
"""Base offset, batch length and leader epoch: the start of a header."""
_INT64 = Struct(">q")
_INT32 = Struct(">i")
_UINT32 = Struct(">I")
_INT16 = Struct(">h")

_BATCH_LENGTH_MIN = HEADER_BYTES - LOG_OVERHEAD

assert HEADER.size == HEADER_BYTES
# Stamping must not invalidate the checksum.
assert LEADER_EPOCH_AT + _INT32.size == _STAMP.size <= CHECKSUM_FROM


class BatchHeader(NamedTuple):
    base_offset: Offset
    batch_length: int
    leader_epoch: LeaderEpoch
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: ProducerId
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> Offset:
        return Offset(self.base_offset + self.last_offset_delta)

    @property
    def next_offset(self) -> Offset:
        return Offset(self.base_offset + self.last_offset_delta + 1)

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def has_log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME_BIT != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_BIT != 0

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record. Sequences count records and wrap to 0 after the largest int32."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MAX


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    try:
        fields = HEADER.unpack_from(buffer, position)
    except StructError:
        raise CorruptData(
            f"a batch header needs {HEADER_BYTES} bytes, {len(buffer) - position} remain"
        ) from None
    if fields[1] < _BATCH_LENGTH_MIN:
        raise CorruptData(f"batch length {fields[1]} is below {_BATCH_LENGTH_MIN}")
    # Inlined BatchHeader._make, to save a call: this runs for every batch produced or fetched.
    return tuple.__new__(BatchHeader, fields)


def parse_only_header(batch: Buffer) -> BatchHeader:
    """Parse the header of a buffer that must hold exactly one whole batch."""
    header = parse_header(batch)
    if header.size != len(batch):
        raise CorruptData(f"a batch of {header.size} bytes came in {len(batch)} bytes")
    return header


def crc_matches(buffer: Buffer, header: BatchHeader, position: int = 0) -> bool:
    """Whether the checksum matches. False for a truncated batch."""
    end = position + LOG_OVERHEAD + header.batch_length
    if end > len(buffer):
        return False
    return bool(crc32c(memoryview(buffer)[position + CHECKSUM_FROM : end]) == header.crc)


def check_shape(header: BatchHeader) -> None:
    """Raise CorruptData when fields of a batch are inconsistent, from any writer.

    Compaction removes records and keeps the last offset, so a batch may have fewer records than offsets,
    even none, but never more.
    """
    if header.magic != MAGIC:
        raise CorruptData(f"batch magic {header.magic} is not {MAGIC}")
    if header.codec > CODEC_MAX:
        raise CorruptData(f"compression type {header.codec} does not exist")
    if header.record_count < 0:
        raise CorruptData(f"record count {header.record_count} is negative")
    if header.last_offset_delta < 0 or header.last_offset_delta < header.record_count - 1:
        raise CorruptData(
            f"last offset delta {header.last_offset_delta} leaves no room for {header.record_count} records"
        )
    # The next offset must fit as well, or the log end offset after this batch would overflow.
    if header.base_offset < 0 or header.next_offset > OFFSET_MAX:
        raise CorruptData(f"offsets {header.base_offset} to {header.last_offset} are out of range")


def check_client_shape(header: BatchHeader) -> None:
    """Check a producer's batch: no gaps, no control records, and a base sequence if it has a producer id.

    Strict reading of records (`records.py`) calls it. For Produce that runs only where a topic is compacted,
    and the reply is INVALID_RECORD. The checks that Produce makes of every header, with Kafka's codes and in
    Kafka's order, are in `log/validation.py`.
    """
    check_shape(header)
    if header.record_count == 0 or header.last_offset_delta != header.record_count - 1:
        raise CorruptData(
            f"last offset delta {header.last_offset_delta} does not fit {header.record_count} records"
        )
    if header.is_control:
        raise CorruptData("a client may not write control records")
    if header.attributes & DELETE_HORIZON_BIT:
        raise CorruptData("a client may not say when tombstones may go")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise CorruptData(f"producer {header.producer_id} sent the base sequence {header.base_sequence}")


def stamp_in_place(batch: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Set base offset and leader epoch on append. Nothing else changes, and the checksum stays valid."""
    _STAMP.pack_into(batch, 0, base_offset, len(batch) - LOG_OVERHEAD, leader_epoch)


def seal_in_place(batch: bytearray | memoryview) -> None:
    """Recompute the checksum of a batch after covered bytes changed."""
    _UINT32.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[CHECKSUM_FROM:]))


def with_log_append_time(batch: Buffer, now_ms: int) -> bytearray:
    """Copy a batch, with the broker's time for all records. Their own deltas stay and are ignored."""
    header = parse_only_header(batch)
    stamped = bytearray(batch)
    _INT16.pack_into(stamped, ATTRIBUTES_AT, header.attributes | LOG_APPEND_TIME_BIT)
    _INT64.pack_into(stamped, MAX_TIMESTAMP_AT, now_ms)
    seal_in_place(stamped)
    return stamped


class BatchWalk:
    """Iterator over (position, header) of the whole batches in a buffer.

    An incomplete tail ends the iteration without an error, since a fetch or a crash may truncate the last
    batch anywhere. `position` is the end of the last whole batch, so `position == len(buffer)` after the
    iteration means that nothing was left over.
    """

    __slots__ = ("_buffer", "position")

    def __init__(self, buffer: Buffer, position: int = 0) -> None:
        self._buffer = buffer
        self.position = position

    def __iter__(self) -> Iterator[tuple[int, BatchHeader]]:
        return self

    def __next__(self) -> tuple[int, BatchHeader]:
        position = self.position
        if len(self._buffer) - position < HEADER_BYTES:
            raise StopIteration
        header = parse_header(self._buffer, position)
        end = position + LOG_OVERHEAD + header.batch_length
        if end > len(self._buffer):
            raise StopIteration
        self.position = end
        return position, header


def split_batches(buffer: Buffer, position: int = 0) -> BatchWalk:
    """Walk the consecutive batches from `position` on. Raises CorruptData at an impossible length."""
    return BatchWalk(buffer, position)
