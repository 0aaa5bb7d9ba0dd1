"""Cache of the indexes of sealed segments, limited in size; the least recently used are evicted first.

A reader of old data needs the index of each segment it passes, about 5 MB for a gigabyte of log. The indexes
are on disk and can be read again, so unused ones need not stay in memory.
"""

from penstock.log.segment import Segment


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
