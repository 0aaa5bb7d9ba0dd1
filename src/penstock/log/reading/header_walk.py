"""Walk from batch header to batch header through a segment, in memory only.

Headers lie between a few hundred bytes and a few kilobytes apart; one read fetches a chunk that usually holds
all headers that a lookup passes.
"""

from collections.abc import Iterator

from penstock.limits import INDEX_INTERVAL_BYTES
from penstock.log.segment import Segment
from penstock.protocol.batches import HEADER_BYTES, BatchHeader, parse_header

CHUNK_BYTES = 2 * INDEX_INTERVAL_BYTES


class HeaderWalk:
    """Iterator over (position, header) from a batch boundary to the end of the segment.

    It ends early, with `is_complete` False, where the bytes are not in the page cache.
    """

    __slots__ = ("_at", "_chunk", "_segment", "position")

    def __init__(self, segment: Segment, position: int) -> None:
        self._segment = segment
        self._chunk: bytes = b""
        self._at = position
        self.position = position

    @property
    def is_complete(self) -> bool:
        return self.position >= self._segment.size_bytes

    def __iter__(self) -> Iterator[tuple[int, BatchHeader]]:
        return self

    def __next__(self) -> tuple[int, BatchHeader]:
        position = self.position
        left = self._segment.size_bytes - position
        if left <= 0:
            raise StopIteration
        inside = position - self._at
        if inside + HEADER_BYTES > len(self._chunk):
            chunk = self._segment.file.read_cached(position, min(CHUNK_BYTES, left))
            if chunk is None:
                self._segment.mark_evicted()
                raise StopIteration
            self._chunk, self._at, inside = chunk, position, 0
        header = parse_header(self._chunk, inside)
        self.position = position + header.size
        return position, header
