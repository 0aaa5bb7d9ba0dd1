"""Queue of long computations, run in a thread, fairly by key.

Jobs of one key run and are reported in the order in which they were added. Only one job of each key is with
the thread at a time, so that keys alternate however many jobs one of them has. The first job starts the
thread: most brokers never need it.

Rule 1: a result is reported before the next job of its key begins.
Rule 2: waiting jobs are limited in total size, and for each key in number and to a share of that size. A job
        beyond a limit is rejected at once.
Rule 3: a job may be dropped until it is reported. Later jobs keep their order.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

from penstock.host.worker import Worker
from penstock.limits import VALIDATIONS_PER_PARTITION_MAX

Result = TypeVar("Result")
KEY_SHARE_DIVISOR: Final = 4
"""A key may use this fraction of the total size, so that one key cannot block all others."""


class KeyedJob:
    """A job in the queue. Compared by identity."""

    __slots__ = ("done", "function", "is_dropped", "key", "size_bytes")

    def __init__(
        self,
        key: object,
        size_bytes: int,
        function: Callable[[], Any],
        done: Callable[[Any, BaseException | None], None],
    ) -> None:
        self.key = key
        self.size_bytes = size_bytes
        self.function = function
        self.done = done
        self.is_dropped = False


class _Queue:
    """Jobs of one key."""

    __slots__ = ("jobs", "size_bytes")

    def __init__(self) -> None:
        self.jobs: dict[KeyedJob, None] = {}
        """In the order of arrival; the first one is with the worker."""
        self.size_bytes = 0

    @property
    def first(self) -> KeyedJob:
        return next(iter(self.jobs))


class KeyedJobQueue:
    """Queue of one thread."""

    def __init__(
        self,
        start_worker: Callable[[], Worker],
        bytes_max: int,
        jobs_per_key_max: int = VALIDATIONS_PER_PARTITION_MAX,
    ) -> None:
        self._start_worker = start_worker
        self.bytes_max = bytes_max
        self._jobs_per_key_max = jobs_per_key_max
        self._bytes = 0
        self._worker: Worker | None = None
        self._waiting: dict[object, _Queue] = {}
        self._emptied: asyncio.Event | None = None
        """Set when nothing is left, for `drain`."""
        self._is_stopped = False

    def __len__(self) -> int:
        return sum(len(queue.jobs) for queue in self._waiting.values())

    def has_room(self, key: object, size_bytes: int) -> bool:
        """Whether a job of this size can be added. A job is always accepted if no other one waits."""
        if self._is_stopped or (self._bytes and self._bytes + size_bytes > self.bytes_max):
            return False
        queue = self._waiting.get(key)
        return queue is None or (
            len(queue.jobs) < self._jobs_per_key_max
            and queue.size_bytes + size_bytes <= self.bytes_max // KEY_SHARE_DIVISOR
        )

    def add(
        self,
        key: object,
        size_bytes: int,
        function: Callable[[], Result],
        done: Callable[[Result | None, BaseException | None], None],
    ) -> KeyedJob | None:
        """Run `function` in the thread, then `done(result, error)` on the loop.

        None: too many jobs wait already, or the queue was stopped.
        """
        if not self.has_room(key, size_bytes):
            return None
        job = KeyedJob(key, size_bytes, function, done)
        queue = self._waiting.setdefault(key, _Queue())
        queue.jobs[job] = None
        queue.size_bytes += size_bytes
        self._bytes += size_bytes
        if len(queue.jobs) == 1:
            self._begin(job)
        return job

    def drop(self, job: KeyedJob) -> bool:
        """Drop a job: it is not reported, and not run unless already running. False: it was reported or
        dropped.
        """
        queue = self._waiting.get(job.key)
        if queue is None or job.is_dropped or job not in queue.jobs:
            return False
        job.is_dropped = True
        if job is not queue.first:  # the first one stays until the thread returns it
            self._remove(queue, job)
        return True

    def _remove(self, queue: _Queue, job: KeyedJob) -> None:
        del queue.jobs[job]
        queue.size_bytes -= job.size_bytes
        self._bytes -= job.size_bytes

    def _begin(self, job: KeyedJob) -> None:
        if self._worker is None:
            self._worker = self._start_worker()
        self._worker.submit(
            lambda: None if self._is_stopped or job.is_dropped else job.function(),
            lambda result, error: self._end(job, result, error),
        )

    def _end(self, job: KeyedJob, result: Any, error: BaseException | None) -> None:
        if self._is_stopped:
            return
        queue = self._waiting[job.key]
        self._remove(queue, job)
        try:
            if not job.is_dropped:
                # Before the next job of this key begins (rule 1).
                job.done(result, error)
        finally:
            if queue.jobs:
                self._begin(queue.first)
            else:
                del self._waiting[job.key]
                if self._emptied is not None and not self._waiting:
                    self._emptied.set()

    async def drain(self) -> None:
        """Wait until every job has been reported."""
        while self._waiting:
            self._emptied = asyncio.Event()
            await self._emptied.wait()

    def stop(self) -> None:
        """Stop: jobs that were not reported never are. Waits for the running job."""
        self._is_stopped = True
        self._waiting.clear()
        if self._worker is not None:
            self._worker.stop()
