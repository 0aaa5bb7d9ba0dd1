"""Files of logs that are open, up to a number; the longest open goes first.

In order of opening, not of use: that costs an append or a read nothing, and a file in use that is
closed in its turn is opened again by whoever needs it, once in as many openings as may be open.

Rule 1: a file that must still be synced stays open, and so does one that is being synced. Its
        successor would not be told of a failed writeback that the kernel has noted for this one.
Rule 2: room is made before a file is opened. Where all that are open must stay so, the next is
        refused until a flush has ended: the other descriptors of the process are for connections,
        checkpoints and readers.
"""

from collections import OrderedDict
from typing import Final

from penstock.host.disk import Disk, File, TooManyOpenFiles
from penstock.log.segment import Segment

CLOSED_WHEN_SHORT: Final = 16
"""Files that are given up when the process has no descriptor left: one for us, the others for others."""


class OpenFiles:
    __slots__ = ("_all_unsynced", "_files_max", "_open", "synced_new_files", "unsynced_new_files")

    def __init__(self, files_max: int) -> None:
        self._files_max = files_max
        self._open: OrderedDict[Segment, None] = OrderedDict()
        self.unsynced_new_files = 0
        """Files beside the segments that are open until the first flush of their partition."""
        self.synced_new_files = 0
        """How many of them were closed by a flush, ever."""
        self._all_unsynced = False
        """That was so when it was last looked at, and no flush has ended since."""

    def __len__(self) -> int:
        return len(self._open) + self.unsynced_new_files

    def open(self, disk: Disk, path: str, *, create: bool) -> File:
        """Open one more. TooManyOpenFiles: not before others are synced or closed."""
        while len(self) >= self._files_max:
            if not self._close_synced(1):
                raise TooManyOpenFiles(f"cannot open {path}: {len(self)} files must be synced first")
        try:
            return disk.open(path, create=create)
        except TooManyOpenFiles:  # others have taken what was meant for us
            if not self._close_synced(CLOSED_WHEN_SHORT):
                raise
        return disk.open(path, create=create)

    def _close_synced(self, count: int) -> int:
        """Close up to so many that need not stay open. Returns how many."""
        closed = 0
        for _ in range(0 if self._all_unsynced else len(self._open)):
            oldest = next(iter(self._open))
            if oldest.is_unsynced:
                self._open.move_to_end(oldest)  # its turn comes again
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
        """A flush has ended, and with it so many births were closed."""
        self.unsynced_new_files -= new_partition_files
        self.synced_new_files += new_partition_files
        self._all_unsynced = False
