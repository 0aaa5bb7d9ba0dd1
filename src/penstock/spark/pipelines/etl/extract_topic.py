"""Stage `extract` for a topic: parsed values, record fields as columns, and tombstones.

A tombstone, a record without a value, deletes the row that its key identifies. A tombstone is no row. The
spec chooses how tombstones are handled:

    dead      as a dead letter, which the report counts
    delete    as a row with the key's column (`key_column`), time and headers if requested, and `_deleted`.
              The row keeps its position among rows of its key through all stages, and load deletes the
              target row
    row       as a normal row, in which all columns of the value are null

Rule: with `delete`, every stage passes `_deleted` on; a [transform] that does not select it is rejected
(`stages.py`). So no deletion is lost silently.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.errors import CommandFailed
from penstock.spark.payload.dead_letters import DEAD_LETTER_COLUMN
from penstock.spark.payload.payload import Payload
from penstock.spark.pipelines.common.headers import source_headers
from penstock.spark.pipelines.etl.rows import dead_letter_column
from penstock.spark.pipelines.etl.spec import DELETED, EtlSpec, FromTopic
from penstock.spark.topic_table import full_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType


def payload_options(source: FromTopic, dead_topic: str) -> dict[str, str]:
    options = {
        "valueFormat": source.format,
        "valueSchema": source.schema,
        "badRows": "deadletter",
        "deadLetterTopic": dead_topic,
    }
    return options if source.message is None else options | {"valueMessage": source.message}


def _payload_schema(source: FromTopic, dead_topic: str) -> "StructType":
    from pyspark.sql.types import StructType

    payload = Payload.from_options(payload_options(source, dead_topic))
    assert payload is not None, "the format is not raw"
    return StructType(payload.fields())


def topic_schema(source: FromTopic, spec: EtlSpec) -> "StructType":
    """Return the columns of rows: those of values, then the record columns that the spec requests."""
    from pyspark.sql.types import BooleanType, StringType, StructField, StructType

    found = [
        field for field in _payload_schema(source, spec.dead_letters) if field.name != DEAD_LETTER_COLUMN
    ]
    names = {field.name for field in found}
    kinds: dict[str, DataType] = {field.name: field.dataType for field in full_schema(include_headers=True)}
    asked = {source.timestamp_column: "timestamp", source.headers_column: "headers"}
    if source.key_column is not None and source.key_column not in names:
        found.append(StructField(source.key_column, StringType()))
        names.add(source.key_column)
    for name, what in asked.items():
        if name is None:
            continue
        if name in names:
            raise CommandFailed(
                f"{spec.file}: [extract] {what}_column: rows have a column {name} already: give another name"
            )
        found.append(StructField(name, kinds[what]))
        names.add(name)
    if spec.deletes:
        found.append(StructField(DELETED, BooleanType()))
    return StructType(found)


def topic_rows(
    spark: "SparkSession", source: FromTopic, spec: EtlSpec, reading: Mapping[str, str]
) -> "DataFrame":
    """Return the stream with the columns of `topic_schema`, and `deadLetter`."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    records = full_schema(include_headers=source.headers_column is not None)
    of_values = _payload_schema(source, spec.dead_letters)
    wanted = StructType([field for field in records if field.name != "timestampType"] + of_values.fields)
    given = (
        spark.readStream.format("penstock")
        .options(**reading, **payload_options(source, spec.dead_letters))
        .option("subscribe", source.topic)
        .schema(wanted)
        .load()
    )
    schema = topic_schema(source, spec)
    columns = {
        field.name: f.col(f"`{field.name}`") for field in of_values if field.name != DEAD_LETTER_COLUMN
    }
    is_tombstone = f.col("value").isNull()
    reason = f.lit(None).cast("string")
    if spec.deletes:
        columns[DELETED] = f.when(is_tombstone, f.lit(True))
    elif source.tombstones == "dead":
        reason = f.when(is_tombstone, f.lit("the record has no value: it is a tombstone"))
    if source.key_column is not None:
        name, kind = source.key_column, schema[source.key_column].dataType.simpleString()
        key = _key_as(kind)
        is_of_value = name in columns
        columns[name] = f.when(is_tombstone, key).otherwise(columns[name]) if is_of_value else key
        # Where the value has the column, the key is only needed for tombstones.
        needed = is_tombstone if is_of_value else f.col("key").isNotNull()
        is_unreadable = needed & f.col("key").isNotNull() & key.isNull()
        reason = f.coalesce(reason, f.when(is_unreadable, f.lit(f"the key of the record is no {kind}")))
        if spec.deletes:
            is_missing = is_tombstone & f.col("key").isNull()
            reason = f.coalesce(reason, f.when(is_missing, f.lit("a tombstone without a key: of what?")))
    if source.timestamp_column is not None:
        columns[source.timestamp_column] = f.col("timestamp")
    if source.headers_column is not None:
        columns[source.headers_column] = f.col("headers")
    letter = dead_letter_column(
        reason, "extract", spec.dead_letters, f.col("key"), f.col("value"), source_headers(f.col("topic"))
    )
    return given.select(
        *(columns[name].alias(name) for name in schema.fieldNames()),
        f.coalesce(f.col(DEAD_LETTER_COLUMN), letter).alias(DEAD_LETTER_COLUMN),
    )


def _key_as(kind: str) -> "Column":
    """Return the text of a record's key as a value of this type, or null if it is not one."""
    from pyspark.sql import functions as f

    text = f.col("key").cast("string")
    return f.when(f.is_valid_utf8(text), text.try_cast(kind))
