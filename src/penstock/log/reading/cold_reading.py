"""Reading a segment from the device, away from the event loop.

A `SegmentView` holds everything that a worker thread needs to read a segment. The thread opens its own file,
so that the segment may be closed, rolled or deleted meanwhile. Every returned batch has been validated
against its checksum.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from penstock.errors import CorruptData
from penstock.host.disk import Disk, File, opened
from penstock.log.index.offset_index import OffsetIndex
from penstock.log.index.time_index import TimeIndex
from penstock.protocol.batches import (
    HEADER_BYTES,
    BatchHeader,
    check_shape,
    crc_matches,
    parse_header,
    split_batches,
)
from penstock.types import NO_TIMESTAMP, Buffer, Offset


class Indexes(NamedTuple):
    """The two indexes of a segment."""

    by_offset: OffsetIndex
    by_time: TimeIndex
    are_stored: bool = True
    """False if they were rebuilt from the log, because their files were missing or invalid."""


class BatchesRead(NamedTuple):
    """Whole batches, and the offset and position of the next one."""

    data: Buffer
    next_offset: Offset
    next_position: int


@dataclass(frozen=True, slots=True)
class SegmentView:
    """State of a segment at one moment, for a worker thread.

    The segment may be replaced or truncated while the thread reads. A failure of an outdated view proves
    nothing, and its indexes are not kept (`PartitionLog.is_current`).
    """

    disk: Disk
    log_path: str
    index_path: str
    time_index_path: str
    base_offset: Offset
    size_bytes: int
    """Nothing past this position is read: an append may be in progress there."""
    generation: int
    """Version of the segment: compaction or a truncation may replace it by another one."""
    index_interval_bytes: int
    indexes: Indexes | None
    """None: they are on disk."""

    def load_indexes(self, file: File) -> Indexes:
        """Load the indexes from their files if those fit the log, else rebuild them from its headers."""
        if self.indexes is not None:
            return self.indexes
        stored = self.stored_indexes()
        if stored is not None:
            return stored
        return rebuild_indexes(file, self.base_offset, self.size_bytes, self.index_interval_bytes)

    def stored_indexes(self) -> Indexes | None:
        """Load the indexes on disk; None if one is missing or cannot belong to this log."""
        if not (self.disk.exists(self.index_path) and self.disk.exists(self.time_index_path)):
            return None
        try:
            return Indexes(
                OffsetIndex.from_bytes(
                    self.base_offset, self.disk.read_file(self.index_path), self.size_bytes
                ),
                TimeIndex.from_bytes(self.base_offset, self.disk.read_file(self.time_index_path)),
            )
        except CorruptData:
            return None  # not damage of the log: an index can be rebuilt from it


class LoadedIndexes(NamedTuple):
    """Indexes of a segment that a worker thread had to load."""

    segment: SegmentView
    indexes: Indexes


class ReadResult(Protocol):
    """Part of the result that all reads of segments share."""

    @property
    def loaded(self) -> Sequence[LoadedIndexes]: ...


Result_co = TypeVar("Result_co", bound=ReadResult, covariant=True)


class SegmentRead(Protocol[Result_co]):
    """A read for a worker thread. `broker/storage/cold_reads.py` runs all of them."""

    @property
    def segments(self) -> Sequence[SegmentView]:
        """Segments that the read uses: if one of them was replaced meanwhile, a failure proves nothing."""
        ...

    def run(self) -> Result_co:
        """Blocks. Raises CorruptData when the data on disk is not what was written."""
        ...


class ColdResult(NamedTuple):
    """Result of a `ColdRead`."""

    found: BatchesRead
    loaded: Sequence[LoadedIndexes]


@dataclass(frozen=True, slots=True)
class ColdRead:
    """Read of whole batches from one segment, for a worker thread."""

    segment: SegmentView
    offset: Offset
    end_offset: Offset
    bytes_max: int
    at_least_one: bool

    @property
    def segments(self) -> Sequence[SegmentView]:
        """The one segment that is read: for `SegmentRead`, whose other reads use several."""
        return (self.segment,)

    def run(self) -> ColdResult:
        """Blocks. Raises CorruptData when the data on disk is not what was written."""
        with opened(self.segment.disk, self.segment.log_path) as file:
            indexes = self.segment.load_indexes(file)
            start = find_batch(file, indexes.by_offset, self.offset, self.segment.size_bytes)
            return ColdResult(self._whole_batches(file, start), (LoadedIndexes(self.segment, indexes),))

    def _whole_batches(self, file: File, start: int) -> BatchesRead:
        left = self.segment.size_bytes - start
        wanted = min(max(self.bytes_max, HEADER_BYTES), left)
        data = file.read(start, wanted)
        if len(data) >= HEADER_BYTES and self.at_least_one and (size := parse_header(data).size) > len(data):
            wanted = size if size <= left else left + 1
            data = file.read(start, min(size, left))
        found = checked_batches(data, start, self)
        # A truncation may shorten the file while this thread reads. Bytes past `end_offset` are not needed,
        # so only a file that is too short for the batches below it is damaged.
        if len(data) < wanted and found.next_offset < self.end_offset:
            raise CorruptData(f"{self.segment.log_path} ends inside the batch at {start}")
        return found


def checked_batches(data: Buffer, start: int, read: ColdRead) -> BatchesRead:
    """Return the whole batches of `data` below the end offset, each validated."""
    used = 0
    next_offset = read.offset
    for position, header in split_batches(data):
        where = f"{read.segment.log_path} at {start + position}"
        if position > 0 and header.base_offset != next_offset:
            raise wrong_offset_error(where, header, next_offset)
        too_much = position + header.size > read.bytes_max and not (read.at_least_one and position == 0)
        if header.base_offset >= read.end_offset or too_much:
            break
        validate_stored_batch(data, header, position, where)
        used = position + header.size
        next_offset = header.next_offset
    return BatchesRead(data if used == len(data) else data[:used], next_offset, start + used)


def validate_stored_batch(data: Buffer, header: BatchHeader, position: int, where: str) -> None:
    """Check shape and checksum of a batch that a log stored."""
    check_shape(header)
    if not crc_matches(data, header, position):
        raise CorruptData(f"{where}: the checksum of the batch at offset {header.base_offset} does not match")


def wrong_offset_error(where: str, header: BatchHeader, expected: Offset) -> CorruptData:
    """Error for a batch at the wrong position. The checksum does not cover the base offset."""
    return CorruptData(f"{where}: offset {header.base_offset} where {expected} belongs")


def find_batch(file: File, index: OffsetIndex, offset: Offset, size_bytes: int) -> int:
    """Position of the first batch that reaches `offset`; `size_bytes` if none does."""
    position, last_offset = index.entry_at_or_before(offset)
    expected = index.base_offset
    while position < size_bytes:
        header = parse_header(file.read(position, HEADER_BYTES))
        # The index stores the last offset of this batch, not the first.
        if last_offset is not None:
            expected, last_offset = Offset(last_offset - header.last_offset_delta), None
        if header.base_offset != expected:
            raise wrong_offset_error(f"{file.path} at {position}", header, expected)
        if header.last_offset >= offset:
            return position
        expected = header.next_offset
        position += header.size
    return size_bytes


def header_at(file: File, position: int) -> BatchHeader:
    """Read the header of a batch. CorruptData names the file and the position."""
    try:
        return parse_header(file.read(position, HEADER_BYTES))
    except CorruptData as damage:
        raise CorruptData(f"{file.path} at {position}: {damage}") from damage


def rebuild_indexes(file: File, base_offset: Offset, size_bytes: int, interval_bytes: int) -> Indexes:
    """Rebuild both indexes from the headers of the log."""
    by_offset, by_time = OffsetIndex(base_offset), TimeIndex(base_offset)
    since_entry, newest, newest_offset = 0, NO_TIMESTAMP, base_offset
    position = 0
    while position < size_bytes:
        header = header_at(file, position)
        if header.max_timestamp > newest:
            newest, newest_offset = header.max_timestamp, header.last_offset
        if since_entry > interval_bytes:
            by_offset.add(header.last_offset, position)
            by_time.add(newest, newest_offset)
            since_entry = 0
        since_entry += header.size
        position += header.size
    if newest != NO_TIMESTAMP:
        by_time.add(newest, newest_offset)
    return Indexes(by_offset, by_time, are_stored=False)
