"""Evaluation of one rule for one key: separates late rows, makes alerts, updates the state. Pure.

`apply_events` is called for each rule and key with the rows of a micro-batch, or without rows when the
watermark has passed the state's wake time (bucket_state.py).

Rule 1: rows are evaluated one by one in topic order. So the result does not depend on how the stream was
        split into batches, provided that the rows of a key are in one partition and none is late.
Rule 2: the id of an alert is a digest of the topic and its id, the rule, the key and the evidence with its
        times. A batch that is run again makes the same alerts with the same ids; other topics, and a
        recreated topic, have other ids.
Rule 3: a row behind the watermark is late. Late rows are returned, never dropped.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from penstock.spark.pipelines.detect import sessions, windows
from penstock.spark.pipelines.detect.rules import DetectRule, RuleKind
from penstock.spark.pipelines.detect.sessions import EventSession, parse_session
from penstock.spark.pipelines.detect.windows import RuleEvent
from penstock.types import TopicId

ID_CHARACTERS: Final = 32
EVIDENCE_MAX: Final = 100
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Alert(NamedTuple):
    """Alert of one rule for one key, with the events that are its evidence."""

    id: str
    """Id within the topic, until `with_topic_id` makes it unique among the alerts of all topics."""
    rule: str
    kind: str
    key: str
    start_ms: int
    end_ms: int
    events: int
    measure: float
    evidence: tuple[tuple[int, int, int], ...]
    """Time, partition and offset of each event, at most EVIDENCE_MAX."""

    def text(self, topic: str) -> str:
        """Return the alert as JSON."""
        document = {
            "id": self.id,
            "rule": self.rule,
            "kind": self.kind,
            "key": self.key,
            "from": time_text(self.start_ms),
            "to": time_text(self.end_ms),
            "count": self.events,
            "measure": int(self.measure) if self.measure == int(self.measure) else self.measure,
            "topic": topic,
            "evidence": [
                {"partition": partition, "offset": offset, "time": time_text(time_ms)}
                for time_ms, partition, offset in self.evidence
            ],
        }
        return json.dumps(document, ensure_ascii=False)

    def with_topic_id(self, topic: str, topic_id: TopicId) -> "Alert":
        """Return the alert with an id that includes the topic id: offsets are unique only within one."""
        return self._replace(id=_digest([topic, topic_id.hex(), self.id]))


RuleState = Sequence[Sequence[Any]]
"""Events or sessions; lists instead of tuples after a round trip through JSON."""


class RuleResult(NamedTuple):
    """Result of one rule for one key in one micro-batch."""

    held: RuleState
    """New state; may be empty."""
    wake_ms: int
    """Watermark at which the state must be evaluated again."""
    alerts: list[Alert]
    late: list[RuleEvent]
    """Events behind the watermark, which the rule did not evaluate."""
    forgotten: int
    """Number of events that were removed before they expired, because the key had more than EVENTS_MAX."""


def apply_events(
    rule: DetectRule, key: str, held: RuleState, events: Iterable[RuleEvent], watermark_ms: int
) -> RuleResult:
    """Evaluate new events of one key, and end what the watermark has passed. `held` is the key's state."""
    # Topic order, in whatever order the shuffle delivered the rows (rule 1).
    in_order = sorted(events, key=lambda event: (event.partition, event.offset))
    late = [event for event in in_order if event.time_ms < watermark_ms]
    new = [event for event in in_order if event.time_ms >= watermark_ms]
    if rule.kind is RuleKind.SESSION:
        outcome = _sessions(rule, key, [parse_session(*each) for each in held], new, watermark_ms)
    else:
        outcome = _windows(rule, key, [RuleEvent(*each) for each in held], new, watermark_ms)
    return outcome._replace(late=late)


def _windows(
    rule: DetectRule, key: str, held: list[RuleEvent], new: list[RuleEvent], watermark_ms: int
) -> RuleResult:
    alerts, forgotten = [], 0
    for event in new:
        if (window := windows.add(held, event, rule)) is not None:
            alerts.append(_window_alert(rule, key, window))
        forgotten += windows.drop_oldest(held)
    windows.drop_expired(held, rule, watermark_ms)
    wake_ms = windows.expires_at(held, rule) if held else 0
    return RuleResult(held, wake_ms, alerts, [], forgotten)


def _sessions(
    rule: DetectRule, key: str, held: list[EventSession], new: list[RuleEvent], watermark_ms: int
) -> RuleResult:
    for event in new:
        held = sessions.add_event(held, event, rule)
    ended = sessions.ended_sessions(held, rule, watermark_ms)
    held = [each for each in held if each not in ended]
    alerts = [_session_alert(rule, key, each) for each in ended if each.is_alert(rule)]
    return RuleResult(held, sessions.next_end(held, rule) if held else 0, alerts, [], 0)


def _window_alert(rule: DetectRule, key: str, window: windows.Window) -> Alert:
    events = window.events
    evidence = tuple(event[:3] for event in events)
    return Alert(
        alert_id(rule.name, key, evidence, len(events)),
        rule.name,
        rule.kind.value,
        key,
        events[0].time_ms,
        events[-1].time_ms,
        len(events),
        window.measure,
        evidence[:EVIDENCE_MAX],
    )


def _session_alert(rule: DetectRule, key: str, session: EventSession) -> Alert:
    return Alert(
        alert_id(rule.name, key, session.positions, session.events),
        rule.name,
        rule.kind.value,
        key,
        session.start_ms,
        session.end_ms,
        session.events,
        session.events,
        session.positions[:EVIDENCE_MAX],
    )


def alert_id(rule: str, key: str, evidence: tuple[tuple[int, int, int], ...], count: int) -> str:
    return _digest([rule, key, evidence, count])


def _digest(what: list[Any]) -> str:
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:ID_CHARACTERS]


def time_text(time_ms: int) -> str:
    try:
        return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{time_ms} ms after 1970"
