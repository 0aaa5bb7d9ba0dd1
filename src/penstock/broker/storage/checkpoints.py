"""Advances recovery points, so that a start after a crash has little to read.

A checkpoint makes three things durable together: the log up to an offset, its indexes, and the producer state
as of that offset. It is due after 64 MB or five seconds of writing.
"""

import asyncio
from collections.abc import Sequence

from penstock.broker.storage.flusher import Flusher
from penstock.chunks import chunks
from penstock.errors import StorageFailed, StorageFull
from penstock.host.disk import Disk, TooManyOpenFiles
from penstock.host.worker import Worker
from penstock.limits import CHECKPOINT_BYTES, CHECKPOINT_MS, CHECKPOINT_PARTITIONS_AT_ONCE
from penstock.log.checkpoint_plan import Checkpoint, IndexWrite
from penstock.log.transactions.aborted_index import AbortedRows
from penstock.observability.logs import Log
from penstock.replication.partition import Partition

Planned = list[tuple[Partition, Checkpoint]]
FILES_AT_ONCE_MAX = 64
FILES_AT_ONCE_SHARE = 4
"""A checkpoint has at most 64 files open, or a quarter of the open files that the disk allows if that is
less.
"""


class Checkpoints:
    def __init__(
        self,
        disk: Disk,
        worker: Worker,
        flusher: Flusher,
        log: Log,
        *,
        interval_ms: int = CHECKPOINT_MS,
        partitions_at_once: int = CHECKPOINT_PARTITIONS_AT_ONCE,
    ) -> None:
        """`partitions_at_once`: number of partitions planned in one iteration of the event loop."""
        self._interval_ms = interval_ms
        self._partitions_at_once = partitions_at_once
        self._disk = disk
        self._worker = worker
        self._flusher = flusher
        self._log = log
        self._touched: dict[Partition, None] = {}
        self._warm: list[Partition] = []
        self._since_all = 0.0
        self.lock = asyncio.Lock()
        """Held from the plan of a checkpoint until the checkpoint is on disk, and by all others that write
        the same files.
        """

    def touch(self, partition: Partition) -> None:
        """Note that the partition was written to."""
        self._touched[partition] = None

    async def run_due(self, now: float) -> None:
        """Checkpoint all written partitions every five seconds, and earlier those with 64 MB since the last
        checkpoint.
        """
        if (now - self._since_all) * 1000 >= self._interval_ms:
            self._since_all = now
            touched = list(self._touched)
            await self.run(touched)
            await self._close_files_of_idle(touched)
            return
        large = [p for p in self._touched if p.log.bytes_since_checkpoint >= CHECKPOINT_BYTES]
        await self.run(large)

    async def _close_files_of_idle(self, touched: list[Partition]) -> None:
        """Close the files of partitions that were written before the last checkpoint, but not since."""
        warm, self._warm = self._warm, touched
        for group in chunks(warm, self._partitions_at_once):
            _close_files([partition for partition in group if partition not in self._touched])
            await asyncio.sleep(0)

    async def run(self, partitions: Sequence[Partition]) -> None:
        """Checkpoint partitions in groups, so that planning many never blocks the event loop for long."""
        for group in chunks(partitions, self._partitions_at_once):
            # One checkpoint at a time: an earlier plan of a partition must not be written after a later plan.
            async with self.lock:
                await self._run_group(group)
            await asyncio.sleep(0)

    async def _run_group(self, partitions: Sequence[Partition]) -> None:
        planned: Planned = []
        for partition in partitions:
            self._touched.pop(partition, None)
            if partition.offline_error is None and partition.log.needs_checkpoint:
                planned.append((partition, partition.log.begin_checkpoint()))
        if not planned:
            return
        try:
            # The log first: a recovery point must not cover records that a crash can still lose.
            await self._flusher.flush_to([(partition, plan.recovery_point) for partition, plan in planned])
            # The topic was deleted meanwhile, or the partition object belongs to an old leader epoch and its
            # log to a new object.
            self._abandon([entry for entry in planned if entry[0].offline_error is not None])
            planned = [entry for entry in planned if entry[0].offline_error is None]
            await self._worker.run(lambda: _carry_out(self._disk, planned))
        except StorageFull as full:
            self._log.warning("checkpoint.postponed", reason=str(full))
            self._abandon(planned)
            if isinstance(full, TooManyOpenFiles):
                # Frees descriptors for the next attempt.
                _close_files([partition for partition, _ in planned])
        except (StorageFailed, asyncio.CancelledError):
            # The disk failed, and nothing is written any more; or the broker stops, and makes a last
            # checkpoint afterwards.
            self._abandon(planned)
            raise
        else:
            self._finish(planned)

    def _abandon(self, planned: Planned) -> None:
        for partition, _ in planned:
            partition.log.abandon_checkpoint()
            self.touch(partition)

    def _finish(self, planned: Planned) -> None:
        needless: list[str] = []
        for partition, plan in planned:
            if not partition.log.is_closed:
                needless += partition.log.end_checkpoint(plan, partition.high_watermark)
        self._worker.submit(lambda: _remove(self._disk, needless), self._removed)

    def _removed(self, _: None, error: BaseException | None) -> None:
        if error is not None:
            self._log.warning("checkpoint.snapshot_not_removed", reason=str(error))


def _carry_out(disk: Disk, planned: Planned) -> None:
    """Write planned checkpoints. Blocks. If a topic is deleted meanwhile, the same worker renames its folder
    afterwards.
    """
    at_once = max(1, min(FILES_AT_ONCE_MAX, disk.open_files_max // FILES_AT_ONCE_SHARE))
    for writes in chunks([write for _, plan in planned for write in plan.indexes.writes], at_once):
        _write_indexes(disk, writes)
    # In their order: everything that a snapshot relies on is durable before the snapshot is.
    for stored in chunks([stored for _, plan in planned for stored in plan.render_stored()], at_once):
        disk.store(stored)


def _write_indexes(disk: Disk, writes: Sequence[IndexWrite | AbortedRows]) -> None:
    files = []
    try:
        for write in writes:
            file = disk.open(write.path, create=True)
            files.append(file)
            file.write(write.position, write.render())
        disk.sync(files, sorted({write.path.rpartition("/")[0] for write in writes}))
    finally:
        for file in files:
            file.release()


def _close_files(partitions: Sequence[Partition]) -> None:
    for partition in partitions:
        if not partition.log.is_dirty:
            partition.log.close_files()


def _remove(disk: Disk, paths: list[str]) -> None:
    for path in paths:
        disk.remove(path)
