"""Spark source and sink of `archive`: offset ranges pass through Spark, records do not.

    format("penstock-ranges") ── topic, id, partition, start, end ──▶ format("penstock-archive") ──▶ files

The source and the sink belong together. The source returns one row per task with the range that the task
reads. The sink, in the same task, fetches those records, decodes them and writes the files. Records that
passed through Spark would be copied to Java, split into rows, reassembled and copied back, which costs more
than all other steps.

Rule 1: Spark's checkpoint and the table's commits are the same as if records were rows: a range is read again
        whenever its task is retried, and always as a whole.
Rule 2: the table records which offsets were read, not only which offsets have rows. Transaction markers have
        offsets but no rows, and offsets that the topic no longer had are counted as lost.
Rule 3: a table that is older than the checkpoint is rejected. A partition without rows in the table should be
        complete from where the topic began when the archive was first started (STARTS_OPTION). A partition
        that was added later should be complete from its current start.
Rule 4: the source and the sink both take the connection options; those of the sink are prefixed with
        READ_PREFIX.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from penstock.spark.lake.lake_sink import LakeWriter, register_once, reject_overwrite
from penstock.spark.lake.lake_table import LakeBatch, LakeTable, LakeTableError, OffsetSpan, PlannedRange
from penstock.spark.lake.task_files import TaskFiles, add_spans
from penstock.spark.options.client import client_settings
from penstock.spark.options.options import stream_read_settings
from penstock.spark.pool import borrowed_client
from penstock.spark.source.discovery import fetch_earliest
from penstock.spark.source.offsets import OffsetRange, from_document
from penstock.spark.source.reading import read_range
from penstock.spark.source.stream_source import StreamReader
from penstock.spark.topic_table import BEYOND, TopicTable, full_schema
from penstock.types import Offset, TopicId, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE: Final = "penstock-ranges"
SINK: Final = "penstock-archive"
READ_PREFIX: Final = "read."
STARTS_OPTION: Final = "archiveStarts"
"""Option with the offsets at which the topics began when the archive was first started."""
COLUMNS: Final = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "key",
    "value",
    "headers",
    BEYOND,
)
RANGE_SCHEMA: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("start", LongType()),
        StructField("end", LongType()),
        StructField("topicId", BinaryType()),
        StructField("count", IntegerType()),
    ]
)


def register(spark: "SparkSession") -> None:
    register_once(spark, RangeSource)
    register_once(spark, ArchiveSink)


class RangeSource(DataSource):
    """Spark source whose rows are offset ranges instead of records."""

    @classmethod
    def name(cls) -> str:
        return SOURCE

    def schema(self) -> StructType:
        return RANGE_SCHEMA

    def streamReader(self, schema: StructType) -> "RangeReader":
        return RangeReader(stream_read_settings(self.options), _records_table())


class RangeReader(StreamReader):
    """Spark's reader of a streaming query whose tasks return one row each: the range to read."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        task = self.started_task(partition)
        (topic, number), start, end, topic_id = task.offset_range
        place = {"topic": topic, "partition": number, "topicId": topic_id}
        row = {**place, "start": start, "end": end, "count": task.count}
        yield pa.RecordBatch.from_pylist([row], to_arrow_schema(RANGE_SCHEMA, timezone="UTC"))


class ArchiveSink(DataSource):
    """Spark sink that reads the records of the ranges and writes them to the lake."""

    @classmethod
    def name(cls) -> str:
        return SINK

    def streamWriter(self, schema: StructType, overwrite: bool) -> "ArchiveWriter":
        reject_overwrite(overwrite)
        return ArchiveWriter(self.options)


class ArchiveWriter(LakeWriter):
    """Writer of one query: its tasks turn ranges into the records in them."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options, COLUMNS)
        self._settings = stream_read_settings(_read_options(options))
        self._starts = from_document(json.loads(options.get(STARTS_OPTION) or "{}"))
        self._table = _records_table()

    def rows(self, given: Iterator[pa.RecordBatch], files: TaskFiles) -> Iterator[pa.RecordBatch]:
        files.set_schema(to_arrow_schema(_records_schema(), timezone="UTC"))

        def lost(offsets: int) -> None:
            files.lost += offsets

        for offset_range, count in _ranges(given):
            span = OffsetSpan(offset_range.start, offset_range.end)
            # The whole range counts as read, even where it has no rows (rule 2).
            add_spans(files.spans, {offset_range.partition: span})
            files.planned_ranges.append(PlannedRange(offset_range.partition, span, count))
            yield from read_range(self._settings, self._table, offset_range, lost)

    def spans(self, given: Iterator[pa.RecordBatch]) -> dict[TopicPartition, OffsetSpan]:
        """Return the ranges without reading them: retention may have removed their records by now."""
        found: dict[TopicPartition, OffsetSpan] = {}
        for offset_range, _ in _ranges(given):
            add_spans(found, {offset_range.partition: OffsetSpan(offset_range.start, offset_range.end)})
        return found

    def validate(self, batch: LakeBatch, table: LakeTable) -> LakeBatch:
        """Count gaps before the batch as lost.

        Ranges are contiguous, so a gap means that the table lost rows, for example because it was restored
        from a backup.
        """
        held = dict(table.ends(batch.spans))
        # A span that starts at 0 cannot follow a gap.
        new = [each for each, span in batch.spans.items() if each not in held and span.start > 0]
        gaps = {
            each: batch.spans[each].start - end
            for each, end in (held | self._start_offsets(new)).items()
            if batch.spans[each].start > end
        }
        if gaps and self._settings.fail_on_data_loss:
            partition, gap = next(iter(gaps.items()))
            retention = "" if partition in held else ", or retention removed them before they were archived"
            raise LakeTableError(
                f"the table lacks {gap} offsets of {partition.topic}/{partition.partition} before "
                f"{batch.spans[partition].start}, which were to be archived: the table is older than the "
                f"checkpoint{retention}. Use the newest state of the table, begin anew with another --to, or "
                "give --allow-loss to go on without them"
            )
        return batch._replace(lost=batch.lost + sum(gaps.values()))

    def _start_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where the archive of these partitions began; without a note, where the topic begins now."""
        noted = {each: self._starts[each] for each in partitions if each in self._starts}
        if not (unknown := [each for each in partitions if each not in noted]):
            return noted
        with borrowed_client(client_settings(self._settings.access)) as client:
            return noted | fetch_earliest(client, unknown, self._settings)


def _ranges(given: Iterator[pa.RecordBatch]) -> Iterator[tuple[OffsetRange, int]]:
    """Yield each range with the number of tasks that the batch planned."""
    return ((_range(row), row["count"]) for ranges in given for row in ranges.to_pylist())


def _range(row: Mapping[str, Any]) -> OffsetRange:
    partition = TopicPartition(row["topic"], row["partition"])
    return OffsetRange(partition, Offset(row["start"]), Offset(row["end"]), TopicId(row["topicId"]))


def _records_table() -> TopicTable:
    return TopicTable(_records_schema())


def _records_schema() -> StructType:
    schema = full_schema(include_headers=True, include_beyond=True)
    return StructType([schema[name] for name in COLUMNS])


def _read_options(options: Mapping[str, str]) -> dict[str, str]:
    return {
        name[len(READ_PREFIX) :]: value
        for name, value in options.items()
        if name.lower().startswith(READ_PREFIX)
    }
