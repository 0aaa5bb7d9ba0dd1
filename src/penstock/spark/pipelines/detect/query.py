"""Streaming query of `detect`: records to rows for rules, through the state, and back to records.

    topic ──▶ columns ──▶ one row for each rule ──▶ state of many keys ──▶ alerts, rejected rows

All rules run in one stateful operator, so there is one watermark and one read of the topic, and the operator
itself separates late rows from others.

Why the column `never_late` exists: before an operator with event-time timers, Spark removes rows behind the
watermark and reports only their number. Spark identifies the time column by a mark in its metadata. So the
mark is put on a column whose time is far in the future: every row reaches the operator, and
`rule_evaluation.py` returns the late rows. The watermark itself is computed from the real time.
`tests/spark/test_detect.py` fails if a Spark version behaves otherwise.

Rule: a row that a rule should have evaluated and could not is rejected with a reason: the row is late, its
value cannot be read, its time is missing or implausible, or its number is too large to be summed. No content
of a row makes a task fail: Spark would run the batch again forever.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.errors import CommandFailed
from penstock.spark.payload import Payload
from penstock.spark.payload.dead_letters import DEAD_LETTER_COLUMN, ERROR_HEADER
from penstock.spark.pipelines.common.headers import header_array, source_headers
from penstock.spark.pipelines.common.query_run import reason
from penstock.spark.pipelines.detect.bucket_state import BUCKETS, BucketState, StateKey
from penstock.spark.pipelines.detect.rule_evaluation import Alert, time_text
from penstock.spark.pipelines.detect.rules import NUMBER_MAX, DetectRule, DetectRules, RuleKind, StreamSpec
from penstock.spark.pipelines.detect.windows import RuleEvent
from penstock.spark.topic_table import full_schema
from penstock.types import TopicId

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState
    from pyspark.sql.types import StructType

ID_HEADER: Final = "penstock-alert-id"
RULE_HEADER: Final = "penstock-alert-rule"
METRICS: Final = "detect"
NO_RULE: Final = ""
ALERT: Final = "alert"
LATE: Final = "late"
UNREADABLE: Final = "unreadable"
NO_TIME: Final = "without time"
AHEAD: Final = "ahead of time"
TOO_LARGE: Final = "too large"
FORGOTTEN: Final = "forgotten"
REASONS: Final = (LATE, UNREADABLE, NO_TIME, AHEAD, TOO_LARGE)

_WATERMARK_MARK: Final = {"spark.watermarkDelayMs": 0}
_NEVER_LATE_TIME: Final = "2200-01-01"
_MS_END: Final = ((1 << 63) - 1) // 1000
"""Largest time in milliseconds: Spark counts microseconds in 64 bits."""
_FOUND: Final = (
    "kind string, rule string, id string, reason string, "
    "partition int, offset bigint, key binary, value binary"
)
_STATE: Final = "held string"


def payload_options(stream: StreamSpec) -> dict[str, str]:
    """Options of `format("penstock")` that parse values into columns."""
    if stream.schema is None or stream.format is None:
        return {}
    options = {"valueFormat": stream.format, "valueSchema": stream.schema, "badRows": "deadletter"}
    return options if stream.message is None else {**options, "valueMessage": stream.message}


def stream_columns(stream: StreamSpec) -> "StructType":
    """Return the columns of the record and of its parsed value; raise ConfigError for an invalid schema."""
    from pyspark.sql.types import StructType

    payload = Payload.from_options(payload_options(stream))
    record_columns = [field for field in full_schema(include_headers=False) if field.name != "timestampType"]
    return StructType([*record_columns, *(() if payload is None else payload.fields())])


def stream_rows(spark: "SparkSession", read_options: Mapping[str, str], stream: StreamSpec) -> "DataFrame":
    options = {**read_options, **payload_options(stream)}
    return spark.readStream.format("penstock").options(**options).schema(stream_columns(stream)).load()


def rule_findings(rows: "DataFrame", rules: DetectRules, topic: str, topic_id: TopicId) -> "DataFrame":
    """Return the rules' results and the rows that no rule could evaluate, in the columns of `_FOUND`."""
    from pyspark.sql import functions as f
    from pyspark.sql.streaming.state import GroupStateTimeout

    timed = _with_event_time(rows, rules).withWatermark(
        "happened", f"{rules.stream.lateness_ms} milliseconds"
    )
    each = timed.select(
        "key",
        "value",
        "partition",
        "offset",
        f.unix_millis("happened").alias("time_ms"),
        f.lit(_NEVER_LATE_TIME).cast("timestamp").alias("never_late", metadata=_WATERMARK_MARK),
        f.posexplode(_rows_by_rule(timed, rules.rules)).alias("place", "rule_row"),
    )
    is_first = each["place"] == 0  # a row that is late for several rules is rejected only once
    rule_rows = each.select(
        "rule_row.rule",
        f.col("rule_row.of").alias("of"),
        "rule_row.reason",
        "rule_row.number",
        "rule_row.text",
        "partition",
        "offset",
        "time_ms",
        is_first.alias("first"),
        f.when(is_first, f.col("key")).alias("key"),
        f.when(is_first, f.col("value")).alias("value"),
        "never_late",
        f.pmod(f.xxhash64("rule_row.of"), f.lit(BUCKETS)).cast("int").alias("bucket"),
    )
    return rule_rows.groupBy("bucket").applyInPandasWithState(
        evaluator(rules, topic, topic_id), _FOUND, _STATE, "append", GroupStateTimeout.EventTimeTimeout
    )


def with_metrics(found: "DataFrame", rules: DetectRules) -> "DataFrame":
    """Count results as they pass; the counts appear in the query's progress reports."""
    from pyspark.sql import functions as f

    def count(condition: "Column", name: str) -> "Column":
        return f.count_if(condition).alias(name)

    alerts = [
        count((f.col("kind") == ALERT) & (f.col("rule") == rule.name), f"{ALERT} {number}")
        for number, rule in enumerate(rules.rules)
    ]
    others = [count(f.col("kind") == reason, reason) for reason in REASONS]
    forgotten = f.sum(f.when(f.col("kind") == FORGOTTEN, f.col("offset")).otherwise(0)).alias(FORGOTTEN)
    return found.observe(METRICS, *alerts, *others, forgotten)


def to_records(found: "DataFrame", topic: str, alerts: str, rejected: str) -> "DataFrame":
    """Return records in the form that `format("penstock")` writes."""
    from pyspark.sql import functions as f

    is_alert = f.col("kind") == ALERT
    of_alert = header_array({ID_HEADER: f.col("id"), RULE_HEADER: f.col("rule")})
    of_rejected = header_array({ERROR_HEADER: f.col("reason"), **source_headers(f.lit(topic))})
    return found.where(f.col("kind") != FORGOTTEN).select(
        f.when(is_alert, f.lit(alerts)).otherwise(f.lit(rejected)).alias("topic"),
        "key",
        "value",
        f.when(is_alert, of_alert).otherwise(of_rejected).alias("headers"),
    )


# Rows for rules


def _with_event_time(rows: "DataFrame", rules: DetectRules) -> "DataFrame":
    """Add `happened`, and `reason` if a row cannot be evaluated."""
    from pyspark.sql import functions as f

    claimed = _time(rows, rules.stream)
    # Without a valid record time (beyond Spark's calendar), the claimed time cannot be checked.
    has_no_time = claimed.isNull() | f.col("timestamp").isNull()
    ahead = f.unix_millis(claimed) > f.unix_millis("timestamp") + f.lit(rules.stream.ahead_ms)
    reason = f.when(has_no_time, f.lit(NO_TIME)).when(ahead, f.lit(AHEAD))
    for rule in rules.rules:
        if rule.kind is RuleKind.SUM:
            is_beyond = _matches_rule(rows, rule) & (f.abs(_number(rule)) > NUMBER_MAX)
            reason = reason.when(is_beyond, f.lit(f"{TOO_LARGE}: {rule.field}"))
    if DEAD_LETTER_COLUMN in rows.columns:
        reason = f.when(f.col(DEAD_LETTER_COLUMN).isNotNull(), f.lit(UNREADABLE)).otherwise(reason)
    # An implausible time must not move the watermark: one such row would make all later rows late.
    return rows.withColumn("reason", reason).withColumn("happened", f.when(reason.isNull(), claimed))


def _time(rows: "DataFrame", stream: StreamSpec) -> "Column":
    from pyspark.sql import functions as f
    from pyspark.sql.types import LongType, TimestampType

    if stream.time is None:
        return f.col("timestamp")
    kind = rows.schema[stream.time].dataType
    if isinstance(kind, TimestampType):
        return f.col(f"`{stream.time}`")
    if isinstance(kind, LongType):
        claimed = f.col(f"`{stream.time}`")
        return f.when(claimed.between(-_MS_END, _MS_END), f.timestamp_millis(claimed))
    raise CommandFailed(
        f"[stream] time: column {stream.time} is {kind.simpleString()}; "
        "it must be a timestamp, or a bigint with milliseconds since 1970"
    )


def _rows_by_rule(rows: "DataFrame", rules: Iterable[DetectRule]) -> "Column":
    """Return one entry for each matching rule, or one entry without a rule if the row has a reason."""
    from pyspark.sql import functions as f

    rule_rows = f.array(*(_rule_row(rows, rule) for rule in rules))
    reason = f.col("reason")
    if DEAD_LETTER_COLUMN in rows.columns:
        detail = f.expr(
            f"cast(filter({DEAD_LETTER_COLUMN}.headers, h -> h.key = '{ERROR_HEADER}')[0].value as string)"
        )
        reason = f.when(detail.isNotNull(), f.concat_ws(": ", reason, detail)).otherwise(reason)
    without_rule = f.array(_rule_row_struct(f.lit(NO_RULE), f.col("partition").cast("string"), reason))
    chosen = f.filter(rule_rows, lambda rule_row: rule_row["of"].isNotNull())
    return f.when(f.col("reason").isNull(), chosen).otherwise(without_rule)


def _rule_row(rows: "DataFrame", rule: DetectRule) -> "Column":
    """Return the entry of one rule; its key is null if the rule does not match the row."""
    from pyspark.sql import functions as f

    number, text = f.lit(0.0), f.lit("")
    if rule.kind is RuleKind.SUM:
        number = _number(rule)
    elif rule.field is not None:
        text = _text(rows, rule.field)
    of = f.when(_matches_rule(rows, rule), _text(rows, rule.key))
    return _rule_row_struct(f.lit(rule.name), of, f.lit(None).cast("string"), number, text)


def _matches_rule(rows: "DataFrame", rule: DetectRule) -> "Column":
    """Return whether the rule applies to the row, provided that the row has a key."""
    from pyspark.sql import functions as f

    about = _condition(rows, rule)
    if rule.kind is RuleKind.SUM:
        return about & ~f.isnan(_number(rule)) & _number(rule).isNotNull()
    return about if rule.field is None else about & f.col(f"`{rule.field}`").isNotNull()


def _number(rule: DetectRule) -> "Column":
    from pyspark.sql import functions as f

    return f.col(f"`{rule.field}`").cast("double")


def _text(rows: "DataFrame", column: str) -> "Column":
    """Return the column as text. Bytes that are not UTF-8, which Python cannot decode, become hexadecimal."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import BinaryType

    value = f.col(f"`{column}`")
    text = value.cast("string")
    if not isinstance(rows.schema[column].dataType, BinaryType):
        return text
    return f.when(f.is_valid_utf8(text), text).otherwise(f.concat(f.lit("0x"), f.lower(f.hex(value))))


def _rule_row_struct(
    rule: "Column",
    of: "Column",
    reason: "Column",
    number: "Column | None" = None,
    text: "Column | None" = None,
) -> "Column":
    from pyspark.sql import functions as f

    return f.struct(
        rule.alias("rule"),
        of.alias("of"),
        reason.alias("reason"),
        (f.lit(0.0) if number is None else number).alias("number"),
        (f.lit("") if text is None else text).alias("text"),
    )


def _condition(rows: "DataFrame", rule: DetectRule) -> "Column":
    """Return the rule's condition; an error in its SQL is reported with the rule's name."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f

    if rule.where is None:
        return f.lit(True)
    try:
        with _sql_error_log_disabled():
            kind = rows.select(f.expr(rule.where)).schema[0].dataType.simpleString()
    except PySparkException as problem:
        raise CommandFailed(f"rule {rule.name}: where: {reason(problem)}") from problem
    if kind != "boolean":
        raise CommandFailed(f"rule {rule.name}: where is {kind}; give a condition, such as amount > 100")
    # A null condition counts as false.
    return f.coalesce(f.expr(rule.where), f.lit(False))


@contextmanager
def _sql_error_log_disabled() -> Iterator[None]:
    """Disable PySpark's log of SQL errors (pages of JSON); the error is reported as one sentence."""
    from pyspark.logger import PySparkLogger

    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


# Inside tasks

Evaluate = Callable[[Any, Iterable["pd.DataFrame"], "GroupState"], Iterator["pd.DataFrame"]]


def evaluator(rules: DetectRules, topic: str, topic_id: TopicId) -> Evaluate:
    """Return the function that Spark calls for each bucket of keys."""
    known = {rule.name: rule for rule in rules.rules}

    def evaluate(
        bucket: tuple[int], frames: Iterable["pd.DataFrame"], state: "GroupState"
    ) -> Iterator["pd.DataFrame"]:
        import pandas as pd

        watermark_ms = state.getCurrentWatermarkMs()
        # On a timeout there are no rows; only the watermark has moved.
        rows = [] if state.hasTimedOut else list(_rows(frames))
        bucket_state = BucketState(state.get[0] if state.exists else None, known)
        result = bucket_state.evaluate(_events(rows), watermark_ms)
        _save_state(state, bucket_state, watermark_ms)
        records = [_alert_row(alert.with_topic_id(topic, topic_id), topic) for alert in result.alerts]
        records += _late_rows(result.late, rows, watermark_ms)
        records += [
            _rejected_row(row, row.reason.partition(":")[0], row.reason) for row in rows if row.reason
        ]
        records += [_forgotten_row(rule, count) for rule, count in result.forgotten.items()]
        if records:
            yield pd.DataFrame(records, columns=_COLUMNS, dtype=object)

    return evaluate


_COLUMNS: Final = [field.split()[0] for field in _FOUND.split(", ")]


class _Row(NamedTuple):
    """Input row of the state operator: one rule and one row. The order of fields is the order of columns."""

    rule: str
    of: str
    reason: str | None
    number: float
    text: str
    partition: int
    offset: int
    time_ms: float
    first: bool
    key: bytes | None
    value: bytes | None
    never_late: object
    bucket: int


def _rows(frames: Iterable["pd.DataFrame"]) -> Iterator[_Row]:
    for frame in frames:
        yield from map(_Row._make, frame.to_numpy(dtype=object).tolist())


def _events(rows: Iterable[_Row]) -> dict[StateKey, list[RuleEvent]]:
    """Group the rows that rules can evaluate by rule and key."""
    found: dict[StateKey, list[RuleEvent]] = {}
    for row in rows:
        if row.rule != NO_RULE:
            event = RuleEvent(int(row.time_ms), row.partition, row.offset, row.number, row.text)
            found.setdefault(StateKey(row.rule, row.of), []).append(event)
    return found


def _save_state(state: "GroupState", bucket_state: BucketState, watermark_ms: int) -> None:
    text = bucket_state.text()
    if text is None:
        state.remove()
        return
    state.update((text,))
    # Spark rejects a timeout that is not after the watermark.
    state.setTimeoutTimestamp(max(bucket_state.wake_ms, watermark_ms + 1))


def _alert_row(alert: Alert, topic: str) -> tuple[Any, ...]:
    value = alert.text(topic).encode()
    return (ALERT, alert.rule, alert.id, None, None, None, alert.key.encode(), value)


def _late_rows(
    late: Iterable[tuple[str, RuleEvent]], rows: Iterable[_Row], watermark_ms: int
) -> Iterator[tuple[Any, ...]]:
    by_position = {(row.rule, row.partition, row.offset): row for row in rows} if late else {}
    for rule, event in late:
        row = by_position[rule, event.partition, event.offset]
        if row.first:
            reason = f"{LATE}: {time_text(event.time_ms)} is before the watermark, {time_text(watermark_ms)}"
            yield _rejected_row(row, LATE, reason)


def _forgotten_row(rule: str, count: int) -> tuple[Any, ...]:
    return (FORGOTTEN, rule, None, None, None, count, None, None)


def _rejected_row(row: _Row, kind: str, reason: str) -> tuple[Any, ...]:
    return (kind, row.rule, None, reason, row.partition, row.offset, row.key, row.value)
