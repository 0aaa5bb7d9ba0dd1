"""Long computations, away from the loop, in turn.

Jobs of one key are run and reported in the order they were given. Only one of each key is with the
thread at a time, so that the keys take turns however much one of them asks for. The thread is
started with the first job: most brokers never need it.

Rule 1: a result is reported before the next job of its key begins.
Rule 2: what waits is bounded by its size, and whoever comes beyond that is told at once.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from penstock.host.worker import Job, Worker

Result = TypeVar("Result")


class Turns:
    def __init__(self, start_worker: Callable[[], Worker], bytes_max: int) -> None:
        self._start_worker = start_worker
        self._bytes_max = bytes_max
        self._bytes = 0
        self._worker: Worker | None = None
        self._waiting: dict[object, deque[tuple[int, Job]]] = {}
        """By key; the first of each is with the worker."""
        self._is_stopped = False

    def add(
        self,
        key: object,
        size_bytes: int,
        function: Callable[[], Result],
        done: Callable[[Result | None, BaseException | None], None],
    ) -> bool:
        """Run `function` when its turn comes, then `done(result, error)` on the loop.

        False: too much waits already, or the thread was stopped. One that is alone is always taken.
        """
        if self._is_stopped or (self._bytes and self._bytes + size_bytes > self._bytes_max):
            return False
        self._bytes += size_bytes
        queue = self._waiting.setdefault(key, deque())
        queue.append((size_bytes, (function, done)))
        if len(queue) == 1:
            self._begin(key)
        return True

    def _begin(self, key: object) -> None:
        if self._worker is None:
            self._worker = self._start_worker()
        _, (function, _) = self._waiting[key][0]
        self._worker.submit(
            lambda: None if self._is_stopped else function(),
            lambda result, error: self._end(key, result, error),
        )

    def _end(self, key: object, result: Any, error: BaseException | None) -> None:
        if self._is_stopped:
            return
        size_bytes, (_, done) = self._waiting[key].popleft()
        self._bytes -= size_bytes
        try:
            done(result, error)
        finally:
            if self._waiting[key]:
                self._begin(key)
            else:
                del self._waiting[key]

    def stop(self) -> None:
        """What has not been reported never is. Waits for the job that is being run."""
        self._is_stopped = True
        self._waiting.clear()
        if self._worker is not None:
            self._worker.stop()
