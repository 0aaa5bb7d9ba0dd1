"""Measurement of a topic's range with Spark: tasks read every row, the driver gets a few thousand numbers.

    times      time range of the rows, which sets the width of the slices
    loads      rows and bytes of each partition in each slice
    keys       rows and bytes of each key; only the largest keys return to the driver
    delays     how far rows are behind, and their latency, in bins

Each measure is one pass that reads only the columns it needs. `measure_delays` processes the rows of a
partition in order, with one task for each partition.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as F

from penstock.limits import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from penstock.spark.pipelines.insights.numbers import (
    BIN_GROWTH,
    DurationStats,
    KeyLoad,
    PartitionLoad,
    TimeSlice,
    duration_stats,
    every_slice,
    slice_width,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

KEYS_SHOWN: Final = 20
LATE_MS: Final = (SECOND_MS, 10 * SECOND_MS, MINUTE_MS, 10 * MINUTE_MS, HOUR_MS, DAY_MS)
BEHIND: Final = "behind"
LATENCY: Final = "latency"
_APPEND_TIME: Final = 1
_HEADERS: Final = "headers array<struct<key:string,value:binary>>"


class CreationTimeField(NamedTuple):
    """Field with the message's creation time: milliseconds, or text such as 2026-03-01T12:00:00Z."""

    kind: str
    """header or json."""
    name: str


class LoadTotals(NamedTuple):
    """Rows and bytes by partition, and by slice of time."""

    partitions: tuple[PartitionLoad, ...]
    slice_ms: int
    slices: dict[int, TimeSlice]


class KeyTotals(NamedTuple):
    """Largest keys, and the numbers of all keys."""

    largest: tuple[KeyLoad, ...]
    distinct: int
    scattered: int


class Delays(NamedTuple):
    """Delays of the rows, in all and in each slice of time. `TopicMeasurements` explains the fields."""

    slices: tuple[TimeSlice, ...]
    behind: DurationStats | None
    late_rows: dict[int, int]
    latency: DurationStats | None
    from_the_future: int
    without_made: int
    append_time: bool


class TopicRange:
    """Range of a topic, which each measure reads again with its own columns."""

    def __init__(self, spark: "SparkSession", options: Mapping[str, str]) -> None:
        self._spark = spark
        self._options = dict(options)

    def rows(self, columns: str) -> "DataFrame":
        options = {**self._options, "includeHeaders": str("headers" in columns).lower()}
        return self._spark.read.format("penstock").options(**options).schema(columns).load()


Collect = Callable[["DataFrame"], list[Any]]
"""Runs a query and returns its rows."""


def measure_loads(topic_range: TopicRange, partitions: Iterable[int], collect: Collect) -> LoadTotals:
    first_ms, last_ms = collect(
        topic_range.rows("timestamp timestamp").agg(
            F.unix_millis(F.min("timestamp")), F.unix_millis(F.max("timestamp"))
        )
    )[0]
    slice_ms = SECOND_MS if first_ms is None else slice_width(first_ms, last_ms)
    rows = topic_range.rows("key binary, value binary, partition int, timestamp timestamp")
    found = collect(
        rows.groupBy(_slice(slice_ms), "partition").agg(
            F.count("*").alias("rows"),
            F.sum(_record_size()).alias("bytes"),
            F.count_if(F.col("key").isNull()).alias("keyless"),
            F.unix_millis(F.min("timestamp")).alias("oldest"),
            F.unix_millis(F.max("timestamp")).alias("newest"),
        )
    )
    return LoadTotals(partition_loads(found, partitions), slice_ms, time_slices(found))


def partition_loads(found: Iterable[Any], partitions: Iterable[int]) -> tuple[PartitionLoad, ...]:
    loads = {number: PartitionLoad(number) for number in partitions}
    for row in found:
        so_far = loads[row.partition]
        oldest, newest = so_far.oldest_ms, so_far.newest_ms
        loads[row.partition] = PartitionLoad(
            row.partition,
            so_far.rows + row.rows,
            so_far.bytes + row.bytes,
            so_far.keyless + row.keyless,
            min((each for each in (oldest, row.oldest) if each is not None), default=None),
            max((each for each in (newest, row.newest) if each is not None), default=None),
        )
    return tuple(loads[number] for number in sorted(loads))


def time_slices(found: Iterable[Any]) -> dict[int, TimeSlice]:
    slices: dict[int, TimeSlice] = {}
    for row in found:
        if row.slice is None:  # a time outside of Spark's range
            continue
        so_far = slices.get(row.slice, TimeSlice(row.slice))
        slices[row.slice] = so_far._replace(rows=so_far.rows + row.rows, bytes=so_far.bytes + row.bytes)
    return slices


def measure_keys(topic_range: TopicRange, collect: Collect) -> KeyTotals:
    """Measure keys in two passes: one for the largest keys, one for their number."""
    each = (
        topic_range.rows("key binary, value binary, partition int")
        .where(F.col("key").isNotNull())
        .groupBy("key")
        .agg(
            F.count("*").alias("rows"),
            F.sum(_record_size()).alias("bytes"),
            F.sort_array(F.collect_set("partition")).alias("partitions"),
        )
    )
    largest = collect(each.orderBy(F.desc("bytes"), "key").limit(KEYS_SHOWN))
    totals = collect(
        each.agg(F.count("*").alias("distinct"), F.count_if(F.size("partitions") > 1).alias("scattered"))
    )[0]
    return KeyTotals(
        tuple(KeyLoad(bytes(row.key), row.rows, row.bytes, tuple(row.partitions)) for row in largest),
        totals.distinct,
        totals.scattered,
    )


def measure_delays(
    topic_range: TopicRange, made: CreationTimeField | None, measured: LoadTotals, collect: Collect
) -> Delays:
    columns = "partition int, offset bigint, timestamp timestamp, timestampType int"
    if made is not None:
        columns += f", {_HEADERS}" if made.kind == "header" else ", value binary"
    before = Window.partitionBy("partition").orderBy("offset").rowsBetween(Window.unboundedPreceding, 0)
    time_ms = F.unix_millis("timestamp")
    behind = F.max(time_ms).over(before) - time_ms
    latency = F.lit(None).cast("bigint") if made is None else F.try_subtract(time_ms, _creation_ms(made))
    each = (
        topic_range.rows(columns)
        .select(_slice(measured.slice_ms), "timestampType", behind.alias(BEHIND), latency.alias(LATENCY))
        .select(
            "slice", "timestampType", F.explode(F.array(_delay_ms(BEHIND), _delay_ms(LATENCY))).alias("delay")
        )
    )
    found = collect(
        each.groupBy("slice", "delay.kind", _bin_column(F.col("delay.ms")).alias("bin")).agg(
            F.count("*").alias("rows"),
            F.max("delay.ms").alias("max"),
            F.max("timestampType").alias("type"),
            *(F.count_if(F.col("delay.ms") >= late).alias(f"late_{late}") for late in LATE_MS),
        )
    )
    return _delays(found, measured, has_made=made is not None)


def _delays(found: list[Any], measured: LoadTotals, *, has_made: bool) -> Delays:
    sound = [row for row in found if row.bin is not None and row.bin >= 0]
    by_kind = {kind: [row for row in sound if row.kind == kind] for kind in (BEHIND, LATENCY)}
    slices = {}
    for start, each in measured.slices.items():
        mine = {kind: [row for row in rows if row.slice == start] for kind, rows in by_kind.items()}
        slices[start] = each._replace(behind=_bin_stats(mine[BEHIND]), latency=_bin_stats(mine[LATENCY]))
    of_latency = [row for row in found if row.kind == LATENCY] if has_made else []
    return Delays(
        every_slice(slices, measured.slice_ms),
        _bin_stats(by_kind[BEHIND]),
        {late: sum(row[f"late_{late}"] for row in by_kind[BEHIND]) for late in LATE_MS},
        _bin_stats(by_kind[LATENCY]),
        sum(row.rows for row in of_latency if row.bin is not None and row.bin < 0),
        sum(row.rows for row in of_latency if row.bin is None),
        bool(found) and all(row.type == _APPEND_TIME for row in found),
    )


def _bin_stats(rows: Iterable[Any]) -> DurationStats | None:
    bins: dict[int, int] = defaultdict(int)
    max_ms = 0
    for row in rows:
        bins[row.bin] += row.rows
        max_ms = max(max_ms, row.max)
    return duration_stats(bins, max_ms)


# Expressions


def _slice(slice_ms: int) -> "Column":
    milliseconds = F.unix_millis("timestamp")
    return (milliseconds - F.pmod(milliseconds, F.lit(slice_ms))).alias("slice")


def _record_size() -> "Column":
    def length(name: str) -> "Column":
        return F.coalesce(F.octet_length(name), F.lit(0))

    return (length("key") + length("value")).cast("bigint")


def _delay_ms(kind: str) -> "Column":
    return F.struct(F.lit(kind).alias("kind"), F.col(kind).alias("ms"))


def _bin_column(milliseconds: "Column") -> "Column":
    """Return the bin as `numbers.duration_bin` does; -1 for negative times, null for unknown times."""
    number = F.floor(F.log(milliseconds.cast("double")) / F.log(F.lit(BIN_GROWTH))) + 1
    return F.when(milliseconds < 0, -1).when(milliseconds < 1, 0).otherwise(number).cast("int")


def _creation_ms(made: CreationTimeField) -> "Column":
    if made.kind == "header":
        named = F.filter("headers", lambda header: header["key"] == made.name)
        text = F.try_element_at(named, F.lit(1))["value"].cast("string")
    else:
        text = F.get_json_object(F.col("value").cast("string"), f"$.{made.name}")
    as_time = F.unix_millis(F.try_to_timestamp(text))
    return F.coalesce(text.try_cast("bigint"), as_time)
