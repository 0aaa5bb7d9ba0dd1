"""Reading what is in memory, on the event loop.

A consumer goes on where it ended, and that is where somebody just wrote or just read up to. Those
places are remembered, so that most reads need no search. Any other place is found by the offset
index and a walk from header to header.

Rule 1: nothing here waits. Whatever is not in memory is None, and the caller makes a ColdRead of it.
Rule 2: only what this process wrote itself, and what has not left the page cache since as far as it noticed,
        is given out; what it found on disk is read where its checksum is checked.
"""

from penstock.limits import LOG_BATCH_STARTS_KEPT
from penstock.log.reading.cold_reading import BatchesRead
from penstock.log.reading.header_walk import HeaderWalk
from penstock.log.segment import Segment
from penstock.types import Offset

# Bare tuples, because one is made for every append and every read.
BatchStart = tuple[Segment, int]
"""And its position there."""
_Boundary = tuple[int, Offset]
"""Where a reply ends, and the offset it ends before."""


class WarmReads:
    """Of one log."""

    __slots__ = ("_starts",)

    def __init__(self) -> None:
        # Batch starts that were just written or just read up to: where the next fetch will begin.
        self._starts: dict[Offset, BatchStart] = {}

    def remember(self, offset: Offset, segment: Segment, position: int) -> None:
        starts = self._starts
        starts[offset] = (segment, position)
        if len(starts) > LOG_BATCH_STARTS_KEPT:
            del starts[next(iter(starts))]

    def start_at(self, offset: Offset) -> BatchStart | None:
        """The batch that begins with `offset`, if that is remembered."""
        return self._starts.get(offset)

    def clear(self) -> None:
        """Segments came or went: a remembered one may be gone."""
        self._starts.clear()

    def read(
        self,
        segment: Segment,
        segment_end: Offset,
        offset: Offset,
        end_offset: Offset,
        bytes_max: int,
        at_least_one: bool,
    ) -> BatchesRead | None:
        """Whole batches from the one in `segment` that holds `offset`. None: not in memory."""
        known = self._starts.get(offset)
        start = known[1] if known else _find(segment, offset)
        if start is None or start < segment.written_from:
            return None
        boundary = self._known_boundary(segment, segment_end, end_offset)
        if boundary is None or boundary[0] - start > bytes_max:
            boundary = _last_boundary(segment, segment_end, start, end_offset, bytes_max, at_least_one)
            if boundary is None:
                return None
        limit, next_offset = boundary
        if limit == start:
            return BatchesRead(b"", next_offset, start)
        data = segment.file.read_cached(start, limit - start)
        if data is None:
            segment.mark_evicted()
            return None
        if limit < segment.size_bytes:
            self.remember(next_offset, segment, limit)
        return BatchesRead(data, next_offset, limit)

    def _known_boundary(self, segment: Segment, segment_end: Offset, end_offset: Offset) -> _Boundary | None:
        """The position of `end_offset`, if it is known without looking."""
        if end_offset >= segment_end:
            return segment.size_bytes, segment_end
        known = self._starts.get(end_offset)
        return (known[1], end_offset) if known and known[0] is segment else None


def _find(segment: Segment, offset: Offset) -> int | None:
    """Where the batch that reaches `offset` begins. None: not in memory."""
    start = segment.index.position_at_or_before(offset)
    if start < segment.written_from:
        return None  # headers that were found on disk are read where their checksum is
    for position, header in HeaderWalk(segment, start):
        if header.last_offset >= offset:
            return position
    return None


def _last_boundary(
    segment: Segment, segment_end: Offset, start: int, end_offset: Offset, bytes_max: int, at_least_one: bool
) -> _Boundary | None:
    """Where the last batch that fits ends. None: not in memory."""
    near = min(
        segment.index.batch_start_at_or_before(start + bytes_max),
        segment.index.position_at_or_before(Offset(end_offset - 1)),
    )
    walk = HeaderWalk(segment, max(near, start))
    for position, header in walk:
        must_have = at_least_one and position == start
        too_much = position + header.size > start + bytes_max and not must_have
        if header.base_offset >= end_offset or too_much:
            return position, header.base_offset
    return (walk.position, segment_end) if walk.is_complete else None
