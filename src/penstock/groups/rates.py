"""How fast groups read, seen from their commits: records a second over a sliding window.

A hundred thousand partitions may have commits and only some move, so only those are followed: a
partition is taken up when its offset goes forward within a window of the commit before, and given up
when it stands still for longer.

Rule 1: what is kept is bounded, and lost with the process. Nothing but people's numbers depends on it.
Rule 2: an offset that goes back is a replay, not reading: the measure begins anew.
"""

from typing import Final, NamedTuple

from penstock.groups.offsets import Committed
from penstock.limits import SECOND_MS
from penstock.types import Offset

ELAPSED_MS_MIN: Final = 1 * SECOND_MS
"""Two commits in one millisecond say little about a second."""


class RateKey(NamedTuple):
    group_id: str
    topic: str
    partition: int


class _Mark(NamedTuple):
    time_ms: int
    offset: Offset


class _Course:
    """Where a partition was at two moments, half a window apart, and where it is."""

    __slots__ = ("last", "newer", "older")

    def __init__(self, begin: _Mark, last: _Mark) -> None:
        self.older = begin
        self.newer = last
        self.last = last

    def move(self, mark: _Mark, half_ms: int) -> None:
        if mark.time_ms - self.newer.time_ms >= half_ms:
            self.older, self.newer = self.newer, mark
        self.last = mark


class Rates:
    """The courses, those that moved last at the end."""

    def __init__(self, window_ms: int, partitions_max: int) -> None:
        assert window_ms > ELAPSED_MS_MIN, "a window is longer than the shortest time measured"
        self._window_ms = window_ms
        self._partitions_max = partitions_max
        self._courses: dict[RateKey, _Course] = {}
        self.given_up = 0
        """Partitions that moved and were dropped for others: the bound is too low for what goes on here."""

    def __len__(self) -> int:
        return len(self._courses)

    def note(self, key: RateKey, before: Committed | None, offset: Offset, now_ms: int) -> None:
        """A commit was accepted; `before` is the one it replaces."""
        course = self._courses.pop(key, None)
        mark = _Mark(now_ms, offset)
        last = course.last if course is not None else _mark_of(before)
        if last is None or offset < last.offset or not self._is_recent(last, now_ms):
            return
        if course is None:
            if offset == last.offset:
                return
            course = _Course(last, mark)
        elif offset > last.offset:
            course.move(mark, self._window_ms // 2)
        self._courses[key] = course
        self._make_room(now_ms)

    def rate(self, key: RateKey, now_ms: int) -> float:
        """Records a second; 0 for what stands still."""
        course = self._courses.get(key)
        if course is None or not self._is_recent(course.last, now_ms):
            return 0.0
        elapsed_ms = max(now_ms - course.older.time_ms, ELAPSED_MS_MIN)
        return (course.last.offset - course.older.offset) * SECOND_MS / elapsed_ms

    def _is_recent(self, mark: _Mark, now_ms: int) -> bool:
        """Clocks may also go back; then nothing is known."""
        return 0 <= now_ms - mark.time_ms <= self._window_ms

    def _make_room(self, now_ms: int) -> None:
        while True:
            oldest = next(iter(self._courses))
            is_still = not self._is_recent(self._courses[oldest].last, now_ms)
            is_too_many = len(self._courses) > self._partitions_max
            if not is_still and not is_too_many:
                return
            del self._courses[oldest]
            self.given_up += not is_still


def _mark_of(committed: Committed | None) -> _Mark | None:
    return None if committed is None else _Mark(committed.commit_timestamp_ms, committed.offset)
