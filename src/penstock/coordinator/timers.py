"""Timers by key, cheap to extend: a session is extended far more often than it expires.

A deadline that moves later leaves its heap entry where it is; `pop_expired` corrects the entry when it
reaches the top. So extending costs one dict write. A deadline that moves earlier adds an entry, so the heap
has at most one entry per key and one per such move.
"""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, TypeVar

TimerKeyType = TypeVar("TimerKeyType", bound=Hashable)

_STALE_ENTRIES_MIN = 1_000
"""Minimum number of heap entries before stale ones are collected."""


class Timers(Generic[TimerKeyType]):
    def __init__(self) -> None:
        self.deadlines: dict[TimerKeyType, float] = {}
        """Changed only by the methods of this class."""
        self._heap: list[tuple[float, int, TimerKeyType]] = []
        self._number = 0
        """Tie breaker, so that the heap never compares keys."""

    def __len__(self) -> int:
        return len(self.deadlines)

    def set(self, key: TimerKeyType, deadline: float) -> None:
        known = self.deadlines.get(key)
        self.deadlines[key] = deadline
        if known is None or deadline < known:
            self._push(key, deadline)

    def cancel(self, key: TimerKeyType) -> None:
        self.deadlines.pop(key, None)
        self._bound_heap()

    def deadline(self, key: TimerKeyType) -> float | None:
        return self.deadlines.get(key)

    def next_deadline(self) -> float | None:
        """Time of the next check; None without timers. It may be too early, and is never too late."""
        heap, deadlines = self._heap, self.deadlines
        while heap and heap[0][2] not in deadlines:
            heappop(heap)
        return heap[0][0] if heap else None

    def pop_expired(self, now: float, scan_max: float = inf) -> list[TimerKeyType]:
        """Remove and return the keys that expired, earliest first.

        At most `scan_max` heap entries are checked. The rest stay due.
        """
        expired = []
        deadlines = self.deadlines
        looks = 0
        while looks < scan_max and self._heap and self._heap[0][0] <= now:
            looks += 1
            _, _, key = heappop(self._heap)
            deadline = deadlines.get(key)
            if deadline is None:
                continue
            if deadline <= now:
                del deadlines[key]
                expired.append(key)
            else:
                # The deadline was extended after this entry was made.
                self._push(key, deadline)
        return expired

    def _push(self, key: TimerKeyType, deadline: float) -> None:
        self._number += 1
        heappush(self._heap, (deadline, self._number, key))
        self._bound_heap()

    def _bound_heap(self) -> None:
        """Rebuild the heap when entries of cancelled or moved timers outnumber the live ones."""
        if len(self._heap) <= max(_STALE_ENTRIES_MIN, 4 * len(self.deadlines)):
            return
        self._heap = [
            (deadline, number, key) for number, (key, deadline) in enumerate(self.deadlines.items())
        ]
        heapify(self._heap)
