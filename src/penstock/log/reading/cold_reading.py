"""Reading a segment from the device, away from the event loop.

A `SegmentView` says everything a worker thread needs to know about a segment; the thread opens its
own file, so that the segment may be closed, rolled or deleted meanwhile. Every batch that is
returned has been held against its checksum.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from penstock.errors import CorruptData
from penstock.host.disk import Disk, File
from penstock.limits import INDEX_INTERVAL_BYTES_MAX
from penstock.log.index.offset_index import OffsetIndex
from penstock.log.index.time_index import TimeIndex
from penstock.protocol.batches import (
    HEADER_BYTES,
    BatchHeader,
    check_crc,
    check_shape,
    parse_header,
    split_batches,
)
from penstock.types import NO_TIMESTAMP, Buffer, Offset


class Indexes(NamedTuple):
    by_offset: OffsetIndex
    by_time: TimeIndex
    are_stored: bool = True
    """False if they were made anew from the log, because their files were missing or no good."""


class BatchesRead(NamedTuple):
    """Whole batches, and where the next ones begin."""

    data: Buffer
    next_offset: Offset
    next_position: int


@dataclass(frozen=True, slots=True)
class SegmentView:
    disk: Disk
    log_path: str
    index_path: str
    time_index_path: str
    base_offset: Offset
    size_bytes: int
    """Nothing past this position is looked at: it may be in the middle of being written."""
    generation: int
    """Which form of the segment this is: compaction or a cut may put another in its place."""
    index_interval_bytes: int
    indexes: Indexes | None
    """None: they are on disk."""

    def load_indexes(self, file: File) -> Indexes:
        """From their files if those fit the log, else by reading the log's headers again."""
        if self.indexes is not None:
            return self.indexes
        stored = self.stored_indexes()
        if stored is not None and is_dense(file, stored.by_offset, self.size_bytes):
            return stored
        return rebuild_indexes(file, self.base_offset, self.size_bytes, self.index_interval_bytes)

    def stored_indexes(self) -> Indexes | None:
        """Those on disk; None if one is missing or cannot be this log's."""
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
            return None  # an index only repeats what the log says


class LoadedIndexes(NamedTuple):
    """The indexes of a segment that a worker thread had to load."""

    segment: SegmentView
    indexes: Indexes


class ReadResult(Protocol):
    """What every read of segments returns beside its answer."""

    @property
    def loaded(self) -> Sequence[LoadedIndexes]: ...


Result_co = TypeVar("Result_co", bound=ReadResult, covariant=True)


class SegmentRead(Protocol[Result_co]):
    """A read for a worker thread. `broker/storage/cold_reads.py` runs all of them."""

    @property
    def segments(self) -> Sequence[SegmentView]:
        """The segments it reads: if one of them was replaced meanwhile, a failure says nothing."""
        ...

    def run(self) -> Result_co:
        """Blocks. Raises CorruptData when what is on disk is not what was written."""
        ...


class ColdResult(NamedTuple):
    found: BatchesRead
    loaded: Sequence[LoadedIndexes]


@dataclass(frozen=True, slots=True)
class ColdRead:
    segment: SegmentView
    offset: Offset
    end_offset: Offset
    bytes_max: int
    at_least_one: bool

    @property
    def segments(self) -> Sequence[SegmentView]:
        return (self.segment,)

    def run(self) -> ColdResult:
        """Blocks. Raises CorruptData when what is on disk is not what was written."""
        file = self.segment.disk.open(self.segment.log_path)
        try:
            indexes = self.segment.load_indexes(file)
            start = find_batch(file, indexes.by_offset, self.offset, self.segment.size_bytes)
            return ColdResult(self._whole_batches(file, start), (LoadedIndexes(self.segment, indexes),))
        finally:
            file.release()

    def _whole_batches(self, file: File, start: int) -> BatchesRead:
        left = self.segment.size_bytes - start
        wanted = min(max(self.bytes_max, HEADER_BYTES), left)
        data = file.read(start, wanted)
        if len(data) >= HEADER_BYTES and self.at_least_one and (size := parse_header(data).size) > len(data):
            wanted = size if size <= left else left + 1
            data = file.read(start, min(size, left))
        found = checked_batches(data, start, self)
        # A truncation takes bytes off the file while this thread reads. Those past `end_offset` are not
        # asked for, so only a file that is too short for what lies below it is damaged.
        if len(data) < wanted and found.next_offset < self.end_offset:
            raise CorruptData(f"{self.segment.log_path} ends inside the batch at {start}")
        return found


def checked_batches(data: Buffer, start: int, read: ColdRead) -> BatchesRead:
    """The whole batches of `data` below the end, each held against its checksum."""
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
    check_shape(header)
    if not check_crc(data, header, position):
        raise CorruptData(f"{where}: the checksum of the batch at offset {header.base_offset} does not match")


def wrong_offset_error(where: str, header: BatchHeader, expected: Offset) -> CorruptData:
    """The checksum does not cover the base offset, so its place is what proves it."""
    return CorruptData(f"{where}: offset {header.base_offset} where {expected} belongs")


def find_batch(file: File, index: OffsetIndex, offset: Offset, size_bytes: int) -> int:
    """The position of the first batch that reaches `offset`; `size_bytes` if none does."""
    position, last_offset = index.entry_at_or_before(offset)
    expected = index.base_offset
    while position < size_bytes:
        header = parse_header(file.read(position, HEADER_BYTES))
        if last_offset is not None:  # the index knows where this batch ends, not where it begins
            expected, last_offset = Offset(last_offset - header.last_offset_delta), None
        if header.base_offset != expected:
            raise wrong_offset_error(f"{file.path} at {position}", header, expected)
        if header.last_offset >= offset:
            return position
        expected = header.next_offset
        position += header.size
    return size_bytes


def header_at(file: File, position: int) -> BatchHeader:
    """The header of a batch that is there. CorruptData names the file and the place."""
    try:
        return parse_header(file.read(position, HEADER_BYTES))
    except CorruptData as damage:
        raise CorruptData(f"{file.path} at {position}: {damage}") from damage


def is_dense(file: File, index: OffsetIndex, end: int) -> bool:
    """Whether its entries lie as near to each other as they are made now. Those of an index that was written
    while the interval had no bound need not.

    Only the widest gap is looked at, in at most as many steps as an interval has headers. If that gap is
    there because of one large batch, no walk between other entries is longer than that batch.
    """
    start, gap_end = index.widest_gap(end)
    if gap_end - start <= INDEX_INTERVAL_BYTES_MAX:
        return True
    position = start
    try:
        while position - start <= INDEX_INTERVAL_BYTES_MAX:
            position += header_at(file, position).size
    except CorruptData:
        return True  # whoever reads there will say what is damaged
    return position >= gap_end  # otherwise the batch at `position` would have an entry


def rebuild_indexes(file: File, base_offset: Offset, size_bytes: int, interval_bytes: int) -> Indexes:
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
