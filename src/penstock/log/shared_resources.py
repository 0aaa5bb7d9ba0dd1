"""Resources that all logs of a broker share, each limited in number or size.

Its settings limit a single log; these resources limit thousands of logs together.

    IndexCache    indexes of sealed segments; the least recently used are evicted first. A reader of old data
                  needs the index of each segment it passes, about 5 MB for a gigabyte of log. The indexes are
                  on disk and can be read again, so unused ones need not stay in memory.
    OpenFiles     open files; the file open for the longest time is closed first. The order is that of
                  opening, not of use: this costs an append or a read nothing. A file in use that is closed is
                  opened again by its next use, at most once in as many openings as files may be open.
    producers     idempotent producers (log/producer_state.py)

Rule 1: a file that must be synced stays open, and so does one that is being synced. A descriptor that is
        opened later gets no report of a failed writeback that the kernel noted for this one.
Rule 2: space is made before a file is opened. Where all open files must stay open, the next open is rejected
        until a flush has ended: the other descriptors of the process are for connections, checkpoints and
        readers.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from penstock.host.disk import Disk, File, TooManyOpenFiles
from penstock.limits import INDEX_BYTES_KEPT_MAX
from penstock.log.producer_state import PRODUCER_LIMITS, ProducerLimits, ProducerRegistry
from penstock.log.segment import Segment

CLOSED_WHEN_SHORT: Final = 16
"""Files to close when the process has no descriptor left: one for this open, the rest for other users."""


class IndexCache:
    """Cached indexes of one broker."""

    __slots__ = ("_bytes", "_bytes_max", "_segments")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        # In order of last use, each segment with the size it was counted with.
        self._segments: dict[Segment, int] = {}

    def __len__(self) -> int:
        return len(self._segments)

    def keep(self, segment: Segment) -> None:
        """Count the indexes of a sealed segment, which were loaded, used, or just written to disk."""
        self.drop(segment)
        if not segment.has_index:
            return
        self._segments[segment] = segment.index_bytes
        self._bytes += segment.index_bytes
        # The segment just added stays, however large its indexes are: its reader is using them.
        while self._bytes > self._bytes_max and len(self._segments) > 1:
            oldest = next(iter(self._segments))
            self.drop(oldest)
            if oldest.has_index and oldest.indexes_stored:
                oldest.forget_indexes()

    def drop(self, segment: Segment) -> None:
        """Stop counting a segment, because it was removed or is about to be counted again."""
        self._bytes -= self._segments.pop(segment, 0)


class OpenFiles:
    """Open segment files of one broker."""

    __slots__ = ("_all_unsynced", "_files_max", "_open", "synced_new_files", "unsynced_new_files")

    def __init__(self, files_max: int) -> None:
        self._files_max = files_max
        self._open: OrderedDict[Segment, None] = OrderedDict()
        self.unsynced_new_files = 0
        """Files beside the segments that stay open until the first flush of their partition."""
        self.synced_new_files = 0
        """Total number of them that a flush has closed."""
        self._all_unsynced = False
        """Result of the last search, valid until a flush ends or a file is opened."""

    def __len__(self) -> int:
        return len(self._open) + self.unsynced_new_files

    def open(self, disk: Disk, path: str, *, create: bool) -> File:
        """Open a file. TooManyOpenFiles: others must first be synced or closed."""
        while len(self) >= self._files_max:
            if not self._close_synced(1):
                raise TooManyOpenFiles(f"cannot open {path}: {len(self)} files must be synced first")
        try:
            return disk.open(path, create=create)
        except TooManyOpenFiles:  # connections or readers used up the descriptors
            if not self._close_synced(CLOSED_WHEN_SHORT):
                raise
        return disk.open(path, create=create)

    def _close_synced(self, count: int) -> int:
        """Close up to `count` files that need not stay open. Returns how many were closed."""
        closed = 0
        for _ in range(0 if self._all_unsynced else len(self._open)):
            oldest = next(iter(self._open))
            if oldest.is_unsynced:
                self._open.move_to_end(oldest)  # checked again later
                continue
            oldest.close_file()
            closed += 1
            if closed == count:
                return closed
        self._all_unsynced = True
        return closed

    def opened(self, segment: Segment) -> None:
        self._open[segment] = None
        self._all_unsynced = False

    def closed(self, segment: Segment) -> None:
        self._open.pop(segment, None)

    def synced(self, new_partition_files: int) -> None:
        """Record that a flush has ended and closed this many new files."""
        self.unsynced_new_files -= new_partition_files
        self.synced_new_files += new_partition_files
        self._all_unsynced = False


class SharedLogResources(NamedTuple):
    """Index cache, open files and producers of all logs."""

    indexes: IndexCache
    files: OpenFiles
    producers: ProducerRegistry

    @classmethod
    def on(cls, disk: Disk, producers: ProducerLimits = PRODUCER_LIMITS) -> "SharedLogResources":
        return cls(
            IndexCache(INDEX_BYTES_KEPT_MAX), OpenFiles(disk.open_files_max), ProducerRegistry(producers)
        )
