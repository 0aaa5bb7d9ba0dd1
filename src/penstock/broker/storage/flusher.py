"""Makes appended records durable: one flusher for each data directory.

Everything that is appended during a flush shares the next flush, so all requests that wait for a flush share
the cost of its fsyncs.

Rule 1: only the flusher syncs log files, one flush at a time. The kernel reports a failed writeback once for
        each open file. With a second sync beside it, the error could be reported to the wrong one.
Rule 2: a failed fsync stops all writes to this data directory for good. Nothing is retried: after the failure
        the page cache no longer holds the pages that were not written.
"""

import asyncio
from collections.abc import Callable, Sequence

from penstock.errors import StorageFailed
from penstock.host.file_sync import FileSync
from penstock.log.partition_log import Flush
from penstock.replication.partition import Partition
from penstock.types import Offset


class Flusher:
    def __init__(self, file_sync: FileSync, on_failure: Callable[[StorageFailed], None]) -> None:
        self._file_sync = file_sync
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._dirty: dict[Partition, None] = {}
        self._running = False
        self._scheduled = False
        self._failed = False
        self._flushing: dict[Partition, None] = {}
        self._awaited: dict[Partition, None] = {}
        """Partitions that are flushed and have produce requests that wait for other replicas."""
        self._waits: list[_FlushWait] = []

    def request(self, partition: Partition) -> None:
        """Flush a partition soon: it has records that must become durable."""
        self._dirty[partition] = None
        if not (self._running or self._scheduled or self._failed):
            # The flush begins at the end of this loop iteration, and includes everything appended until then.
            self._scheduled = True
            self._loop.call_soon(self._begin)

    def expect_replicas(self, partition: Partition) -> None:
        """Check the timeouts of a partition whose produce requests may wait for replicas, without a flush."""
        self._awaited[partition] = None

    async def flush_to(self, targets: Sequence[tuple[Partition, Offset]]) -> None:
        """Wait until each partition is durable up to its offset. StorageFailed: it never will be."""
        waiter = _FlushWait(targets, self._loop.create_future())
        if self._failed:
            raise StorageFailed("an earlier sync of the data directory failed")
        if not waiter.is_reached():
            for partition, _ in targets:
                self.request(partition)
            self._waits.append(waiter)
            await waiter.outcome

    def _begin(self) -> None:
        self._scheduled = False
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
        self._running = True
        self._file_sync.sync(files, folders, lambda error: self._end(flushes, error))

    def _end(self, flushes: list[tuple[Partition, Flush]], error: BaseException | None) -> None:
        self._running = False
        if error is not None:
            self._fail(error)
            return
        self._flushing = {}
        # Only after the fsync succeeded: this advances the high watermark and acknowledges produce requests.
        for partition, flush in flushes:
            partition.flushed(flush)
            if partition.leading is not None and partition.high_watermark_waits.queue:
                self._awaited[partition] = None
        self._wake()
        if self._dirty:
            self._begin()

    def _fail(self, error: BaseException) -> None:
        # Rule 2: set before the callback, so that no new flush starts.
        self._failed = True
        failure = (
            error if isinstance(error, StorageFailed) else StorageFailed(f"the flusher failed: {error!r}")
        )
        self._on_failure(failure)
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
