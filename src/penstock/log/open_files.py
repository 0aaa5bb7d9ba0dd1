"""Open files of all logs, limited in number: the file open for the longest time is closed first.

The order is that of opening, not of use: this costs an append or a read nothing. A file in use that is closed
is opened again by its next use, at most once in as many openings as files may be open.

Rule 1: a file that must be synced stays open, and so does one that is being synced. A descriptor that is
        opened later gets no report of a failed writeback that the kernel noted for this one.
Rule 2: space is made before a file is opened. Where all open files must stay open, the next open is rejected
        until a flush has ended: the other descriptors of the process are for connections, checkpoints and
        readers.
"""

from collections import OrderedDict
from typing import Final

from penstock.host.disk import Disk, File, TooManyOpenFiles
from penstock.log.segment import Segment

CLOSED_WHEN_SHORT: Final = 16
"""Files to close when the process has no descriptor left: one for this open, the rest for other users."""


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
