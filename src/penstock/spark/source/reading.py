"""The work of one task: it reads one range of one partition from the leader into Arrow.

Rule 1: When records disappear during a read, the task continues from its position, so that no record is
        read twice. The loss is never silent: it is an error, or a log entry if failOnDataLoss is false.
Rule 2: Offsets belong to the topic id that the driver planned with. A topic that was recreated between the
        plan and the task has other records at the same offsets: they are not read.
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
from penstock.spark.topic_table import TopicTable
from penstock.types import Offset, TopicPartition
from penstock.wire.cluster_client import ClusterClient, OffsetOutOfRange
from penstock.wire.errors import TopicReplaced
from penstock.wire.range_fetcher import extent_of

if TYPE_CHECKING:
    import pyarrow as pa

_SAMPLE_BYTES: Final = 64 * 1024


def _ignore_loss(offsets: int) -> None:
    """Do nothing: the loss is in the log."""


def read_range(
    settings: ReadSettings,
    table: TopicTable,
    offset_range: OffsetRange,
    lost: Callable[[int], None] = _ignore_loss,
) -> Iterator["pa.RecordBatch"]:
    """Read the range.

    `lost` is called with the number of lost offsets if the query continues without them.
    """
    position = offset_range.start
    with borrowed_client(client_settings(settings.access)) as client:
        while position < offset_range.end:
            try:
                for batch, reached in _batches(
                    client, settings, table, offset_range._replace(start=position)
                ):
                    # Set before the yield: after a failed fetch the read continues behind this batch.
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
                    return  # the log has become shorter, so no record of the range is left
                lost(min(gone.log_start, offset_range.end) - position)
                position = gone.log_start
            except TopicReplaced as replaced:
                report_losses([str(replaced).rstrip(".")], settings)
                lost(offset_range.end - position)
                return


def _batches(
    client: ClusterClient, settings: ReadSettings, table: TopicTable, offset_range: OffsetRange
) -> Iterator[tuple["pa.RecordBatch", Offset]]:
    """The batches, each with the offset after it."""
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
    """The approximate bytes for each offset, by partition, estimated from the first unread record."""
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
        return 0.0  # the task that reads the range reports the loss
    extent = None if chunk is None else extent_of(chunk.data, Offset(LONG_MAX))
    return 0.0 if extent is None else extent.bytes / (extent.end - extent.first)
