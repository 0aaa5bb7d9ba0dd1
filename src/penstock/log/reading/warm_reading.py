"""Reading from the page cache, on the event loop.

A consumer usually continues where its last fetch ended, and that is where a producer just wrote or another
consumer just read up to. Those positions are remembered, so that most reads need no search. Any other
position is found by the offset index and a walk from header to header.

Rule 1: nothing here waits. Data that is not in memory yields None, and the caller makes a ColdRead.
Rule 2: only data that this process wrote, and that as far as it noticed has stayed in the page cache since,
        is returned. Data that it found on disk is read where the checksum is validated.
"""

from collections.abc import Iterator

from penstock.limits import INDEX_INTERVAL_BYTES, LOG_BATCH_STARTS_KEPT
from penstock.log.reading.cold_reading import BatchesRead
from penstock.log.segment import Segment
from penstock.protocol.batches import HEADER_BYTES, BatchHeader, parse_header
from penstock.types import Offset

CHUNK_BYTES = 2 * INDEX_INTERVAL_BYTES
"""Headers lie between a few hundred bytes and a few kilobytes apart. A chunk usually holds all headers that a
read passes."""
# Bare tuples, because one is made for every append and every read.
BatchStart = tuple[Segment, int]
"""A segment, and the position of a batch in it."""
_Boundary = tuple[int, Offset]
"""End position of a reply, and the offset that follows it."""


class WarmReads:
    """Remembered batch starts of one log."""

    __slots__ = ("_starts",)

    def __init__(self) -> None:
        # Batch starts that were just written or just read up to: the next fetch begins there.
        self._starts: dict[Offset, BatchStart] = {}

    def remember(self, offset: Offset, segment: Segment, position: int) -> None:
        starts = self._starts
        starts[offset] = (segment, position)
        if len(starts) > LOG_BATCH_STARTS_KEPT:
            del starts[next(iter(starts))]

    def start_at(self, offset: Offset) -> BatchStart | None:
        """Return the batch that begins with `offset`, if it is remembered."""
        return self._starts.get(offset)

    def clear(self) -> None:
        """Forget all positions: segments were added or removed, and a remembered one may be gone."""
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
        """Read whole batches from the one in `segment` that holds `offset`. None: not in memory."""
        known = self._starts.get(offset)
        start = known[1] if known else _find(segment, offset)
        # Bytes below `written_from` were not validated by this process.
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
        """Position of `end_offset`, if it is known without a search."""
        if end_offset >= segment_end:
            return segment.size_bytes, segment_end
        known = self._starts.get(end_offset)
        return (known[1], end_offset) if known and known[0] is segment else None


def _find(segment: Segment, offset: Offset) -> int | None:
    """Position of the batch that reaches `offset`. None: not in memory."""
    start = segment.index.position_at_or_before(offset)
    if start < segment.written_from:
        return None  # these headers are not validated yet; a ColdRead validates them
    for position, header in _headers(segment, start):
        if header.last_offset >= offset:
            return position
    return None


def _last_boundary(
    segment: Segment, segment_end: Offset, start: int, end_offset: Offset, bytes_max: int, at_least_one: bool
) -> _Boundary | None:
    """End of the last batch that fits. None: not in memory."""
    near = min(
        segment.index.batch_start_at_or_before(start + bytes_max),
        segment.index.position_at_or_before(Offset(end_offset - 1)),
    )
    end = max(near, start)
    for position, header in _headers(segment, end):
        must_have = at_least_one and position == start
        too_much = position + header.size > start + bytes_max and not must_have
        if header.base_offset >= end_offset or too_much:
            return position, header.base_offset
        end = position + header.size
    return (end, segment_end) if end >= segment.size_bytes else None


def _headers(segment: Segment, position: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield positions and headers from a batch boundary to the end of the segment. Ends early where the bytes
    are not in the page cache.
    """
    chunk, chunk_at = b"", position
    while position < segment.size_bytes:
        if position + HEADER_BYTES > chunk_at + len(chunk):
            found = segment.file.read_cached(position, min(CHUNK_BYTES, segment.size_bytes - position))
            if found is None:
                segment.mark_evicted()
                return
            chunk, chunk_at = found, position
        header = parse_header(chunk, position - chunk_at)
        yield position, header
        position += header.size
