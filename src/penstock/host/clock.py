"""Clocks: wall time and monotonic time, because they serve different purposes.

Wall time stamps records and decides retention; it may jump. Monotonic time measures durations; it never goes
back. Tests may move the first without affecting the second.
"""

import time
from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since 1970, as in record timestamps."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start, never going back."""
        ...


class SystemClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class AdjustableClock(SystemClock):
    """Real time whose wall clock can be moved forward: a test need not wait seven days."""

    def __init__(self) -> None:
        self._ahead_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self._ahead_ms

    def advance(self, ms: int) -> None:
        assert ms >= 0, "time goes forward"
        self._ahead_ms += ms
