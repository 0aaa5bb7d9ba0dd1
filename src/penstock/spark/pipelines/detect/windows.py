"""What a rule remembers of one key, and when that is an alert. Pure.

Windows slide: `count`, `sum` and `distinct` look at every interval of the rule's length that begins with an
event. Events come in any order of time; each is put in its place, and only intervals with the new one
in them can have become an alert.

Rule 1: an alert uses up its events. The next one needs as many others, so a burst of ten payments is two
        alerts where five are suspicious, and no event is evidence twice.
Rule 2: events are forgotten when the watermark is so far that none can come that is near enough.
Rule 3: of one key no more than EVENTS_MAX are remembered. What had to be forgotten early is counted.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.spark.pipelines.detect.rules import EVENTS_MAX, NUMBER_MAX, DetectRule, RuleKind

DECIMALS: Final = 6
"""Of sums: 0.1 + 0.2 is 0.3 here."""


class RuleEvent(NamedTuple):
    """In the order of time; position in the topic makes the order unique."""

    time_ms: int
    partition: int
    offset: int
    number: float = 0.0
    text: str = ""


class Window(NamedTuple):
    events: tuple[RuleEvent, ...]
    measure: float


def add(events: list[RuleEvent], new: RuleEvent, rule: DetectRule) -> Window | None:
    """Puts the event in its place. What makes an alert with it is taken out and returned."""
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
        if end > last and meter.measure() >= rule.at_least:
            found = tuple(events[start:end])
            del events[start:end]
            return Window(found, meter.measure())
        meter.exclude(events[start])
    return None


def _is_below_threshold(near: Sequence[RuleEvent], rule: DetectRule) -> bool:
    """The usual case, told apart cheaply."""
    if rule.kind is not RuleKind.SUM:
        return len(near) < rule.at_least
    return sum(event.number for event in near if event.number > 0) < rule.at_least - 1


def drop_expired(events: list[RuleEvent], rule: DetectRule, watermark_ms: int) -> None:
    """Removes what no event to come can be near to."""
    del events[: bisect_left(events, (watermark_ms - rule.span_ms + 1,))]


def drop_oldest(events: list[RuleEvent]) -> int:
    """Removes the oldest if there are too many. How many."""
    too_many = max(len(events) - EVENTS_MAX, 0)
    del events[:too_many]
    return too_many


def expires_at(events: Sequence[RuleEvent], rule: DetectRule) -> int:
    """When the watermark is here, nothing of this is needed any more."""
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
        self._scaled += _scaled(event.number)

    def exclude(self, event: RuleEvent) -> None:
        self._scaled -= _scaled(event.number)

    def measure(self) -> float:
        return self._scaled / 10**DECIMALS


def _scaled(number: float) -> int:
    """Whole numbers: what is added and taken away again leaves no trace."""
    # Larger ones are rejected (query.py), but a checkpoint of an earlier version may hold some.
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
