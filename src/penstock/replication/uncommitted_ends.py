"""Ends of a leader's log above the high watermark, each with the bytes appended up to it.

The high watermark of a leader with followers reaches what was appended some time ago. From these ends follows
how many bytes are below it; fetches that wait for a number of bytes use that (broker/data/pending_fetch.py).
"""

from collections import deque
from typing import Final

from penstock.types import Offset

UNCOMMITTED_ENDS_MAX: Final = 256
"""Beyond this number the newest entry is replaced, so its bytes count as visible later than they are: a fetch
that waits for bytes then waits longer."""


class UncommittedEnds:
    """Own ends of one leader above the high watermark."""

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends: deque[tuple[Offset, int]] = deque()

    def note(self, end: Offset, own_bytes: int, high_watermark: Offset) -> None:
        """Record that the leader's own end is here, after this many bytes."""
        ends = self._ends
        if ends and (ends[-1][0] == end or len(ends) >= UNCOMMITTED_ENDS_MAX):
            ends.pop()
        if end > high_watermark:
            ends.append((end, own_bytes))

    def committed_bytes(self, high_watermark: Offset) -> int:
        """Bytes below a high watermark that moved here; 0: no noted end is below it."""
        committed_bytes, ends = 0, self._ends
        while ends and ends[0][0] <= high_watermark:
            committed_bytes = ends.popleft()[1]
        return committed_bytes
