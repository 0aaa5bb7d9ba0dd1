"""Stream reads: a topic as a table that grows.

Spark keeps one StreamReader for a query, in a process of its own on the driver, and calls it at every
trigger for the end of the next batch. The result is written to the checkpoint before it is read, so a batch
that runs again reads the same offsets. Tasks get a copy of the reader in its initial state; `read` uses
nothing that changes.

planner.py decides which offsets the next batch has, and which tasks read it.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.spark.options.options import ReadSettings, TriggerLimits, stream_read_settings
from penstock.spark.runtime.workers import freeze_gc
from penstock.spark.source.offset_mirror import commit_from_task, current_query
from penstock.spark.source.offsets import parse_stream_position, stream_position_document, to_document
from penstock.spark.source.planner import CommittingPartition, StreamPlanner
from penstock.spark.source.reading import read_range
from penstock.spark.source.source import OffsetRangePartition, requested_payload
from penstock.spark.topic_table import TopicTable

if TYPE_CHECKING:
    import pyarrow as pa


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark's reader of a streaming query: plans on the driver, reads in tasks."""

    @classmethod
    def from_options(cls, options: Mapping[str, str], schema: StructType) -> "StreamReader":
        return cls(stream_read_settings(options), TopicTable(schema, requested_payload(options)))

    def __init__(self, settings: ReadSettings, table: TopicTable) -> None:
        self._settings = settings
        self._table = table
        self._planner: StreamPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The state for tasks. Connections and the position stay with the planner."""
        return self.__dict__ | {"_planner": None}

    @property
    def planner(self) -> StreamPlanner:
        if self._planner is None:
            self._planner = StreamPlanner(self._settings)
        return self._planner

    # In the planner's process

    def initialOffset(self) -> dict[str, Any]:
        return stream_position_document(self.planner.initial_position())

    def getDefaultReadLimit(self) -> ReadLimit:
        return _read_limit(self._settings.limits)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        takes_all = isinstance(limit, ReadAllAvailable)
        return stream_position_document(
            self.planner.next_end(parse_stream_position(start), takes_all=takes_all)
        )

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return to_document(self.planner.latest) or None

    def prepareForTriggerAvailableNow(self) -> None:
        self.planner.bound_to_available()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return self.planner.tasks(parse_stream_position(start), parse_stream_position(end))

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark calls this a batch late. `OffsetMirror` gets the position from `latestOffset`."""

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()

    # In the executors

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return read_range(self._settings, self._table, self.started_task(partition).offset_range)

    def started_task(self, partition: InputPartition) -> OffsetRangePartition:
        """The task that begins now."""
        freeze_gc()
        assert isinstance(partition, OffsetRangePartition)
        if isinstance(partition, CommittingPartition) and (query := current_query()) is not None:
            commit_from_task(partition.first_task_commit, self._settings, query)
        return partition


def _read_limit(limits: TriggerLimits) -> ReadLimit:
    """The limit for Spark, which accepts one limit and passes it back.

    `next_end` applies all given limits.
    """
    if limits.offsets_max is not None:
        return ReadMaxRows(limits.offsets_max)
    if limits.bytes_max is not None:
        return ReadMaxBytes(limits.bytes_max)
    if limits.offsets_min is not None:
        return ReadMinRows(limits.offsets_min)
    return ReadAllAvailable()
