"""Map from key to the offset of its last record, in a fixed amount of memory.

A million Python bytes and integers in a dict take 124 MB. Here a key takes 24 bytes of one buffer whatever
its length: sixteen bytes of digest and eight of offset, found by open addressing. The table is a little over
half as fast as a dict, which at some two microseconds a record is not the bottleneck.

Rule 1: keys are compared by 128 bits of BLAKE2b. Two keys with the same digest would lose a record, and no
        such pair can be constructed.
Rule 2: at most three slots in four are used: beyond that a search becomes long.
Rule 3: the number of slots is a power of two: a remainder of 64 bits would cost as much as all the rest.
Rule 4: the buffer is reserved at once and its pages are touched as they are used.
"""

from hashlib import blake2b
from struct import Struct

from penstock.types import Offset

DIGEST_BYTES = 16
SLOT_BYTES = DIGEST_BYTES + 8
SLOTS_MIN = 64
_WORDS = SLOT_BYTES // 8
_halves = Struct("QQ").unpack


class KeyMap:
    """Map from key to offset."""

    __slots__ = ("_mask", "_words", "capacity", "count")

    def __init__(self, *, memory_bytes: int, keys_max: int) -> None:
        """Reserve slots for `keys_max` keys, within `memory_bytes`."""
        enough = 1 << (keys_max * 4 // 3).bit_length()
        affordable = 1 << (memory_bytes // SLOT_BYTES).bit_length() >> 1
        slots = max(min(enough, affordable), SLOTS_MIN)
        self._mask = slots - 1
        self._words: memoryview[int] = memoryview(bytearray(slots * SLOT_BYTES)).cast("Q")
        self.capacity = slots * 3 // 4
        self.count = 0

    @property
    def room(self) -> int:
        """Number of keys that can still be added."""
        return self.capacity - self.count

    def put(self, key: bytes, offset: Offset) -> int:
        """Store a newer offset of a key. Returns the previous one; -1 if there was none."""
        high, low = _halves(blake2b(key, digest_size=16).digest())
        words = self._words
        at: int = (high & self._mask) * 3
        while stored := words[at + 2]:
            if words[at] == high and words[at + 1] == low:
                words[at + 2] = offset + 1
                return stored - 1
            at += 3
            if at == len(words):
                at = 0
        assert self.count < self.capacity, "ask for room first"
        self.count += 1
        words[at] = high
        words[at + 1] = low
        words[at + 2] = offset + 1  # zero marks a free slot
        return -1

    def find(self, key: bytes) -> int:
        """Last offset of a key; -1 if it is not in the map."""
        high, low = _halves(blake2b(key, digest_size=16).digest())
        words = self._words
        at: int = (high & self._mask) * 3
        while stored := words[at + 2]:
            if words[at] == high and words[at + 1] == low:
                return stored - 1
            at += 3
            if at == len(words):
                at = 0
        return -1


assert _WORDS == 3, "the table is walked three words at a time"
