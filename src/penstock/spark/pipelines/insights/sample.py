"""Data that `insights` reads from the cluster without Spark: sampled batches, and the lag of groups.

Rule: a sample is one fetch from the middle of each partition's range, for at most PARTITIONS_MAX partitions.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from penstock.errors import CorruptData
from penstock.limits import KIB
from penstock.protocol.batches import HEADER_BYTES
from penstock.protocol.compression import Codec, compress
from penstock.spark.pipelines.insights.numbers import BatchSample, GroupBacklog
from penstock.spark.records.batch_table import BatchTable, read_table
from penstock.spark.records.decode import ColumnSelection, RecordBatchDecoder
from penstock.types import Offset, TopicPartition
from penstock.wire.cluster_client import ClusterClient, OffsetOutOfRange

SAMPLE_BYTES: Final = 512 * KIB
PARTITIONS_MAX: Final = 16
SampledRanges = Mapping[TopicPartition, tuple[int, int]]


def sample_batches(client: ClusterClient, ranges: SampledRanges) -> BatchSample:
    """Fetch the middle of each partition's range, and measure the batches in it."""
    total = BatchSample()
    filled = [(partition, span) for partition, span in ranges.items() if span[0] < span[1]]
    for partition, (start, end) in filled[:PARTITIONS_MAX]:
        total = _add(total, _sample_partition(client, partition, Offset((start + end) // 2)))
    return total


def _sample_partition(client: ClusterClient, partition: TopicPartition, middle: Offset) -> BatchSample:
    fetches = client.fetch(
        partition, middle, Offset(middle + 1), read_committed=False, bytes_at_once=SAMPLE_BYTES
    )
    try:
        fetched = next(fetches, None)
    except OffsetOutOfRange:
        return BatchSample()
    return BatchSample() if fetched is None else _sample_fetch(fetched.data)


def _sample_fetch(data: memoryview) -> BatchSample:
    table = read_table(data, np.frombuffer(data, np.uint8))
    # Transaction markers were not sent by producers.
    table = table.where(~table.is_control)
    codecs = Counter(Codec(number).label for number in table.codec.tolist())
    plain = _uncompressed_payloads(data, table)
    return BatchSample(
        table.size,
        int(table.record_count.sum()),
        int((table.end - table.position).sum()),
        codecs,
        sum(map(len, plain)),
        sum(len(compress(Codec.ZSTD, each)) for each in plain),
    )


def _uncompressed_payloads(data: memoryview, table: BatchTable) -> list[memoryview]:
    """Return the records of uncompressed batches, one buffer per batch: each is compressed separately."""
    chosen = table.where(table.codec == Codec.NONE)
    spans = zip(chosen.position.tolist(), chosen.end.tolist(), strict=True)
    return [data[start + HEADER_BYTES : end] for start, end in spans]


def _add(one: BatchSample, other: BatchSample) -> BatchSample:
    return BatchSample(
        one.batches + other.batches,
        one.records + other.records,
        one.bytes + other.bytes,
        Counter(one.codecs) + Counter(other.codecs),
        one.plain_bytes + other.plain_bytes,
        one.compressed_bytes + other.compressed_bytes,
    )


def fetch_group_backlogs(
    client: ClusterClient, groups: Iterable[str], ranges: SampledRanges, now_ms: int
) -> tuple[GroupBacklog, ...]:
    """Ask for each group's uncommitted records, for partitions in which the group has committed an offset."""
    waits = []
    for group in groups:
        for partition, committed in client.committed(group, ranges).items():
            if committed is not None:
                end = ranges[partition][1]
                time_ms = _time_at(client, partition, committed) if committed < end else None
                age_ms = None if time_ms is None else max(now_ms - time_ms, 0)
                waits.append(GroupBacklog(group, partition.partition, max(end - committed, 0), age_ms))
    return tuple(waits)


def _time_at(client: ClusterClient, partition: TopicPartition, offset: Offset) -> int | None:
    """Return the time of the first record from this offset on."""
    decoder = RecordBatchDecoder(ColumnSelection(key=False, value=False, headers=False), read_committed=False)
    fetches = client.fetch(
        partition, offset, Offset(offset + 1), read_committed=False, bytes_at_once=SAMPLE_BYTES
    )
    try:
        for fetched in fetches:
            for decoded in decoder.decode(fetched, offset, Offset(offset + 1)):
                if decoded.timestamps_ms is not None and len(decoded.timestamps_ms):
                    return int(decoded.timestamps_ms[0].as_py())
    except (OffsetOutOfRange, CorruptData):
        return None
    return None
