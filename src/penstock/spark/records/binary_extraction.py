"""Cutting byte strings out of a buffer into an Arrow array, all in one call.

The buffer is taken for an Arrow array as it is: its elements are the wanted strings and, between them,
what lies between them. Arrow then copies every other element. No string becomes a Python object.

Rule 1: the strings lie in the buffer in order and do not overlap, and the caller has made sure that they
        lie in it at all: Arrow does not.
Rule 2: the buffer is smaller than 2 GiB, as are Arrow's own offsets.
"""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.limits import INT_MAX
from penstock.spark.records.varints import BoolArray, ByteArray, IntArray

NULL_LENGTH = -1


def extract_strings(buffer: pa.Buffer, starts: IntArray, lengths: IntArray) -> pa.BinaryArray:
    """The strings that begin at `starts`; null where the length is -1."""
    count = len(starts)
    absent = lengths < 0
    some_absent = bool(absent.any())
    if some_absent and absent.all():
        return pa.nulls(count, pa.binary())
    if count == 0:
        return pa.array([], pa.binary())
    stops = starts + lengths
    if some_absent:
        stops[absent] = starts[absent]
    assert starts[0] >= 0
    assert stops[-1] <= buffer.size <= INT_MAX
    if not some_absent and lengths[0] > 0 and (lengths == lengths[0]).all():
        return _extract_equal_strings(buffer, starts, int(lengths[0]))
    borders = np.empty(2 * count, np.int32)
    borders[0::2] = starts
    borders[1::2] = stops
    everything = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(borders), buffer])
    wanted = np.arange(0, 2 * count, 2, dtype=np.int32)
    return everything.take(pa.array(wanted, mask=absent if some_absent else None))


def _extract_equal_strings(buffer: pa.Buffer, starts: IntArray, length: int) -> pa.BinaryArray:
    """Strings of equal length need no borders: about two thirds of the time."""
    strings = overlapping(np.frombuffer(buffer, np.uint8), length)[starts]
    borders = np.arange(0, length * len(starts) + 1, length, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(starts), [None, pa.py_buffer(borders), pa.py_buffer(strings.view(np.uint8))]
    )


def overlapping(raw: ByteArray, size: int) -> NDArray[np.void]:
    """At every position the bytes that begin there, as one element: indexing copies them at full speed."""
    return np.ndarray((len(raw) - size + 1,), np.dtype((np.void, size)), buffer=raw.data, strides=(1,))


def validity(present: BoolArray) -> pa.Buffer:
    """Arrow's bitmap of what is not null."""
    return pa.py_buffer(np.packbits(present, bitorder="little"))
