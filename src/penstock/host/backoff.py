"""Exponential backoff: each delay is twice as long as the one before, up to a limit.

Rule: after a success the caller calls `reset`, and the next delay is the shortest again.
"""

from typing import Final


class Backoff:
    """Delays before the retries of one operation."""

    def __init__(self, shortest_ms: int, longest_ms: int) -> None:
        assert 0 < shortest_ms <= longest_ms
        self._shortest_ms: Final = shortest_ms
        self._longest_ms: Final = longest_ms
        self._next_ms = shortest_ms

    def next_delay_s(self) -> float:
        pause_ms = self._next_ms
        self._next_ms = min(2 * pause_ms, self._longest_ms)
        return pause_ms / 1000

    def reset(self) -> None:
        self._next_ms = self._shortest_ms
