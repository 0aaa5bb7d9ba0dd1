"""Processes of a simulated cluster: the owner of each callback, and whether it may run.

All processes of a cluster share one event loop. Whatever a process starts runs in a copy of its context, so
every callback can find its process. Callbacks of a paused process are kept until it is resumed.

A process has a clock of its own, which may run fast or slow. The loop returns that clock's time to it, and
its timers follow that clock.

Rule: A killed process is cancelled like any other, repeatedly until none of its tasks is left. Its disk,
      connections and store are cut off first, so that nothing its tasks do while they end has an effect.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any, Final

from penstock.sim.scheduler import VirtualTimeLoop

CANCEL_ROUNDS_MAX: Final = 10_000
ROUNDING_SECONDS: Final = 1e-9
ExceptionHandler = Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]


class SimProcess:
    """One life of one node. A restart creates another process."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.is_dead = False
        self.is_paused = False
        self.has_ended = False
        """Whether nothing of it is left. Callbacks that are due for it are then dropped."""
        self.has_run = False
        """Whether it has run since the flag was last cleared."""
        self.deferred: list[asyncio.Handle] = []
        """Callbacks that were due while it was paused, in order."""
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.on_exception: ExceptionHandler | None = None
        """Handles exceptions of this process's callbacks, as if it had the loop for itself."""
        self.rate = 1.0
        """How fast its clock runs: its seconds in one simulated second."""
        self.has_drifted = False
        self._drifts_since = self._local_time_then = 0.0

    def drift(self, rate: float, now: float) -> None:
        """Let its clock run at another rate from now on. Timers that are already set stay where they are."""
        self._local_time_then = self.local_time(now)
        self.rate, self.has_drifted, self._drifts_since = rate, True, now

    def local_time(self, now: float) -> float:
        return self._local_time_then + (now - self._drifts_since) * self.rate

    def global_time(self, local_time: float) -> float:
        """The simulated time for a local time, slightly later, so that rounding makes no timer run early."""
        return self._drifts_since + (local_time - self._local_time_then) / self.rate + ROUNDING_SECONDS

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the function as this process: everything that it starts belongs to the process."""
        self.has_run = True
        context = copy_context()
        context.run(_current.set, self)
        return context.run(function, *arguments)

    def __repr__(self) -> str:
        state = "dead" if self.is_dead else "paused" if self.is_paused else "running"
        return f"<SimProcess {self.host} {state}>"


NO_PROCESS = SimProcess("outside")
"""The owner of everything that belongs to no process: the simulation itself."""
_current: ContextVar[SimProcess] = ContextVar("process", default=NO_PROCESS)


def current_process() -> SimProcess:
    return _current.get()


def _process_of(context: Context | None) -> SimProcess:
    return _current.get() if context is None else context.get(_current, NO_PROCESS)


def _no_process_context() -> Context:
    context = copy_context()
    context.run(_current.set, NO_PROCESS)
    return context


NO_PROCESS_CONTEXT: Final = _no_process_context()
"""The context of what continues after its process has ended, such as bytes in flight."""


def _task_of_current_process(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
    **options: Any,
) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
    tasks = current_process().tasks
    tasks[task] = None
    task.add_done_callback(lambda ended: tasks.pop(ended, None))
    return task


class ProcessLoop(VirtualTimeLoop):
    """An event loop that runs only callbacks of running processes."""

    last_run: SimProcess = NO_PROCESS
    """The process of the last event."""

    # Time

    def time(self) -> float:
        return self.local_time(None)

    def local_time(self, context: Context | None) -> float:
        process = _process_of(context)
        return process.local_time(self._now) if process.has_drifted else self._now

    def simulated_time(self, local_time: float, context: Context | None) -> float:
        process = _process_of(context)
        return process.global_time(local_time) if process.has_drifted else local_time

    # Paused and ended processes

    def may_run(self, handle: asyncio.Handle) -> bool:
        # asyncio.Handle has no public accessor for its context.
        process: SimProcess = handle._context.get(_current, NO_PROCESS)  # type: ignore[attr-defined]
        if process.has_ended:
            return False
        if not process.is_paused or process.is_dead:
            self.last_run = process
            process.has_run = True
            return True
        process.deferred.append(handle)
        return False

    # Tasks and their processes

    def __init__(self, random: Random, now: float = 0.0) -> None:
        super().__init__(random, now)
        self.set_task_factory(_task_of_current_process)

    async def cancel_tasks(self, process: SimProcess) -> None:
        """End all tasks of a dead process, in no simulated time."""
        assert process.is_dead
        self.go_on(process)  # a task may wait for a callback that was kept back
        # A task may start another one, or delay its end, while it is cancelled.
        for _ in range(CANCEL_ROUNDS_MAX):
            if not process.tasks:
                break
            for task in tuple(process.tasks):
                task.cancel()
            await asyncio.sleep(0)
        assert not process.tasks, f"tasks of {process.host} do not end: {list(process.tasks)}"
        process.has_ended = True

    # Exceptions of callbacks

    def set_exception_handler(self, handler: ExceptionHandler | None) -> None:
        process = current_process()
        if process is NO_PROCESS:
            super().set_exception_handler(handler)
        else:
            process.on_exception = handler

    def get_exception_handler(self) -> ExceptionHandler | None:
        process = current_process()
        return super().get_exception_handler() if process is NO_PROCESS else process.on_exception

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.is_closed():
            return  # objects of an earlier simulation, collected during this one
        process = current_process() if self.last_run is NO_PROCESS else self.last_run
        if process.is_dead:
            return  # errors of a process that is being cancelled do not count
        if process.on_exception is not None:
            process.on_exception(self, context)
        else:
            super().call_exception_handler(context)

    def pause(self, process: SimProcess) -> None:
        process.is_paused = True

    def go_on(self, process: SimProcess) -> None:
        """Resume the process. Its callbacks that became due meanwhile run at once, in their order."""
        process.is_paused = False
        deferred, process.deferred = process.deferred, []
        self._due.extend(deferred)
