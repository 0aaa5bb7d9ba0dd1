"""Arrow's binary and string arrays in numpy: the position and length of each string."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.spark.records.binary_extraction import NULL_LENGTH
from penstock.spark.records.varints import BoolArray, ByteArray, IntArray


class BinaryColumn(NamedTuple):
    """Strings of a column, with their positions in Arrow's buffer."""

    array: pa.BinaryArray
    data: ByteArray
    starts: IntArray
    lengths: IntArray
    """The length of each string, 0 for null."""
    absent: BoolArray | None
    """None if no string is null."""

    @property
    def wire_lengths(self) -> IntArray:
        """The lengths as records encode them: -1 for null."""
        return self.lengths if self.absent is None else np.where(self.absent, NULL_LENGTH, self.lengths)


def binary_column(column: pa.Array | pa.ChunkedArray) -> BinaryColumn:
    """The strings of a binary or string column. Other widths are converted first."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if array.type != pa.binary():
        array = array.cast(pa.binary())
    _, offsets, data = array.buffers()
    borders = np.zeros(1, np.int64)
    if len(array):
        borders = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1].astype(
            np.int64
        )
    absent = None
    lengths = np.diff(borders)
    if array.null_count:
        absent = array.is_null().to_numpy(zero_copy_only=False)
        lengths = np.where(absent, 0, lengths)
    raw = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return BinaryColumn(array, raw, borders[:-1], lengths, absent)
