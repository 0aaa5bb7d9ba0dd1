"""Threads that are none: a job takes effect when its turn comes and is reported some time later.

That is the harder case for whoever waits: what is appended between the two is not covered by a sync
that has not yet been reported. The power may fail before, between and after.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from penstock.errors import CorruptData, StorageFailed, StorageFull
from penstock.host.worker import Worker
from penstock.sim.disk import PowerLost
from penstock.sim.scheduler import VirtualTimeLoop

Result = TypeVar("Result")
DoneCallback = Callable[[Any, BaseException | None], None]


class SimWorker(Worker):
    """One after another, in the order they were given, like the real one."""

    def __init__(self, loop: VirtualTimeLoop, delay: Callable[[], float]) -> None:
        self._loop = loop
        self._delay = delay
        self._waiting: deque[tuple[Callable[[], Any], DoneCallback]] = deque()
        self._busy = False

    def submit(
        self, function: Callable[[], Result], done: Callable[[Result | None, BaseException | None], None]
    ) -> None:
        self._waiting.append((function, done))
        if not self._busy:
            self._busy = True
            self._loop.call_later(self._delay(), self._begin)

    def _begin(self) -> None:
        function, done = self._waiting.popleft()
        result, error = None, None
        try:
            result = function()
        except (StorageFull, StorageFailed, CorruptData, PowerLost) as problem:
            error = problem
        self._loop.call_later(self._delay(), self._end, done, result, error)

    def _end(self, done: DoneCallback, result: object, error: BaseException | None) -> None:
        self._busy = bool(self._waiting)
        if self._waiting:
            self._loop.call_soon(self._begin)
        done(result, error)

    def stop(self) -> None:
        """There is no thread to wait for."""
