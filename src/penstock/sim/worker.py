"""Simulated worker threads: a job takes effect at one moment and is reported some time later.

That is the harder case for the caller: a record that is appended in between is not covered by a sync that
has not been reported yet. The power may fail before, between and after.
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
    """Runs jobs one after another in the order of submission, like the real worker."""

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
        """Do nothing: there is no thread to wait for."""
