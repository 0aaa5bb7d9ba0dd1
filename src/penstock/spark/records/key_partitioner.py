"""The partition of each record of a column of keys, chosen as by Kafka's Java producer.

A key's partition is its murmur2 hash, without the sign, modulo the number of partitions. All keys are
hashed in step, four bytes of each at a time. The last few keys that are longer than all others are hashed
one by one.

Rule 1: Equal keys go to the partition to which every other Kafka client sends them.
Rule 2: Records without a key go to one partition for a while and then to the next, because full batches are
        cheaper than evenly filled ones.
"""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.spark.records.binary_columns import BinaryColumn, binary_column
from penstock.spark.records.varints import ByteArray, IntArray

Hashes = NDArray[np.uint32]

STICKY_ROWS_MIN = 512
"""The least number of records without a key that stay together."""

_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995
_SHIFT = 24
_WORD_BYTES = 4
_MASK = 0xFFFF_FFFF
_ROWS_IN_STEP_MIN = 8


def assign_partitions(
    keys: pa.Array | None, partitions: int, *, rows: int = 0, first: int = 0
) -> NDArray[np.int32]:
    """The partition of each record. `first` is the first partition for records without a key.

    Without any keys, `rows` is the number of records.
    """
    assert partitions > 0
    if keys is None:
        return _spread(rows, partitions, first)
    column = binary_column(keys)
    chosen = ((murmur2(column) & np.uint32(0x7FFF_FFFF)) % np.uint32(partitions)).astype(np.int32)
    if column.absent is not None:
        chosen[column.absent] = _spread(int(column.absent.sum()), partitions, first)
    return chosen


def murmur2(column: BinaryColumn) -> Hashes:
    """The hash of each string. Null has the hash of the empty string."""
    lengths = column.lengths
    words = lengths // _WORD_BYTES
    hashes = (np.uint32(_SEED) ^ lengths.astype(np.uint32)).astype(np.uint32)
    rows, done = words.nonzero()[0], 0
    while len(rows) >= _ROWS_IN_STEP_MIN:
        mixed = _mix(_words_at(column.data, column.starts[rows] + _WORD_BYTES * done))
        hashes[rows] = hashes[rows] * np.uint32(_FACTOR) ^ mixed
        done += 1
        rows = rows[words[rows] > done]
    for row in rows.tolist():
        hashes[row] = _hash_words(column, row, done, int(hashes[row]))
    return _finish(_with_tails(column, words, hashes))


def _spread(count: int, partitions: int, first: int) -> NDArray[np.int32]:
    run = max(-(-count // partitions), STICKY_ROWS_MIN)
    return ((first + np.arange(count) // run) % partitions).astype(np.int32)


def _words_at(data: ByteArray, at: IntArray) -> Hashes:
    word = np.zeros(len(at), np.uint32)
    for index in range(_WORD_BYTES):
        word |= data.take(at + index).astype(np.uint32) << np.uint32(8 * index)
    return word


def _mix(word: Hashes) -> Hashes:
    word = word * np.uint32(_FACTOR)
    word ^= word >> np.uint32(_SHIFT)
    return word * np.uint32(_FACTOR)


def _hash_words(column: BinaryColumn, row: int, done: int, value: int) -> int:
    start = int(column.starts[row])
    end = start + int(column.lengths[row]) // _WORD_BYTES * _WORD_BYTES
    for mixed in _mix(column.data[start + _WORD_BYTES * done : end].copy().view("<u4")).tolist():
        value = value * _FACTOR & _MASK ^ mixed
    return value


def _with_tails(column: BinaryColumn, words: IntArray, hashes: Hashes) -> Hashes:
    """The hashes after the one to three bytes behind the last whole word."""
    tails = column.lengths % _WORD_BYTES
    at = column.starts + words * _WORD_BYTES
    for index in (2, 1, 0):
        rows = (tails > index).nonzero()[0]
        hashes[rows] ^= column.data.take(at[rows] + index).astype(np.uint32) << np.uint32(8 * index)
    rows = tails.nonzero()[0]
    hashes[rows] *= np.uint32(_FACTOR)
    return hashes


def _finish(hashes: Hashes) -> Hashes:
    hashes = hashes ^ hashes >> np.uint32(13)
    hashes *= np.uint32(_FACTOR)
    return hashes ^ hashes >> np.uint32(15)
