"""`insights`: reports how the load of a topic is distributed, how late its records are, and what to change.

    topic ── batch reads ──▶ numbers (measures.py) ──▶ advice (advice.py)
          └─ a sample ─────▶ batches, groups (sample.py)      └──▶ a page (html_report.py)

Rule 1: offsets are fixed once, before Spark starts: all measures cover the same records.
Rule 2: the page is written completely or not at all.
"""

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.errors import CommandFailed
from penstock.spark.options.options import ISOLATION_LEVELS, ISOLATION_OPTION, READ_COMMITTED
from penstock.spark.pipelines.common import report
from penstock.spark.pipelines.common.cluster import fetch_partitions, open_client
from penstock.spark.pipelines.common.query_run import StopRequest
from penstock.spark.pipelines.common.spark_action import RunInterrupted, run_spark_action
from penstock.spark.pipelines.insights import measures
from penstock.spark.pipelines.insights.advice import PARTITION_BYTES_PER_S, Advice, advise, key_text
from penstock.spark.pipelines.insights.html_report import duration, html_report
from penstock.spark.pipelines.insights.measures import CreationTimeField
from penstock.spark.pipelines.insights.numbers import (
    BatchSample,
    DurationStats,
    GroupBacklog,
    TopicMeasurements,
    skew,
)
from penstock.spark.pipelines.insights.sample import fetch_group_backlogs, sample_batches
from penstock.spark.pipelines.replay.plan import Bound
from penstock.spark.source.offsets import to_document
from penstock.types import TopicPartition
from penstock.wire.cluster_client import EARLIEST, LATEST, ClusterClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MADE: Final = re.compile(r"(?P<kind>header|json):(?P<name>.+)")
_FIELD: Final = re.compile(r"[\w.\[\]-]+")

ShowLine = Callable[[str], None]
PartitionSpans = dict[TopicPartition, tuple[int, int]]


class InsightsSettings(NamedTuple):
    topic: str
    access: Mapping[str, str]
    """Connection options for the brokers, as `format("penstock")` accepts them."""
    page: Path
    start: Bound = Bound()
    end: Bound = Bound()
    made: CreationTimeField | None = None
    groups: tuple[str, ...] = ()
    partition_bytes_per_s: float = PARTITION_BYTES_PER_S
    isolation: str = READ_COMMITTED


class InsightsPlan(NamedTuple):
    """Facts that brokers report before Spark starts."""

    ranges: PartitionSpans
    batches: BatchSample
    groups: tuple[GroupBacklog, ...]
    read_at_ms: int


class InsightsReport(NamedTuple):
    measured: TopicMeasurements
    advice: tuple[Advice, ...]
    page: str
    seconds: float

    def document(self) -> dict[str, Any]:
        measured = self.measured
        return report.document(
            {
                "pipeline": "insights",
                "topic": measured.topic,
                "ranges": {str(number): span for number, span in measured.ranges.items()},
                "rows": measured.rows,
                "bytes": measured.bytes,
                "skew": _skew(measured),
                "partitions": [each._asdict() for each in measured.partitions],
                "keys": [{**each._asdict(), "key": key_text(each.key)} for each in measured.keys],
                "distinct_keys": measured.distinct_keys,
                "scattered_keys": measured.scattered_keys,
                "peak_bytes_per_s": measured.peak_bytes_per_s,
                "slice_ms": measured.slice_ms,
                "slices": [
                    {**each._asdict(), "behind": _times(each.behind), "latency": _times(each.latency)}
                    for each in measured.slices
                ],
                "behind": _times(measured.behind),
                "late_rows": {str(late): rows for late, rows in measured.late_rows.items()},
                "latency": _times(measured.latency),
                "from_the_future": measured.from_the_future,
                "without_made": measured.without_made,
                "append_time": measured.append_time,
                "batches": measured.batches._asdict(),
                "groups": [each._asdict() for each in measured.groups],
                "advice": [each._asdict() for each in self.advice],
                "page": self.page,
                "seconds": self.seconds,
            }
        )

    def lines(self) -> list[str]:
        measured = self.measured
        hottest = measured.keys[0] if measured.keys else None
        facts = report.lines(
            {
                "topic": measured.topic,
                "records": measured.rows,
                "size": report.size_text(measured.bytes),
                "partitions": len(measured.partitions),
                "fullest": f"{_skew(measured):.2f} times the mean",
                "keys": measured.distinct_keys,
                "largest key": None
                if hottest is None
                else f"{key_text(hottest.key)}, {hottest.bytes / max(measured.bytes, 1):.1%} of all bytes",
                "peak": f"{report.size_text(round(measured.peak_bytes_per_s))}/s",
                "latency": _times_text(measured.latency),
                "behind": None if measured.append_time else _times_text(measured.behind),
                **_backlog_lines(measured),
                "seconds": self.seconds,
                "report": self.page,
            }
        )
        if not self.advice:
            return [*facts, "", "no advice: nothing stands out"]
        advice = [
            line
            for each in self.advice
            for line in (f"{each.about}: {each.advice}", f"  because {each.because}")
        ]
        return [*facts, "", *advice]


def parse_created_field(text: str | None) -> CreationTimeField | None:
    if text is None:
        return None
    found = _MADE.fullmatch(text)
    if found is None or (found["kind"] == "json" and _FIELD.fullmatch(found["name"]) is None):
        raise CommandFailed(f"--made is {text!r}: give header:NAME, or json:FIELD such as json:order.made_at")
    return CreationTimeField(found["kind"], found["name"])


def check(settings: InsightsSettings) -> InsightsPlan:
    """Run all checks that need no Spark, and fix the range of records."""
    if settings.page.is_dir():
        raise CommandFailed(f"{settings.page} is a folder: name the file that the report is written to")
    if not settings.page.parent.is_dir():
        raise CommandFailed(f"there is no folder {settings.page.parent} to write the report to")
    if not os.access(settings.page.parent, os.W_OK):
        raise CommandFailed(f"{settings.page.parent} cannot be written to")
    now_ms = time.time_ns() // 1_000_000
    with open_client(settings.access) as client:
        ranges = _fetch_ranges(client, settings)
        batches = sample_batches(client, ranges)
        groups = fetch_group_backlogs(client, settings.groups, ranges, now_ms)
    if unknown := set(settings.groups) - {each.group for each in groups}:
        raise CommandFailed(
            f"group {min(unknown)} has committed no offset of {settings.topic}: "
            "`penstock group list` shows the groups there are"
        )
    return InsightsPlan(ranges, batches, groups, now_ms)


def run_insights(
    spark: "SparkSession",
    settings: InsightsSettings,
    plan: InsightsPlan,
    stop: StopRequest,
    show_line: ShowLine,
) -> InsightsReport:
    """Measure the topic and write the page; raise RunInterrupted if a stop is requested."""
    began = time.monotonic()
    measured = measure(spark, settings, plan, stop, show_line)
    advice = tuple(advise(measured, partition_bytes_per_s=settings.partition_bytes_per_s))
    _write_page(settings.page, html_report(measured, advice))
    return InsightsReport(measured, advice, str(settings.page), time.monotonic() - began)


def measure(
    spark: "SparkSession",
    settings: InsightsSettings,
    plan: InsightsPlan,
    stop: StopRequest,
    show_line: ShowLine,
) -> TopicMeasurements:
    def collect(frame: "DataFrame") -> list[Any]:
        if stop.requested:
            raise RunInterrupted
        return run_spark_action(spark, frame.collect, stop, stops_to_interrupt=1)

    rows = sum(end - start for start, end in plan.ranges.values())
    topic_range = measures.TopicRange(spark, _read_options(settings, plan.ranges))
    show_line(f"insights: {rows:,} offsets of {settings.topic}: throughput and partitions")
    found = measures.measure_loads(topic_range, (each.partition for each in plan.ranges), collect)
    show_line("insights: keys")
    keys = measures.measure_keys(topic_range, collect)
    show_line("insights: delays")
    delays = measures.measure_delays(topic_range, settings.made, found, collect)
    return TopicMeasurements(
        topic=settings.topic,
        read_at_ms=plan.read_at_ms,
        ranges={each.partition: span for each, span in plan.ranges.items()},
        partitions=found.partitions,
        keys=keys.largest,
        distinct_keys=keys.distinct,
        scattered_keys=keys.scattered,
        slice_ms=found.slice_ms,
        batches=plan.batches,
        groups=plan.groups,
        **delays._asdict(),
    )


def _read_options(settings: InsightsSettings, ranges: PartitionSpans) -> dict[str, str]:
    starts = to_document({partition: start for partition, (start, _) in ranges.items()})
    ends = to_document({partition: end for partition, (_, end) in ranges.items()})
    return {
        **settings.access,
        "subscribe": settings.topic,
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        ISOLATION_OPTION: settings.isolation,
    }


def _fetch_ranges(client: ClusterClient, settings: InsightsSettings) -> PartitionSpans:
    """Return the requested range of each partition, clamped to the offsets that the topic has."""
    partitions = fetch_partitions(client, [settings.topic])
    firsts = client.offsets(dict.fromkeys(partitions, EARLIEST), read_committed=False)
    is_committed = ISOLATION_LEVELS[settings.isolation]
    lasts = client.offsets(dict.fromkeys(partitions, LATEST), read_committed=is_committed)
    starts = _fetch_bound_offsets(client, partitions, settings.start)
    ends = _fetch_bound_offsets(client, partitions, settings.end)
    ranges = {}
    for partition in partitions:
        first, last = firsts[partition][0], lasts[partition][0]
        start = min(max(starts.get(partition, first), first), last)
        # An end before the start gives an empty range, not a negative one.
        ranges[partition] = (start, max(min(ends.get(partition, last), last), start))
    return ranges


def _fetch_bound_offsets(
    client: ClusterClient, partitions: list[TopicPartition], bound: Bound
) -> dict[TopicPartition, int]:
    """Return the offset of a bound for each partition; partitions without a bound are omitted."""
    if bound.timestamp_ms is not None:
        found = client.offsets(dict.fromkeys(partitions, bound.timestamp_ms), read_committed=False)
        end = client.offsets(dict.fromkeys(partitions, LATEST), read_committed=False)
        return {each: offset if offset >= 0 else end[each][0] for each, (offset, _) in found.items()}
    if bound.offset is not None:
        return dict.fromkeys(partitions, bound.offset)
    return dict(bound.offsets)


def _write_page(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    # Written beside the page and renamed, so that a reader never finds half a page.
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as problem:
        raise CommandFailed(f"cannot write {path}: {problem.strerror or problem}") from problem
    finally:
        beside.unlink(missing_ok=True)


def _skew(measured: TopicMeasurements) -> float:
    return skew([each.bytes for each in measured.partitions])


def _times(times: DurationStats | None) -> dict[str, Any] | None:
    return None if times is None else report.document(times._asdict())


def _times_text(times: DurationStats | None) -> str | None:
    if times is None:
        return None
    return f"p50 {duration(times.p50_ms)}, p99 {duration(times.p99_ms)}, at most {duration(times.max_ms)}"


def _backlog_lines(measured: TopicMeasurements) -> dict[str, report.ReportValue]:
    found: dict[str, report.ReportValue] = {}
    for group in dict.fromkeys(each.group for each in measured.groups):
        mine = [each for each in measured.groups if each.group == group]
        ages = [each.age_ms for each in mine if each.age_ms is not None]
        waiting = sum(each.waiting for each in mine)
        oldest = f", the oldest since {duration(max(ages))}" if ages else ""
        found[f"waits for {group}"] = f"{waiting:,} records{oldest}"
    return found
