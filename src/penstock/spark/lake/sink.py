"""`format("penstock-lake")`: a streaming sink that writes each row exactly once.

Strategy: a task writes its rows to files of its own and tells the driver their names. The driver commits the
files of all tasks in one step, under the number of the micro-batch. After a crash Spark runs the batch again
with the same number and the same rows; what is committed already is then neither written nor committed.

Rule 1: what counts is the commit. That tasks look beforehand saves work, and only that: so they look once
        in each run of a query, since only the first batch of a run can be one that came before.
Rule 2: `abort` removes files only of a batch that is not committed. It is called also after a commit that
        seemed to fail.
Rule 3: the query's name for the table is its id, which its checkpoint keeps; `txnAppId` overrides it.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.spark.lake.description import (
    DATA_FOLDER,
    FORMATS,
    Description,
    make_table,
    table_of,
)
from penstock.spark.lake.files import COMPRESSIONS, Shape, TaskFiles, add_spans, written
from penstock.spark.lake.parquet_table import staging_folder
from penstock.spark.lake.partitioning import PartitionBy
from penstock.spark.lake.table import Batch, DataFile, LakeRefused, Span
from penstock.spark.workers import settle
from penstock.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

NAME: Final = "penstock-lake"
BATCH_ID: Final = "streaming.sql.batchId"
QUERY_ID: Final = "sql.streaming.queryId"
RUN_ID: Final = "spark.jobGroup.id"

_looked: set[tuple[str, str]] = set()
"""Runs of queries for which this process has looked whether the table holds their first batch."""


_registered: "WeakKeyDictionary[SparkSession, set[type[DataSource]]]" = WeakKeyDictionary()
_registering = Lock()


def register(spark: "SparkSession") -> None:
    register_once(spark, LakeSink)


def register_once(spark: "SparkSession", source: type[DataSource]) -> None:
    """Once for a session: Spark may miss a format that is registered while another thread looks for one."""
    with _registering:
        known = _registered.setdefault(spark, set())
        if source not in known:
            spark.dataSource.register(source)
            known.add(source)


class LakeSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def streamWriter(self, schema: StructType, overwrite: bool) -> "LakeWriter":
        refuse_overwriting(overwrite)
        return LakeWriter(self.options, schema.fieldNames())


def refuse_overwriting(overwrite: bool) -> None:
    if overwrite:
        raise LakeRefused('the lake takes outputMode("append") only')


class Written(WriterCommitMessage):
    """What a task tells the driver."""

    def __init__(
        self,
        app: str,
        files: Sequence[DataFile] = (),
        spans: Mapping[TopicPartition, Span] | None = None,
        schema: "pa.Schema | None" = None,
    ) -> None:
        self.app = app
        self.files = tuple(files)
        self.spans = dict(spans or {})
        self.schema = schema


class LakeWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: Mapping[str, str], columns: Sequence[str]) -> None:
        self._folder = Path(_needed(options, "path")).absolute()
        self._app = options.get("txnAppId")
        self._shape = Shape(
            PartitionBy(_choice(options, "partitionBy", [each.value for each in PartitionBy], "day")),
            options.get("timestampColumn", "timestamp"),
            options.get("batchColumn"),
            _choice(options, "compression", COMPRESSIONS, "snappy"),
        )
        self._description = Description(
            _choice(options, "lakeFormat", FORMATS, "parquet"), self._shape.by, self._shape.time_column
        )
        _check_columns(columns, self._shape)
        # On the driver, and before tasks put files there: a folder with files and no table is refused.
        make_table(self._folder, self._description)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        from pyspark import TaskContext

        settle()
        context = TaskContext.get()
        assert context is not None, "Spark calls this within a task"
        version = int(context.getLocalProperty(BATCH_ID) or 0)
        app = self._app or context.getLocalProperty(QUERY_ID) or ""
        if not app:
            raise LakeRefused("the query has no id: write with writeStream, or give the option txnAppId")
        if self._is_there(app, context.getLocalProperty(RUN_ID) or "", version):
            return Written(app)
        is_flat = self._description.format == "parquet"
        place = staging_folder(self._folder) if is_flat else self._folder / self._data_folder
        files = TaskFiles(place, self._shape, batch=version, task=context.partitionId(), flat=is_flat)
        done = written(self.rows(iterator), files)
        named = [file._replace(folder=f"{self._data_folder}/{file.folder}".strip("/")) for file in done]
        return Written(app, named, files.spans, files.schema)

    def rows(self, given: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        """What to write for what Spark handed over."""
        return given

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        batch = _batch(messages, batchId)
        if batch is None:
            return
        if not self._with_table(lambda table: table.commit(batch)):
            self._remove(batch.files)  # written by a task that looked too early

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        batch = _batch(messages, batchId)
        if batch is None:
            return
        if self._with_table(lambda table: table.recorded(batch.app)).version < batchId:
            self._remove(batch.files)

    @property
    def _data_folder(self) -> str:
        return DATA_FOLDER[self._description.format]

    def _with_table(self, act: Any) -> Any:
        table = table_of(self._folder, self._description)
        try:
            return act(table)
        finally:
            table.close()

    def _is_there(self, app: str, run: str, version: int) -> bool:
        key = (str(self._folder), run)
        if key in _looked:
            return False
        recorded = self._with_table(lambda table: table.recorded(app))
        if recorded.version < version:
            _looked.add(key)
        return bool(recorded.version >= version)

    def _remove(self, files: Sequence[DataFile]) -> None:
        live = {Path(path).name for path in self._with_table(lambda table: table.files())}
        is_flat = self._description.format == "parquet"
        for file in files:
            if file.name not in live:
                path = staging_folder(self._folder) / file.name if is_flat else self._folder / file.path
                path.unlink(missing_ok=True)


def _batch(messages: Sequence[WriterCommitMessage | None], version: int) -> Batch | None:
    """All that the tasks have written. None if that is nothing, or if they found the batch committed."""
    told = [message for message in messages if isinstance(message, Written) and message.schema is not None]
    if not told:
        return None
    spans: dict[TopicPartition, Span] = {}
    for message in told:
        add_spans(spans, message.spans)
    files = tuple(file for message in told for file in message.files)
    assert told[0].schema is not None, "only such were taken"
    return Batch(told[0].app, version, files, spans, told[0].schema)


def _needed(options: Mapping[str, str], name: str) -> str:
    if not options.get(name):
        raise LakeRefused(f"give the option {name}: the folder of the table")
    return options[name]


def _choice(options: Mapping[str, str], name: str, allowed: Sequence[str], default: str) -> str:
    value = options.get(name, default).lower()
    if value not in allowed:
        raise LakeRefused(f"{name} is {value!r} and must be one of {', '.join(allowed)}")
    return value


def _check_columns(columns: Sequence[str], shape: Shape) -> None:
    if shape.by is not PartitionBy.NONE and shape.time_column not in columns:
        raise LakeRefused(
            f"rows have no column {shape.time_column} to partition by: name another with timestampColumn, "
            "or give partitionBy none"
        )
    added = [*shape.by.columns, *([shape.batch_column] if shape.batch_column else [])]
    if taken := sorted(set(added) & set(columns)):
        raise LakeRefused(f"the table adds the column {taken[0]} itself: give that of your rows another name")
