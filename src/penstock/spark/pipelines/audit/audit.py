"""`audit`: checks for lost, duplicated, changed and out-of-order records, in the lake and between topics.

Before Spark starts, the driver fixes what is compared: offset ranges and files (`lake.py`, `topics.py`).
Spark counts; the driver evaluates the counts (`report.py`).

Rule 1: an audit changes nothing.
Rule 2: a run that was stopped has no verdict.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from penstock.errors import CommandFailed, ConfigError
from penstock.spark.options.options import ISOLATION_LEVELS, ISOLATION_OPTION, READ_COMMITTED
from penstock.spark.pipelines.audit import lake as audit_lake
from penstock.spark.pipelines.audit import topics as audit_topics
from penstock.spark.pipelines.audit.ids import IdPart
from penstock.spark.pipelines.audit.lake import LakeAuditInputs
from penstock.spark.pipelines.audit.report import AuditReport, Finding, violation_kinds
from penstock.spark.pipelines.audit.topics import TopicsPlan
from penstock.spark.pipelines.common.cluster import fetch_partitions, open_client
from penstock.spark.pipelines.common.query_run import StopRequest, reason
from penstock.spark.pipelines.common.spark_action import run_spark_action
from penstock.spark.source.offsets import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ShowLine = Callable[[str], None]


class AuditSettings(NamedTuple):
    topics: tuple[str, ...]
    access: Mapping[str, str]
    """Connection options for the brokers, as `format("penstock")` accepts them."""
    lake: Path | None = None
    against: tuple[str, ...] = ()
    ids: tuple[IdPart, ...] = ()
    where: str | None = None
    offsets_only: bool = False
    strict: bool = False
    complete: bool = False
    ignored: tuple[str, ...] = ()
    isolation: str = READ_COMMITTED
    """Isolation level of all reads. By default, records of aborted transactions do not count as sent.

    A table that was archived with another level must be audited with that level.
    """


class AuditPlans(NamedTuple):
    """Comparisons that an audit makes: with the lake, and of topics."""

    lake: LakeAuditInputs | None
    topics: tuple[TopicsPlan, ...]


def check(settings: AuditSettings) -> AuditPlans:
    """Run all checks that need no Spark, and return what is to be compared."""
    if settings.lake is None and not settings.ids and not settings.against:
        raise ConfigError(
            "there is nothing to audit: give --lake DIR, or --id to say by what records are known, "
            "with --against TOPIC or without"
        )
    if settings.against and not settings.ids:
        raise ConfigError("--against needs --id: it says by what a record is known in both topics")
    if settings.where is not None and not settings.ids:
        raise ConfigError("--where says which records must arrive in another topic: give --id and --against")
    if set(settings.topics) & set(settings.against):
        raise ConfigError("a topic cannot be audited against itself: --topic and --against name the same")
    with open_client(settings.access) as client:
        partitions = fetch_partitions(client, settings.topics)
        committed = ISOLATION_LEVELS[settings.isolation]
        lake = None
        if settings.lake is not None:
            lake = audit_lake.gather_lake_inputs(settings.lake, client, partitions, read_committed=committed)
        # Targets are read before the sources: a record that arrives in between must not appear in a target
        # without its source record.
        of_targets = {
            target: audit_topics.fetch_offset_ranges(
                client, fetch_partitions(client, [target]), read_committed=committed
            )
            for target in settings.against
        }
        of_source = (
            audit_topics.fetch_offset_ranges(client, partitions, read_committed=committed)
            if settings.ids
            else []
        )
    if not settings.ids:
        return AuditPlans(lake, ())
    base = TopicsPlan(settings.topics, None, of_source, [], settings.ids, settings.where)
    plans = [base._replace(target=target, target_ranges=ranges) for target, ranges in of_targets.items()]
    return AuditPlans(lake, tuple(plans) or (base,))


def run_audit(
    spark: "SparkSession", settings: AuditSettings, stop: StopRequest, show_line: ShowLine
) -> AuditReport:
    """Run the audit; raise RunInterrupted if a stop is requested."""
    began = time.monotonic()
    plans = check(settings)
    run = _AuditRun(spark, settings, stop)
    if plans.lake is not None:
        files = len(plans.lake.files.present)
        show_line(f"audit: {_size(plans.lake.ranges)} against {files:,} files of {plans.lake.folder}")
        run.check_lake(plans.lake)
    for plan in plans.topics:
        against = "" if plan.target is None else f" against {_size(plan.target_ranges)}"
        show_line(f"audit: {plan.name}: {_size(plan.source_ranges)}{against}")
        run.check_topics(plan)
    kinds = violation_kinds(strict=settings.strict, complete=settings.complete, ignored=settings.ignored)
    return AuditReport(run.checked, tuple(run.findings), kinds, time.monotonic() - began)


def _size(ranges: Sequence[OffsetRange]) -> str:
    return f"{sum(each.size for each in ranges):,} offsets in {len(ranges):,} partitions"


class _AuditRun:
    def __init__(self, spark: "SparkSession", settings: AuditSettings, stop: StopRequest) -> None:
        self._spark = spark
        self._settings = settings
        self._stop = stop
        self._access = {**settings.access, ISOLATION_OPTION: settings.isolation}
        self.checked: dict[str, int] = {}
        self.findings: list[Finding] = []

    def check_lake(self, inputs: LakeAuditInputs) -> None:
        contents = not self._settings.offsets_only
        offsets = audit_lake.offset_comparison(self._spark, inputs, self._access, contents=contents)
        rows = self._collect(audit_lake.partition_counts(offsets, inputs))
        is_lost = (F.col("in_topic") > 0) & (F.col("in_table") == 0)
        lost = (
            self._collect(audit_lake.offset_ranges(offsets, is_lost)) if any(row.lost for row in rows) else []
        )
        late = self._collect(audit_lake.out_of_order_rows(self._spark, inputs))
        self.findings += audit_lake.input_findings(inputs)
        self.findings += audit_lake.lost_findings(rows, lost)
        self.findings += audit_lake.count_findings(inputs, rows)
        self.findings += audit_lake.order_findings(inputs, late)
        self.checked["records of topics"] = sum(row.records for row in rows)
        self.checked["rows of the table"] = sum(row.rows for row in rows)

    def check_topics(self, plan: TopicsPlan) -> None:
        try:
            rows = audit_topics.records_with_ids(self._spark, plan, self._access)
        except PySparkException as problem:
            raise CommandFailed(
                f"--where {plan.where!r} is no condition on the records of a topic: {reason(problem)}"
            ) from problem
        # Several queries use these rows, and computing them is a shuffle of both topics.
        ids = audit_topics.group_by_id(rows).persist(StorageLevel.DISK_ONLY)
        try:
            comparison = audit_topics.compare(plan, ids, self._collect)
        finally:
            ids.unpersist()
        self.findings += comparison.findings
        self.checked[f"ids of {plan.name}"] = comparison.ids

    def _collect(self, frame: "DataFrame") -> list[Any]:
        return run_spark_action(self._spark, frame.collect, self._stop, stops_to_interrupt=1)
