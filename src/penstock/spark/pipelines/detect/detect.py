"""`detect`: evaluates stateful rules over a stream; alerts go to a topic.

    payments ── columns ──▶ state of each rule and key ──▶ alerts
                                        └── late, unreadable ──▶ payments.rejected

Rules come from a file (rules.py). The evaluation does not depend on Spark (bucket_state.py,
rule_evaluation.py). Spark groups the rows of a key, stores the state and moves the watermark (query.py).

Rule 1: the state is in the checkpoint together with the position. A run that crashed is restarted with the
        same arguments and continues.
Rule 2: alerts are written at least once. Alerts of a batch that ran twice have the same ids.
Rule 3: no row is dropped silently: each row is evaluated, or written to another topic with the reason.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.types import NumericType

from penstock.errors import CommandFailed, ConfigError
from penstock.spark.options.options import ISOLATION_LEVELS, ISOLATION_OPTION
from penstock.spark.pipelines.common import report
from penstock.spark.pipelines.common.checkpoint import bind_checkpoint, is_new, noted_topic_ids
from penstock.spark.pipelines.common.cluster import fetch_partitions, open_client
from penstock.spark.pipelines.common.first_batch import check_first_batch
from penstock.spark.pipelines.common.progress import Progress, lag
from penstock.spark.pipelines.common.query_run import (
    StopRequest,
    reporting_data_loss,
    reporting_spark_errors,
    run,
)
from penstock.spark.pipelines.common.run_lock import run_lock
from penstock.spark.pipelines.common.truncate_oversized import BATCH_BYTES_MAX, OversizedRowTruncator
from penstock.spark.pipelines.detect import query as detect_query
from penstock.spark.pipelines.detect.bucket_state import BUCKETS
from penstock.spark.pipelines.detect.query import ALERT, FORGOTTEN, METRICS, REASONS
from penstock.spark.pipelines.detect.rules import DetectRules, RuleKind
from penstock.types import NO_TOPIC_ID, TopicId
from penstock.wire.cluster_client import LATEST

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROWS_PER_BATCH: Final = 200_000
EVERY_S: Final = 1.0
SUFFIX: Final = ".rejected"
PARTITIONS: Final = 1

ShowLine = Callable[[str], None]


class DetectSettings(NamedTuple):
    topic: str
    alerts: str
    """Topic that alerts are written to."""
    rules: DetectRules
    access: Mapping[str, str]
    """Connection options for the brokers, as `format("penstock")` accepts them."""
    checkpoint: Path
    rejected: str | None = None
    name: str | None = None
    once: bool = False
    every_s: float = EVERY_S
    rows_per_batch: int = ROWS_PER_BATCH
    allow_loss: bool = False
    """Whether to continue if retention removed records that no rule has evaluated yet."""
    isolation: str | None = None
    """Isolation level; None: as the rules file sets it."""

    @property
    def query_name(self) -> str:
        return self.name or f"detect-{self.topic}"

    @property
    def rejected_topic(self) -> str:
        return self.rejected or f"{self.topic}{SUFFIX}"

    @property
    def read_options(self) -> dict[str, str]:
        return {
            **self.access,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(self.rows_per_batch),
            "failOnDataLoss": "false" if self.allow_loss else "true",
            ISOLATION_OPTION: self.isolation_level,
        }

    @property
    def isolation_level(self) -> str:
        return self.isolation or self.rules.stream.isolation


class DetectReport(NamedTuple):
    name: str
    topic: str
    alerts_topic: str
    rejected_topic: str
    rows: int
    alerts: dict[str, int]
    """Number of alerts per rule in this run."""
    rejected: dict[str, int]
    """Number of rows that no rule could evaluate, per reason."""
    forgotten: int
    """Events removed from the state early, because one key had too many."""
    watermark: str | None
    batches: int
    seconds: float
    lag: int
    checkpoint: str

    def document(self) -> dict[str, Any]:
        return report.document({"pipeline": "detect", **self._asdict()})

    def lines(self) -> list[str]:
        forgotten = f"{self.forgotten:,} events, because a key had too many" if self.forgotten else None
        return report.lines(
            {
                "looked at": self.topic,
                "rows": self.rows,
                "alerts": f"{sum(self.alerts.values()):,} to {self.alerts_topic}",
                **{f"  {name}": count for name, count in self.alerts.items()},
                "rejected": f"{sum(self.rejected.values()):,} to {self.rejected_topic}",
                **{f"  {reason}": count for reason, count in self.rejected.items() if count},
                "forgotten": forgotten,
                "watermark": self.watermark,
                "batches": self.batches,
                "seconds": self.seconds,
                "lag left": self.lag,
                "checkpoint": self.checkpoint,
            }
        )


def check(settings: DetectSettings) -> TopicId:
    """Run all checks that need no Spark, and create the output topics and the checkpoint if they are new.

    Returns the id of the topic that is read.
    """
    topics = (settings.topic, settings.alerts, settings.rejected_topic)
    if len(set(topics)) < len(topics):
        raise CommandFailed(
            f"{settings.topic} is read, alerts go to {settings.alerts} and rejected rows to "
            f"{settings.rejected_topic}: name three topics"
        )
    check_columns(settings.rules)
    with open_client(settings.access) as client:
        # Raises with advice if the topic is missing. A topic that was read before is retried for a while.
        fetch_partitions(client, [settings.topic], existed=not is_new(settings.checkpoint))
        # One broker may still describe a topic of this name that was deleted.
        noted = noted_topic_ids(settings.checkpoint).get(settings.topic, NO_TOPIC_ID)
        topic_id = client.topic(settings.topic, noted).id
        for topic in (settings.alerts, settings.rejected_topic):
            client.create_topic(topic, PARTITIONS)
    bind_checkpoint(
        settings.checkpoint,
        {
            "pipeline": "detect",
            "topic": settings.topic,
            "alerts": settings.alerts,
            "buckets": str(BUCKETS),
        },
        {settings.topic: topic_id},
    )
    return topic_id


def check_columns(rules: DetectRules) -> None:
    """Raise CommandFailed if a rule uses a missing column, or sums a column that is not numeric."""
    try:
        schema = detect_query.stream_columns(rules.stream)
    except ConfigError as problem:
        raise CommandFailed(f"[stream] schema: {problem}") from problem
    for column, wanted_by in rules.columns().items():
        if column not in schema.names:
            near = get_close_matches(column, schema.names, n=1, cutoff=0.6)
            meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(schema.names)}"
            hint = ". [stream] schema says which columns values have" if rules.stream.schema is None else ""
            raise CommandFailed(f"{wanted_by}: there is no column {column}: {meant}{hint}")
    for rule in rules.rules:
        kind = schema[rule.field].dataType if rule.field is not None else None
        if rule.kind is RuleKind.SUM and kind is not None and not isinstance(kind, NumericType):
            raise CommandFailed(
                f"rule {rule.name}, field: column {rule.field} is {kind.simpleString()}; "
                "kind sum needs numbers, such as double or decimal(18,2)"
            )


def run_detect(
    spark: "SparkSession", settings: DetectSettings, stop: StopRequest, show_line: ShowLine
) -> DetectReport:
    """Run until all rows present at the start are evaluated (`once`), or until a stop is requested."""
    topic_id = check(settings)
    began = time.monotonic()
    progress, counts = Progress(settings.query_name), AlertCounts(settings.rules)
    remedy = "Wait for it, or give another --checkpoint for one of its own"
    with run_lock(settings.checkpoint, "detection", remedy), reporting_data_loss():
        check_first_batch(
            settings.checkpoint, settings.access, [settings.topic], allow_loss=settings.allow_loss
        )
        with reporting_spark_errors():
            query = _start(spark, settings, topic_id)
        run(query, progress, stop, show_line, lambda: counts.read(query, show_line))
        counts.read(query, show_line)
    return _report(settings, progress, counts, time.monotonic() - began)


def _start(spark: "SparkSession", settings: DetectSettings, topic_id: TopicId) -> "StreamingQuery":
    rows = detect_query.stream_rows(spark, settings.read_options, settings.rules.stream)
    found = detect_query.rule_findings(rows, settings.rules, settings.topic, topic_id)
    counted = detect_query.with_metrics(found, settings.rules)
    records = detect_query.to_records(counted, settings.topic, settings.alerts, settings.rejected_topic)
    truncated = records.mapInArrow(
        OversizedRowTruncator(settings.rejected_topic, bytes_max=BATCH_BYTES_MAX), records.schema
    )
    writer = (
        truncated.writeStream.format("penstock")
        .options(**settings.access)
        .queryName(settings.query_name)
        .outputMode("append")
        .option("checkpointLocation", str(settings.checkpoint))
    )
    if settings.once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{settings.every_s} seconds").start()


class AlertCounts:
    """Counts of alerts and rejected rows in this run, from the query's progress reports."""

    def __init__(self, rules: DetectRules) -> None:
        self._names = [rule.name for rule in rules.rules]
        self._last_batch = -1
        self._found: Counter[str] = Counter()
        self.watermark: str | None = None

    def read(self, query: "StreamingQuery", show_line: ShowLine) -> None:
        for each in query.recentProgress:
            self.add(json.loads(each.json), show_line)

    def add(self, progress: Mapping[str, Any], show_line: ShowLine) -> None:
        """Add one batch. Batches without rows count, too: sessions can end there."""
        found = (progress.get("observedMetrics") or {}).get(METRICS)
        if found is None or progress["batchId"] <= self._last_batch:
            return
        self._last_batch = progress["batchId"]
        new = Counter({name: int(count or 0) for name, count in found.items()})
        self._found += new
        self.watermark = (progress.get("eventTime") or {}).get("watermark", self.watermark)
        if alerts := sum(count for name, count in new.items() if name.startswith(ALERT)):
            show_line(f"batch {self._last_batch}: {alerts:,} {'alert' if alerts == 1 else 'alerts'}")

    @property
    def alerts(self) -> dict[str, int]:
        return {name: self._found[f"{ALERT} {number}"] for number, name in enumerate(self._names)}

    @property
    def rejected(self) -> dict[str, int]:
        return {reason: self._found[reason] for reason in REASONS}

    @property
    def forgotten(self) -> int:
        return self._found[FORGOTTEN]


def _report(
    settings: DetectSettings, progress: Progress, counts: AlertCounts, seconds: float
) -> DetectReport:
    with open_client(settings.access) as client:
        partitions = fetch_partitions(client, [settings.topic], existed=True)
        is_committed = ISOLATION_LEVELS[settings.isolation_level]
        found = client.offsets(dict.fromkeys(partitions, LATEST), read_committed=is_committed)
        committed = client.committed(settings.query_name, partitions)
    # A run without new rows has read nothing; the group's offsets give how far earlier runs came.
    read = progress.last.ends if progress.last is not None else {}
    reached = {each: max(read.get(each, 0), committed.get(each) or 0) for each in partitions}
    return DetectReport(
        name=settings.query_name,
        topic=settings.topic,
        alerts_topic=settings.alerts,
        rejected_topic=settings.rejected_topic,
        rows=progress.rows,
        alerts=counts.alerts,
        rejected=counts.rejected,
        forgotten=counts.forgotten,
        watermark=counts.watermark,
        batches=progress.batches,
        seconds=seconds,
        lag=lag({partition: offset for partition, (offset, _) in found.items()}, reached),
        checkpoint=str(settings.checkpoint),
    )
