"""Common part of the two sparse indexes of a segment: entries by offset, the first of which are on disk."""

from array import array
from typing import ClassVar

from penstock.types import Offset


class SparseIndex:
    """Index of one segment, which only grows, except for a truncation."""

    __slots__ = ("_base", "_offsets", "stored_entries")

    entry_bytes: ClassVar[int]
    """Size of an entry on disk."""

    def __init__(self, base_offset: Offset) -> None:
        self._base = base_offset
        self._offsets = array("I")
        self.stored_entries = 0
        """Number of the entries that are on disk."""

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def size_bytes(self) -> int:
        return len(self._offsets) * self.entry_bytes

    @property
    def is_stored(self) -> bool:
        return self.stored_entries == len(self._offsets)
