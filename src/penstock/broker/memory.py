"""Memory that connections share, and who waits for some.

A request of ordinary size takes what it needs when it turns out to be unfinished, and can then
always be completed. One beyond that takes the rest from a second budget of its own kind, so that
large requests wait for each other and never for, or in front of, small ones.
"""

from collections import deque
from collections.abc import Callable


class MemoryBudget:
    __slots__ = ("_free", "_total", "_waiting")

    def __init__(self, total_bytes: int) -> None:
        self._total = total_bytes
        self._free = total_bytes
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def is_short(self) -> bool:
        return self._free < self._total // 4

    def take(self, count: int) -> bool:
        """False: there is not enough. The first of all may always take: it fits by configuration."""
        if count > self._free and self._free < self._total:
            return False
        self._free -= count
        return True

    def overdraw(self, count: int) -> None:
        """For bytes that are here already and must be kept."""
        self._free -= count

    def give(self, count: int) -> None:
        self._free += count
        assert self._free <= self._total, "more was given back than taken"
        if self._waiting and self._free > 0:
            self._waiting.popleft()()

    def wait(self, retry: Callable[[], None]) -> None:
        """Call `retry` when some memory has been given back."""
        self._waiting.append(retry)

    def forget(self, retry: Callable[[], None]) -> None:
        if retry in self._waiting:
            self._waiting.remove(retry)
