"""Topics and lakes that hold the same records, made without Spark: in a moment, and known to the byte."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.protocol.compression import Codec
from penstock.spark.records.encode import encode
from penstock.testing import Broker
from penstock.types import TopicPartition
from tests.spark.topics import BATCH_BYTES_MAX, client_of, create
from tests.unit.spark.lake.lake_tables import TestTable

FIRST_MS = 1_794_744_000_000
KEYS = 10
SOURCE_HEADER_PREFIX = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", SOURCE_HEADER_PREFIX),
    ]
)

Row = dict[str, Any]
PARTITIONS = 2


def record(partition: int, number: int) -> Row:
    """Every eleventh value is null, every seventh key. An id is in a header, and in a value that is there."""
    key = None if number % 7 == 0 else b"key-%d-%d" % (partition, number % KEYS)
    value = json.dumps({"order": {"id": f"{partition}-{number}"}, "number": number}).encode()
    return {
        "key": key,
        "value": None if number % 11 == 0 else value,
        "timestamp_ms": FIRST_MS + number * 1000,
        "headers": [{"key": "id", "value": b"%d-%d" % (partition, number)}],
    }


def records(partition: int, start: int, end: int) -> list[Row]:
    return [record(partition, number) for number in range(start, end)]


def send(running: Broker, topic: str, partition: int, rows: Sequence[Row]) -> None:
    batches = encode(
        pa.array([row["key"] for row in rows], pa.binary()),
        pa.array([row["value"] for row in rows], pa.binary()),
        pa.array([row["headers"] for row in rows], SOURCE_HEADER_PREFIX),
        pa.array([row["timestamp_ms"] for row in rows], pa.int64()),
        codec=Codec.NONE,
        batch_bytes_max=BATCH_BYTES_MAX,
    )
    with client_of(running) as client:
        client.produce(TopicPartition(topic, partition), batches)


def make_topic(running: Broker, topic: str, rows: int, partitions: int = PARTITIONS, **configs: str) -> None:
    """So many rows in each partition."""
    create(running, topic, partitions, **configs)
    for partition in range(partitions):
        send(running, topic, partition, records(partition, 0, rows))


def table_rows(topic: str, partition: int, numbers: Sequence[int]) -> pa.RecordBatch:
    """As `archive` writes them; the number of a record is its offset."""
    rows = [record(partition, number) for number in numbers]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([topic] * len(rows), pa.string()),
            pa.array([partition] * len(rows), pa.int32()),
            pa.array(numbers, pa.int64()),
            pa.array([row["timestamp_ms"] * 1000 for row in rows], pa.int64()).cast(SCHEMA.field(3).type),
            pa.array([0] * len(rows), pa.int32()),
            pa.array([row["key"] for row in rows], pa.binary()),
            pa.array([row["value"] for row in rows], pa.binary()),
            pa.array([row["headers"] for row in rows], SOURCE_HEADER_PREFIX),
        ],
        schema=SCHEMA,
    )


Change = Callable[[pa.RecordBatch], pa.RecordBatch]


def backwards(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.take(pa.array(range(rows.num_rows - 1, -1, -1)))


def make_lake(
    folder: Path,
    form: str,
    topic: str,
    spans: Sequence[tuple[int, int]],
    changes: Mapping[int, Change] | None = None,
) -> TestTable:
    """One commit for each span, with rows of each partition in a file of their own. `changes` are made to the
    rows of the first partition of a commit before they are written."""
    table = TestTable(folder, form)
    for version, (start, end) in enumerate(spans):
        batches = [table_rows(topic, number, range(start, end)) for number in range(PARTITIONS)]
        batches[0] = (changes or {}).get(version, lambda rows: rows)(batches[0])
        written = [table.write(version, each) for each in batches]
        table.commit(
            written[0]._replace(
                files=tuple(file for batch in written for file in batch.files),
                spans={place: span for batch in written for place, span in batch.spans.items()},
            )
        )
    return table
