"""Virtual time: an event loop whose clock jumps to the next event.

Strategy: everything that waits, waits on a timer, so an hour takes as long as its events take. Two timers
for the same moment run in an order drawn from the seed, because no code may rely on that order. Callbacks
that are due at once run first in, first out, as in asyncio.

Rule 1: Nothing here reads a real clock or a socket.
Rule 2: If every task waits and no timer is set, the loop raises Deadlock.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from contextvars import Context
from random import Random
from typing import TypeVarTuple, Unpack

Arguments = TypeVarTuple("Arguments")


class Deadlock(Exception):
    """Every task waits and no timer is set."""


class VirtualTimeLoop(asyncio.BaseEventLoop):
    def __init__(self, random: Random, now: float = 0.0) -> None:
        super().__init__()
        self._random = random
        self._now = now
        self._due: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, float, int, asyncio.TimerHandle]] = []
        self._sequence = 0
        self.after_each: Callable[[], None] | None = None
        """Called after every event, for checks that always hold."""
        self.steps = 0

    @property
    def now(self) -> float:
        """The simulated time, independent of any process's clock."""
        return self._now

    def time(self) -> float:
        return self._now

    def call_soon(
        self,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._due.append(handle)
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.local_time(context) + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        when = self.simulated_time(when, context)
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._sequence += 1
        heapq.heappush(self._timers, (when, self._random.random(), self._sequence, timer))
        return timer

    def local_time(self, context: Context | None) -> float:
        """The time by the clock of the process that a callback with this context belongs to."""
        return self._now

    def simulated_time(self, local_time: float, context: Context | None) -> float:
        """The simulated time at which that clock shows `local_time`."""
        return local_time

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled timer stays in the heap and is skipped when it is due."""

    def _run_once(self) -> None:
        """Run one event: the next callback that is due, or else the next timer."""
        if not self._due:
            self._jump()
        handle = self._due.popleft()
        if not handle.cancelled() and self.may_run(handle):
            self.steps += 1
            handle._run()
            if self.after_each is not None:
                self.after_each()

    def may_run(self, handle: asyncio.Handle) -> bool:
        """Whether the callback may run now. False: it is kept back, or dropped."""
        return True

    def _jump(self) -> None:
        while self._timers:
            when, _, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled():
                self._now = max(self._now, when)
                self._due.append(timer)
                return
        raise Deadlock(f"at {self._now:.6f} s every task waits and no timer is set")
