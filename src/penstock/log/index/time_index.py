"""Sparse index of one segment: timestamp → offset.

`timestamp` of an entry is the newest timestamp up to there, and the batch that contains it ends with
`offset`. Timestamps ascend from entry to entry, although those of records need not.

On disk: twelve bytes an entry, big endian: timestamp, offset relative to the segment's base (Kafka's
.timeindex file).
"""

import struct
from array import array
from bisect import bisect_left

from penstock.errors import CorruptData
from penstock.log.index.sparse_index import SparseIndex
from penstock.types import NO_TIMESTAMP, Offset

ENTRY = struct.Struct(">qI")
ENTRY_BYTES = ENTRY.size
LOST_ENTRY = bytes(ENTRY_BYTES)
"""Content of an entry whose sector did not reach the disk before a crash."""


class TimeIndex(SparseIndex):
    """Time index of one segment."""

    __slots__ = ("_timestamps",)

    entry_bytes = ENTRY_BYTES

    def __init__(self, base_offset: Offset) -> None:
        super().__init__(base_offset)
        self._timestamps = array("q")

    @property
    def newest_timestamp(self) -> int:
        return self._timestamps[-1] if self._timestamps else NO_TIMESTAMP

    @property
    def newest_offset(self) -> Offset:
        """Offset of the newest timestamp; the segment's first offset if there is none."""
        return Offset(self._base + self._offsets[-1]) if self._offsets else self._base

    def add(self, timestamp: int, offset: Offset) -> None:
        """Add an entry, unless the timestamp is no newer than the last one."""
        if timestamp > self.newest_timestamp:
            # The searched array last: a worker thread that finds an entry in it finds the other half too.
            self._offsets.append(offset - self._base)
            self._timestamps.append(timestamp)

    def offset_before(self, timestamp: int) -> Offset:
        """Offset up to and including which every record is older than `timestamp`."""
        found = bisect_left(self._timestamps, timestamp) - 1
        return Offset(self._base + self._offsets[found]) if found >= 0 else Offset(self._base - 1)

    def offset_at_or_after(self, timestamp: int) -> Offset | None:
        """End of the batch behind the first entry as new as `timestamp`; None if there is no such entry."""
        found = bisect_left(self._timestamps, timestamp)
        return Offset(self._base + self._offsets[found]) if found < len(self._timestamps) else None

    def newest_before(self, offset: Offset) -> Offset | None:
        """End of the batch with the newest timestamp of all entries before `offset`; None: no entry."""
        found = bisect_left(self._offsets, max(offset - self._base, 0)) - 1
        return Offset(self._base + self._offsets[found]) if found >= 0 else None

    def truncate(self, offset: Offset) -> None:
        keep = bisect_left(self._offsets, max(offset - self._base, 0))
        del self._timestamps[keep:]
        del self._offsets[keep:]
        self.stored_entries = min(self.stored_entries, keep)

    def to_bytes(self, first_entry: int = 0, end_entry: int | None = None) -> bytes:
        timestamps = self._timestamps[first_entry:end_entry]
        rows = zip(timestamps, self._offsets[first_entry : first_entry + len(timestamps)], strict=True)
        return b"".join(ENTRY.pack(*row) for row in rows)

    @classmethod
    def from_bytes(cls, base_offset: Offset, data: bytes) -> "TimeIndex":
        if len(data) % ENTRY_BYTES:
            raise CorruptData(f"a time index of {len(data)} bytes ends inside an entry")
        if data.startswith(LOST_ENTRY):
            raise CorruptData("the first entry of a time index was lost")
        index = cls(base_offset)
        for timestamp, offset in ENTRY.iter_unpack(data):
            if timestamp <= index.newest_timestamp or (index._offsets and offset <= index._offsets[-1]):
                raise CorruptData("the entries of a time index do not ascend")
            index._timestamps.append(timestamp)
            index._offsets.append(offset)
        index.stored_entries = len(index)
        return index
