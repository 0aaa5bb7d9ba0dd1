"""A thread for work that waits for a device.

Jobs of one worker run one after another, in the order they were given. The result comes back to the
event loop. A plain thread and a queue: the pool in the standard library costs several times as much
for each job, and a produce waits for two of these hand-overs.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, TypeVar

Result = TypeVar("Result")
WorkerJob = tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]

YIELD_GIL_S: Final = 0.0002
"""Longer than the event loop takes to wake up: it would find the interpreter taken again after less."""


def yield_gil() -> None:
    """Let other threads run Python code for a moment.

    A thread that computes keeps the interpreter for a whole switch interval, 5 ms unless set otherwise,
    and the event loop waits as long for every turn. Code that computes for long in a worker thread calls
    this every half a millisecond or so.
    """
    time.sleep(YIELD_GIL_S)


class Worker:
    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[WorkerJob | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(
        self, function: Callable[[], Result], done: Callable[[Result | None, BaseException | None], None]
    ) -> None:
        """Run `function` in the thread, then `done(result, error)` on the loop."""
        self._jobs.put((function, done))

    async def run(
        self,
        function: Callable[[], Result],
        *,
        only_if_awaited: bool = False,
        on_result: Callable[[Result], None] | None = None,
    ) -> Result:
        """`only_if_awaited`: not begun if the caller is cancelled before its turn comes.

        `on_result` gets the result before the caller does, also if the caller has been cancelled.
        """
        assert on_result is None or not only_if_awaited
        outcome: asyncio.Future[Result] = self._loop.create_future()

        def begin() -> Result | None:
            return None if outcome.cancelled() else function()

        def done(result: Result | None, error: BaseException | None) -> None:
            if on_result is not None and error is None:
                on_result(result)  # type: ignore[arg-type]
            if outcome.cancelled():
                return
            if error is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(result)  # type: ignore[arg-type]

        self.submit(begin if only_if_awaited else function, done)
        return await outcome

    def stop(self) -> None:
        """Waits until every job that was given is done."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, done = job
            result, error = None, None
            try:
                result = function()
            except BaseException as problem:  # handed to whoever gave the job
                error = problem
            self._loop.call_soon_threadsafe(done, result, error)


NewWorker = Callable[[str, asyncio.AbstractEventLoop], Worker]


class WorkerPool:
    """Several workers for jobs that only look: cold reads, lookups. One that nobody awaits any more
    when its turn comes is not begun."""

    def __init__(
        self, name: str, size: int, loop: asyncio.AbstractEventLoop, new_worker: NewWorker = Worker
    ) -> None:
        self._workers = [new_worker(f"{name}-{number}", loop) for number in range(size)]
        self._next = 0

    def _choose(self) -> Worker:
        self._next = (self._next + 1) % len(self._workers)
        return self._workers[self._next]

    def submit(
        self, function: Callable[[], Result], done: Callable[[Result | None, BaseException | None], None]
    ) -> None:
        self._choose().submit(function, done)

    async def run(self, function: Callable[[], Result]) -> Result:
        return await self._choose().run(function, only_if_awaited=True)

    def stop(self) -> None:
        for worker in self._workers:
            worker.stop()
