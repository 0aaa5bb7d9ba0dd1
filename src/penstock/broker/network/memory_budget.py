"""Memory budgets that connections share, and the queue of connections that wait for memory.

A request of ordinary size takes what it needs when it turns out to be unfinished, and can then always be
completed. A larger request takes the rest from a second budget for large requests. So large requests wait for
each other, and never for small ones or in front of them. When three quarters of a budget are taken, requests
get memory in steps that follow the bytes they send.

Rule 1: a waiting connection is called once its memory has been taken for it, and not before. Waking
        connections that would only have to wait again would turn a shortage of memory into one of time.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.limits import DECODED_BYTES_MAX, MEMORY_GRACE_MS, MEMORY_RELIEF_MS


class MemoryLimits(NamedTuple):
    """How much memory connections share, and when one connection is closed for others that wait."""

    decoded_bytes_max: int = DECODED_BYTES_MAX
    grace_ms: int = MEMORY_GRACE_MS
    relief_ms: int = MEMORY_RELIEF_MS


MEMORY_LIMITS: Final = MemoryLimits()


class MemoryBudget:
    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.free_bytes = total_bytes
        """Negative while more is overdrawn than is available."""
        self._waiting: dict[Callable[[], None], int] = {}
        """The bytes that each waiting connection needs, in the order of the requests."""

    @property
    def is_short(self) -> bool:
        return self.free_bytes < self.total_bytes // 4

    @property
    def missing_bytes(self) -> int:
        """The bytes that must be released before every waiting connection can continue; 0 if none waits."""
        return max(sum(self._waiting.values()) - self.free_bytes, 1) if self._waiting else 0

    def try_take(self, count: int) -> bool:
        """Take memory. Returns False if there is not enough.

        A budget of which nothing is taken grants any request: the configuration ensures that one request
        fits.
        """
        if count > self.free_bytes and self.free_bytes < self.total_bytes:
            return False
        self.free_bytes -= count
        return True

    def overdraw(self, count: int) -> None:
        """Take memory for bytes that have been received already and must be kept."""
        self.free_bytes -= count

    def release(self, count: int) -> None:
        self.free_bytes += count
        assert self.free_bytes <= self.total_bytes, "more was given back than taken"
        # In order: a waiting connection with a small need must not overtake one with a larger need for ever.
        while self._waiting:
            granted, need = next(iter(self._waiting.items()))
            if not self.try_take(need):
                return
            # Removed first: `granted` may wait for memory again under the same key.
            del self._waiting[granted]
            granted()

    def grant_first(self) -> None:
        """Let the connection that has waited longest continue although there is not enough memory."""
        granted = next(iter(self._waiting))
        self.overdraw(self._waiting.pop(granted))
        granted()

    def wait(self, count: int, granted: Callable[[], None]) -> None:
        """Call `granted` when `count` bytes have been taken for it. `granted` must not release within the
        call.
        """
        self._waiting[granted] = count

    def forget(self, granted: Callable[[], None]) -> None:
        self._waiting.pop(granted, None)


class MemoryBudgets:
    """The memory budgets that all connections of a server share."""

    def __init__(self, in_flight_bytes_max: int, limits: MemoryLimits = MEMORY_LIMITS) -> None:
        self.memory_limits = limits
        self.small_frames = MemoryBudget(in_flight_bytes_max // 2)
        self.large_frames = MemoryBudget(in_flight_bytes_max // 2)
        self.decoded = MemoryBudget(limits.decoded_bytes_max)
        """Requests that wait for their reply."""
        self.on_shortage: Callable[[], None] = lambda: None
        """Called when a connection begins to wait for one of these budgets."""
