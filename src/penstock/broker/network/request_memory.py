"""What the requests of one connection cost while they wait for their answers.

A request is charged when its handler has put the answer off, for only then is it known that it waits
at all. So the memory that all share may be used up and more. From then on

    a large request       is not looked at before there is room
    a small one           is: most are answered at once and cost nothing
    one that then waits   is the last of its connection that is looked at, until it is answered or
                          there is room

Rule 1: all connections together overdraw by no more than a small request each, and whatever used
        the memory up.
"""

from collections.abc import Callable

from penstock.broker.network.memory_budget import MemoryBudgets
from penstock.limits import DECODED_BYTES_WHEN_FULL
from penstock.protocol.connection import PendingReply


class RequestMemory:
    __slots__ = ("_budget", "_budgets", "_overdrawn", "_pause_reading", "_resume_reading")

    def __init__(
        self, budgets: MemoryBudgets, pause_reading: Callable[[], None], resume_reading: Callable[[], None]
    ) -> None:
        self._budget = budgets.decoded
        self._budgets = budgets
        self._pause_reading = pause_reading
        self._resume_reading = resume_reading
        self._overdrawn: PendingReply | None = None
        """The request that was accepted when there was no room for it."""

    def charge(self, pending: PendingReply) -> None:
        self._budget.overdraw(pending.charge_bytes)
        if self._budget.free_bytes < 0 and self._overdrawn is None:
            self._overdrawn = pending
            self._pause_reading()
            self._budget.wait(0, self._has_room)
            self._budgets.on_shortage()

    def discharge(self, pending: PendingReply) -> None:
        charge_bytes, pending.charge_bytes = pending.charge_bytes, 0
        self._budget.release(charge_bytes)
        if pending is self._overdrawn:
            self._budget.forget(self._has_room)
            self._has_room()

    def _has_room(self) -> None:
        self._overdrawn = None
        self._resume_reading()

    def drop(self) -> None:
        """The connection has ended. What is still charged is given back as its requests end."""
        self._budget.forget(self._has_room)
        self._overdrawn = None


def is_small(weight_bytes: int) -> bool:
    """Whether a request of this weight is looked at when the memory is used up."""
    return weight_bytes <= DECODED_BYTES_WHEN_FULL
