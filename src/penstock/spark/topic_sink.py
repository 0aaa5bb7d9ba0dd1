"""Writes of rows as records of topics, at least once.

The columns are those of Spark's own Kafka sink: value, and optionally key, headers, topic and partition. A
row goes to the partition in its column, else to the one that Kafka's clients choose for its key, so that a
key stays in the partition to which other producers send it.

A task sends its rows as they arrive and has them acknowledged before it ends. Its producer is idempotent: a
batch that it retries because the reply was lost is not written twice. A failed task runs again from its
beginning, and so does a batch after a crash: records that were already written are then written twice. No
record is removed, so `commit` and `abort` have nothing to do.

Rule: A task holds about BYTES_AT_ONCE of rows and as much of batches, however many rows there are.
"""

import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from penstock.errors import ConfigError
from penstock.spark.options.client import client_settings
from penstock.spark.options.options import WriteSettings, write_settings
from penstock.spark.pool import borrowed_client
from penstock.spark.records.encode import RecordTooLarge, encode
from penstock.spark.records.key_partitioner import assign_partitions
from penstock.spark.runtime.workers import freeze_gc
from penstock.spark.source.discovery import shortened_list
from penstock.spark.topic_table import BEYOND, HEADERS_TYPE
from penstock.types import TopicPartition
from penstock.wire.cluster_client import ClusterClient
from penstock.wire.errors import TopicUnknown

BYTES_AT_ONCE: Final = 8 << 20

_TYPES: Final[dict[str, tuple[DataType, ...]]] = {
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "headers": (HEADERS_TYPE,),
    "topic": (StringType(),),
    "partition": (IntegerType(),),
}


class RowTooLarge(ConfigError):
    """A row that is too large for any batch."""

    def __init__(self, partition: TopicPartition, error: RecordTooLarge) -> None:
        super().__init__(
            f"a row for {partition} takes {error.record_bytes} bytes, more than a batch may have "
            f"({error.batch_bytes_max}); raise the option kafka.max.request.size, and "
            f"max.message.bytes of topic {partition.topic}"
        )
        self.partition = partition
        self.row_bytes = error.record_bytes
        self.row_bytes_max = error.batch_bytes_max


class WrittenRecords(WriterCommitMessage):
    """A task's message to the driver: how much it has written."""

    def __init__(self, records: int, bytes_sent: int) -> None:
        self.records = records
        self.bytes_sent = bytes_sent


class BatchWriter(DataSourceArrowWriter):
    """Spark's writer of a batch query."""

    @classmethod
    def from_options(
        cls, options: Mapping[str, str], schema: StructType, *, overwrite: bool
    ) -> "BatchWriter":
        if overwrite:
            raise ConfigError("a topic cannot be overwritten; write with mode append")
        return cls(write_settings(options), schema)

    def __init__(self, settings: WriteSettings, schema: StructType) -> None:
        check_columns(schema, settings)
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRecords:
        return write_rows(self._settings, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: every record is written already."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: written records stay, because writes are at least once."""


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """Spark's writer of a streaming query."""

    @classmethod
    def from_options(cls, options: Mapping[str, str], schema: StructType) -> "TopicStreamWriter":
        return cls(write_settings(options), schema)

    def __init__(self, settings: WriteSettings, schema: StructType) -> None:
        check_columns(schema, settings)
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRecords:
        return write_rows(self._settings, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: every record is written already."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: written records stay, because writes are at least once."""


def check_columns(schema: StructType, settings: WriteSettings) -> None:
    """Check the columns before anything is written."""
    kinds = {field.name: field.dataType for field in schema.fields}
    if "value" not in kinds:
        raise ConfigError(
            f"the rows have no column value, only {shortened_list(kinds) or 'none'}; name one so"
        )
    if "topic" not in kinds and settings.topic is None:
        raise ConfigError("option topic must say where to write, unless the rows have a column topic")
    times = {"timestamp": (TimestampType(),), BEYOND: (LongType(),)} if settings.include_timestamp else {}
    allowed = _TYPES | times
    for name, kind in kinds.items():
        wanted = [each.simpleString() for each in allowed.get(name, (kind,))]
        if kind.simpleString() not in wanted:
            raise ConfigError(f"column {name} is {kind.simpleString()}; cast it to {' or '.join(wanted)}")


def write_rows(
    settings: WriteSettings,
    batches: Iterator[pa.RecordBatch],
    *,
    row_bytes_max: int = 0,
    bytes_at_once: int = BYTES_AT_ONCE,
) -> WrittenRecords:
    """Write the rows.

    `row_bytes_max` limits a batch of one row, which may be larger than others. Raises RowTooLarge.
    """
    freeze_gc()
    records = bytes_sent = 0
    with borrowed_client(client_settings(settings.access)) as client:
        writer = _TaskProducer(client, settings, row_bytes_max)
        for rows in _merge_to_request_size(batches, bytes_at_once):
            bytes_sent += writer.send(_columns(rows, settings))
            records += rows.num_rows
    return WrittenRecords(records, bytes_sent)


def _merge_to_request_size(batches: Iterator[pa.RecordBatch], bytes_at_once: int) -> Iterator[pa.Table]:
    """The same rows in tables of about `bytes_at_once`, for fewer and larger requests."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        count = max(batch.num_rows * bytes_at_once // max(batch.nbytes, 1), 1)
        for first in range(0, batch.num_rows, count):
            held.append(batch.slice(first, count))
            held_bytes += held[-1].nbytes
            if held_bytes >= bytes_at_once:
                yield pa.Table.from_batches(held)
                held, held_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held)


class _RecordColumns(NamedTuple):
    """Rows in the form of records. Each array is contiguous."""

    keys: pa.Array | None
    values: pa.Array
    headers: pa.Array | None
    timestamps_ms: pa.Array
    topics: pa.Array | None
    partitions: pa.Array | None

    def take(self, rows: NDArray[np.int64]) -> "_RecordColumns":
        wanted = pa.array(rows)
        return _RecordColumns(*(None if column is None else column.take(wanted) for column in self))


def _columns(rows: pa.Table, settings: WriteSettings) -> _RecordColumns:
    def column(name: str, kind: pa.DataType | None = None) -> pa.Array | None:
        if name not in rows.column_names:
            return None
        whole = rows.column(name).combine_chunks()
        whole = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
        return whole if kind is None or whole.type == kind else whole.cast(kind)

    return _RecordColumns(
        keys=column("key", pa.binary()),
        values=column("value", pa.binary()),
        headers=column("headers"),
        timestamps_ms=_timestamps(column("timestamp"), column(BEYOND), rows.num_rows)
        if settings.include_timestamp
        else _timestamps(None, None, rows.num_rows),
        # The option has precedence over the column, as in the official sink.
        topics=None if settings.topic is not None else column("topic", pa.string()),
        partitions=column("partition", pa.int32()),
    )


def _timestamps(column: pa.Array | None, beyond: pa.Array | None, count: int) -> pa.Array:
    """Timestamps in milliseconds. `beyond` holds those that do not fit Spark's timestamp type."""
    now_ms = pa.scalar(time.time_ns() // 1_000_000, pa.int64())
    if column is None:
        return pa.repeat(now_ms, count)
    floored = pc.floor_temporal(column, unit="millisecond").cast(pa.timestamp("ms", column.type.tz))
    milliseconds = floored.view(pa.int64())
    if beyond is not None:
        milliseconds = pc.coalesce(milliseconds, beyond)
    return milliseconds.fill_null(now_ms)


class _TaskProducer:
    """The producer of one task."""

    def __init__(self, client: ClusterClient, settings: WriteSettings, row_bytes_max: int) -> None:
        self._client = client
        self._row_bytes_max = row_bytes_max
        self._settings = settings
        self._counts: dict[str, int] = {}
        # Rows without a key rotate over all partitions. The random start spreads the tasks.
        self._next_partition = secrets.randbelow(1 << 16)

    def send(self, rows: _RecordColumns) -> int:
        """Send the rows. Returns the number of bytes sent."""
        outgoing: dict[TopicPartition, list[bytes]] = {}
        for topic, mine in self._by_topic(rows):
            for partition, records in self._by_partition(topic, mine):
                outgoing[partition] = self._encode(partition, records)
        # This returns after the acknowledgements, so no task ends with records in flight.
        self._client.produce_many(
            outgoing, acks=self._settings.acks, is_idempotent=self._settings.is_idempotent
        )
        return sum(len(batch) for batches in outgoing.values() for batch in batches)

    def _encode(self, partition: TopicPartition, rows: _RecordColumns) -> list[bytes]:
        settings = self._settings
        try:
            return encode(
                rows.keys,
                rows.values,
                rows.headers,
                rows.timestamps_ms,
                codec=settings.codec,
                batch_bytes_max=settings.batch_bytes_max,
                single_record_batch_bytes_max=self._row_bytes_max,
            )
        except RecordTooLarge as error:
            raise RowTooLarge(partition, error) from error

    def _by_topic(self, rows: _RecordColumns) -> Iterator[tuple[str, _RecordColumns]]:
        if rows.topics is None:
            assert self._settings.topic is not None
            yield self._settings.topic, rows
            return
        if rows.topics.null_count:
            raise ConfigError("a row has a null topic; fill the column, or set the option topic")
        encoded = rows.topics.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        if len(names) == 1:
            yield names[0], rows
            return
        for number, some in _groups(encoded.indices.to_numpy()):
            yield names[number], rows.take(some)

    def _by_partition(
        self, topic: str, rows: _RecordColumns
    ) -> Iterator[tuple[TopicPartition, _RecordColumns]]:
        count = self._partition_count(topic)
        self._next_partition += 1
        for number, some in _groups(_partitions(topic, rows, count, self._next_partition)):
            whole = len(some) == len(rows.values)
            yield TopicPartition(topic, number), rows if whole else rows.take(some)

    def _partition_count(self, topic: str) -> int:
        if topic not in self._counts:
            try:
                self._counts[topic] = self._client.topic(topic).partitions
            except TopicUnknown as problem:
                raise ConfigError(
                    f"there is no topic {topic}; create it, as with penstock topic create {topic}"
                ) from problem
        return self._counts[topic]


def _partitions(topic: str, rows: _RecordColumns, count: int, next_partition: int) -> NDArray[np.int32]:
    """The partition of each row."""
    by_key = assign_partitions(rows.keys, count, rows=len(rows.values), first=next_partition % count)
    if rows.partitions is None:
        return by_key
    named = rows.partitions.fill_null(0).to_numpy()
    is_null = rows.partitions.is_null().to_numpy(zero_copy_only=False)
    wrong = ~is_null & ((named < 0) | (named >= count))
    if wrong.any():
        raise ConfigError(
            f"a row is for partition {named[wrong][0]} of topic {topic}, which has {count} (from 0)"
        )
    return np.where(is_null, by_key, named)


def _groups(numbers: NDArray[np.int32]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Return each number with the rows that have it, in their order."""
    order = np.argsort(numbers, kind="stable")
    found, starts = np.unique(numbers[order], return_index=True)
    yield from zip(found.tolist(), np.split(order, starts[1:]), strict=True)
