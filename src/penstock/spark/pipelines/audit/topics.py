"""Audit of a topic against a topic that was made from it: every record must arrive, once and in order.

    orders ── a program ──▶ orders-enriched

Spark unions the records of both topics and groups them by id. Each group shows its own errors: a group
without a record of the second topic is lost, a group with more records than in the first topic is duplicated.
For order, the records that both topics have are compared key by key in the order of the second topic: a
record is late if a record that was sent after it comes before it. Only counts and a few examples return to
the driver.

Rule 1: records of the first topic after the last record that arrived are not lost but `behind`: the program
        may still be processing them.
Rule 2: order is checked for the first copy of a record only. Further copies count as duplicates, which always
        come late.
Rule 3: the second topic's end is read first, then the first topic's end, so that no arrived record lacks its
        source record.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as F

from penstock.spark.pipelines.audit.ids import IdPart, id_column, needs_headers, needs_value
from penstock.spark.pipelines.audit.report import EXAMPLES_MAX, Finding, id_text
from penstock.spark.pipelines.common.lake_rows import SCHEMA
from penstock.spark.pipelines.common.topic_rows import read_records
from penstock.spark.source.offsets import OffsetRange
from penstock.types import Offset, TopicPartition
from penstock.wire.cluster_client import EARLIEST, LATEST, ClusterClient

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Collect = Callable[["DataFrame"], list[Any]]
"""Runs a query and returns its rows, unless a stop is requested."""


class TopicsPlan(NamedTuple):
    """Inputs of the comparison of two topics, fixed before Spark starts."""

    source: tuple[str, ...]
    target: str | None
    """None: the source is audited by itself."""
    source_ranges: list[OffsetRange]
    target_ranges: list[OffsetRange]
    ids: tuple[IdPart, ...]
    where: str | None

    @property
    def name(self) -> str:
        source = ",".join(self.source)
        return source if self.target is None else f"{source} to {self.target}"


def fetch_offset_ranges(
    client: ClusterClient, partitions: Sequence[TopicPartition], *, read_committed: bool
) -> list[OffsetRange]:
    """Ask the brokers for the offset ranges of all records that the partitions have now."""
    starts = client.offsets(dict.fromkeys(partitions, EARLIEST), read_committed=read_committed)
    ends = client.offsets(dict.fromkeys(partitions, LATEST), read_committed=read_committed)
    found = [OffsetRange(each, starts[each][0], Offset(ends[each][0])) for each in sorted(partitions)]
    return [each for each in found if each.size > 0]


def records_with_ids(spark: "SparkSession", plan: TopicsPlan, access: dict[str, str]) -> "DataFrame":
    """Return the records of both topics with id, key, position and source flag."""
    parts = [_records_with_ids(spark, plan, access, plan.source_ranges, is_source=True)]
    if plan.target is not None:
        parts.append(_records_with_ids(spark, plan, access, plan.target_ranges, is_source=False))
    return parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])


def _records_with_ids(
    spark: "SparkSession",
    plan: TopicsPlan,
    access: dict[str, str],
    ranges: Sequence[OffsetRange],
    *,
    is_source: bool,
) -> "DataFrame":
    columns = ["topic", "partition", "offset", "key"]
    filtered = is_source and plan.where is not None
    if filtered:
        columns = [part.split()[0] for part in SCHEMA.split(", ")]
    columns += ["headers"] if needs_headers(plan.ids) and "headers" not in columns else []
    columns += ["value"] if needs_value(plan.ids) and "value" not in columns else []
    rows = read_records(spark, access, ranges, columns)
    if filtered and plan.where is not None:
        rows = rows.where(plan.where)
    partition = F.concat_ws("/", F.col("topic"), F.col("partition").cast("string")).alias("partition")
    place = F.struct("offset", partition, "key").alias("place")
    return rows.select(id_column(plan.ids).alias("id"), place, F.lit(is_source).alias("is_source"))


def group_by_id(rows: "DataFrame") -> "DataFrame":
    """Return one row per id: its count in each topic, and its first position in each.

    All records without an id form one row, too.
    """
    is_source = F.col("is_source")
    return rows.groupBy("id").agg(
        F.sum(F.when(is_source, 1).otherwise(0)).alias("of_source"),
        F.sum(F.when(is_source, 0).otherwise(1)).alias("of_target"),
        F.min(F.when(is_source, F.col("place"))).alias("source"),
        F.min(F.when(~is_source, F.col("place"))).alias("target"),
    )


class ComparisonResult(NamedTuple):
    """Number of ids that were compared, and the findings."""

    ids: int
    findings: list[Finding]


def compare(plan: TopicsPlan, by_id: "DataFrame", collect: Collect) -> ComparisonResult:
    """Compare both topics from the result of `group_by_id`, which the caller caches for several queries."""
    ids = by_id.where("id is not null")
    partition_counts = [_PartitionCounts(*row) for row in collect(_counts_by_partition(plan, by_id))]
    found = [
        _records_without_id(plan, partition_counts),
        *_duplicate_findings(plan, ids, partition_counts, collect),
    ]
    if plan.target is not None:
        found += _missing_findings(plan, ids, partition_counts, collect)
        found += _order_findings(plan, ids, collect)
    return ComparisonResult(sum(each.ids for each in partition_counts), found)


class _PartitionCounts(NamedTuple):
    """Sums over the ids whose first source record is in one partition; None: ids only the target has."""

    partition: str | None
    without_id: int
    ids: int
    absent: int
    doubled: int
    repeated: int
    new: int
    last: int | None
    """Source offset of the last record that arrived."""


def _counts_by_partition(plan: TopicsPlan, by_id: "DataFrame") -> "DataFrame":
    of_source, of_target = F.col("of_source"), F.col("of_target")
    has_id = F.col("id").isNotNull()
    # With a condition, ids without a source record are excluded: the condition was not applied to the target.
    counts = has_id if plan.where is None else has_id & (of_source > 0)
    # An id that occurs n times in the source may occur n times in the target.
    more = of_target - F.greatest(of_source, F.lit(1))
    return by_id.groupBy("source.partition").agg(
        F.sum(F.when(has_id, 0).otherwise(of_source + of_target)),
        _count_where(has_id),
        _count_where(has_id & (of_target == 0)),
        _total(F.when(counts, more)),
        _total(F.when(has_id, of_source - 1)),
        _count_where(has_id & (of_source == 0)),
        F.max(F.when(has_id & (of_target > 0), F.col("source.offset"))),
    )


def _records_without_id(plan: TopicsPlan, partition_counts: Sequence[_PartitionCounts]) -> Finding:
    what = f"records have no {' and '.join(map(str, plan.ids))}"
    return Finding("unknown", plan.name, sum(each.without_id for each in partition_counts), what)


def _duplicate_findings(
    plan: TopicsPlan, ids: "DataFrame", partition_counts: Sequence[_PartitionCounts], collect: Collect
) -> list[Finding]:
    repeated = sum(each.repeated for each in partition_counts)
    if plan.target is None:
        again = ids.where("of_source > 1")
        what = "records have the id of another"
        return [_with_examples("duplicated", plan, repeated, what, again, collect)]
    doubled = sum(each.doubled for each in partition_counts)
    again = ids.where("of_target > greatest(of_source, 1)")
    new = sum(each.new for each in partition_counts)
    return [
        _with_examples("duplicated", plan, doubled, "records arrived more than once", again, collect),
        Finding("repeated", plan.name, repeated, "records have in the first topic the id of another"),
        Finding("new", plan.name, new, "records are in the second topic only"),
    ]


def _missing_findings(
    plan: TopicsPlan, ids: "DataFrame", partition_counts: Sequence[_PartitionCounts], collect: Collect
) -> list[Finding]:
    if not any(each.absent for each in partition_counts):
        return []
    pairs = [
        F.lit(item)
        for each in partition_counts
        if each.last is not None
        for item in (each.partition, each.last)
    ]
    last = F.try_element_at(F.create_map(*pairs), F.col("source.partition")) if pairs else F.lit(None)
    # A record before the last arrived record of its partition should have arrived, too (rule 1).
    is_lost = F.col("source.offset") < F.coalesce(last, F.lit(-1))
    absent = ids.where("of_target = 0")
    [row] = collect(absent.agg(_count_where(is_lost).alias("lost"), _count_where(~is_lost).alias("behind")))
    return [
        _with_examples("lost", plan, row.lost, "records did not arrive", absent.where(is_lost), collect),
        Finding("behind", plan.name, row.behind, "records, the last ones, did not arrive yet"),
    ]


def _order_findings(plan: TopicsPlan, ids: "DataFrame", collect: Collect) -> list[Finding]:
    both = ids.where("of_source > 0 and of_target > 0 and source.key is not null")
    # Order is only defined within one key and one partition on both sides.
    window = Window.partitionBy("source.key", "source.partition", "target.partition").orderBy("target.offset")
    highest = F.max("source.offset").over(window.rowsBetween(Window.unboundedPreceding, -1))
    followed = both.withColumn("is_late", F.coalesce(F.col("source.offset") < highest, F.lit(False)))
    keys = followed.groupBy("source.key").agg(
        _count_where(F.col("is_late")).alias("late"),
        F.size(F.collect_set("source.partition")).alias("before"),
        F.size(F.collect_set("target.partition")).alias("after"),
    )
    is_spread = F.col("after") > F.col("before")
    [row] = collect(keys.agg(_total(F.col("late")).alias("late"), _count_where(is_spread).alias("spread")))
    behind = "records arrived behind one of their key that was sent after them"
    return [
        _with_examples("order", plan, row.late, behind, followed.where("is_late"), collect),
        Finding("order", plan.name, row.spread, "keys are spread over more partitions than before"),
    ]


def _total(number: "Column") -> "Column":
    """Sum the numbers that are above 0."""
    return F.coalesce(F.sum(F.greatest(number, F.lit(0))), F.lit(0))


def _count_where(condition: "Column") -> "Column":
    return F.coalesce(F.sum(F.when(condition, 1).otherwise(0)), F.lit(0))


def _with_examples(
    kind: str, plan: TopicsPlan, number: int, what: str, rows: "DataFrame", collect: Collect
) -> Finding:
    examples = collect(rows.select("id", "source", "target").limit(EXAMPLES_MAX)) if number else []
    return Finding(kind, plan.name, number, what, tuple(sorted(map(_example, examples))))


def _example(row: Any) -> str:
    places = [
        f"{name} {place.partition} offset {place.offset}"
        for name, place in (("from", row.source), ("at", row.target))
        if place is not None
    ]
    return f"{id_text(row.id)} {' '.join(places)}"
