"""A lake table as a DataFrame: the rows that `archive` wrote, in any of the formats.

All three formats are Parquet files plus a log that lists which files are part of the table. The driver reads
the log (`lake/`). Spark reads the files: it splits them over tasks and skips files that a filter on offsets
excludes.

Rule: the caller decides what missing files mean, so this module returns present and missing files separately.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F

from penstock.errors import CommandFailed
from penstock.spark.lake.description import open_table, read_description
from penstock.spark.topic_table import BEYOND
from penstock.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA: Final = (
    "topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    f"key binary, value binary, headers array<struct<key:string,value:binary>>, {BEYOND} bigint"
)
NEEDED: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
GLOB: Final = re.compile(r"([\\{}\[\]*?])")
FILE_URI: Final = "file://"


class TableFiles(NamedTuple):
    """Files that the table's log lists: those in the folder, and those that are missing."""

    present: tuple[str, ...]
    missing: tuple[str, ...]


def read_table_format(folder: Path) -> str:
    """Return the table's format; raise CommandFailed if the folder has no table."""
    description = read_description(folder)
    if description is None:
        raise CommandFailed(
            f"no table is in {folder}: name the folder that `penstock pipeline archive --to` wrote to"
        )
    return description.format


def table_files(folder: Path) -> TableFiles:
    """Return the files of the table, oldest first."""
    with open_table(folder) as table:
        files = table.files()
    present = {path: Path(path).is_file() for path in files}
    return TableFiles(
        tuple(path for path in files if present[path]), tuple(path for path in files if not present[path])
    )


def read_table_ends(folder: Path, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return one past the last offset that was committed to the table, per partition."""
    with open_table(folder) as table:
        return dict(table.ends(partitions))


def read_table_rows(spark: "SparkSession", files: Sequence[str]) -> "DataFrame":
    """Return the rows of the files. Older files have null in columns that were added later."""
    if not files:
        return spark.createDataFrame([], SCHEMA)
    rows = spark.read.option("mergeSchema", "true").parquet(*map(file_uri, files))
    if missing := [name for name in NEEDED if name not in rows.columns]:
        raise CommandFailed(
            f"the table has no column {missing[0]}, so its rows are no records of topics: "
            "name one that `penstock pipeline archive` wrote"
        )
    if BEYOND not in rows.columns:  # the table was written before this column existed
        return rows.withColumn(BEYOND, F.lit(None).cast("bigint"))
    return rows


def file_uri(path: str) -> str:
    """Return the path as a URI for Spark, with glob characters escaped so that they match literally."""
    return FILE_URI + GLOB.sub(r"\\\1", path)
