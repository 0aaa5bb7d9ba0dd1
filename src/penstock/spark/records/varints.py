"""Reading and writing of zigzag varints, many at once.

Records are framed by varints: a million records have seven million of them. Nearly all have one or two
bytes; those are looked up in tables. The few longer ones are read exactly, byte by byte, but still all
together.

Rule 1: Positions may be invalid. Reads are clipped to the buffer, and a caller with a wrong position finds
        out because its fields do not end where their record does.
Rule 2: The accepted forms are those of protocol/records.py: up to five bytes for 32 bits, up to ten for 64,
        and longer forms than needed.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.errors import CorruptData

ByteArray = NDArray[np.uint8]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

INT_BYTES_MAX = 5
LONG_BYTES_MAX = 10

_CONTINUES = 0x80
_PAYLOAD = 0x7F
_BITS = 7


class VarintRead(NamedTuple):
    """Values of varints, and their ends."""

    values: IntArray
    after: IntArray
    """Where each varint ends."""


def _decode_zigzag(raw: NDArray[np.uint64]) -> IntArray:
    return ((raw >> np.uint64(1)) ^ (np.uint64(0) - (raw & np.uint64(1)))).view(np.int64)


def _values_of_pairs() -> IntArray:
    """The value of any two bytes, the first one lowest.

    The second byte counts only if the first continues.
    """
    pairs = np.arange(1 << 16, dtype=np.uint64)
    first, second = pairs & np.uint64(0xFF), pairs >> np.uint64(8)
    both = (first & np.uint64(_PAYLOAD)) | (second & np.uint64(_PAYLOAD)) << np.uint64(_BITS)
    return _decode_zigzag(np.where(first < _CONTINUES, first, both))


PAIR_VALUES = _values_of_pairs()
_VALUES = PAIR_VALUES[:_CONTINUES].copy()


def read_varint_at_each(raw: ByteArray, at: IntArray, bytes_max: int = INT_BYTES_MAX) -> VarintRead:
    """The varint at each of the positions. CorruptData if one is too long."""
    first = raw.take(at, mode="clip")
    if first.max(initial=0) < _CONTINUES:
        return VarintRead(_VALUES.take(first), at + 1)
    after = at + 1
    second = raw.take(after, mode="clip")
    values = PAIR_VALUES.take(second.astype(np.uint16) << 8 | first)
    after += first >= _CONTINUES
    longer = (first & second) >= _CONTINUES
    if longer.any():
        rows = longer.nonzero()[0]
        values[rows], after[rows] = _read_long(raw, at[rows], bytes_max)
    return VarintRead(values, after)


def _read_long(raw: ByteArray, at: IntArray, bytes_max: int) -> VarintRead:
    bits = 32 if bytes_max == INT_BYTES_MAX else 64
    found = np.zeros(len(at), np.uint64)
    after = at.copy()
    rows = np.arange(len(at))
    for index in range(bytes_max):
        byte = raw.take(after[rows], mode="clip")
        shift = _BITS * index
        if bits - shift < _BITS and ((byte & _PAYLOAD) >> (bits - shift)).any():
            raise CorruptData(f"a varint needs more than {bits} bits")
        found[rows] |= (byte & _PAYLOAD).astype(np.uint64) << np.uint64(shift)
        after[rows] += 1
        rows = rows[byte >= _CONTINUES]
        if not len(rows):
            return VarintRead(_decode_zigzag(found), after)
    raise CorruptData(f"a varint is longer than {bytes_max} bytes")


def read_varint(view: memoryview, at: int) -> tuple[int, int]:
    """One varint of 32 bits, and where it ends, for the few that are not worth an array."""
    raw = 0
    try:
        for index in range(INT_BYTES_MAX):
            byte = view[at + index]
            raw |= (byte & _PAYLOAD) << _BITS * index
            if byte < _CONTINUES:
                break
        else:
            raise CorruptData(f"a varint is longer than {INT_BYTES_MAX} bytes")
    except IndexError:
        raise CorruptData("the batch ends inside a record") from None
    if raw >> 32:
        raise CorruptData("a varint needs more than 32 bits")
    return (raw >> 1) ^ -(raw & 1), at + index + 1


def varint_sizes(values: IntArray) -> NDArray[np.int64]:
    """The number of bytes that each value takes."""
    raw = _encode_zigzag(values)
    sizes = np.ones(len(values), np.int64)
    for more in range(1, LONG_BYTES_MAX):
        longer = raw >= np.uint64(1 << _BITS * more)
        if not longer.any():
            break
        sizes += longer
    return sizes


def varint_columns(values: IntArray) -> tuple[ByteArray, BoolArray]:
    """Return each varint as a row of bytes, as wide as the longest needs, and a mask of the used bytes."""
    sizes = varint_sizes(values)
    width = int(sizes.max(initial=1))
    raw = _encode_zigzag(values)
    columns = np.empty((len(values), width), np.uint8)
    for index in range(width):
        part = (raw >> np.uint64(_BITS * index)).astype(np.uint8) & np.uint8(_PAYLOAD)
        columns[:, index] = part | ((sizes > index + 1).astype(np.uint8) << 7)
    return columns, np.arange(width) < sizes[:, None]


def _encode_zigzag(values: IntArray) -> NDArray[np.uint64]:
    return ((values << 1) ^ (values >> 63)).view(np.uint64)
