"""`format("penstock-lake")`: a streaming sink that writes each row exactly once.

Strategy: a task writes its rows to files of its own and returns their names to the driver. The driver
commits the files of all tasks in one step, under the number of the micro-batch. After a crash Spark runs
the batch again with the same number and the same rows. A batch that is already committed is neither written
nor committed again.

Rule 1: Only the commit decides. The check that a task makes first just saves work. Tasks make it once in
        each run of a query, since only the first batch of a run can be a repeated one. A task that skips
        writing still returns the offsets of its rows, and the driver checks that the table holds them.
Rule 2: `abort` removes files only of a batch that is not committed. Spark also calls it after a commit that
        seemed to fail.
Rule 3: A commit covers the whole batch. Every task has returned a message, and where the plan is known
        (PlannedRange), the offset ranges that tasks read are adjacent and are all that were planned.
Rule 4: In the table a query is named by its id, which its checkpoint keeps. The option `txnAppId` overrides
        it.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.spark.lake.description import (
    DATA_FOLDER,
    FORMATS,
    TableDescription,
    make_table,
    table_in_format,
)
from penstock.spark.lake.lake_table import (
    DataFile,
    LakeBatch,
    LakeTable,
    LakeTableError,
    OffsetSpan,
    PlannedRange,
    check_planned_ranges,
    is_already_committed,
)
from penstock.spark.lake.parquet_table import staging_folder
from penstock.spark.lake.task_files import (
    COMPRESSIONS,
    OFFSET_COLUMNS,
    FileLayout,
    TaskFiles,
    add_spans,
    offset_spans,
    write_all,
)
from penstock.spark.lake.time_partitioning import PartitionBy
from penstock.spark.runtime.workers import freeze_gc
from penstock.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "penstock-lake"
BATCH_ID: Final = "streaming.sql.batchId"
QUERY_ID: Final = "sql.streaming.queryId"
RUN_ID: Final = "spark.jobGroup.id"

_checked_runs: set[tuple[str, str]] = set()
"""Runs of queries for which this process has checked whether the table holds their first batch."""


_registered: "WeakKeyDictionary[SparkSession, set[type[DataSource]]]" = WeakKeyDictionary()
_registering = Lock()


def register(spark: "SparkSession") -> None:
    register_once(spark, LakeSink)


def register_once(spark: "SparkSession", source: type[DataSource]) -> None:
    """Register a format once in each session.

    Spark may miss a format that is registered while another thread looks formats up.
    """
    with _registering:
        known = _registered.setdefault(spark, set())
        if source not in known:
            spark.dataSource.register(source)
            known.add(source)


class LakeSink(DataSource):
    """Spark's entry to the sink: creates the writer of a query."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def streamWriter(self, schema: StructType, overwrite: bool) -> "LakeWriter":
        reject_overwrite(overwrite)
        return LakeWriter(self.options, schema.fieldNames())


def reject_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise LakeTableError('the lake takes outputMode("append") only')


class WrittenFiles(WriterCommitMessage):
    """Message of a task to the driver: the files it wrote."""

    def __init__(
        self,
        app: str,
        files: Sequence[DataFile] = (),
        spans: Mapping[TopicPartition, OffsetSpan] | None = None,
        schema: "pa.Schema | None" = None,
        lost: int = 0,
        planned_ranges: Sequence[PlannedRange] = (),
    ) -> None:
        self.app = app
        self.files = tuple(files)
        self.spans = dict(spans or {})
        self.schema = schema
        self.lost = lost
        self.planned_ranges = tuple(planned_ranges)
        """The offset ranges that the task was to read, where the plan of the batch is known."""


class AlreadyCommitted(WriterCommitMessage):
    """Message of a task to the driver that the table already holds its batch number."""

    def __init__(self, app: str, spans: Mapping[TopicPartition, OffsetSpan]) -> None:
        self.app = app
        self.spans = dict(spans)


class LakeWriter(DataSourceStreamArrowWriter):
    """Writer of one query. The driver creates it and pickles it for the tasks.

    `write` runs in tasks; `__init__`, `commit` and `abort` run on the driver.
    """

    def __init__(self, options: Mapping[str, str], columns: Sequence[str]) -> None:
        self._folder = Path(_required_option(options, "path")).absolute()
        self._app = options.get("txnAppId")
        self._shape = FileLayout(
            PartitionBy(_choice_option(options, "partitionBy", [each.value for each in PartitionBy], "day")),
            options.get("timestampColumn", "timestamp"),
            options.get("batchColumn"),
            _choice_option(options, "compression", COMPRESSIONS, "snappy"),
        )
        self._description = TableDescription(
            _choice_option(options, "lakeFormat", FORMATS, "parquet"), self._shape.by, self._shape.time_column
        )
        self._place = _record_column(options)
        _check_columns(columns, self._shape)
        # This runs on the driver before tasks put files into the folder: a folder with files and no table
        # is rejected.
        make_table(self._folder, self._description)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        from pyspark import TaskContext

        freeze_gc()
        context = TaskContext.get()
        assert context is not None, "Spark calls this within a task"
        version = int(context.getLocalProperty(BATCH_ID) or 0)
        app = self._app or context.getLocalProperty(QUERY_ID) or ""
        if not app:
            raise LakeTableError("the query has no id: write with writeStream, or give the option txnAppId")
        # A skipped task still reads its rows: their offsets let the driver detect a checkpoint that is
        # older than the table.
        if self._is_committed(app, context.getLocalProperty(RUN_ID) or "", version):
            return AlreadyCommitted(app, self.spans(iterator))
        is_flat = self._description.format == "parquet"
        place = staging_folder(self._folder) if is_flat else self._folder / self._data_folder
        files = TaskFiles(place, self._shape, batch=version, task=context.partitionId(), flat=is_flat)
        done = write_all(self.rows(iterator, files), files)
        named = [file._replace(folder=f"{self._data_folder}/{file.folder}".strip("/")) for file in done]
        return WrittenFiles(app, named, files.spans, files.schema, files.lost, files.planned_ranges)

    def rows(self, given: "Iterator[pa.RecordBatch]", files: TaskFiles) -> "Iterator[pa.RecordBatch]":
        """The rows to write. Offsets that are not in columns of the rows are added to `files`."""
        if self._place is None:
            yield from given
            return
        for batch in given:
            add_spans(files.spans, self._place.spans(batch))
            yield batch.drop_columns([self._place.column])

    def spans(self, given: "Iterator[pa.RecordBatch]") -> dict[TopicPartition, OffsetSpan]:
        """The offsets of the rows that Spark passed, for a task that writes nothing."""
        found: dict[TopicPartition, OffsetSpan] = {}
        for batch in given:
            add_spans(found, offset_spans(batch) if self._place is None else self._place.spans(batch))
        return found

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if None in messages:
            raise LakeTableError(
                f"{messages.count(None)} of {len(messages)} tasks of batch {batchId} do not say what they "
                "wrote: rows would be left out. Start the query again"
            )
        batch = _batch(messages, batchId)
        if held := [message for message in messages if isinstance(message, AlreadyCommitted)]:
            # If one task found the number committed, the whole batch is: files of other tasks are
            # duplicates.
            self._check_already_committed(messages, held[0].app, batchId)
            self._remove(() if batch is None else batch.files)
            return
        written = [each for each in messages if isinstance(each, WrittenFiles)]
        planned_ranges = [planned_range for each in written for planned_range in each.planned_ranges]
        check_planned_ranges(batchId, planned_ranges)
        if batch is not None and not self._with_table(
            lambda table: table.commit(self.validate(batch, table))
        ):
            self._remove(batch.files)  # the files of a task that checked before the batch was committed

    def validate(self, batch: LakeBatch, table: LakeTable) -> LakeBatch:
        """The batch as it is to be committed. LakeTableError if it must not be committed."""
        return batch

    def _check_already_committed(
        self, messages: Sequence[WriterCommitMessage | None], app: str, version: int
    ) -> None:
        spans = _spans(messages)
        if not self._with_table(
            lambda table: is_already_committed(table.recorded_query(app), version, spans, table.ends(spans))
        ):
            raise LakeTableError(
                f"the table in {self._folder} held batch {version} and no longer does: it was changed while "
                "the query ran. Start the query again"
            )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        batch = _batch(messages, batchId)
        if batch is None:
            return
        # Only files of an uncommitted batch are removed: Spark also calls abort after a commit whose reply
        # was lost.
        if self._with_table(lambda table: table.recorded_query(batch.app)).version < batchId:
            self._remove(batch.files)

    @property
    def _data_folder(self) -> str:
        return DATA_FOLDER[self._description.format]

    def _with_table(self, act: Any) -> Any:
        table = table_in_format(self._folder, self._description)
        try:
            return act(table)
        finally:
            table.close()

    def _is_committed(self, app: str, run: str, version: int) -> bool:
        key = (str(self._folder), run)
        # Only the first batch of a run can be in the table already.
        if key in _checked_runs:
            return False
        recorded = self._with_table(lambda table: table.recorded_query(app))
        if recorded.version < version:
            _checked_runs.add(key)
        return bool(recorded.version >= version)

    def _remove(self, files: Sequence[DataFile]) -> None:
        live = {Path(path).name for path in self._with_table(lambda table: table.files())}
        is_flat = self._description.format == "parquet"
        for file in files:
            if file.name not in live:
                path = staging_folder(self._folder) / file.name if is_flat else self._folder / file.path
                path.unlink(missing_ok=True)


def _batch(messages: Sequence[WriterCommitMessage | None], version: int) -> LakeBatch | None:
    """Everything that the tasks have written. None if that is nothing."""
    written_messages = [message for message in messages if isinstance(message, WrittenFiles)]
    schema = next((message.schema for message in written_messages if message.schema is not None), None)
    if schema is None:
        return None
    files = tuple(file for message in written_messages for file in message.files)
    lost = sum(message.lost for message in written_messages)
    return LakeBatch(written_messages[0].app, version, files, _spans(written_messages), schema, lost)


def _spans(messages: Sequence[WriterCommitMessage | None]) -> dict[TopicPartition, OffsetSpan]:
    spans: dict[TopicPartition, OffsetSpan] = {}
    for message in messages:
        if isinstance(message, WrittenFiles | AlreadyCommitted):
            add_spans(spans, message.spans)
    return spans


class _RecordColumn(NamedTuple):
    """A column that holds the source record of each row. The column itself is not written."""

    topic: str
    column: str

    def spans(self, rows: "pa.RecordBatch") -> dict[TopicPartition, OffsetSpan]:
        place = rows.column(self.column)
        partitions, offsets = place.field("partition"), place.field("offset")
        topics = pa.repeat(self.topic, rows.num_rows)
        return offset_spans(pa.table([topics, partitions, offsets], names=list(OFFSET_COLUMNS)))


def _record_column(options: Mapping[str, str]) -> _RecordColumn | None:
    topic, column = options.get("recordTopic"), options.get("recordColumn")
    if (topic is None) != (column is None):
        raise LakeTableError("recordTopic and recordColumn go together: give both, or neither")
    return None if topic is None or column is None else _RecordColumn(topic, column)


def _required_option(options: Mapping[str, str], name: str) -> str:
    if not options.get(name):
        raise LakeTableError(f"give the option {name}: the folder of the table")
    return options[name]


def _choice_option(options: Mapping[str, str], name: str, allowed: Sequence[str], default: str) -> str:
    value = options.get(name, default).lower()
    if value not in allowed:
        raise LakeTableError(f"{name} is {value!r} and must be one of {', '.join(allowed)}")
    return value


def _check_columns(columns: Sequence[str], shape: FileLayout) -> None:
    if shape.by is not PartitionBy.NONE and shape.time_column not in columns:
        raise LakeTableError(
            f"rows have no column {shape.time_column} to partition by: name another with timestampColumn, "
            "or give partitionBy none"
        )
    added = [*shape.by.columns, *([shape.batch_column] if shape.batch_column else [])]
    if taken := sorted(set(added) & set(columns)):
        raise LakeTableError(
            f"the table adds the column {taken[0]} itself: give that of your rows another name"
        )
