"""Owner of asyncio tasks: every task has an owner and an end.

A `Tasks` owns the tasks that it starts. A task that fails is reported once, through the callback, and the
owner handles the failure. `stop` cancels the running tasks and waits for them to end.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Tasks:
    """Tasks of one owner."""

    def __init__(self, on_failure: Callable[[str, BaseException], None]) -> None:
        self._on_failure = on_failure
        self._running: dict[asyncio.Task[None], None] = {}
        """In the order of their start, in which they are also stopped."""

    def start(self, coroutine: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task

    async def stop(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._running.pop(task, None)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._on_failure(task.get_name(), failure)
