"""Makes appended records durable: one flusher for each data directory.

Everything that is appended during a flush shares the next flush, so all requests that wait for a flush share
the cost of its fsyncs. The next flush may be delayed for a fraction of a millisecond, so that more requests
share it (broker/storage/group_commit.py).

Rule 1: only the flusher syncs log files, one flush at a time. The kernel reports a failed writeback once for
        each open file. With a second sync beside it, the error could be reported to the wrong one.
Rule 2: a failed fsync stops all writes to this data directory for good. Nothing is retried: after the failure
        the page cache no longer holds the pages that were not written.
"""

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum

from penstock.broker.storage.group_commit import GroupCommit
from penstock.errors import StorageFailed
from penstock.host.clock import Clock
from penstock.host.file_sync import FileSync
from penstock.host.syscalls.short_timer import ShortTimer
from penstock.log.partition_log import Flush
from penstock.replication.partition import Partition
from penstock.types import Offset


class FlushState(Enum):
    IDLE = 0
    SCHEDULED = 1
    """The flush starts, or is delayed, at the end of this loop iteration."""
    DELAYED = 2
    RUNNING = 3
    FAILED = 4


class Flusher:
    def __init__(self, file_sync: FileSync, timer: ShortTimer, clock: Clock) -> None:
        self._file_sync = file_sync
        self._timer = timer
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self.on_failure: Callable[[StorageFailed], None] = lambda failure: None
        """Called when a sync has failed. The owner of the data directory sets it."""
        self._state = FlushState.IDLE
        self._group_commit = GroupCommit()
        self._dirty: dict[Partition, None] = {}
        self._appends = 0
        """Requests for the next flush."""
        self._flushing: dict[Partition, None] = {}
        self._awaited: dict[Partition, None] = {}
        """Partitions that are flushed and have produce requests that wait for other replicas."""
        self._waits: list[_FlushWait] = []

    def request(self, partition: Partition) -> None:
        """Flush a partition soon: it has records that must become durable."""
        self._dirty[partition] = None
        self._appends += 1
        # A flush starts at the end of this loop iteration, and includes everything appended until then.
        if self._state is FlushState.IDLE:
            self._schedule(self._begin_or_delay)
        elif self._state is FlushState.DELAYED and self._group_commit.is_complete(self._appends):
            self._timer.cancel()
            self._schedule(self._begin_delayed)

    def _schedule(self, step: Callable[[], None]) -> None:
        self._state = FlushState.SCHEDULED
        self._loop.call_soon(step)

    def expect_replicas(self, partition: Partition) -> None:
        """Check the timeouts of a partition whose produce requests may wait for replicas, without a flush."""
        self._awaited[partition] = None

    async def flush_to(self, targets: Sequence[tuple[Partition, Offset]]) -> None:
        """Wait until each partition is durable up to its offset. StorageFailed: it never will be."""
        waiter = _FlushWait(targets, self._loop.create_future())
        if self._state is FlushState.FAILED:
            raise StorageFailed("an earlier sync of the data directory failed")
        if not waiter.is_reached():
            for partition, _ in targets:
                self.request(partition)
            self._waits.append(waiter)
            await waiter.outcome

    def _begin_or_delay(self) -> None:
        delay_s = self._group_commit.delay_s(self._appends)
        if delay_s > 0:
            self._state = FlushState.DELAYED
            self._timer.start(delay_s, self._begin_delayed)
        else:
            self._begin()

    def _begin_delayed(self) -> None:
        self._group_commit.delayed(self._appends)
        self._begin()

    def _begin(self) -> None:
        # `begin_flush` fixes the flushed offset before the fsync starts: records appended during it belong to
        # the next one.
        self._flushing, self._dirty = self._dirty, {}
        flushes = [
            (partition, partition.log.begin_flush())
            for partition in self._flushing
            if partition.offline_error is None
        ]
        files = [file for _, flush in flushes for file in flush.files]
        folders = sorted({folder for _, flush in flushes for folder in flush.folders})
        self._state = FlushState.RUNNING
        appends, self._appends = self._appends, 0
        began = self._clock.monotonic()

        def ended(error: BaseException | None) -> None:
            took_s = self._clock.monotonic() - began
            self._group_commit.flushed(took_s, appends=appends, arrived=self._appends)
            self._end(flushes, error)

        self._file_sync.sync(files, folders, ended)

    def _end(self, flushes: list[tuple[Partition, Flush]], error: BaseException | None) -> None:
        if error is not None:
            self._fail(error)
            return
        self._state = FlushState.SCHEDULED  # so that no reply below starts a flush of its own
        self._flushing = {}
        try:
            # Only after the fsync succeeded: this advances the high watermark and acknowledges produce
            # requests.
            for partition, flush in flushes:
                partition.flushed(flush)
                if partition.leading is not None and partition.high_watermark_waits.queue:
                    self._awaited[partition] = None
            self._wake()
        finally:
            # Also when a reply has raised: otherwise nothing would be flushed any more.
            if self._dirty:
                self._begin_or_delay()
            else:
                self._state = FlushState.IDLE

    def _fail(self, error: BaseException) -> None:
        # Rule 2: set before the callback, so that no new flush starts.
        self._state = FlushState.FAILED
        failure = (
            error if isinstance(error, StorageFailed) else StorageFailed(f"the flusher failed: {error!r}")
        )
        self.on_failure(failure)
        waits, self._waits = self._waits, []
        for wait in waits:
            if not wait.outcome.done():
                wait.outcome.set_exception(failure)

    def _wake(self) -> None:
        still = []
        for wait in self._waits:
            if not wait.is_reached():
                still.append(wait)
            elif not wait.outcome.done():
                wait.outcome.set_result(None)
        self._waits = still

    def expire_waits(self, now: float) -> None:
        """Fail produce requests whose time is up while the disk or a replica is still slow."""
        for partition in (*self._flushing, *self._dirty):
            partition.expire_waits(now)
        self._awaited = {partition: None for partition in self._awaited if partition.expire_waits(now)}


class _FlushWait:
    __slots__ = ("_targets", "outcome")

    def __init__(self, targets: Sequence[tuple[Partition, Offset]], outcome: "asyncio.Future[None]") -> None:
        self._targets = targets
        self.outcome = outcome

    def is_reached(self) -> bool:
        """Whether all offsets are durable. A partition that went offline has nothing left to wait for."""
        return all(
            partition.offline_error is not None or partition.log.flushed_end_offset >= offset
            for partition, offset in self._targets
        )
