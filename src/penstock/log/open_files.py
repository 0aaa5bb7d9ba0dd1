"""Segment files that are open, up to a number; the longest open goes first.

In order of opening, not of use: that costs an append or a read nothing, and a file in use that is
closed in its turn is opened again by whoever needs it, once in as many openings as may be open.

Rule 1: a file that must still be synced stays open. Its successor would not be told of a failed
        writeback that the kernel has noted for this one.
"""

from typing import Final

from penstock.log.segment import Segment

CLOSED_AT_ONCE_MAX: Final = 8
"""Files looked at for each one that is opened: if all are unsynced, the next flush will end that."""


class OpenFiles:
    __slots__ = ("_most", "_open")

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[Segment, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, segment: Segment) -> None:
        looked_at = 0
        while len(self._open) >= self._most and looked_at < CLOSED_AT_ONCE_MAX:
            looked_at += 1
            oldest = next(iter(self._open))
            if oldest.dirty:
                self._open[oldest] = self._open.pop(oldest)  # its turn comes again
            else:
                oldest.close_file()
        self._open[segment] = None

    def closed(self, segment: Segment) -> None:
        self._open.pop(segment, None)
