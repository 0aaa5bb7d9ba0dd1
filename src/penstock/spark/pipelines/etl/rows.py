"""Rows as records of a stage's topic, and back; and those that cannot be read, on a way of their own.

A record's value is its row as JSON, written and read by Spark itself. A row that is bad has a column
`deadLetter` that is not null (payload/dead_letters.py): it travels with the others until it is written. Where
it cannot travel, as through a function of the user's, `without_dead_letters` writes it and takes it out.

Rule: dead letters are written at least once. Headers tell which are the same.
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
from penstock.spark.pipelines.common.headers import headers_of, source_headers
from penstock.spark.pipelines.common.truncate_oversized import TOPIC_BYTES_MAX, OversizedRowTruncator
from penstock.spark.sink import write_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

CORRUPT: Final = "_corrupt"
STAGE_HEADER: Final = "penstock-stage"
_TIME_FORMAT: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_WRITING: Final = {"timestampFormat": f"{_TIME_FORMAT}xxx", "timestampNTZFormat": _TIME_FORMAT}
_READING: Final = {**_WRITING, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}


def json_of(rows: "DataFrame", *, without: str = DEAD_LETTER_COLUMN) -> "Column":
    """All columns but the dead letter, and one more that can be left out, as one value."""
    from pyspark.sql import functions as f

    values = [rows[f"`{name}`"] for name in rows.columns if name not in (DEAD_LETTER_COLUMN, without)]
    return f.to_json(f.struct(*values), _WRITING)


def columns_of(ddl: str) -> "StructType":
    """All of which may be null. ConfigError if it is not understood."""
    from pyspark.sql.types import StructType

    return StructType([nullable_field(field) for field in parse_ddl(SchemaFile("of columns", ddl.encode()))])


def parse_rows(records: "DataFrame", schema: "StructType", stage: str, dead_topic: str) -> "DataFrame":
    """The columns of `schema` and `deadLetter`; with `partition` and `offset` of the record in `_record`."""
    from pyspark.sql import functions as f

    row = f.from_json(f.col("value").cast("string"), with_corrupt(schema), _READING)
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
    letter = dead_letter_of(reason, stage, dead_topic, f.col("key"), f.col("value"), source)
    fields = [f.col(f"_row.`{name}`").alias(name) for name in schema.fieldNames()]
    place = f.struct("partition", "offset").alias("_record")
    return read.select(*fields, letter.alias(DEAD_LETTER_COLUMN), place)


def with_corrupt(schema: "StructType") -> "StructType":
    """And a column for what is not as the schema says."""
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([*schema.fields, StructField(CORRUPT, StringType())])


def dead_letter_of(
    reason: "Column",
    stage: str,
    dead_topic: str,
    key: "Column",
    value: "Column",
    source: "Mapping[str, Column]",
) -> "Column":
    """A dead letter where there is a reason, null where there is none."""
    from pyspark.sql import functions as f

    header_texts = {ERROR_HEADER: reason, STAGE_HEADER: f.lit(stage), **source}
    letter = f.struct(
        f.lit(dead_topic).alias("topic"),
        key.cast("binary").alias("key"),
        value.cast("binary").alias("value"),
        headers_of(header_texts).alias("headers"),
    )
    return f.when(reason.isNotNull(), letter).cast(dead_letters.DEAD_LETTER_TYPE)


def without_dead_letters(rows: "DataFrame", access: Mapping[str, str]) -> "DataFrame":
    """The good ones. A task that comes by a dead letter writes it."""
    from pyspark.sql.types import StructType

    good = StructType([field for field in rows.schema if field.name != DEAD_LETTER_COLUMN])
    return rows.mapInArrow(DeadLetterWriter(write_settings(dict(access))), good)


class DeadLetterWriter:
    """What a task does. Sent to executors by pickle."""

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
    """Those that are too large for a topic are cut."""
    write_rows(settings, OversizedRowTruncator(None)(iter([letters])), row_bytes_max=TOPIC_BYTES_MAX)


def _records(letters: pa.StructArray) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(letters.flatten(), [field.name for field in letters.type])
