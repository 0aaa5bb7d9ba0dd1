"""One segment: a .log file and its two indexes.

The file is append-only and holds record batches one after another. Its name is its first offset. The indexes
of the active segment are in memory and reach the disk with the next checkpoint; those of older segments are
loaded when they are read, and may be dropped again.

`written_from` separates the bytes that this process wrote (served from memory without a check) from those it
found on disk (validated whenever they are read: a bit may have flipped since they were written).
"""

from typing import TYPE_CHECKING

from penstock.errors import CorruptData
from penstock.host.disk import Disk, File, opened
from penstock.log.index.offset_index import OffsetIndex
from penstock.log.index.time_index import ENTRY_BYTES as TIME_ENTRY_BYTES
from penstock.log.index.time_index import TimeIndex
from penstock.log.reading.cold_reading import Indexes, SegmentView, rebuild_indexes
from penstock.protocol.batches import BatchHeader
from penstock.types import NO_TIMESTAMP, Buffer, Offset

if TYPE_CHECKING:
    from penstock.log.shared_resources import OpenFiles

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
"""Aborted transactions (log/transactions/aborted_index.py). Most segments have no such file."""
SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


def segment_name(base_offset: Offset) -> str:
    """Format the base offset with twenty digits, so that names sort as numbers do."""
    return f"{base_offset:020d}"


class Segment:
    """One segment of a log."""

    __slots__ = (
        "_disk",
        "_file",
        "_index",
        "_newest_timestamp",
        "_newest_timestamp_offset",
        "_time_index",
        "base_offset",
        "bytes_since_entry",
        "dirty",
        "first_timestamp",
        "folder",
        "generation",
        "has_unsynced_truncation",
        "open_files",
        "size_bytes",
        "written_from",
    )

    def __init__(self, disk: Disk, folder: str, base_offset: Offset, size_bytes: int = 0) -> None:
        self._disk = disk
        self.folder = folder
        self.base_offset = base_offset
        self.size_bytes = size_bytes
        self.written_from = size_bytes
        self.dirty = False
        self.has_unsynced_truncation = False
        """The rest of a rejected batch was truncated, and nothing was appended since."""
        self.first_timestamp: int | None = None
        self.generation = 0
        """Replacement or truncation that made this segment, by number; 0: none since the log was opened."""
        self.open_files: OpenFiles | None = None
        """Opens every file and records when it is closed, to limit the number of open files."""
        self._file: File | None = None
        # An empty segment has empty indexes; those of other segments are loaded on demand.
        self._index = OffsetIndex(base_offset) if size_bytes == 0 else None
        self._time_index = TimeIndex(base_offset) if size_bytes == 0 else None
        self.bytes_since_entry = 0
        """Bytes since the last index entry: beyond the interval the next batch gets one."""
        self._newest_timestamp: int | None = NO_TIMESTAMP if size_bytes == 0 else None
        self._newest_timestamp_offset = base_offset

    # Files

    def path(self, suffix: str = LOG_SUFFIX) -> str:
        return f"{self.folder}/{segment_name(self.base_offset)}{suffix}"

    def paths(self) -> list[str]:
        return [self.path(suffix) for suffix in SUFFIXES]

    @property
    def file(self) -> File:
        """The open file. Opened on first use; created by the first append."""
        if self._file is None:
            path, create = self.path(), self.size_bytes == 0
            if self.open_files is None:
                self._file = self._disk.open(path, create=create)
            else:
                self._file = self.open_files.open(self._disk, path, create=create)
                self.open_files.opened(self)
        return self._file

    @property
    def is_open(self) -> bool:
        return self._file is not None

    @property
    def is_unsynced(self) -> bool:
        """Whether the open file must be synced, or is being synced."""
        return self.dirty or (self._file is not None and self._file.is_shared)

    def close_file(self) -> None:
        """Close the file; the next use opens it again."""
        assert not self.dirty, "closing would forget which file must be synced"
        self.abandon_file()

    def abandon_file(self) -> None:
        if self._file is not None:
            self._file.release()
            self._file = None
            if self.open_files is not None:
                self.open_files.closed(self)

    # Indexes

    @property
    def has_index(self) -> bool:
        return self._index is not None

    @property
    def index(self) -> OffsetIndex:
        assert self._index is not None, "load the index first"
        return self._index

    @property
    def time_index(self) -> TimeIndex:
        assert self._time_index is not None, "load the index first"
        return self._time_index

    def install_indexes(self, indexes: Indexes) -> None:
        self._index, self._time_index = indexes.by_offset, indexes.by_time

    def resume(self, indexes: Indexes) -> int:
        """Return to the last index entry and return its position: batches from there on are noted again."""
        self.install_indexes(indexes)
        self._newest_timestamp = indexes.by_time.newest_timestamp
        self._newest_timestamp_offset = indexes.by_time.newest_offset
        self.bytes_since_entry = 0
        self.size_bytes = self.written_from = indexes.by_offset.last_position
        return self.size_bytes

    @property
    def index_bytes(self) -> int:
        """Memory that the two indexes take."""
        return self.index.size_bytes + self.time_index.size_bytes

    def forget_indexes(self) -> None:
        assert self.indexes_stored, "they are not on disk yet"
        self._index = self._time_index = None

    @property
    def indexes_stored(self) -> bool:
        return self._index is None or (self._index.is_stored and self.time_index.is_stored)

    @property
    def newest_timestamp(self) -> int:
        """Largest timestamp of any record here; -1 if there is none."""
        if self._newest_timestamp is None:
            self._newest_timestamp = self._newest_timestamp_on_disk()
        return self._newest_timestamp

    def _newest_timestamp_on_disk(self) -> int:
        """Read it from the time index, or from the log itself if the index is missing or invalid."""
        try:
            newest = self._newest_timestamp_indexed()
        except CorruptData:
            newest = None
        if newest is not None:
            return newest
        with opened(self._disk, self.path()) as file:
            rebuilt = rebuild_indexes(file, self.base_offset, self.size_bytes, self.size_bytes)
        return rebuilt.by_time.newest_timestamp

    def _newest_timestamp_indexed(self) -> int | None:
        path = self.path(TIME_INDEX_SUFFIX)
        if not self._disk.exists(path):
            return None
        size = self._disk.size_of(path)
        if size == 0 or size % TIME_ENTRY_BYTES:
            return None
        with opened(self._disk, path) as file:
            last = file.read(size - TIME_ENTRY_BYTES, TIME_ENTRY_BYTES)
        return TimeIndex.from_bytes(self.base_offset, last).newest_timestamp

    def view(self, index_interval_bytes: int) -> SegmentView:
        """Make a view of the segment as it is now, for a worker thread."""
        return SegmentView(
            disk=self._disk,
            log_path=self.path(),
            index_path=self.path(INDEX_SUFFIX),
            time_index_path=self.path(TIME_INDEX_SUFFIX),
            base_offset=self.base_offset,
            size_bytes=self.size_bytes,
            generation=self.generation,
            index_interval_bytes=index_interval_bytes,
            indexes=Indexes(self.index, self.time_index) if self.has_index else None,
        )

    # Writing

    def append(self, batch: Buffer, header: BatchHeader, base_offset: Offset, interval_bytes: int) -> None:
        """Write a stamped batch at the end. If the disk is full, raises and does not count the batch."""
        (self._file or self.file).write(self.size_bytes, batch)
        self.note(header, base_offset, len(batch), interval_bytes)

    def note(self, header: BatchHeader, base_offset: Offset, size: int, interval_bytes: int) -> None:
        """Account for a batch at the end of the file: just written, or found by recovery."""
        last_offset, newest = Offset(base_offset + header.last_offset_delta), header.max_timestamp
        if self.first_timestamp is None:
            self.first_timestamp = newest
        known = self._newest_timestamp
        if newest > (self.newest_timestamp if known is None else known):
            self._newest_timestamp = newest
            self._newest_timestamp_offset = last_offset
        if self.bytes_since_entry > interval_bytes:
            self.index.add(last_offset, self.size_bytes)
            self.time_index.add(self.newest_timestamp, self._newest_timestamp_offset)
            self.bytes_since_entry = 0
        self.bytes_since_entry += size
        self.size_bytes += size

    def seal(self) -> None:
        """Finish the segment: the time index gets the newest timestamp as its last entry."""
        if self.newest_timestamp != NO_TIMESTAMP:
            self.time_index.add(self.newest_timestamp, self._newest_timestamp_offset)

    def mark_evicted(self) -> None:
        """Require validation of everything here, because part of it has left the page cache. Later reads may
        come from the device: a read that misses makes the kernel read ahead, and the next read would find
        unvalidated bytes.
        """
        self.written_from = self.size_bytes

    def truncate(self, size_bytes: int) -> None:
        """Truncate the file to `size_bytes`."""
        self.file.truncate(size_bytes)
        self.size_bytes = size_bytes
        self.written_from = min(self.written_from, size_bytes)

    def __repr__(self) -> str:
        return f"<Segment {segment_name(self.base_offset)} {self.size_bytes} bytes>"
