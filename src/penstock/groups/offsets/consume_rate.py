"""The consume rates of groups, measured by their commits: records a second over a sliding window.

A hundred thousand partitions may have commits and only some advance, so only those are tracked. A partition
is tracked when its offset advances within one window of the previous commit, and dropped when it does not
advance for longer.

Rule 1: the state is bounded, and lost on restart. Only displayed numbers depend on it.
Rule 2: an offset that goes back means that the group replays records: its measurement restarts.
"""

from typing import Final, NamedTuple

from penstock.groups.offsets.committed_offsets import OffsetAndMetadata
from penstock.limits import SECOND_MS
from penstock.types import Offset

ELAPSED_MS_MIN: Final = 1 * SECOND_MS
"""Minimum time base: two commits within a millisecond give no useful rate."""


class RateKey(NamedTuple):
    group_id: str
    topic: str
    partition: int


class _RateWindow:
    """Committed offsets at two moments, half a window apart, and the latest one."""

    __slots__ = ("last_ms", "last_offset", "newer_ms", "newer_offset", "older_ms", "older_offset")

    def __init__(self, before: OffsetAndMetadata, offset: Offset, now_ms: int) -> None:
        self.older_ms, self.older_offset = before.commit_timestamp_ms, before.offset
        self.newer_ms, self.newer_offset = now_ms, offset
        self.last_ms, self.last_offset = now_ms, offset

    def slide(self) -> None:
        """Move the window: half of its length has passed since the newer moment."""
        self.older_ms, self.older_offset = self.newer_ms, self.newer_offset
        self.newer_ms, self.newer_offset = self.last_ms, self.last_offset


class ConsumeRates:
    """Rate windows, ordered by when they were added or last moved."""

    def __init__(self, window_ms: int, partitions_max: int) -> None:
        assert window_ms > ELAPSED_MS_MIN, "a window is longer than the shortest time measured"
        self._window_ms = window_ms
        self._partitions_max = partitions_max
        self._windows: dict[RateKey, _RateWindow] = {}

    def __len__(self) -> int:
        return len(self._windows)

    def record_commit(
        self, key: RateKey, before: OffsetAndMetadata | None, offset: Offset, now_ms: int
    ) -> None:
        """Record an accepted commit; `before` is the one that it replaces. Every commit must be recorded."""
        window = self._windows.get(key)
        if window is None:
            if before is not None and offset > before.offset:
                self._start_window(key, before, offset, now_ms)
        elif offset < window.last_offset or not 0 <= now_ms - window.last_ms <= self._window_ms:
            # The offset or the clock went back, or the partition did not advance for a window.
            del self._windows[key]
        elif offset > window.last_offset:
            window.last_ms, window.last_offset = now_ms, offset
            if now_ms - window.newer_ms >= self._window_ms // 2:
                window.slide()
                del self._windows[key]
                self._windows[key] = window

    def _start_window(self, key: RateKey, before: OffsetAndMetadata, offset: Offset, now_ms: int) -> None:
        if 0 <= now_ms - before.commit_timestamp_ms <= self._window_ms:
            self._windows[key] = _RateWindow(before, offset, now_ms)
            self._evict(now_ms)

    def rate(self, key: RateKey, now_ms: int) -> float:
        """Records a second; 0 if the partition does not advance."""
        window = self._windows.get(key)
        if window is None or not self._is_moving(window, now_ms):
            return 0.0
        elapsed_ms = max(now_ms - window.older_ms, ELAPSED_MS_MIN)
        return (window.last_offset - window.older_offset) * SECOND_MS / elapsed_ms

    def _is_moving(self, window: _RateWindow, now_ms: int) -> bool:
        """Whether the last commit is recent. False after the clock went back: then the rate is unknown."""
        return 0 <= now_ms - window.last_ms <= self._window_ms

    def _evict(self, now_ms: int) -> None:
        """Evict windows that do not advance, which are the oldest; above the bound, evict others too."""
        while True:
            oldest = next(iter(self._windows))
            is_moving = self._is_moving(self._windows[oldest], now_ms)
            if is_moving and len(self._windows) <= self._partitions_max:
                return
            del self._windows[oldest]
