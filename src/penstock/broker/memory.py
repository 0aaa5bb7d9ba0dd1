"""Memory that connections share, and who waits for some.

A request of ordinary size takes what it needs when it turns out to be unfinished, and can then
always be completed. One beyond that takes the rest from a second budget of its own kind, so that
large requests wait for each other and never for, or in front of, small ones.

Rule 1: whoever waits is called once what it needs has been taken for it, and not before: to wake
        those who would only have to wait again would turn a shortage of memory into one of time.
"""

from collections.abc import Callable


class MemoryBudget:
    __slots__ = ("_free", "_total", "_waiting")

    def __init__(self, total_bytes: int) -> None:
        self._total = total_bytes
        self._free = total_bytes
        self._waiting: dict[Callable[[], None], int] = {}
        """In the order of asking; each with what it needs."""

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
        while self._waiting:
            granted, need = next(iter(self._waiting.items()))
            if not self.take(need):
                return
            del self._waiting[granted]
            granted()

    def wait(self, count: int, granted: Callable[[], None]) -> None:
        """Call `granted` when `count` bytes have been taken for it. It must not give within the call."""
        self._waiting[granted] = count

    def forget(self, granted: Callable[[], None]) -> None:
        self._waiting.pop(granted, None)
