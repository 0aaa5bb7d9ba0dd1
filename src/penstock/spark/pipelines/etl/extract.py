"""Stage `extract`: reads rows from files, a table or a topic.

Each source returns a stream of rows with their columns and `deadLetter`, which is null in good rows.

Rule: columns are known before the first row is read, from the spec or from the database. So every later stage
can derive its columns without waiting for rows.
"""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import CommandFailed
from penstock.spark.payload.dead_letters import DEAD_LETTER_COLUMN
from penstock.spark.pipelines.etl import database_source
from penstock.spark.pipelines.etl.database import NewestRows, connect
from penstock.spark.pipelines.etl.database_source import IncrementalTable
from penstock.spark.pipelines.etl.extract_topic import topic_rows, topic_schema
from penstock.spark.pipelines.etl.rows import CORRUPT, add_corrupt_column, dead_letter_column, parse_columns
from penstock.spark.pipelines.etl.spec import EtlSpec, FromDatabase, FromFiles, FromTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# By default, Spark silently skips files that are more than a week older than the newest file. A moved file
# keeps its time, so its age does not show when the file arrived.
_FILE_AGE_MAX: Final = {"maxFileAge": "36500d"}
FILE_HEADER: Final = "penstock-source-file"
_FILE_OPTIONS: Final = {
    # A file whose header has other column names or another order is rejected instead of misread.
    "csv": {"header": "true", "enforceSchema": "false"},
    "json": {},
    "parquet": {},
}


def prepare_extract(spec: EtlSpec) -> None:
    """Prepare the source without Spark: create the folder that files are put into, if it does not exist, and
    reject a source that cannot be read.
    """
    match spec.extract:
        case FromFiles(path):
            folder = Path(path)
            if folder.exists() and not folder.is_dir():
                raise CommandFailed(f"{folder} is a file: name the folder that files are put into")
            folder.mkdir(parents=True, exist_ok=True)
        case FromDatabase() as source:
            _table_ddl(source)
        case FromTopic():
            pass  # the topic is checked with the cluster's metadata (etl.py)


def source_schema(spec: EtlSpec) -> "StructType":
    """Return the columns of rows, without the dead letter."""
    match spec.extract:
        case FromFiles(_, _, schema):
            return parse_columns(schema)
        case FromDatabase() as source:
            return parse_columns(_table_ddl(source))
        case FromTopic() as source:
            return topic_schema(source, spec)


def _table_ddl(source: FromDatabase) -> str:
    with closing(connect(source.url)) as database:
        fields = database.fields(source.table)
    known = [field.name for field in fields]
    if source.column not in known:
        raise CommandFailed(
            f"the table {source.table} has no column {source.column} to read it by; it has {', '.join(known)}"
        )
    return source.schema or ", ".join(f"`{field.name}` {field.type}" for field in fields)


def source_notes(source: FromDatabase) -> list[str]:
    """Return notes for users about the table: rows that wait, and rows that can be missed."""
    growing = declared_table(source)
    with closing(connect(source.url)) as database:
        read_warnings = database.read_warnings(source.table, source.column, is_unique=source.is_unique)
        if not growing.delays_newest_rows(database):
            return read_warnings
    return [
        f"rows of {source.table} with the largest {source.column} are read when there is a larger one: more "
        "rows with the same value may come. If none ever does, say so in [extract]: unique = true; "
        "in PostgreSQL you can also say for how many seconds they come: same_value_s",
        *read_warnings,
    ]


def held_back(source: FromDatabase, after: str | None) -> NewestRows | None:
    """Return the rows that are not read since they have the largest value; `after` is the last value read."""
    with closing(connect(source.url)) as database:
        if not declared_table(source).delays_newest_rows(database):
            return None
        return database.newest(source.table, source.column, after)


def declared_table(source: FromDatabase) -> IncrementalTable:
    return IncrementalTable(source.table, source.column, source.is_unique, source.same_value_s)


def extract_stream(
    spark: "SparkSession", spec: EtlSpec, reading: Mapping[str, str], rows_per_batch: int
) -> "DataFrame":
    """Open the source's stream; `reading` holds the options for reading a topic."""
    match spec.extract:
        case FromFiles() as files:
            return _file_rows(spark, files, spec.dead_letters)
        case FromDatabase() as source:
            database_source.register(spark)
            return (
                spark.readStream.format(database_source.NAME)
                .schema(database_source.add_dead_letter_field(source_schema(spec)))
                .options(**database_source.database_options(source.url, declared_table(source)))
                .option("rowsPerBatch", str(rows_per_batch))
                .option("deadTopic", spec.dead_letters)
                .load()
            )
        case FromTopic() as topic:
            return topic_rows(spark, topic, spec, reading)


def _file_rows(spark: "SparkSession", files: FromFiles, dead_topic: str) -> "DataFrame":
    from pyspark.sql import functions as f

    schema = parse_columns(files.schema)
    names = schema.fieldNames()
    can_be_corrupt = files.format != "parquet"
    rows = (
        spark.readStream.format(files.format)
        .schema(add_corrupt_column(schema) if can_be_corrupt else schema)
        .options(**{**_FILE_AGE_MAX, **_FILE_OPTIONS[files.format], **files.options})
        .option("columnNameOfCorruptRecord", CORRUPT)
        .option("maxFilesPerTrigger", str(files.files_per_batch))
        .load(files.path)
    )
    corrupt = f.col(CORRUPT) if can_be_corrupt else f.lit(None).cast("string")
    reason = f.when(corrupt.isNotNull(), f.lit(f"the line is not a row of {schema.simpleString()}"))
    source = {FILE_HEADER: f.col("_metadata.file_path")}
    letter = dead_letter_column(reason, "extract", dead_topic, f.lit(None).cast("binary"), corrupt, source)
    return rows.select(*names, letter.alias(DEAD_LETTER_COLUMN))
