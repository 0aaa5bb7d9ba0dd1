"""Payloads of batches in one buffer, as many at a time as memory allows.

Decoding has a cost for each call, so the payloads of many batches are decoded together. Uncompressed
payloads are used where they lie. If one payload of a group is compressed, all payloads of the group are
copied to a new buffer.

Rule 1: A group is closed once it has `group_bytes`, so it holds less than that plus one batch, and one
        batch decompresses to no more than the decoder's limit.
Rule 2: Checksums were checked before: nothing is decompressed that differs from what the producer wrote.
"""

from collections.abc import Iterator

import numpy as np

from penstock.limits import MIB
from penstock.protocol.batches import HEADER_BYTES
from penstock.protocol.compression import Codec, decompress
from penstock.spark.records.batch_table import BatchTable
from penstock.spark.records.record_starts import Payloads
from penstock.spark.records.varints import IntArray

GROUP_BYTES = 16 * MIB


def payload_groups(
    view: memoryview, table: BatchTable, *, decompressed_bytes_max: int, group_bytes: int = GROUP_BYTES
) -> Iterator[tuple[BatchTable, Payloads]]:
    """Groups of batches with their payloads, in order."""
    if not table.codec.any():
        yield from _uncompressed(view, table, group_bytes)
        return
    first, gathered, held_bytes = 0, list[memoryview](), 0
    for batch, (position, end, codec, records) in enumerate(
        zip(
            table.position.tolist(),
            table.end.tolist(),
            table.codec.tolist(),
            table.record_count.tolist(),
            strict=True,
        )
    ):
        payload = view[position + HEADER_BYTES : end]
        # Compaction may leave the header of a compressed batch with nothing behind it.
        if codec != Codec.NONE and (records or payload):
            payload = memoryview(decompress(Codec(codec), payload, limit_bytes=decompressed_bytes_max))
        gathered.append(payload)
        held_bytes += len(payload)
        if held_bytes >= group_bytes:
            yield _join(table.where(slice(first, batch + 1)), gathered)
            first, gathered, held_bytes = batch + 1, [], 0
    if gathered:
        yield _join(table.where(slice(first, table.size)), gathered)


def _uncompressed(
    view: memoryview, table: BatchTable, group_bytes: int
) -> Iterator[tuple[BatchTable, Payloads]]:
    first = 0
    while first < table.size:
        position = table.position[first]
        last = int(np.searchsorted(table.end, position + group_bytes))
        batches = table.where(slice(first, last + 1))
        span = view[int(position) : int(batches.end[-1])]
        start = batches.position - position + HEADER_BYTES
        yield batches, _payloads(span, batches, start, batches.end - position)
        first = last + 1


def _join(batches: BatchTable, gathered: list[memoryview]) -> tuple[BatchTable, Payloads]:
    ends = np.cumsum([len(payload) for payload in gathered], dtype=np.int64)
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1]
    return batches, _payloads(memoryview(b"".join(gathered)), batches, starts, ends)


def _payloads(view: memoryview, batches: BatchTable, start: IntArray, end: IntArray) -> Payloads:
    raw = np.frombuffer(view, np.uint8)
    return Payloads(raw, view, start, end, batches.record_count, batches.base_offset)
