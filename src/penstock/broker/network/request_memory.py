"""Memory of the requests of one connection that wait for their replies.

A request is charged when its handler has deferred the reply, because only then it is known that the request
waits at all. So requests may overdraw the shared memory. While it is used up

    a large request            is not handled before memory is free
    a small request            is handled: most are answered at once and cost nothing
    a small request that waits is the last of its connection to be handled, until it is answered or memory is
                               free

Rule 1: all connections together overdraw by no more than a small request each, besides the request that used
        the memory up.
"""

from collections.abc import Callable

from penstock.broker.network.memory_budget import MemoryBudgets
from penstock.limits import DECODED_BYTES_WHEN_FULL
from penstock.protocol.connection import PendingReply


class RequestMemory:
    def __init__(
        self, budgets: MemoryBudgets, pause_reading: Callable[[], None], resume_reading: Callable[[], None]
    ) -> None:
        self._budget = budgets.decoded
        self._budgets = budgets
        self._pause_reading = pause_reading
        self._resume_reading = resume_reading
        self._overdrawn: PendingReply | None = None
        """The request that was accepted when no memory was free for it."""

    def charge(self, pending: PendingReply) -> None:
        # Overdrawn, never rejected: the request has been accepted, and its handler has started.
        self._budget.overdraw(pending.charge_bytes)
        if self._budget.free_bytes < 0 and self._overdrawn is None:
            self._overdrawn = pending
            self._pause_reading()
            self._budget.wait(0, self._has_room)
            self._budgets.on_shortage()

    def discharge(self, pending: PendingReply) -> None:
        # Set to 0 first: a request may be discharged twice, by its reply and by the end of its task.
        charge_bytes, pending.charge_bytes = pending.charge_bytes, 0
        self._budget.release(charge_bytes)
        if pending is self._overdrawn:
            self._budget.forget(self._has_room)
            self._has_room()

    def _has_room(self) -> None:
        self._overdrawn = None
        self._resume_reading()

    def drop(self) -> None:
        """Stop waiting for memory: the connection has ended. Requests release their memory as they end."""
        self._budget.forget(self._has_room)
        self._overdrawn = None


def is_small(weight_bytes: int) -> bool:
    """Whether a request of this weight is handled while the memory is used up."""
    return weight_bytes <= DECODED_BYTES_WHEN_FULL
