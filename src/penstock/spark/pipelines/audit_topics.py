"""One topic against another that was made from it: is every record there, once, and in order?

    orders ── a program ──▶ orders-enriched

Strategy: the records of both are put together and grouped by id. A group says by itself what is wrong with
it: none in the second topic is lost, more than in the first is doubled. For order, what is in both is looked
at key by key in the order of the second topic, and each record that comes behind one that it was before is
late. Only counts and a few examples come back to the driver.

Rule 1: records of the first topic behind the last one that was found again are not lost but `behind`: the
        program may still be at work.
Rule 2: order is asked of the first copy of a record. Those that come again are counted as duplicates, and
        that they come late is what makes them so.
Rule 3: the second topic's end is settled first, then the first's, so that nothing lacks its origin.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as F

from penstock.spark.offsets import Range
from penstock.spark.pipelines.audit_ids import IdPart, id_column, needs_headers, needs_value
from penstock.spark.pipelines.audit_report import EXAMPLES_MAX, Finding, id_text
from penstock.spark.pipelines.lake_rows import SCHEMA
from penstock.spark.pipelines.topic_rows import records_in
from penstock.types import Offset, TopicPartition
from penstock.wire.cluster import EARLIEST, LATEST, ClusterClient

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

IN_BOTH: Final = "of_source > 0 and of_target > 0"
Collect = Callable[["DataFrame"], list[Any]]
"""Runs a query, unless a stop is asked for."""


class TopicsPlan(NamedTuple):
    source: tuple[str, ...]
    target: str | None
    """None: the source is looked at by itself."""
    source_ranges: list[Range]
    target_ranges: list[Range]
    ids: tuple[IdPart, ...]
    where: str | None

    @property
    def name(self) -> str:
        source = ",".join(self.source)
        return source if self.target is None else f"{source} to {self.target}"


def ranges_of(client: ClusterClient, partitions: Sequence[TopicPartition]) -> list[Range]:
    """All there is now."""
    starts = client.offsets(dict.fromkeys(partitions, EARLIEST), read_committed=True)
    ends = client.offsets(dict.fromkeys(partitions, LATEST), read_committed=True)
    found = [Range(each, starts[each][0], Offset(ends[each][0])) for each in sorted(partitions)]
    return [each for each in found if each.size > 0]


def records(spark: "SparkSession", plan: TopicsPlan, access: dict[str, str]) -> "DataFrame":
    """Those of both topics: id, key, place, and whose they are."""
    parts = [_identified(spark, plan, access, plan.source_ranges, is_source=True)]
    if plan.target is not None:
        parts.append(_identified(spark, plan, access, plan.target_ranges, is_source=False))
    return parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])


def _identified(
    spark: "SparkSession",
    plan: TopicsPlan,
    access: dict[str, str],
    ranges: Sequence[Range],
    *,
    is_source: bool,
) -> "DataFrame":
    columns = ["topic", "partition", "offset", "key"]
    filtered = is_source and plan.where is not None
    if filtered:
        columns = [part.split()[0] for part in SCHEMA.split(", ")]
    columns += ["headers"] if needs_headers(plan.ids) and "headers" not in columns else []
    columns += ["value"] if needs_value(plan.ids) and "value" not in columns else []
    # What was aborted was never sent, for those who read this way: programs between topics do.
    committed = {**access, "kafka.isolation.level": "read_committed"}
    rows = records_in(spark, committed, ranges, columns)
    if filtered and plan.where is not None:
        rows = rows.where(plan.where)
    lane = F.concat_ws("/", F.col("topic"), F.col("partition").cast("string")).alias("lane")
    place = F.struct("offset", lane, "key").alias("place")
    return rows.select(id_column(plan.ids).alias("id"), place, F.lit(is_source).alias("is_source"))


def by_id(rows: "DataFrame") -> "DataFrame":
    """One row for each id: how often it is in either topic, and where it is first."""
    is_source = F.col("is_source")
    return (
        rows.where("id is not null")
        .groupBy("id")
        .agg(
            F.sum(F.when(is_source, 1).otherwise(0)).alias("of_source"),
            F.sum(F.when(is_source, 0).otherwise(1)).alias("of_target"),
            F.min(F.when(is_source, F.col("place"))).alias("source"),
            F.min(F.when(~is_source, F.col("place"))).alias("target"),
        )
    )


def findings(plan: TopicsPlan, rows: "DataFrame", ids: "DataFrame", collect: Collect) -> list[Finding]:
    """`ids` is what `by_id` makes of `rows`, kept by Spark for the several questions asked of it."""
    nameless = rows.where("id is null").agg(F.count(F.lit(1)).alias("records"))
    [row] = collect(nameless)
    what = f"records have no {' and '.join(map(str, plan.ids))}"
    found = [Finding("unknown", plan.name, row.records, what)]
    if plan.target is None:
        return found + _repeated(plan, ids, collect)
    found += _missing(plan, ids, collect)
    found += _doubled(plan, ids, collect)
    return found + _disordered(plan, ids, collect)


def _repeated(plan: TopicsPlan, ids: "DataFrame", collect: Collect) -> list[Finding]:
    [row] = collect(ids.agg(_total(F.col("of_source") - 1).alias("again")))
    again = ids.where("of_source > 1")
    return [_with_examples("duplicated", plan, row.again, "records have the id of another", again, collect)]


def _missing(plan: TopicsPlan, ids: "DataFrame", collect: Collect) -> list[Finding]:
    reached = ids.where(IN_BOTH).groupBy("source.lane").agg(F.max("source.offset").alias("last"))
    pairs = [F.lit(item) for row in collect(reached) for item in (row.lane, row.last)]
    last = F.try_element_at(F.create_map(*pairs), F.col("source.lane")) if pairs else F.lit(None)
    is_lost = F.col("source.offset") < F.coalesce(last, F.lit(-1))
    absent = ids.where("of_source > 0 and of_target = 0")
    [row] = collect(absent.agg(_how_many(is_lost).alias("lost"), _how_many(~is_lost).alias("behind")))
    return [
        _with_examples("lost", plan, row.lost, "records did not arrive", absent.where(is_lost), collect),
        Finding("behind", plan.name, row.behind, "records, the last ones, did not arrive yet"),
    ]


def _doubled(plan: TopicsPlan, ids: "DataFrame", collect: Collect) -> list[Finding]:
    of_source, of_target = F.col("of_source"), F.col("of_target")
    [row] = collect(
        ids.agg(
            _total(of_target - F.greatest(of_source, F.lit(1))).alias("doubled"),
            _total(of_source - 1).alias("repeated"),
            _how_many(of_source == 0).alias("new"),
        )
    )
    again = ids.where("of_target > greatest(of_source, 1)")
    return [
        _with_examples("duplicated", plan, row.doubled, "records arrived more than once", again, collect),
        Finding("repeated", plan.name, row.repeated, "records have in the first topic the id of another"),
        Finding("new", plan.name, row.new, "records are in the second topic only"),
    ]


def _disordered(plan: TopicsPlan, ids: "DataFrame", collect: Collect) -> list[Finding]:
    both = ids.where(IN_BOTH).where("source.key is not null")
    lane = Window.partitionBy("source.key", "source.lane", "target.lane").orderBy("target.offset")
    highest = F.max("source.offset").over(lane.rowsBetween(Window.unboundedPreceding, -1))
    late = both.withColumn("highest", highest).where(F.col("source.offset") < F.col("highest"))
    [row] = collect(late.agg(F.count(F.lit(1)).alias("late")))
    keys = both.groupBy("source.key").agg(
        F.count_distinct("source.lane").alias("before"), F.count_distinct("target.lane").alias("after")
    )
    [scattered] = collect(keys.agg(_how_many(F.col("after") > F.col("before")).alias("keys")))
    behind = "records arrived behind one of their key that was sent after them"
    return [
        _with_examples("order", plan, row.late, behind, late, collect),
        Finding("order", plan.name, scattered["keys"], "keys are spread over more partitions than before"),
    ]


def _total(number: "Column") -> "Column":
    """Of those that are more than nothing."""
    return F.coalesce(F.sum(F.greatest(number, F.lit(0))), F.lit(0))


def _how_many(condition: "Column") -> "Column":
    return F.coalesce(F.sum(F.when(condition, 1).otherwise(0)), F.lit(0))


def _with_examples(
    kind: str, plan: TopicsPlan, number: int, what: str, rows: "DataFrame", collect: Collect
) -> Finding:
    examples = collect(rows.select("id", "source", "target").limit(EXAMPLES_MAX)) if number else []
    return Finding(kind, plan.name, number, what, tuple(sorted(map(_example, examples))))


def _example(row: Any) -> str:
    places = [
        f"{name} {place.lane} offset {place.offset}"
        for name, place in (("from", row.source), ("at", row.target))
        if place is not None
    ]
    return f"{id_text(row.id)} {' '.join(places)}"
