"""Rows a second that one core decodes to Arrow and encodes from it, without a broker or Spark.

    python -m benchmarks.spark_decoding              all shapes, about half a minute
    python -m benchmarks.spark_decoding --quick      one sample of each

All work counts: checksums, decompression, all checks, all columns (headers only if there are any).
Time is the CPU time of this process, so that other load on the machine counts as little as possible.
Copying the same bytes once is measured beside it, as a measure of the memory bandwidth at that moment.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from benchmarks.figures import Better, Figure, table
from benchmarks.settings import FULL, QUICK, Settings
from penstock.limits import MIB
from penstock.protocol.compression import Codec
from penstock.protocol.records import Headers, Record, build_batch
from penstock.spark.records.decode import ColumnSelection, RecordBatchDecoder
from penstock.spark.records.encode import encode
from penstock.spark.records.key_partitioner import assign_partitions
from penstock.types import Offset, ProducerId

CHUNK_BYTES = 8 * MIB
END = Offset(2**62)
NOW_MS = 1_700_000_000_000
RUNS_PER_SAMPLE = 15
BATCH_BYTES_MAX = 1 * MIB


class FileLayout(NamedTuple):
    name: str
    value_bytes: int
    records_per_batch: int
    uneven: bool = True
    codec: Codec = Codec.NONE
    headers: Headers = ()
    columns: ColumnSelection = ColumnSelection(headers=False)
    target: float | None = None


HEADERS: Headers = (("trace", b"0123456789abcdef"), ("attempt", None))
SHAPES = (
    FileLayout("100 B", 100, 150, uneven=False, target=3000.0),
    FileLayout("100 B, uneven", 100, 150, target=3000.0),
    FileLayout("100 B, uneven, batches of 1 MB", 100, 8000, target=3000.0),
    FileLayout("100 B, batches of 10", 100, 10),
    FileLayout("100 B, lz4", 100, 150, codec=Codec.LZ4),
    FileLayout("100 B, zstd", 100, 150, codec=Codec.ZSTD),
    FileLayout("100 B, two headers", 100, 150, headers=HEADERS, columns=ColumnSelection()),
    FileLayout(
        "100 B, offset and timestamp only",
        100,
        150,
        columns=ColumnSelection(False, False, False, True, False),
    ),
    FileLayout("1 KB", 1000, 16, uneven=False, target=2000.0),
    FileLayout("1 KB, uneven, batches of 1 MB", 1000, 1000, target=2000.0),
)


class Chunk(NamedTuple):
    data: memoryview
    aborted: tuple[tuple[ProducerId, Offset], ...] = ()


def measure(settings: Settings) -> Iterator[Figure]:
    for shape in SHAPES:
        data, rows = _chunk(shape)
        decoder = RecordBatchDecoder(shape.columns, read_committed=True)
        chunk = Chunk(memoryview(data))

        def decode(decoder: RecordBatchDecoder = decoder, chunk: Chunk = chunk) -> int:
            return sum(len(decoded.offsets) for decoded in decoder.decode(chunk, Offset(0), END))

        assert decode() == rows
        yield _speed(settings, f"decode {shape.name}", decode, rows, shape.target)
        if not shape.uneven:
            yield _speed(settings, f"  copying {shape.name} once", partial(bytearray, data), rows)
    for value_bytes in (100, 1000):
        yield from _encoding(settings, value_bytes)


def _speed(
    settings: Settings, name: str, work: Callable[[], object], rows: int, target: float | None = None
) -> Figure:
    samples = []
    for _ in range(settings.repeats):
        took = []
        for _ in range(RUNS_PER_SAMPLE):
            began = time.process_time()
            work()
            took.append(time.process_time() - began)
        samples.append(rows / min(took) / 1000)
    return Figure(name=name, unit="k rows/s", samples=tuple(samples), better=Better.HIGHER, target=target)


def _chunk(shape: FileLayout) -> tuple[bytes, int]:
    random = Random(7)
    batches, held_bytes, offset = [], 0, 0
    while held_bytes < CHUNK_BYTES:
        records = [_record(shape, index, random) for index in range(shape.records_per_batch)]
        batches.append(build_batch(records, base_offset=offset, codec=shape.codec))
        offset += len(records)
        # Of what is compressed, the expanded size is what one chunk should have.
        held_bytes += sum(len(record.value or b"") for record in records)
    return b"".join(batches), offset


def _record(shape: FileLayout, index: int, random: Random) -> Record:
    half = shape.value_bytes // 2
    size = half + random.randrange(shape.value_bytes) if shape.uneven else shape.value_bytes
    text = b'{"order": %d, "customer": "customer %d", "amount": 12.50}' % (random.getrandbits(40), index)
    value = (text * (size // len(text) + 1))[:size]
    return Record(Offset(0), NOW_MS + index // 3, b"%016d" % index, value, shape.headers)


def _encoding(settings: Settings, value_bytes: int) -> Iterator[Figure]:
    rows = 20_000
    random = Random(7)
    keys = pa.array([b"%016d" % random.getrandbits(50) for _ in range(rows)], pa.binary())
    values = pa.array([random.randbytes(value_bytes) for _ in range(rows)], pa.binary())
    times = pa.array(NOW_MS + np.arange(rows) // 3)

    def batches() -> list[bytes]:
        return encode(keys, values, None, times, codec=Codec.NONE, batch_bytes_max=BATCH_BYTES_MAX)

    yield _speed(settings, f"encode {value_bytes} B", batches, rows)
    if value_bytes == 100:
        yield _speed(settings, "partitions of 16 B keys", lambda: assign_partitions(keys, 12), rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    before = os.getloadavg()[0]
    figures = list(measure(QUICK if arguments.quick else FULL))
    print(table(figures))
    print(f"load average {before:.1f} before, {os.getloadavg()[0]:.1f} after, {os.cpu_count()} cores")
    return 0


if __name__ == "__main__":
    sys.exit(main())
