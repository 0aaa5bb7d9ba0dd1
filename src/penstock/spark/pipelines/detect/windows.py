"""Sliding windows: the events that a rule remembers for one key, and when they raise an alert. Pure.

`count`, `sum` and `distinct` check every interval of the rule's length that begins with an event. Events
arrive in any order of time; each is inserted at its position, and only intervals that contain the new event
can newly raise an alert.

Rule 1: an alert consumes its events. The next alert needs as many other events, so a burst of ten payments
        raises two alerts if the threshold is five, and no event is evidence twice.
Rule 2: events are removed when the watermark has advanced so far that no later event can share a window with
        them.
Rule 3: at most EVENTS_MAX events are remembered per key. Events that were removed early are counted.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.spark.pipelines.detect.rules import EVENTS_MAX, NUMBER_MAX, DetectRule, RuleKind

DECIMALS: Final = 6
"""Decimal places of sums: with six, 0.1 + 0.2 is 0.3."""


class RuleEvent(NamedTuple):
    """Event in order of time; the position in the topic makes the order unique."""

    time_ms: int
    partition: int
    offset: int
    number: float = 0.0
    text: str = ""


class Window(NamedTuple):
    """Events of one alert, and the count or sum that reached the threshold."""

    events: tuple[RuleEvent, ...]
    measure: float


def add(events: list[RuleEvent], new: RuleEvent, rule: DetectRule) -> Window | None:
    """Insert the event; if it completes an alert, remove the alert's events and return them."""
    last = bisect_left(events, new)
    events.insert(last, new)
    first = bisect_left(events, (new.time_ms - rule.span_ms + 1,))
    beyond = bisect_left(events, (new.time_ms + rule.span_ms,))
    if _is_below_threshold(events[first:beyond], rule):
        return None
    meter = _METERS[rule.kind]()
    end = first
    for start in range(first, last + 1):
        until = events[start].time_ms + rule.span_ms
        while end < len(events) and events[end].time_ms < until:
            meter.include(events[end])
            end += 1
        # A window without the new event was checked when its own last event arrived.
        if end > last and meter.measure() >= rule.at_least:
            found = tuple(events[start:end])
            del events[start:end]
            return Window(found, meter.measure())
        meter.exclude(events[start])
    return None


def _is_below_threshold(near: Sequence[RuleEvent], rule: DetectRule) -> bool:
    """Return whether no window can reach the threshold. This is the usual case, and this check is cheap."""
    if rule.kind is not RuleKind.SUM:
        return len(near) < rule.at_least
    # The margin of 1 covers rounding errors: only a sum clearly below the threshold is excluded.
    return sum(event.number for event in near if event.number > 0) < rule.at_least - 1


def drop_expired(events: list[RuleEvent], rule: DetectRule, watermark_ms: int) -> None:
    """Remove events that no later event can share a window with."""
    del events[: bisect_left(events, (watermark_ms - rule.span_ms + 1,))]


def drop_oldest(events: list[RuleEvent]) -> int:
    """Remove the oldest events above EVENTS_MAX, and return their number."""
    too_many = max(len(events) - EVENTS_MAX, 0)
    del events[:too_many]
    return too_many


def expires_at(events: Sequence[RuleEvent], rule: DetectRule) -> int:
    """Return the watermark at which none of the events is needed any more."""
    return events[-1].time_ms + rule.span_ms


class _Count:
    def __init__(self) -> None:
        self._count = 0

    def include(self, event: RuleEvent) -> None:
        self._count += 1

    def exclude(self, event: RuleEvent) -> None:
        self._count -= 1

    def measure(self) -> float:
        return self._count


class _Sum:
    def __init__(self) -> None:
        self._scaled = 0

    def include(self, event: RuleEvent) -> None:
        self._scaled += _scale(event.number)

    def exclude(self, event: RuleEvent) -> None:
        self._scaled -= _scale(event.number)

    def measure(self) -> float:
        return self._scaled / 10**DECIMALS


def _scale(number: float) -> int:
    """Scale to a whole number, so that adding and subtracting a number leaves no rounding error."""
    # Larger numbers are rejected in query.py, but a checkpoint of an earlier version may hold some.
    return round(max(-NUMBER_MAX, min(number, NUMBER_MAX)) * 10**DECIMALS)


class _Distinct:
    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def include(self, event: RuleEvent) -> None:
        self._counts[event.text] += 1

    def exclude(self, event: RuleEvent) -> None:
        self._counts[event.text] -= 1
        if not self._counts[event.text]:
            del self._counts[event.text]

    def measure(self) -> float:
        return len(self._counts)


_METERS: Final[dict[RuleKind, type[_Count] | type[_Sum] | type[_Distinct]]] = {
    RuleKind.COUNT: _Count,
    RuleKind.SUM: _Sum,
    RuleKind.DISTINCT: _Distinct,
}
