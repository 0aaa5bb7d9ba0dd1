"""Sessions of one key: events without a gap as long as the rule's gap between them. Pure.

A session ends when the watermark has passed its last event by that gap: no later event can belong to the
session. An event between two sessions may merge them into one.

Rule: a session remembers the positions of its first POSITIONS_MAX events, and only counts the other events.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.spark.pipelines.detect.rules import DetectRule
from penstock.spark.pipelines.detect.windows import RuleEvent

POSITIONS_MAX: Final = 100


class EventSession(NamedTuple):
    """Session of one key, which may still grow."""

    start_ms: int
    end_ms: int
    """Time of the session's last event."""
    events: int
    positions: tuple[tuple[int, int, int], ...]
    """Time, partition and offset of the first events."""

    def is_alert(self, rule: DetectRule) -> bool:
        return self.events >= rule.at_least and self.end_ms - self.start_ms >= rule.lasting_ms


def parse_session(
    start_ms: int, end_ms: int, events: int, positions: Iterable[Iterable[int]]
) -> EventSession:
    """Create a session from parsed JSON, in which tuples are lists."""
    return EventSession(start_ms, end_ms, events, tuple((time, part, at) for time, part, at in positions))


def add_event(sessions: list[EventSession], event: RuleEvent, rule: DetectRule) -> list[EventSession]:
    new = EventSession(event.time_ms, event.time_ms, 1, (event[:3],))
    near = [each for each in sessions if _overlap(each, new, rule.span_ms)]
    return sorted([*(each for each in sessions if each not in near), _merge([*near, new])])


def ended_sessions(
    sessions: Iterable[EventSession], rule: DetectRule, watermark_ms: int
) -> list[EventSession]:
    return [each for each in sessions if each.end_ms + rule.span_ms <= watermark_ms]


def next_end(sessions: Iterable[EventSession], rule: DetectRule) -> int:
    """Return the watermark at which the first of the sessions ends."""
    return min(each.end_ms for each in sessions) + rule.span_ms


def _overlap(one: EventSession, other: EventSession, gap_ms: int) -> bool:
    return one.start_ms - other.end_ms < gap_ms and other.start_ms - one.end_ms < gap_ms


def _merge(sessions: list[EventSession]) -> EventSession:
    return EventSession(
        min(each.start_ms for each in sessions),
        max(each.end_ms for each in sessions),
        sum(each.events for each in sessions),
        tuple(sorted(position for each in sessions for position in each.positions))[:POSITIONS_MAX],
    )
