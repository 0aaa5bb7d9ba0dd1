"""Sparse index of one segment: offset → position.

The batch that starts at the `position` of an entry ends with its `offset`. An entry is added about every
`index.interval.bytes` of log (at most 64 KiB), so a lookup starts at most that far before its batch.

On disk: eight bytes an entry, big endian: offset relative to the segment's base, position (Kafka's .index
file). In memory: two machine arrays, so that a search is one call of `bisect`.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right

from penstock.errors import CorruptData
from penstock.log.index.sparse_index import SparseIndex
from penstock.types import Offset

ENTRY_BYTES = 8


class OffsetIndex(SparseIndex):
    """Offset index of one segment."""

    __slots__ = ("_positions",)

    entry_bytes = ENTRY_BYTES

    def __init__(self, base_offset: Offset) -> None:
        super().__init__(base_offset)
        self._positions = array("I")

    @property
    def last_position(self) -> int:
        return self._positions[-1] if self._positions else 0

    def add(self, offset: Offset, position: int) -> None:
        relative = offset - self._base
        assert not self._offsets or relative > self._offsets[-1], "an index only grows"
        # The searched array last: a worker thread that finds an entry in it finds the other half too.
        self._positions.append(position)
        self._offsets.append(relative)

    @property
    def base_offset(self) -> Offset:
        return self._base

    def position_at_or_before(self, offset: Offset) -> int:
        """Position at which a search for the batch that holds `offset` starts."""
        return self.entry_at_or_before(offset)[0]

    def entry_at_or_before(self, offset: Offset) -> tuple[int, Offset | None]:
        """The same, with the last offset of the batch there; None at the start of the segment."""
        found = bisect_right(self._offsets, max(offset - self._base, 0)) - 1
        if found < 0:
            return 0, None
        return self._positions[found], Offset(self._base + self._offsets[found])

    def last_offset_before(self, offset: Offset) -> Offset:
        """Largest offset of an entry below `offset`; the one before the segment if there is none."""
        found = bisect_left(self._offsets, max(offset - self._base, 0)) - 1
        return Offset(self._base + self._offsets[found]) if found >= 0 else Offset(self._base - 1)

    def batch_start_at_or_before(self, position: int) -> int:
        """Last indexed batch boundary that is not past `position`."""
        found = bisect_right(self._positions, position) - 1
        return self._positions[found] if found >= 0 else 0

    def truncate(self, offset: Offset) -> None:
        """Remove the entry of every batch that reaches `offset` or further."""
        keep = bisect_left(self._offsets, max(offset - self._base, 0))
        del self._offsets[keep:]
        del self._positions[keep:]
        self.stored_entries = min(self.stored_entries, keep)

    def to_bytes(self, first_entry: int = 0, end_entry: int | None = None) -> bytes:
        offsets = self._offsets[first_entry:end_entry]
        pairs = array("I", bytes(ENTRY_BYTES * len(offsets)))
        pairs[0::2] = offsets
        pairs[1::2] = self._positions[first_entry : first_entry + len(offsets)]
        if sys.byteorder == "little":
            pairs.byteswap()
        return pairs.tobytes()

    @classmethod
    def from_bytes(cls, base_offset: Offset, data: bytes, log_bytes: int) -> "OffsetIndex":
        """Parse an index. CorruptData: it does not fit a log of `log_bytes`, and is rebuilt."""
        if len(data) % ENTRY_BYTES:
            raise CorruptData(f"an offset index of {len(data)} bytes ends inside an entry")
        pairs = array("I", data)
        if sys.byteorder == "little":
            pairs.byteswap()
        index = cls(base_offset)
        index._offsets = pairs[0::2]
        index._positions = pairs[1::2]
        if not (_ascends(index._offsets) and _ascends(index._positions)):
            raise CorruptData("the entries of an offset index do not ascend")
        if index._positions and index._positions[0] == 0:
            raise CorruptData("an entry of an offset index was lost: none points to the segment's start")
        if index._positions and index._positions[-1] >= log_bytes:
            raise CorruptData("an offset index points past the end of its log")
        index.stored_entries = len(index)
        return index


def _ascends(values: "array[int]") -> bool:
    return all(map(int.__lt__, values, values[1:]))
