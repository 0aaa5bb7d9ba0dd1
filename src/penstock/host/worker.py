"""Worker thread for calls that wait for a device.

Jobs of one worker run one after another, in the order in which they were submitted. The result returns to the
event loop. A plain thread and a queue: the pool in the standard library costs several times as much for each
job, and a produce request waits for two of these hand-overs.
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
"""Longer than the event loop takes to wake up: after less, the thread would hold the GIL again."""


def yield_gil() -> None:
    """Let other threads run Python code for a moment.

    A computing thread keeps the GIL for a whole switch interval, 5 ms by default, and every callback of the
    event loop waits as long. Code that computes for long in a worker thread calls this about every half a
    millisecond.
    """
    time.sleep(YIELD_GIL_S)


class Worker:
    """One thread with its queue."""

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
        """Run `function` in the thread and return its result.

        `only_if_awaited`: not run if the caller is cancelled before the job starts. `on_result` gets the
        result before the caller does, even if the caller has been cancelled.
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
        """Stop the thread after every submitted job is done."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, done = job
            result, error = None, None
            try:
                result = function()
            except BaseException as problem:  # passed to `done` of the job
                error = problem
            self._loop.call_soon_threadsafe(done, result, error)


NewWorker = Callable[[str, asyncio.AbstractEventLoop], Worker]


class WorkerPool:
    """Several workers for jobs without side effects: cold reads, lookups. A job whose caller was cancelled
    before it starts is not run.
    """

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
