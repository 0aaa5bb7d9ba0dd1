"""Conversion of rows to records of a stage's topic and back, with dead letters for unreadable records.

A record's value is its row as JSON, written and parsed by Spark itself. A bad row has a non-null column
`deadLetter` (payload/dead_letters.py), and stays among the other rows until a stage writes it. Where the
column cannot be passed on, as through a user's function, `write_and_drop_dead_letters` writes the dead
letters and removes them.

Rule: dead letters are written at least once. Their headers identify duplicates.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.spark.options.options import WriteSettings, write_settings
from penstock.spark.payload import dead_letters
from penstock.spark.payload.ddl import parse_ddl
from penstock.spark.payload.dead_letters import DEAD_LETTER_COLUMN, ERROR_HEADER
from penstock.spark.payload.schema_files import SchemaFile
from penstock.spark.payload.shapes import nullable_field
from penstock.spark.pipelines.common.headers import header_array, source_headers
from penstock.spark.pipelines.common.truncate_oversized import TOPIC_BYTES_MAX, OversizedRowTruncator
from penstock.spark.topic_sink import write_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

CORRUPT: Final = "_corrupt"
STAGE_HEADER: Final = "penstock-stage"
_TIME_FORMAT: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_WRITING: Final = {"timestampFormat": f"{_TIME_FORMAT}xxx", "timestampNTZFormat": _TIME_FORMAT}
_READING: Final = {**_WRITING, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}


def to_json(rows: "DataFrame", *, without: str = DEAD_LETTER_COLUMN) -> "Column":
    """Return all columns except the dead letter, and except `without`, as one JSON value."""
    from pyspark.sql import functions as f

    values = [rows[f"`{name}`"] for name in rows.columns if name not in (DEAD_LETTER_COLUMN, without)]
    return f.to_json(f.struct(*values), _WRITING)


def parse_columns(ddl: str) -> "StructType":
    """Parse the columns, all nullable; raise ConfigError for an invalid declaration."""
    from pyspark.sql.types import StructType

    return StructType([nullable_field(field) for field in parse_ddl(SchemaFile("of columns", ddl.encode()))])


def parse_rows(records: "DataFrame", schema: "StructType", stage: str, dead_topic: str) -> "DataFrame":
    """Return the columns of `schema`, `deadLetter`, and the record's partition and offset in `_record`."""
    from pyspark.sql import functions as f

    row = f.from_json(f.col("value").cast("string"), add_corrupt_column(schema), _READING)
    read = records.withColumn("_row", row)
    reason = (
        f.when(f.col("value").isNull(), f.lit("the record has no value"))
        .when(f.col("_row").isNull(), f.lit("the value is no JSON object"))
        .when(
            f.col(f"_row.{CORRUPT}").isNotNull(),
            f.lit(f"the value is not a row of {schema.simpleString()}"),
        )
    )
    source = source_headers(f.col("topic"))
    letter = dead_letter_column(reason, stage, dead_topic, f.col("key"), f.col("value"), source)
    fields = [f.col(f"_row.`{name}`").alias(name) for name in schema.fieldNames()]
    place = f.struct("partition", "offset").alias("_record")
    return read.select(*fields, letter.alias(DEAD_LETTER_COLUMN), place)


def add_corrupt_column(schema: "StructType") -> "StructType":
    """Return the schema with a column for values that do not match the schema."""
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([*schema.fields, StructField(CORRUPT, StringType())])


def dead_letter_column(
    reason: "Column",
    stage: str,
    dead_topic: str,
    key: "Column",
    value: "Column",
    source: "Mapping[str, Column]",
) -> "Column":
    """Return a dead letter where there is a reason, null elsewhere."""
    from pyspark.sql import functions as f

    header_texts = {ERROR_HEADER: reason, STAGE_HEADER: f.lit(stage), **source}
    letter = f.struct(
        f.lit(dead_topic).alias("topic"),
        key.cast("binary").alias("key"),
        value.cast("binary").alias("value"),
        header_array(header_texts).alias("headers"),
    )
    return f.when(reason.isNotNull(), letter).cast(dead_letters.DEAD_LETTER_TYPE)


def write_and_drop_dead_letters(rows: "DataFrame", access: Mapping[str, str]) -> "DataFrame":
    """Return the good rows. The task that reads a dead letter writes it to its topic."""
    from pyspark.sql.types import StructType

    good = StructType([field for field in rows.schema if field.name != DEAD_LETTER_COLUMN])
    return rows.mapInArrow(DeadLetterWriter(write_settings(dict(access))), good)


class DeadLetterWriter:
    """Function of a task that writes dead letters. Sent to executors by pickle."""

    def __init__(self, settings: WriteSettings) -> None:
        self._settings = settings

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            place = batch.schema.get_field_index(DEAD_LETTER_COLUMN)
            letters = batch.column(place)
            if letters.null_count < len(letters):
                write_dead_letters(self._settings, _records(letters.drop_null()))
                batch = batch.filter(letters.is_null())
            yield batch.remove_column(place)


def write_dead_letters(settings: WriteSettings, letters: pa.RecordBatch) -> None:
    """Write dead letters; those too large for a topic are truncated."""
    write_rows(settings, OversizedRowTruncator(None)(iter([letters])), row_bytes_max=TOPIC_BYTES_MAX)


def _records(letters: pa.StructArray) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(letters.flatten(), [field.name for field in letters.type])
