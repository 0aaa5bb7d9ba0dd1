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
from penstock.spark.pool import borrowed
from penstock.spark.records.decode import Decoder
from penstock.spark.source.discovery import report_losses
from penstock.spark.source.offsets import Position, Range
from penstock.spark.table import Table
from penstock.types import Offset, TopicPartition
from penstock.wire.cluster import ClusterClient, OffsetGone
from penstock.wire.errors import TopicReplaced
from penstock.wire.fetching import extent_of

if TYPE_CHECKING:
    import pyarrow as pa

_SAMPLE_BYTES: Final = 64 * 1024


def _unheard(offsets: int) -> None:
    """Who does not ask how much was lost reads of it in the log."""


def read_range(
    settings: ReadSettings, table: Table, wanted: Range, lost: Callable[[int], None] = _unheard
) -> Iterator["pa.RecordBatch"]:
    """`lost` is told how many offsets were gone, if the user wants to go on without them."""
    position = wanted.start
    with borrowed(client_settings(settings.access)) as client:
        while position < wanted.end:
            try:
                for batch, reached in _batches(client, settings, table, wanted._replace(start=position)):
                    position = reached
                    if batch.num_rows:
                        yield batch
                return
            except OffsetGone as gone:
                report_losses([f"{gone}, and offsets {position} to {wanted.end} were to be read"], settings)
                if not position < gone.log_start:
                    lost(wanted.end - position)
                    return  # the log has become shorter: there is nothing to go on with
                lost(min(gone.log_start, wanted.end) - position)
                position = gone.log_start
            except TopicReplaced as replaced:
                report_losses([str(replaced).rstrip(".")], settings)
                lost(wanted.end - position)
                return


def _batches(
    client: ClusterClient, settings: ReadSettings, table: Table, wanted: Range
) -> Iterator[tuple["pa.RecordBatch", Offset]]:
    """Each with where to go on after it."""
    decoder = Decoder(table.columns, read_committed=settings.read_committed)
    fetched = client.fetch(
        wanted.partition,
        wanted.start,
        wanted.end,
        read_committed=settings.read_committed,
        bytes_at_once=settings.fetch_bytes,
        topic_id=wanted.topic_id,
    )
    for chunk in fetched:
        for decoded in decoder.decode(chunk, wanted.start, wanted.end):
            yield table.record_batch(wanted.partition, decoded), decoded.next_offset


def record_bytes(
    client: ClusterClient, settings: ReadSettings, latest: Position, waiting: Mapping[TopicPartition, int]
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
    except OffsetGone:
        return 0.0  # whoever reads it will say so
    extent = None if chunk is None else extent_of(chunk.data, Offset(LONG_MAX))
    return 0.0 if extent is None else extent.bytes / (extent.end - extent.first)
