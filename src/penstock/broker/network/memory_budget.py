"""Memory that connections share, and who waits for some.

A request of ordinary size takes what it needs when it turns out to be unfinished, and can then
always be completed. One beyond that takes the rest from a second budget of its own kind, so that
large requests wait for each other and never for, or in front of, small ones. When three quarters of
a budget are taken, requests get it in steps that follow what they send.

Rule 1: whoever waits is called once what it needs has been taken for it, and not before: to wake
        those who would only have to wait again would turn a shortage of memory into one of time.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.limits import DECODED_BYTES_MAX, MEMORY_GRACE_MS, MEMORY_RELIEF_MS


class MemoryLimits(NamedTuple):
    """How much connections share, and when one is ended for others that wait."""

    decoded_bytes_max: int = DECODED_BYTES_MAX
    grace_ms: int = MEMORY_GRACE_MS
    relief_ms: int = MEMORY_RELIEF_MS


MEMORY_LIMITS: Final = MemoryLimits()


class MemoryBudget:
    __slots__ = ("_total", "_waiting", "free_bytes")

    def __init__(self, total_bytes: int) -> None:
        self._total = total_bytes
        self.free_bytes = total_bytes
        """Below 0 while more is overdrawn than there is."""
        self._waiting: dict[Callable[[], None], int] = {}
        """In the order of asking; each with what it needs."""

    @property
    def is_short(self) -> bool:
        return self.free_bytes < self._total // 4

    @property
    def missing_bytes(self) -> int:
        """What must be given back before all who wait can go on; 0 if nobody waits."""
        return max(sum(self._waiting.values()) - self.free_bytes, 1) if self._waiting else 0

    @property
    def total_bytes(self) -> int:
        return self._total

    def take(self, count: int) -> bool:
        """False: there is not enough. The first of all may always take: it fits by configuration."""
        if count > self.free_bytes and self.free_bytes < self._total:
            return False
        self.free_bytes -= count
        return True

    def overdraw(self, count: int) -> None:
        """For bytes that are here already and must be kept."""
        self.free_bytes -= count

    def release(self, count: int) -> None:
        self.free_bytes += count
        assert self.free_bytes <= self._total, "more was given back than taken"
        while self._waiting:
            granted, need = next(iter(self._waiting.items()))
            if not self.take(need):
                return
            del self._waiting[granted]
            granted()

    def grant_first(self) -> None:
        """Let whoever has waited longest go on, although there is not enough."""
        granted = next(iter(self._waiting))
        self.overdraw(self._waiting.pop(granted))
        granted()

    def wait(self, count: int, granted: Callable[[], None]) -> None:
        """Call `granted` when `count` bytes have been taken for it. It must not give within the call."""
        self._waiting[granted] = count

    def forget(self, granted: Callable[[], None]) -> None:
        self._waiting.pop(granted, None)


class MemoryBudgets:
    """What all connections of a server take from."""

    def __init__(self, in_flight_bytes_max: int, limits: MemoryLimits = MEMORY_LIMITS) -> None:
        self.memory_limits = limits
        self.small_frames = MemoryBudget(in_flight_bytes_max // 2)
        self.large_frames = MemoryBudget(in_flight_bytes_max // 2)
        self.decoded = MemoryBudget(limits.decoded_bytes_max)
        """Requests that wait for their answer."""
        self.on_shortage: Callable[[], None] = _ignore_shortage
        """Told when a connection begins to wait for one of these."""


def _ignore_shortage() -> None:
    """Without a server there is nobody to end others for those who wait."""
