"""Stage `load`: writes rows to a lake, to PostgreSQL or to a topic.

The lake and PostgreSQL commit each batch once: the batch number is committed in one step with the rows. A
topic is written in the same way as topics between stages (`stage_topic.py`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.types import BinaryType, StructType

from penstock.errors import CommandFailed
from penstock.spark.lake import lake_sink
from penstock.spark.lake.description import TableDescription, make_table, open_table
from penstock.spark.lake.task_files import OFFSET_COLUMNS
from penstock.spark.payload.dead_letters import DEAD_LETTER_COLUMN
from penstock.spark.pipelines.common.checkpoint import is_new
from penstock.spark.pipelines.etl import postgres, postgres_sink
from penstock.spark.pipelines.etl.postgres import PostgresTarget
from penstock.spark.pipelines.etl.rows import dead_letter_column, to_json, write_and_drop_dead_letters
from penstock.spark.pipelines.etl.spec import DELETED, EtlSpec, ToLake, ToPostgres

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def check_target(spec: EtlSpec, checkpoint: Path) -> None:
    """Run the checks that need no Spark, and create a new lake table."""
    match spec.load:
        case ToLake(form, folder, by, time_column):
            make_table(folder, TableDescription(form, by, time_column))
            with open_table(folder) as table:
                # A new checkpoint reads the stage topic from its start, so all rows would come twice.
                if table.files() and is_new(checkpoint):
                    raise CommandFailed(
                        f"{folder} holds rows, and the checkpoint {checkpoint} is new: all rows would be "
                        "loaded again. Use the checkpoint that belongs to the table, or another path"
                    )
        case ToPostgres(url):
            postgres.connection(url).close()


def lake_writer(
    rows: "DataFrame", target: ToLake, topic: str, access: Mapping[str, str]
) -> "DataStreamWriter":
    """Return the lake writer. The table detects duplicates by the offsets of `topic`, the rows' source."""
    columns = [name for name in rows.columns if name not in (DEAD_LETTER_COLUMN, "_record")]
    if set(OFFSET_COLUMNS) <= set(columns):
        raise CommandFailed(
            f"rows have the columns {', '.join(OFFSET_COLUMNS)}, by which a table knows records of topics: "
            "rename one in [transform]"
        )
    lake_sink.register(rows.sparkSession)
    good = write_and_drop_dead_letters(rows, access)
    return (
        good.writeStream.format(lake_sink.NAME)
        .option("path", str(target.folder))
        .option("lakeFormat", target.format)
        .option("partitionBy", target.partition_by.value)
        .option("timestampColumn", target.time_column)
        .option("recordTopic", topic)
        .option("recordColumn", "_record")
    )


def postgres_writer(
    rows: "DataFrame", schema: "StructType", spec: EtlSpec, access: Mapping[str, str]
) -> "DataStreamWriter":
    from pyspark.sql import functions as f

    to = spec.load
    assert isinstance(to, ToPostgres), "it is asked for such"
    topic = spec.input_topic("load")
    assert topic is not None, "load is never the first stage"
    columns = [name for name in schema.fieldNames() if name != DELETED]
    target = PostgresTarget(to.url, to.table, tuple(columns), to.key, topic, to.version, spec.deletes)
    named = {"key": to.key, "version": (to.version,) if to.version is not None else ()}
    for what, wanted in named.items():
        if unknown := [name for name in wanted if name not in target.columns]:
            raise CommandFailed(
                f"{spec.file}: [load] {what}: rows have no column {unknown[0]}; "
                f"they have {', '.join(target.columns)}"
            )
    postgres.prepare(target, StructType([field for field in schema if field.name != DELETED]))
    postgres_sink.register(rows.sparkSession)
    good = write_and_drop_dead_letters(_without_null_keys(rows, target, spec), access)
    # PostgreSQL expects bytes as hexadecimal digits; Spark's JSON encodes them differently.
    values = good.select(
        *(
            f.concat(f.lit("\\x"), f.hex(field.name)).alias(field.name)
            if isinstance(field.dataType, BinaryType)
            else f.col(f"`{field.name}`")
            for field in schema
        ),
        "_record",
    )
    value = to_json(values.drop("_record")).alias("value")
    return (
        values.select(f.col("_record.partition"), f.col("_record.offset"), value)
        .writeStream.format(postgres_sink.NAME)
        .options(**postgres_sink.postgres_options(target, access, spec.dead_letters))
    )


def _without_null_keys(rows: "DataFrame", target: PostgresTarget, spec: EtlSpec) -> "DataFrame":
    """Make rows with a null in the key dead letters: the target identifies rows by their keys."""
    from pyspark.sql import functions as f

    if not target.key:
        return rows
    named = f.concat_ws(", ", *(f.when(rows[name].isNull(), f.lit(name)) for name in target.key))
    reason = f.when(named != "", f.concat(f.lit("the key is null: "), named))
    value = to_json(rows.drop("_record"))
    letter = dead_letter_column(reason, "load", spec.dead_letters, f.lit(None).cast("binary"), value, {})
    return rows.withColumn(DEAD_LETTER_COLUMN, f.coalesce(DEAD_LETTER_COLUMN, letter))
