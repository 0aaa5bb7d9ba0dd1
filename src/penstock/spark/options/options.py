"""Settings of reads and writes, parsed from `.option(...)` and validated.

Names, precedence and defaults are those of Spark's own Kafka source and sink, so that changing the format's
name is the whole migration. The functions are pure: errors in the options themselves are found here, before
any connection is made. Errors that depend on the cluster (no such topic) are found by discovery.py and the
sink.

Rule 1: Every message names the option, its value and a valid alternative.
Rule 2: Settings are plain values that can be pickled: Spark sends them to every executor.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from penstock.errors import ConfigError
from penstock.limits import INT_MAX, MIB
from penstock.protocol.compression import Codec
from penstock.spark.options.cluster_access import ClusterAccess, parse_access
from penstock.spark.options.names import (
    KAFKA_READ_OPTIONS,
    KAFKA_WRITE_OPTIONS,
    READ_OPTIONS,
    WRITE_OPTIONS,
    check_names,
)
from penstock.spark.options.values import (
    EARLIEST,
    LATEST,
    SourceOptions,
    parse_choice,
    parse_duration_ms,
    parse_partition_offsets,
    parse_partition_times,
    parse_partitions,
    parse_whole_number,
)
from penstock.types import TopicPartition

_FETCH_BYTES: Final = 8 * MIB
_FETCH_BYTES_MIN: Final = 64 * 1024
_TRIGGER_DELAY_MS_MAX: Final = 15 * 60_000
_DISCOVERY_MS: Final = 1_000
_BATCH_RECORDS_PER_TASK: Final = 1_000_000
"""Batch reads split larger ranges, so that tasks take seconds, whatever the number of partitions."""
_WRITE_BYTES: Final = 1_000_000
"""Below the default limit of topics for a batch (`max.message.bytes`)."""


ISOLATION_OPTION: Final = "kafka.isolation.level"
READ_COMMITTED: Final = "read_committed"
READ_UNCOMMITTED: Final = "read_uncommitted"
ISOLATION_LEVELS: Final = {READ_COMMITTED: True, READ_UNCOMMITTED: False}


class NamedTopics(NamedTuple):
    names: tuple[str, ...]


class TopicPattern(NamedTuple):
    text: str

    def matches(self, topic: str) -> bool:
        """Match the whole name, as Java's Pattern.matches does."""
        return re.fullmatch(self.text, topic) is not None


class AssignedPartitions(NamedTuple):
    partitions: frozenset[TopicPartition]


TopicSubscription = NamedTopics | TopicPattern | AssignedPartitions


class SpecificOffsets(NamedTuple):
    """Offsets by partition. -1 is latest, -2 is earliest."""

    offsets: dict[TopicPartition, int]


class GlobalTimestamp(NamedTuple):
    timestamp_ms: int


class SpecificTimestamps(NamedTuple):
    timestamps_ms: dict[TopicPartition, int]


class EarliestOrLatest(NamedTuple):
    """The same special offset for every partition."""

    offset: int


ReadBound = EarliestOrLatest | SpecificOffsets | GlobalTimestamp | SpecificTimestamps


def may_move(bound: ReadBound, *, latest_if_no_match: bool) -> bool:
    """Whether the bound may resolve to another offset when it is looked up again a little later."""
    if isinstance(bound, SpecificOffsets):
        return LATEST in bound.offsets.values()
    return bound == EarliestOrLatest(LATEST) or (
        isinstance(bound, GlobalTimestamp | SpecificTimestamps) and latest_if_no_match
    )


class TriggerLimits(NamedTuple):
    """How much one trigger of a stream reads."""

    offsets_max: int | None = None
    offsets_min: int | None = None
    bytes_max: int | None = None
    delay_ms_max: int = _TRIGGER_DELAY_MS_MAX

    @property
    def any_set(self) -> bool:
        return any(limit is not None for limit in (self.offsets_max, self.offsets_min, self.bytes_max))


class ReadSettings(NamedTuple):
    """Validated settings of a read, batch or stream."""

    access: ClusterAccess
    subscription: TopicSubscription
    start: ReadBound
    end: ReadBound
    latest_if_no_match: bool
    limits: TriggerLimits
    tasks_min: int | None
    records_per_task_max: int | None
    fail_on_data_loss: bool
    include_headers: bool
    read_committed: bool
    fetch_bytes: int
    discovery_ms: int
    group: str | None
    group_prefix: str | None
    mirror: bool


class WriteSettings(NamedTuple):
    """Validated settings of a write, batch or stream."""

    access: ClusterAccess
    topic: str | None
    codec: Codec
    acks: int
    is_idempotent: bool
    batch_bytes_max: int
    include_timestamp: bool


# Reading


def batch_read_settings(options: Mapping[str, str]) -> ReadSettings:
    given = SourceOptions(options)
    start = _bound(given, "starting", EarliestOrLatest(EARLIEST))
    end = _bound(given, "ending", EarliestOrLatest(LATEST))
    _reject_special_offset(start, LATEST, "startingOffsets is latest: a batch read would find nothing")
    _reject_special_offset(end, EARLIEST, "endingOffsets is earliest: a batch read would find nothing")
    _check_order(start, end)
    settings = _read_settings(options, given, start, end)
    if settings.records_per_task_max is None and settings.tasks_min is None:
        return settings._replace(records_per_task_max=_BATCH_RECORDS_PER_TASK)
    return settings


def stream_read_settings(options: Mapping[str, str]) -> ReadSettings:
    given = SourceOptions(options)
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        if given.text(name) is not None:
            raise ConfigError(f"option {name} is for batch reads; a stream ends when it is stopped")
    start = _bound(given, "starting", EarliestOrLatest(LATEST))
    return _read_settings(options, given, start, EarliestOrLatest(LATEST))


def includes_headers(options: Mapping[str, str]) -> bool:
    """Whether the read has a column for headers, which Spark needs before it creates a reader."""
    check_names(options, READ_OPTIONS, KAFKA_READ_OPTIONS)
    return SourceOptions(options).flag("includeHeaders", default=False)


def _read_settings(
    options: Mapping[str, str], given: SourceOptions, start: ReadBound, end: ReadBound
) -> ReadSettings:
    check_names(options, READ_OPTIONS, KAFKA_READ_OPTIONS)
    return ReadSettings(
        access=parse_access(given),
        subscription=_subscription(given),
        start=start,
        end=end,
        latest_if_no_match=_latest_if_no_match(given),
        limits=_limits(given),
        tasks_min=given.number("minPartitions"),
        records_per_task_max=given.number("maxRecordsPerPartition"),
        fail_on_data_loss=given.flag("failOnDataLoss", default=True),
        include_headers=given.flag("includeHeaders", default=False),
        read_committed=_read_committed(given),
        fetch_bytes=_fetch_bytes(given),
        discovery_ms=_or(given.number("partition.metadata.cache.ttl.ms", least=0), _DISCOVERY_MS),
        group=given.text("kafka.group.id") or given.text("queryName"),
        group_prefix=given.text("groupIdPrefix"),
        mirror=given.flag("mirrorOffsets", default=True),
    )


def _subscription(given: SourceOptions) -> TopicSubscription:
    names = ("subscribe", "subscribePattern", "assign")
    configured = [(name, text) for name in names if (text := given.text(name)) is not None]
    if len(configured) != 1:
        problem = (
            "none is" if not configured else "more than one is: " + ", ".join(name for name, _ in configured)
        )
        raise ConfigError(f"one of the options {', '.join(names)} must say what to read, and {problem}")
    [(name, text)] = configured
    if name == "assign":
        return AssignedPartitions(parse_partitions(name, text))
    if name == "subscribePattern":
        return TopicPattern(_pattern(text.strip()))
    topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))
    if not topics:
        raise ConfigError(f"option subscribe is {text!r}; give the name of a topic, or several with commas")
    return NamedTopics(topics)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"option subscribePattern is {text!r}, no regular expression: {error}") from error
    if not text:
        raise ConfigError("option subscribePattern is empty; give a regular expression such as orders-.*")
    return text


def _bound(given: SourceOptions, which: str, default: ReadBound) -> ReadBound:
    """Parse the bound.

    One timestamp for all partitions has precedence over timestamps by partition, and these have precedence
    over offsets, as in the official source.
    """
    if (text := given.text(f"{which}Timestamp")) is not None:
        return GlobalTimestamp(parse_whole_number(f"{which}Timestamp", text, least=0))
    if (text := given.text(f"{which}OffsetsByTimestamp")) is not None:
        return SpecificTimestamps(parse_partition_times(f"{which}OffsetsByTimestamp", text))
    if (text := given.text(f"{which}Offsets")) is None:
        return default
    special = {"earliest": EARLIEST, "latest": LATEST}.get(text.strip().lower())
    if special is not None:
        return EarliestOrLatest(special)
    if not text.strip().startswith("{"):
        raise ConfigError(f"option {which}Offsets is {text!r}; give earliest, latest or JSON with offsets")
    return SpecificOffsets(parse_partition_offsets(f"{which}Offsets", text))


def _reject_special_offset(bound: ReadBound, offset: int, problem: str) -> None:
    if bound == EarliestOrLatest(offset):
        raise ConfigError(problem)
    if isinstance(bound, SpecificOffsets) and (
        found := [p for p, at in bound.offsets.items() if at == offset]
    ):
        raise ConfigError(f"{problem} in {found[0]}")


def _check_order(start: ReadBound, end: ReadBound) -> None:
    match start, end:
        case SpecificOffsets(first), SpecificOffsets(last):
            what = "Offsets"
        case SpecificTimestamps(first), SpecificTimestamps(last):
            what = "OffsetsByTimestamp"
        case GlobalTimestamp(begin), GlobalTimestamp(until) if begin > until:
            raise ConfigError(f"startingTimestamp {begin} is after endingTimestamp {until}")
        case _:
            return
    if different := sorted(first.keys() ^ last.keys()):
        raise ConfigError(f"starting{what} and ending{what} name different partitions: {different[0]}")
    for partition, begin in first.items():
        until = last[partition]
        # Negative numbers stand for earliest and latest, which have no order before they are resolved.
        if begin > until and begin >= 0 and until >= 0:
            raise ConfigError(f"starting{what} of {partition} is {begin}, after ending{what}, {until}")


def _latest_if_no_match(given: SourceOptions) -> bool:
    name = "startingOffsetsByTimestampStrategy"
    return parse_choice(name, given.text(name) or "error", {"error": False, "latest": True})


def _limits(given: SourceOptions) -> TriggerLimits:
    delay = given.text("maxTriggerDelay")
    limits = TriggerLimits(
        given.number("maxOffsetsPerTrigger"),
        given.number("minOffsetsPerTrigger"),
        given.number("maxBytesPerTrigger"),
        _TRIGGER_DELAY_MS_MAX if delay is None else parse_duration_ms("maxTriggerDelay", delay),
    )
    least, most = limits.offsets_min, limits.offsets_max
    if least is not None and most is not None and least > most:
        raise ConfigError(f"minOffsetsPerTrigger, {least}, is higher than maxOffsetsPerTrigger, {most}")
    return limits


def _read_committed(given: SourceOptions) -> bool:
    """Whether to read only committed records.

    That is the default here, unlike in Kafka's consumers, because records of an aborted transaction were
    never meant to be read.
    """
    return parse_choice(ISOLATION_OPTION, given.text(ISOLATION_OPTION) or READ_COMMITTED, ISOLATION_LEVELS)


def _fetch_bytes(given: SourceOptions) -> int:
    configured = given.number("kafka.fetch.max.bytes", most=INT_MAX)
    configured = configured or given.number("kafka.max.partition.fetch.bytes", most=INT_MAX)
    return _FETCH_BYTES if configured is None else max(configured, _FETCH_BYTES_MIN)


# Writing


def write_settings(options: Mapping[str, str]) -> WriteSettings:
    given = SourceOptions(options)
    check_names(options, WRITE_OPTIONS, KAFKA_WRITE_OPTIONS)
    topic = (given.text("topic") or "").strip()
    codecs = {codec.name.lower(): codec for codec in Codec}
    # acks=0 is treated as acks=1, so that a failed write never looks like a successful one.
    levels = {"all": -1, "-1": -1, "1": 1, "0": 1}
    acks = parse_choice("kafka.acks", given.text("kafka.acks") or "all", levels)
    return WriteSettings(
        access=parse_access(given),
        topic=topic or None,
        codec=parse_choice("kafka.compression.type", given.text("kafka.compression.type") or "none", codecs),
        acks=acks,
        is_idempotent=_is_idempotent(given, acks),
        batch_bytes_max=_or(given.number("kafka.max.request.size", most=INT_MAX), _WRITE_BYTES),
        include_timestamp=given.flag("includeTimestamp", default=False),
    )


def _is_idempotent(given: SourceOptions, acks: int) -> bool:
    """Whether the producer is idempotent. The default is that of Kafka's producer: only with acks=all."""
    is_idempotent = given.flag("kafka.enable.idempotence", default=acks == -1)
    if is_idempotent and acks != -1:
        raise ConfigError(
            f"kafka.acks is {given.text('kafka.acks')}, and an idempotent producer needs all: give acks all, "
            "or leave kafka.enable.idempotence out"
        )
    return is_idempotent


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
