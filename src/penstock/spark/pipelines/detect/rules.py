"""Rules file of `detect`: parses TOML into typed values, or raises an error with the location.

    [stream]
    schema = "card string, amount double, at timestamp"
    time = "at"
    lateness = "10m"

    [[rule]]
    name = "many-payments"
    kind = "count"
    key = "card"
    within = "1m"
    at_least = 5

Pure, except for reading the file. Columns are checked against the columns of the values in detect.py.

Rule: an unknown key is rejected, with the closest known key as a hint. A rule that is silently not applied is
worse than no rule.
"""

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from penstock.errors import CommandFailed, ConfigError
from penstock.limits import HOUR_MS, MINUTE_MS
from penstock.spark.options.options import ISOLATION_LEVELS, READ_COMMITTED
from penstock.spark.options.values import parse_duration_ms

Choice = TypeVar("Choice")

LATENESS_MS: Final = 10 * MINUTE_MS
AHEAD_MS: Final = HOUR_MS
RECORD_KEY: Final = "key"
EVENTS_MAX: Final = 2_000
"""Events that a window rule remembers per key. A limit, since each new event is compared with all of them."""
NUMBER_MAX: Final = 1e300
"""Largest absolute number in a sum: EVENTS_MAX such numbers still add up to a finite number."""


class RuleKind(Enum):
    COUNT = "count"
    SUM = "sum"
    DISTINCT = "distinct"
    SESSION = "session"


class DetectRule(NamedTuple):
    """One rule of the file."""

    name: str
    kind: RuleKind
    at_least: float
    """Threshold: number of events, their sum, or number of different values."""
    span_ms: int
    """Length of the window; for sessions, the gap that ends a session."""
    key: str = RECORD_KEY
    field: str | None = None
    """Column that is summed, or whose different values are counted."""
    where: str | None = None
    """SQL condition for the rows that the rule applies to."""
    lasting_ms: int = 0
    """Sessions that last a shorter time raise no alert."""


class StreamSpec(NamedTuple):
    """Description of the topic that is read: its values, and the time of an event."""

    format: str | None = None
    """None: values stay bytes, and rules use keys and times of records."""
    schema: str | None = None
    message: str | None = None
    time: str | None = None
    """Column with the event time; None: the time of the record."""
    lateness_ms: int = LATENESS_MS
    ahead_ms: int = AHEAD_MS
    """An event time further after the record's time than this is implausible, and the row is rejected."""
    isolation: str = READ_COMMITTED


class DetectRules(NamedTuple):
    """All rules of a file, and the stream that they apply to."""

    stream: StreamSpec
    rules: tuple[DetectRule, ...]

    def columns(self) -> dict[str, str]:
        """Return the required columns of the values, each with the setting that requires it."""
        wanted = {self.stream.time: "[stream] time"} if self.stream.time else {}
        for rule in self.rules:
            wanted.setdefault(rule.key, f"rule {rule.name}, key")
            if rule.field is not None:
                wanted.setdefault(rule.field, f"rule {rule.name}, field")
        wanted.pop(RECORD_KEY, None)
        return wanted


def read_rules(path: Path) -> DetectRules:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else str(problem)
        raise CommandFailed(f"the rules {path} cannot be read: {reason}") from problem
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise CommandFailed(f"the rules {path} are no TOML: {problem}") from problem
    return parse_rules(document, path)


def parse_rules(document: Mapping[str, Any], path: Path) -> DetectRules:
    top = _RuleTable(document, str(path))
    stream = _stream(_RuleTable(top.table("stream"), f"{path}, [stream]"), path.parent)
    given = document.get("rule")
    top.known(("stream", "rule"))
    if not isinstance(given, list) or not given:
        raise CommandFailed(f"{path} has no rules: begin each with [[rule]]")
    rules = tuple(_rule(_RuleTable(each, f"{path}, rule {number}")) for number, each in enumerate(given, 1))
    names = [rule.name for rule in rules]
    if doubled := [name for name in names if names.count(name) > 1]:
        raise CommandFailed(f"{path} has two rules named {doubled[0]}: alerts could not tell them apart")
    return DetectRules(stream, rules)


def _stream(table: "_RuleTable", folder: Path) -> StreamSpec:
    table.known(("format", "schema", "message", "time", "lateness", "ahead", "isolation"))
    schema = table.text("schema")
    given = table.text("format")
    if given is not None and (given == "raw") != (schema is None):
        raise table.error_at("format", "goes together with schema, which says the columns of the values")
    # Relative paths are below the folder of the rules file, not the working directory.
    if schema is not None and _is_file(schema) and not Path(schema).is_absolute():
        schema = str(folder / schema)
    return StreamSpec(
        format=None if schema is None else given or "json",
        schema=schema,
        message=table.text("message"),
        time=table.text("time"),
        lateness_ms=table.duration("lateness", LATENESS_MS),
        ahead_ms=table.duration("ahead", AHEAD_MS),
        isolation=table.one_of("isolation", {level: level for level in ISOLATION_LEVELS}, READ_COMMITTED),
    )


def _is_file(schema: str) -> bool:
    return schema.lower().endswith((".json", ".ddl", ".sql", ".avsc", ".desc", ".proto", ".pb"))


def _rule(table: "_RuleTable") -> DetectRule:
    name = table.text("name")
    if name is None or not name.strip():
        raise table.error_at("name", "is missing: alerts are told by it")
    table = table.named(f"rule {name}")
    kind = table.one_of("kind", {each.value: each for each in RuleKind})
    common = ("name", "kind", "key", "where", "at_least")
    if kind is RuleKind.SESSION:
        table.known((*common, "gap", "lasting"))
    else:
        table.known((*common, "within", *(() if kind is RuleKind.COUNT else ("field",))))
    field = None if kind in (RuleKind.COUNT, RuleKind.SESSION) else table.text("field")
    if field is None and kind in (RuleKind.SUM, RuleKind.DISTINCT):
        raise table.error_at("field", f"is missing: the column of which kind {kind.value} takes the values")
    span = "gap" if kind is RuleKind.SESSION else "within"
    span_ms = table.duration(span, 0)
    if span_ms <= 0:
        raise table.error_at(span, "is missing, or no time: give one such as 90s, 10m or 2h")
    at_least = table.threshold("at_least", whole=kind is not RuleKind.SUM)
    # Such a rule could never raise an alert: no more events of a key are remembered.
    if kind in (RuleKind.COUNT, RuleKind.DISTINCT) and at_least > EVENTS_MAX:
        raise table.error_at("at_least", f"is {at_least:.0f}: of one key {EVENTS_MAX} events are remembered")
    return DetectRule(
        name=name,
        kind=kind,
        at_least=at_least,
        span_ms=span_ms,
        key=table.text("key") or RECORD_KEY,
        field=field,
        where=table.text("where"),
        lasting_ms=table.duration("lasting", 0) if kind is RuleKind.SESSION else 0,
    )


class _RuleTable:
    """One table of the file, with its location for errors."""

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, Mapping):
            raise CommandFailed(f"{where} must be a table")
        self._values = values
        self._where = where

    def named(self, name: str) -> "_RuleTable":
        return _RuleTable(self._values, f"{self._where.rpartition(', ')[0]}, {name}")

    def error_at(self, key: str, problem: str) -> CommandFailed:
        return CommandFailed(f"{self._where}: {key} {problem}")

    def known(self, names: tuple[str, ...]) -> None:
        for name in self._values:
            if name not in names:
                near = get_close_matches(name, names, n=1, cutoff=0.6)
                meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
                raise self.error_at(name, f"is unknown here: {meant}")

    def table(self, key: str) -> Any:
        return self._values.get(key, {})

    def text(self, key: str) -> str | None:
        value = self._values.get(key)
        if value is not None and not isinstance(value, str):
            raise self.error_at(key, f"is {value!r}: give text, in quotes")
        return value

    def one_of(self, key: str, choices: Mapping[str, Choice], default: str | None = None) -> Choice:
        value = self.text(key) or default
        if value is None or value not in choices:
            raise self.error_at(key, f"is {value!r}: give one of {', '.join(choices)}")
        return choices[value]

    def duration(self, key: str, default: int) -> int:
        text = self.text(key)
        if text is None:
            return default
        try:
            return parse_duration_ms(key, text)
        except ConfigError:
            raise self.error_at(key, f"is {text!r}: give a time such as 90s, 10m or 2h") from None

    def threshold(self, key: str, *, whole: bool) -> float:
        value = self._values.get(key)
        is_number = isinstance(value, int) if whole else isinstance(value, int | float)
        if value is None or not is_number or isinstance(value, bool) or not 0 < value <= NUMBER_MAX:
            raise self.error_at(key, f"is {value!r}: give a {'whole number' if whole else 'number'} above 0")
        return float(value)
