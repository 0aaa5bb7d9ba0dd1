"""What a task does: one range of one partition, from the leader to Arrow.

Rule 1: what was read goes on from where it was when records disappear under it, so that nothing comes
        twice; and never silently: they are an error, or a line in the log if the user wants it so.
Rule 2: offsets are those of the topic id that the driver planned with. A topic that was made anew between
        the plan and the task has other records by the same offsets: they are not read.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from penstock.limits import LONG_MAX
from penstock.spark.options.client import client_settings
from penstock.spark.options.options import ReadSettings
from penstock.spark.pool import borrowed_client
from penstock.spark.records.decode import RecordBatchDecoder
from penstock.spark.source.discovery import report_losses
from penstock.spark.source.offsets import OffsetRange, PartitionOffsets
from penstock.spark.table import Table
from penstock.types import Offset, TopicPartition
from penstock.wire.cluster_client import ClusterClient, OffsetOutOfRange
from penstock.wire.errors import TopicReplaced
from penstock.wire.range_fetcher import extent_of

if TYPE_CHECKING:
    import pyarrow as pa

_SAMPLE_BYTES: Final = 64 * 1024


def _ignore_loss(offsets: int) -> None:
    """Who does not ask how much was lost reads of it in the log."""


def read_range(
    settings: ReadSettings,
    table: Table,
    offset_range: OffsetRange,
    lost: Callable[[int], None] = _ignore_loss,
) -> Iterator["pa.RecordBatch"]:
    """`lost` is told how many offsets were gone, if the user wants to go on without them."""
    position = offset_range.start
    with borrowed_client(client_settings(settings.access)) as client:
        while position < offset_range.end:
            try:
                for batch, reached in _batches(
                    client, settings, table, offset_range._replace(start=position)
                ):
                    position = reached
                    if batch.num_rows:
                        yield batch
                return
            except OffsetOutOfRange as gone:
                report_losses(
                    [f"{gone}, and offsets {position} to {offset_range.end} were to be read"], settings
                )
                if not position < gone.log_start:
                    lost(offset_range.end - position)
                    return  # the log has become shorter: there is nothing to go on with
                lost(min(gone.log_start, offset_range.end) - position)
                position = gone.log_start
            except TopicReplaced as replaced:
                report_losses([str(replaced).rstrip(".")], settings)
                lost(offset_range.end - position)
                return


def _batches(
    client: ClusterClient, settings: ReadSettings, table: Table, offset_range: OffsetRange
) -> Iterator[tuple["pa.RecordBatch", Offset]]:
    """Each with where to go on after it."""
    decoder = RecordBatchDecoder(table.columns, read_committed=settings.read_committed)
    fetched = client.fetch(
        offset_range.partition,
        offset_range.start,
        offset_range.end,
        read_committed=settings.read_committed,
        bytes_at_once=settings.fetch_bytes,
        topic_id=offset_range.topic_id,
    )
    for chunk in fetched:
        for decoded in decoder.decode(chunk, offset_range.start, offset_range.end):
            yield table.record_batch(offset_range.partition, decoded), decoded.next_offset


def record_bytes(
    client: ClusterClient,
    settings: ReadSettings,
    latest: PartitionOffsets,
    waiting: Mapping[TopicPartition, int],
) -> dict[TopicPartition, float]:
    """About how many bytes an offset takes in each partition, judged by the first of those that wait."""
    return {
        partition: _sample(client, settings, partition, Offset(latest[partition] - count))
        for partition, count in waiting.items()
    }


def _sample(client: ClusterClient, settings: ReadSettings, partition: TopicPartition, start: Offset) -> float:
    chunks = client.fetch(
        partition,
        start,
        Offset(start + 1),
        read_committed=settings.read_committed,
        bytes_at_once=_SAMPLE_BYTES,
    )
    try:
        chunk = next(chunks, None)
    except OffsetOutOfRange:
        return 0.0  # whoever reads it will say so
    extent = None if chunk is None else extent_of(chunk.data, Offset(LONG_MAX))
    return 0.0 if extent is None else extent.bytes / (extent.end - extent.first)
