"""Timestamp → offset in one segment, sparse.

An entry says: the newest timestamp so far is `timestamp`, and the batch that brought it ends with
`offset`. Timestamps only ascend from entry to entry, although those of records need not.

On disk: twelve bytes an entry, big endian: timestamp, offset relative to the segment's base
(Kafka's .timeindex file).
"""

import struct
from array import array
from bisect import bisect_left

from penstock.errors import CorruptData
from penstock.types import NO_TIMESTAMP, Offset

ENTRY = struct.Struct(">qI")
ENTRY_BYTES = ENTRY.size
LOST_ENTRY = bytes(ENTRY_BYTES)
"""What a crash leaves of an entry whose sector never reached the disk."""


class TimeIndex:
    __slots__ = ("_base", "_offsets", "_timestamps")

    def __init__(self, base_offset: Offset) -> None:
        self._base = base_offset
        self._timestamps = array("q")
        self._offsets = array("I")

    def __len__(self) -> int:
        return len(self._timestamps)

    @property
    def newest_timestamp(self) -> int:
        return self._timestamps[-1] if self._timestamps else NO_TIMESTAMP

    @property
    def newest_offset(self) -> Offset:
        """Where the newest timestamp stands; the segment's first offset if there is none."""
        return Offset(self._base + self._offsets[-1]) if self._offsets else self._base

    def add(self, timestamp: int, offset: Offset) -> None:
        """Adds nothing when time has not moved on since the last entry."""
        if timestamp > self.newest_timestamp:
            # What is searched comes last: a worker thread that finds an entry finds all of it.
            self._offsets.append(offset - self._base)
            self._timestamps.append(timestamp)

    def offset_before(self, timestamp: int) -> Offset:
        """Every record up to and including this offset is older than `timestamp`."""
        found = bisect_left(self._timestamps, timestamp) - 1
        return Offset(self._base + self._offsets[found]) if found >= 0 else Offset(self._base - 1)

    def offset_at_or_after(self, timestamp: int) -> Offset | None:
        """Where the batch ends that brought the first entry as new as `timestamp`; None without one."""
        found = bisect_left(self._timestamps, timestamp)
        return Offset(self._base + self._offsets[found]) if found < len(self._timestamps) else None

    def newest_before(self, offset: Offset) -> Offset | None:
        """Where the batch ends that brought the newest timestamp of all before `offset`; None without one."""
        found = bisect_left(self._offsets, max(offset - self._base, 0)) - 1
        return Offset(self._base + self._offsets[found]) if found >= 0 else None

    def truncate(self, offset: Offset) -> None:
        keep = bisect_left(self._offsets, max(offset - self._base, 0))
        del self._timestamps[keep:]
        del self._offsets[keep:]

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
        return index
