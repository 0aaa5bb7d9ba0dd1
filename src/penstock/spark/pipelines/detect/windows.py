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

from penstock.spark.pipelines.detect.rules import EVENTS_MAX, NUMBER_MAX, Kind, Rule

DECIMALS: Final = 6
"""Of sums: 0.1 + 0.2 is 0.3 here."""


class Event(NamedTuple):
    """In the order of time; position in the topic makes the order unique."""

    time_ms: int
    partition: int
    offset: int
    number: float = 0.0
    text: str = ""


class Window(NamedTuple):
    events: tuple[Event, ...]
    measure: float


def add(events: list[Event], new: Event, rule: Rule) -> Window | None:
    """Puts the event in its place. What makes an alert with it is taken out and returned."""
    last = bisect_left(events, new)
    events.insert(last, new)
    first = bisect_left(events, (new.time_ms - rule.span_ms + 1,))
    beyond = bisect_left(events, (new.time_ms + rule.span_ms,))
    if _cannot_reach(events[first:beyond], rule):
        return None
    meter = _METERS[rule.kind]()
    end = first
    for start in range(first, last + 1):
        until = events[start].time_ms + rule.span_ms
        while end < len(events) and events[end].time_ms < until:
            meter.put(events[end])
            end += 1
        if end > last and meter.measure() >= rule.at_least:
            found = tuple(events[start:end])
            del events[start:end]
            return Window(found, meter.measure())
        meter.take(events[start])
    return None


def _cannot_reach(near: Sequence[Event], rule: Rule) -> bool:
    """The usual case, told apart cheaply."""
    if rule.kind is not Kind.SUM:
        return len(near) < rule.at_least
    return sum(event.number for event in near if event.number > 0) < rule.at_least - 1


def forget(events: list[Event], rule: Rule, watermark_ms: int) -> None:
    """Removes what no event to come can be near to."""
    del events[: bisect_left(events, (watermark_ms - rule.span_ms + 1,))]


def cap(events: list[Event]) -> int:
    """Removes the oldest if there are too many. How many."""
    too_many = max(len(events) - EVENTS_MAX, 0)
    del events[:too_many]
    return too_many


def forgotten_at(events: Sequence[Event], rule: Rule) -> int:
    """When the watermark is here, nothing of this is needed any more."""
    return events[-1].time_ms + rule.span_ms


class _Count:
    def __init__(self) -> None:
        self._count = 0

    def put(self, event: Event) -> None:
        self._count += 1

    def take(self, event: Event) -> None:
        self._count -= 1

    def measure(self) -> float:
        return self._count


class _Sum:
    def __init__(self) -> None:
        self._scaled = 0

    def put(self, event: Event) -> None:
        self._scaled += _scaled(event.number)

    def take(self, event: Event) -> None:
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

    def put(self, event: Event) -> None:
        self._counts[event.text] += 1

    def take(self, event: Event) -> None:
        self._counts[event.text] -= 1
        if not self._counts[event.text]:
            del self._counts[event.text]

    def measure(self) -> float:
        return len(self._counts)


_METERS: Final[dict[Kind, type[_Count] | type[_Sum] | type[_Distinct]]] = {
    Kind.COUNT: _Count,
    Kind.SUM: _Sum,
    Kind.DISTINCT: _Distinct,
}
