"""`format("penstock-stage")`: writes a task's rows to a topic, without duplicates if the task is retried.

Every record names its task in a header. A retried task reads the records after the offset at which the write
began, and skips as many equal rows as it finds records of its own. It compares rows instead of skipping the
first n: after a shuffle, rows can come in another order.

Rule: a first attempt reads nothing, so that a write without retries has no extra cost.

If a broker's acknowledgement is lost, the client retries, and the broker does not write again
(wire/sequence_numbers.py). Not covered: an attempt that Spark has given up and that still writes beside the
next one; a Spark stage that is run again, whose attempts are counted from 0.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.spark.options.options import write_settings
from penstock.spark.pipelines.common.cluster import fetch_partitions, open_client
from penstock.spark.pipelines.common.truncate_oversized import OversizedRowTruncator
from penstock.spark.pipelines.etl.rows import STAGE_HEADER
from penstock.spark.records.decode import ColumnSelection, RecordBatchDecoder
from penstock.spark.topic_sink import BYTES_AT_ONCE, WrittenRecords, check_columns, write_rows
from penstock.types import Offset, TopicPartition
from penstock.wire.cluster_client import EARLIEST, LATEST, ClusterClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "penstock-stage"
BATCH_HEADER: Final = "penstock-batch"
_COLUMNS: Final = ColumnSelection(timestamp=False, timestamp_type=False)


class StageWrite(NamedTuple):
    """Write of one batch. Plain values: sent to executors."""

    topic: str
    mark: str
    """Prefix of the batch header in all its records; the number of the task follows."""
    ends: dict[str, int]
    """End offset of the topic before the write, by partition."""

    def task_mark(self, task: int) -> bytes:
        return f"{self.mark}{task}".encode()


class DeadLetterTarget(NamedTuple):
    """Topic for rows that are too large for the stage's topic."""

    topic: str
    stage: str


def register(spark: "SparkSession") -> None:
    spark.dataSource.register(StageSink)


def stage_options(begun: StageWrite, access: Mapping[str, str], dead: DeadLetterTarget) -> dict[str, str]:
    """Return the options as text, as Spark requires."""
    return {"begun": json.dumps(begun), "access": json.dumps(dict(access)), "dead": json.dumps(dead)}


class StageSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def writer(self, schema: StructType, overwrite: bool) -> "StageWriter":
        return StageWriter(self.options, schema)


class StageWriter(DataSourceArrowWriter):
    """Writer of one micro-batch to a stage's topic."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, bytes_at_once: int = BYTES_AT_ONCE
    ) -> None:
        self._bytes_at_once = bytes_at_once
        self._begun = StageWrite(*json.loads(options["begun"]))
        self._access: dict[str, str] = json.loads(options["access"])
        self._settings = write_settings(self._access)
        dead = DeadLetterTarget(*json.loads(options["dead"]))
        self._truncator = OversizedRowTruncator(dead.topic, ((STAGE_HEADER, dead.stage),))
        check_columns(schema, self._settings)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRecords:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "Spark calls this within a task"
        if context.attemptNumber() > 0:
            with open_client(self._access) as client:
                written = count_written_rows(client, self._begun, context.partitionId())
            iterator = drop_written_rows(iterator, self._begun.topic, written)
        return write_rows(
            self._settings,
            self._truncator(iterator),
            row_bytes_max=self._truncator.bytes_max,
            bytes_at_once=self._bytes_at_once,
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: all rows are written already."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: written rows stay, and are skipped when the batch is run again (`stage_topic.py`)."""


RowCounts = Counter[bytes]
"""Number of equal rows, by a digest of their key and value."""


def count_written_rows(client: ClusterClient, begun: StageWrite, task: int) -> RowCounts:
    """Read from the topic which rows earlier attempts of the task have written, and how often."""
    partitions = fetch_partitions(client, [begun.topic], existed=True)
    # Read as uncommitted up to the end: records of the earlier attempt are in no transaction.
    first = client.offsets(dict.fromkeys(partitions, EARLIEST), read_committed=False)
    ends = client.offsets(dict.fromkeys(partitions, LATEST), read_committed=False)
    found = RowCounts()
    for partition in partitions:
        # Retention may have removed the noted offset.
        start = Offset(max(begun.ends.get(str(partition.partition), 0), first[partition][0]))
        _count(found, client, partition, (start, ends[partition][0]), begun.task_mark(task))
    return found


def _count(
    found: RowCounts,
    client: ClusterClient,
    partition: TopicPartition,
    bounds: tuple[Offset, Offset],
    mark: bytes,
) -> None:
    start, end = bounds
    if start >= end:
        return
    decoder = RecordBatchDecoder(_COLUMNS, read_committed=False)
    for fetched in client.fetch(partition, start, end, read_committed=False):
        for piece in decoder.decode(fetched, start, end):
            assert piece.keys is not None, "it was asked for"
            assert piece.values is not None, "it was asked for"
            assert piece.headers is not None, "it was asked for"
            mine = _find_marked_rows(piece.headers, mark)
            keys, values = piece.keys.take(mine).to_pylist(), piece.values.take(mine).to_pylist()
            found.update(map(_digest, keys, values))


def _find_marked_rows(headers: pa.ListArray, mark: bytes) -> pa.Array:
    flat = headers.flatten()
    names, values = flat.field("key"), flat.field("value")
    is_mark = pc.and_(pc.equal(names, BATCH_HEADER), pc.equal(values, pa.scalar(mark, values.type)))
    return pc.list_parent_indices(headers).filter(is_mark)


def _digest(key: bytes | None, value: bytes | None) -> bytes:
    # Lengths come first in the digest, so that a key cannot run into a value.
    sizes = f"{-1 if key is None else len(key)},{-1 if value is None else len(value)},".encode()
    return hashlib.blake2b(sizes + (key or b"") + (value or b""), digest_size=16).digest()


def drop_written_rows(
    batches: Iterator[pa.RecordBatch], topic: str, written: RowCounts
) -> Iterator[pa.RecordBatch]:
    """Drop the rows that are written already. Rows for other topics, which are dead letters, all pass."""
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("topic", "key", "value"))
        yield batch.filter(pa.array([_is_new(row, topic, written) for row in zip(*columns, strict=True)]))


def _is_new(row: tuple[str, bytes | None, bytes | None], topic: str, written: RowCounts) -> bool:
    digest = _digest(*row[1:])
    if row[0] != topic or not written[digest]:
        return True
    written[digest] -= 1
    return False
