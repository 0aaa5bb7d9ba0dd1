"""Audit of topics against the lake: every record must be in the table, once and unchanged.

Spark unions the records of the topic with the rows of the table and groups them by topic, partition and
offset. Each group shows its own errors: a group with only a topic record is a lost record, two table rows are
a duplicate, two different contents are a changed record. So the work is one shuffle of small rows, and only
counts return to the driver. The offsets of lost records return as ranges, in a second pass that runs only if
records are lost.

How a gap differs from a loss: only records count that the topic has now, within the range that the table
claims to hold. Transaction markers and compacted records are not returned when the topic is read, so their
offsets are not checked. Rows whose records retention has removed since are expected: keeping them is the
purpose of the lake. For offsets before the topic's start that the table does not have, no check can tell what
they were: they are `unknown`.

Rule: the table's end is read first, then the topic's end, so that records that arrive meanwhile do not count
as lost.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as F

from penstock.spark.lake.lake_table import METADATA_FOLDER, OffsetSpan
from penstock.spark.pipelines.audit.report import EXAMPLES_MAX, Finding, spans_text
from penstock.spark.pipelines.common.lake_rows import (
    TableFiles,
    read_table_ends,
    read_table_format,
    read_table_rows,
    table_files,
)
from penstock.spark.pipelines.common.topic_rows import read_records
from penstock.spark.source.offsets import OffsetRange
from penstock.types import Offset, TopicPartition
from penstock.wire.cluster_client import EARLIEST, LATEST, ClusterClient

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

OFFSET_COLUMNS: Final = ("topic", "partition", "offset")
SPAN_OFFSETS: Final = 1_000_000
"""Ranges of lost offsets are computed in chunks of this many offsets, and joined afterwards."""
SPANS_MAX: Final = 1_000


class LakeAuditInputs(NamedTuple):
    """Inputs of the comparison, fixed before Spark starts."""

    folder: Path
    files: TableFiles
    unlisted_files: tuple[str, ...]
    ends: dict[TopicPartition, int]
    """One past the last offset that the table holds, per partition."""
    earliest: dict[TopicPartition, int]
    latest: dict[TopicPartition, int]
    keeps_order: bool

    @property
    def ranges(self) -> list[OffsetRange]:
        """Return the ranges in which the topic and the table must agree."""
        found = [
            OffsetRange(partition, Offset(self.earliest[partition]), Offset(min(end, self.latest[partition])))
            for partition, end in sorted(self.ends.items())
        ]
        return [each for each in found if each.size > 0]


def gather_lake_inputs(
    folder: Path, client: ClusterClient, partitions: Sequence[TopicPartition], *, read_committed: bool
) -> LakeAuditInputs:
    form = read_table_format(folder)
    ends = read_table_ends(folder, partitions)
    # Files are listed before the log is read: a commit names a file in the log before the file becomes
    # visible in the folder.
    seen = _visible(folder) if form == "parquet" else set[str]()
    files = table_files(folder)
    unlisted_files = [
        path for path in sorted(seen - {*files.present, *files.missing}) if Path(path).is_file()
    ]
    earliest_query = dict.fromkeys(partitions, EARLIEST)
    earliest = client.offsets(earliest_query, read_committed=False)
    latest = client.offsets(dict.fromkeys(partitions, LATEST), read_committed=read_committed)
    return LakeAuditInputs(
        folder,
        files,
        tuple(unlisted_files),
        ends,
        {partition: offset for partition, (offset, _) in earliest.items()},
        {partition: offset for partition, (offset, _) in latest.items()},
        keeps_order=form != "delta",
    )


def _visible(folder: Path) -> set[str]:
    """Return the files that a reader of the folder would see if it ignored the log."""
    found = folder.rglob("*.parquet")
    return {str(path) for path in found if METADATA_FOLDER not in path.relative_to(folder).parts}


# Without Spark


def input_findings(inputs: LakeAuditInputs) -> list[Finding]:
    """Return the findings that need only the inputs: files and offset ranges, no records."""
    where = str(inputs.folder)
    findings = [
        Finding("files", where, len(paths), what, tuple(paths[:EXAMPLES_MAX]))
        for paths, what in (
            (inputs.files.missing, "files that the table names are missing"),
            (inputs.unlisted_files, "files lie in the folder and do not belong to the table"),
        )
    ]
    for partition, latest in sorted(inputs.latest.items()):
        end, earliest = inputs.ends.get(partition), inputs.earliest[partition]
        name = _partition_name(partition)
        if end is None:
            findings.append(Finding("behind", name, latest - earliest, "offsets not archived, none is"))
        elif end > latest:
            what = f"offsets in the table beyond the end of the topic, {latest}: it was deleted and made anew"
            findings.append(Finding("different", name, end - latest, what))
        else:
            findings.append(Finding("behind", name, latest - max(end, earliest), "offsets not archived yet"))
            gone = max(earliest - end, 0)
            findings.append(Finding("lost", name, gone, "offsets left the topic before they were archived"))
    return findings


# With Spark


def offset_comparison(
    spark: "SparkSession", inputs: LakeAuditInputs, access: dict[str, str], *, contents: bool
) -> "DataFrame":
    """Return one row for each offset that the topic or the table has."""
    hashed = ("key", "value", "headers", "timestamp") if contents else ()
    topic = read_records(spark, access, inputs.ranges, (*OFFSET_COLUMNS, *hashed))
    topics = sorted({partition.topic for partition in inputs.latest})
    table = read_table_rows(spark, inputs.files.present).where(F.col("topic").isin(topics))
    both = _with_origin(topic, 1, hashed).unionByName(_with_origin(table, 0, hashed))
    in_topic, in_table = F.sum("of_topic"), F.sum(1 - F.col("of_topic"))
    return both.groupBy(*OFFSET_COLUMNS).agg(
        in_topic.alias("in_topic"),
        in_table.alias("in_table"),
        (F.min("content") != F.max("content")).alias("differs"),
    )


def _with_origin(rows: "DataFrame", of_topic: int, hashed: Sequence[str]) -> "DataFrame":
    return rows.select(*OFFSET_COLUMNS, F.lit(of_topic).alias("of_topic"), _content(hashed).alias("content"))


def _content(hashed: Sequence[str]) -> "Column":
    if not hashed:
        return F.lit(0)
    none = F.array().cast("array<struct<key:string,value:binary>>")
    columns = [F.coalesce(F.col(name), none) if name == "headers" else F.col(name) for name in hashed]
    # Null and an empty string hash alike, and a value must not match a key: so each null flag is hashed, too.
    return F.xxhash64(*(part for column in columns for part in (column, column.isNull())))


def partition_counts(offsets: "DataFrame", inputs: LakeAuditInputs) -> "DataFrame":
    """Return one row for each partition: its records, its rows in the table, and how many are not right."""
    start = _partition_value({partition: int(offset) for partition, offset in inputs.earliest.items()})
    # Before the topic's current start, only the table has records.
    is_before = F.col("offset") < start
    in_topic, in_table = F.col("in_topic") > 0, F.col("in_table") > 0

    def how_many(condition: "Column") -> "Column":
        return F.coalesce(F.sum(F.when(condition, 1).otherwise(0)), F.lit(0))

    return offsets.groupBy("topic", "partition").agg(
        F.sum("in_topic").alias("records"),
        F.sum("in_table").alias("rows"),
        how_many(in_topic & ~in_table).alias("lost"),
        F.sum(F.greatest(F.col("in_table") - 1, F.lit(0))).alias("duplicated"),
        how_many(F.col("differs")).alias("different"),
        how_many(in_table & ~in_topic & ~is_before).alias("only_rows"),
        how_many(in_table & is_before).alias("old_rows"),
        F.min(F.when(in_table & is_before, F.col("offset"))).alias("old_first"),
    )


def _partition_value(numbers: dict[TopicPartition, int]) -> "Column":
    """Return a column with the number that belongs to the row's partition."""
    pairs = [F.lit(item) for (topic, each), number in numbers.items() for item in (f"{topic}/{each}", number)]
    name = F.concat_ws("/", F.col("topic"), F.col("partition").cast("string"))
    return F.try_element_at(F.create_map(*pairs), name) if pairs else F.lit(0)


def offset_ranges(offsets: "DataFrame", condition: "Column") -> "DataFrame":
    """Return ranges of offsets that meet the condition, split at multiples of SPAN_OFFSETS."""
    piece = F.floor(F.col("offset") / SPAN_OFFSETS)
    in_order = Window.partitionBy("topic", "partition", "piece").orderBy("offset")
    found = offsets.where(condition).select(*OFFSET_COLUMNS, piece.alias("piece"))
    # Offset minus row number is constant within a run of consecutive offsets.
    found = found.withColumn("run", F.col("offset") - F.row_number().over(in_order))
    return (
        found.groupBy("topic", "partition", "piece", "run")
        .agg(F.min("offset").alias("first"), F.max("offset").alias("last"))
        .orderBy("topic", "partition", "first")
        .limit(SPANS_MAX)
    )


def out_of_order_rows(spark: "SparkSession", inputs: LakeAuditInputs) -> "DataFrame":
    """Return rows that come after a row of the same partition with a higher offset in the same file."""
    rows = read_table_rows(spark, inputs.files.present)
    if not inputs.files.present:
        return rows.groupBy("topic", "partition").agg(F.lit(0).alias("late"), F.lit("").alias("file"))
    file, row = F.col("_metadata.file_path"), F.col("_metadata.row_index")
    rows = rows.select(*OFFSET_COLUMNS, file.alias("file"), row.alias("row"))
    before = Window.partitionBy("file", "topic", "partition").orderBy("row")
    highest = F.max("offset").over(before.rowsBetween(Window.unboundedPreceding, -1))
    late = rows.withColumn("highest", highest).where(F.col("offset") < F.col("highest"))
    return late.groupBy("topic", "partition").agg(
        F.count(F.lit(1)).alias("late"), F.min("file").alias("file")
    )


def count_findings(inputs: LakeAuditInputs, rows: Sequence[Any]) -> list[Finding]:
    findings = []
    for row in sorted(rows):
        partition = TopicPartition(row.topic, row.partition)
        name = _partition_name(partition)
        findings += [
            Finding("duplicated", name, row.duplicated, "rows are in the table more than once"),
            Finding("different", name, row.different, "rows are not what the records of the topic are"),
            Finding("compacted", name, row.only_rows, "rows whose records the topic no longer has"),
            Finding(
                "unknown",
                name,
                _unknown(inputs, partition, row),
                "offsets before the topic's start are missing",
            ),
        ]
    return findings


def _unknown(inputs: LakeAuditInputs, partition: TopicPartition, row: Any) -> int:
    """Count offsets that neither side has, between the table's first offset and the topic's start."""
    if row.old_first is None:
        return 0
    end = min(inputs.earliest[partition], inputs.ends.get(partition, inputs.earliest[partition]))
    return max(int(end - row.old_first - row.old_rows), 0)


def lost_findings(rows: Sequence[Any], found: Sequence[Any]) -> list[Finding]:
    """Combine the counts of `rows` with the ranges of `found`."""
    spans_of: dict[TopicPartition, list[OffsetSpan]] = {}
    for row in found:
        place = TopicPartition(row.topic, row.partition)
        spans_of.setdefault(place, []).append(OffsetSpan(row.first, row.last + 1))
    findings = []
    for row in sorted(rows):
        partition = TopicPartition(row.topic, row.partition)
        mine = spans_of.get(partition, [])
        is_all = sum(span.end - span.start for span in mine) == row.lost
        examples = spans_text(mine, is_all=is_all) if row.lost else ()
        findings.append(
            Finding("lost", _partition_name(partition), row.lost, "records are not in the table", examples)
        )
    return findings


def order_findings(inputs: LakeAuditInputs, rows: Sequence[Any]) -> list[Finding]:
    # Delta compaction reorders rows. Offsets are stored in the rows, so this loses nothing.
    kind = "order" if inputs.keeps_order else "sorted"
    return [
        Finding(
            kind,
            f"{row.topic}/{row.partition}",
            row.late,
            "rows lie behind one with a higher offset",
            (f"in {row.file}",),
        )
        for row in sorted(rows)
    ]


def _partition_name(partition: TopicPartition) -> str:
    return f"{partition.topic}/{partition.partition}"
