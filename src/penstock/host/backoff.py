"""How long to wait before something is tried again: each time twice as long, up to a limit.

Rule: whoever succeeds begins with the shortest again.
"""

from typing import Final


class Backoff:
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
