"""Batch reads: a topic as a table that does not change during a query.

Offsets are resolved once, when Spark plans the DataFrame. Every action on it, and every task that runs
again, reads the same records, as long as the cluster has them.

Spark creates the reader on the driver, sends it to the executors by pickle, and calls `read` there. Filters
are not pushed down: in Spark 4.3 a filter that one action pushed still applies to the next action on the
same DataFrame. Options and the schema select what to read.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.spark.options.client import client_settings
from penstock.spark.options.names import PAYLOAD_OPTIONS
from penstock.spark.options.options import ReadSettings, batch_read_settings, includes_headers
from penstock.spark.pool import borrowed_client
from penstock.spark.runtime.workers import freeze_gc
from penstock.spark.source.discovery import (
    discover,
    fetch_earliest,
    fetch_latest,
    report_losses,
    require_found,
    resolve_bound,
)
from penstock.spark.source.offsets import OffsetRange, plan_batch, split_ranges, with_topic_ids
from penstock.spark.source.reading import read_range
from penstock.spark.topic_table import TopicTable, ValueColumns, full_schema

if TYPE_CHECKING:
    import pyarrow as pa


class OffsetRangePartition(InputPartition):
    """One task. `count` is the number of tasks that the batch was planned with."""

    def __init__(self, offset_range: OffsetRange, count: int = 1) -> None:
        super().__init__(tuple(offset_range))
        self.offset_range = offset_range
        self.count = count


def table_schema(options: Mapping[str, str]) -> StructType:
    """The schema of a read. Spark calls this for batches and streams alike, before it creates a reader."""
    schema = full_schema(include_headers=includes_headers(options))
    payload = requested_payload(options)
    if payload is None:
        return schema
    return StructType([*(field for field in schema if field.name != "value"), *payload.fields()])


def requested_payload(options: Mapping[str, str]) -> ValueColumns | None:
    """How values become columns, if options request it. Most reads do not, and do not load that code."""
    if not {name.lower() for name in PAYLOAD_OPTIONS} & {name.lower() for name in options}:
        return None
    from penstock.spark.payload.payload import Payload

    return Payload.from_options(options)


class BatchReader(DataSourceReader):
    """Spark's reader of a batch query: plans on the driver, reads in tasks."""

    @classmethod
    def from_options(cls, options: Mapping[str, str], schema: StructType) -> "BatchReader":
        return cls(batch_read_settings(options), TopicTable(schema, requested_payload(options)))

    def __init__(self, settings: ReadSettings, table: TopicTable) -> None:
        self._settings = settings
        self._table = table

    def partitions(self) -> list[InputPartition]:
        """The tasks of the read.

        Spark replaces an empty list by one partition of another type, which `read` detects.
        """
        settings = self._settings
        ranges = split_ranges(
            self._ranges(), tasks_min=settings.tasks_min, records_max=settings.records_per_task_max
        )
        return [OffsetRangePartition(each, len(ranges)) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        freeze_gc()
        if not isinstance(partition, OffsetRangePartition):
            return iter(())
        return read_range(self._settings, self._table, partition.offset_range)

    def _ranges(self) -> list[OffsetRange]:
        settings = self._settings
        with borrowed_client(client_settings(settings.access)) as client:
            found = discover(client, settings.subscription)
            partitions = require_found(found, settings.subscription)
            # The order matters: records that are added or removed between these requests must not make a
            # position invalid.
            earliest = fetch_earliest(client, partitions, settings)
            start = resolve_bound(client, settings, settings.start, partitions)
            end = resolve_bound(client, settings, settings.end, partitions)
            latest = fetch_latest(client, partitions, settings)
        plan = plan_batch(start, end, earliest, latest)
        report_losses(plan.losses, settings)
        return with_topic_ids(plan.ranges, found.ids)
