"""Dead letters: bad rows as records of a dead-letter topic.

Reading has no side effects: Spark may read repeatedly, for every action on a DataFrame, for speculative
tasks, for batches after a crash. So the source writes nothing. It adds a column `deadLetter` to each bad
row, which holds the complete record to be written, and the query writes it like other records.

    good, dead = split_dead_letters(rows)

Rule: A dead letter has the key, value and headers of its record, and more headers with the reason and the
      source. Writing is at least once; topic, partition and offset identify duplicate letters.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from penstock.errors import ConfigError
from penstock.spark.options.client import client_settings
from penstock.spark.options.options import write_settings
from penstock.spark.payload.shapes import arrow_type
from penstock.spark.pool import borrowed_client
from penstock.spark.topic_table import HEADERS_TYPE
from penstock.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DEAD_LETTER_COLUMN: Final = "deadLetter"
DEAD_LETTER_TYPE: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("headers", HEADERS_TYPE),
    ]
)
SUFFIX: Final = ".dead"
ERROR_HEADER: Final = "penstock-error"
TOPIC_HEADER: Final = "penstock-source-topic"
PARTITION_HEADER: Final = "penstock-source-partition"
OFFSET_HEADER: Final = "penstock-source-offset"
_REASON_CHARACTERS_MAX: Final = 500
_PARTITIONS: Final = 1


class SourceRecords(NamedTuple):
    """Records that values were taken from, with the columns that a dead letter of them needs."""

    partition: TopicPartition
    offsets: pa.Array
    values: pa.Array
    keys: pa.Array | None = None
    headers: pa.Array | None = None


def dead_letter_array(origin: SourceRecords, bad: Mapping[int, str], topic: str | None) -> pa.Array:
    """The dead letter of each row, null for good rows. `bad` maps rows to reasons."""
    count, kind = len(origin.offsets), arrow_type(DEAD_LETTER_TYPE)
    if not bad:
        return pa.nulls(count, kind)
    letters = pa.array([_dead_letter(origin, row, reason, topic) for row, reason in bad.items()], kind)
    places: list[int | None] = [None] * count
    for place, row in enumerate(bad):
        places[row] = place
    return letters.take(pa.array(places, pa.int64()))


def _dead_letter(origin: SourceRecords, row: int, reason: str, topic: str | None) -> dict[str, object]:
    source = origin.partition
    headers = origin.headers[row].as_py() if origin.headers is not None else None
    header_texts = {
        ERROR_HEADER: reason[:_REASON_CHARACTERS_MAX],
        TOPIC_HEADER: source.topic,
        PARTITION_HEADER: str(source.partition),
        OFFSET_HEADER: str(origin.offsets[row].as_py()),
    }
    return {
        "topic": topic or f"{source.topic}{SUFFIX}",
        "key": origin.keys[row].as_py() if origin.keys is not None else None,
        "value": origin.values[row].as_py(),
        "headers": [
            *(headers or []),
            *({"key": key, "value": text.encode()} for key, text in header_texts.items()),
        ],
    }


class SplitRows(NamedTuple):
    """Rows divided into good rows and dead letters."""

    good: "DataFrame"
    dead: "DataFrame"
    """Rows in the form that `format("penstock")` writes: topic, key, value, headers."""


def split_dead_letters(rows: "DataFrame") -> SplitRows:
    """Divide the rows by their column of dead letters. ConfigError if they have no such column."""
    if DEAD_LETTER_COLUMN not in rows.columns:
        raise ConfigError(
            f"the rows have no column {DEAD_LETTER_COLUMN}: read them with badRows deadletter, and keep it"
        )
    is_good = rows[DEAD_LETTER_COLUMN].isNull()
    return SplitRows(
        rows.where(is_good).drop(DEAD_LETTER_COLUMN), rows.where(~is_good).select(f"{DEAD_LETTER_COLUMN}.*")
    )


WriteBatch = Callable[["DataFrame", int], None]


def with_dead_letters(write: WriteBatch, options: Mapping[str, str]) -> WriteBatch:
    """Function for `foreachBatch` that writes dead letters and then passes the good rows to `write`.

    `options` describe the connection, as for `format("penstock")`. Missing topics are created. A batch that
    runs again writes its dead letters again.
    """
    settings = write_settings(options)

    def write_batch(rows: "DataFrame", batch_id: int) -> None:
        # Without this each of three actions would read the topic and parse its values again.
        rows = rows.persist()
        try:
            good, dead = split_dead_letters(rows)
            if topics := [row.topic for row in dead.select("topic").distinct().collect()]:
                with borrowed_client(client_settings(settings.access)) as client:
                    for topic in topics:
                        client.create_topic(topic, _PARTITIONS)
                dead.write.format("penstock").options(**options).mode("append").save()
            write(good, batch_id)
        finally:
            rows.unpersist()

    return write_batch
