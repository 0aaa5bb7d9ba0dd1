"""Extraction of byte strings from a buffer into an Arrow array, in one call.

The buffer is interpreted as an Arrow array whose elements are, alternately, the wanted strings and the
bytes between them. Arrow then copies every other element. No string becomes a Python object.

Rule 1: The strings lie in the buffer in order and do not overlap. The caller has checked that they lie
        inside the buffer: Arrow does not check that.
Rule 2: The buffer is smaller than 2 GiB, because Arrow's offsets are.
"""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.limits import INT_MAX
from penstock.spark.records.varints import BoolArray, ByteArray, IntArray

NULL_LENGTH = -1


def extract_strings(buffer: pa.Buffer, starts: IntArray, lengths: IntArray) -> pa.BinaryArray:
    """The strings that begin at `starts`, null where the length is -1."""
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
    """The strings when all have the same length. Without borders this takes about two thirds of the time."""
    strings = overlapping_elements(np.frombuffer(buffer, np.uint8), length)[starts]
    borders = np.arange(0, length * len(starts) + 1, length, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(starts), [None, pa.py_buffer(borders), pa.py_buffer(strings.view(np.uint8))]
    )


def overlapping_elements(raw: ByteArray, size: int) -> NDArray[np.void]:
    """Array whose element at every position is the `size` bytes that begin there.

    Indexing this copies the bytes at full speed.
    """
    return np.ndarray((len(raw) - size + 1,), np.dtype((np.void, size)), buffer=raw.data, strides=(1,))


def validity(present: BoolArray) -> pa.Buffer:
    """Arrow's validity bitmap."""
    return pa.py_buffer(np.packbits(present, bitorder="little"))
