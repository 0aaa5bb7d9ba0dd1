"""Storage of all partitions while the broker runs: recovery, flushing, checkpoints, retention, and disk
failures.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from penstock.broker.storage.checkpoints import Checkpoints
from penstock.broker.storage.flusher import Flusher
from penstock.broker.storage.log_start_writer import LogStartWriter
from penstock.broker.storage.read_failures import ReadFailures
from penstock.broker.storage.retention import Retention
from penstock.config.broker import BrokerConfig
from penstock.config.topic import FlushPolicy
from penstock.errors import ApiError, CorruptData, StorageFailed, StorageFull
from penstock.host.clock import Clock
from penstock.host.disk import SmallFile, TooManyOpenFiles
from penstock.host.keyed_jobs import KeyedJobQueue
from penstock.host.worker import NewWorker, Worker
from penstock.limits import (
    CHECKPOINT_MS,
    CHECKPOINT_PARTITIONS_AT_ONCE,
    DISK_FULL_LOGGED_MS,
    PRODUCERS_EVICTED_LOGGED_MS,
    STORAGE_TICK_MS,
    VALIDATION_BYTES_WAITING_MAX,
)
from penstock.log.damaged_copies import CopySpaceNeeds
from penstock.log.data_directory import NOT_ADMITTED, DataDirectory
from penstock.log.producer_state import PRODUCER_LIMITS, ProducerLimits
from penstock.log.recovery import Recovered
from penstock.log.truncation import Truncation
from penstock.metadata.cluster_image import ClusterImage
from penstock.metadata.keys import topic_id_text
from penstock.observability.logs import Log
from penstock.replication.partition import Partition
from penstock.replication.replica_manager import LostPartition, ReplicaManager
from penstock.types import Offset, TopicId, TopicPartition

JobResult = TypeVar("JobResult")

# Looking an enum member up in its class costs as much as all the rest of a comparison.
BEFORE_ACK, INTERVAL = FlushPolicy.BEFORE_ACK, FlushPolicy.INTERVAL
TRUNCATION_PAUSE_MS: Final = 1_000
EVICTION_HELP: Final = (
    "a batch that these producers repeat is stored twice: see docs/operations.md, Many idempotent producers"
)
THREADS_THAT_SYNC: Final = 3
"""The flusher's thread, the thread for checkpoints, and at startup the thread that recovers the logs."""


class StorageLimits(NamedTuple):
    """How often the storage checks for due work, and how much it keeps in memory."""

    tick_ms: int = STORAGE_TICK_MS
    checkpoint_ms: int = CHECKPOINT_MS
    partitions_at_once: int = CHECKPOINT_PARTITIONS_AT_ONCE
    """Partitions whose checkpoints are planned in one iteration of the event loop."""
    producers: ProducerLimits = PRODUCER_LIMITS


STORAGE_LIMITS: Final = StorageLimits()


class Storage:
    def __init__(
        self,
        directory: DataDirectory,
        config: Callable[[], BrokerConfig],
        flusher: Flusher,
        worker: Worker,
        clock: Clock,
        log: Log,
        new_worker: NewWorker = Worker,
        limits: StorageLimits = STORAGE_LIMITS,
    ) -> None:
        self._limits = limits
        self._worker = worker
        self._directory = directory
        self._config = config
        self._clock = clock
        self._log = log
        self.flusher = flusher
        flusher.on_failure = self.fail
        self.checkpoints = Checkpoints(
            directory.disk,
            self._worker,
            self.flusher,
            log,
            interval_ms=limits.checkpoint_ms,
            partitions_at_once=limits.partitions_at_once,
        )
        self.starts = LogStartWriter(self._store_small_files, self.checkpoints.lock, self.fail, log)
        self.retention = Retention(directory.disk, self._worker, clock, log, self.damage)
        loop = asyncio.get_running_loop()
        self.deep_validations = KeyedJobQueue(
            lambda: new_worker("validate", loop), VALIDATION_BYTES_WAITING_MAX
        )
        self.partitions = ReplicaManager(
            directory, config(), self._written, self.deep_validations, clock.monotonic, limits.producers
        )
        self._read_failures = ReadFailures(
            self.damage, self.partitions.has_other_eligible_leader, clock.monotonic, log
        )
        self._flush_due: dict[Partition, float] = {}
        self._full_logged_at = -float("inf")
        self._evictions_logged, self._evictions_logged_at = 0, -float("inf")
        self._files_are_short = False
        self._copied_bytes: dict[tuple[TopicId, int], int] = {}
        """The expected final size, as far as is known, of each copy that is fetched anew after damage."""
        self.on_damage: Callable[[Partition], None] = _ignore_damage
        """Called with a partition that was just found damaged. In a cluster another replica may be sound."""

    # Opening and closing

    def open(self, image: ClusterImage) -> None:
        """Recover every partition. Blocks: nothing is served yet."""
        disk = self._directory.disk
        # File descriptors for fsync are opened now, so that running out of descriptors never prevents an
        # fsync.
        disk.reserve_sync_descriptors(self._directory.path, THREADS_THAT_SYNC)
        self._directory.remove_deleted(self._directory.deleted_folders())
        for name in self.partitions.strays(image):
            # Strays are never removed: if the metadata was lost, these files are the only copy of the
            # records.
            moved_to = self._directory.move_to_strays(name)
            self._log.warning("partition.stray_set_aside", partition=name, moved_to=moved_to)
        unsynced: list[Partition] = []
        for partition, found in self.partitions.open_all(image):
            if partition.log.is_dirty:
                unsynced.append(partition)
                if len(unsynced) >= self._limits.partitions_at_once:
                    self._sync_and_close(unsynced)
            else:
                partition.log.close_files()
            self._log_recovery(partition, found)
        self._sync_and_close(unsynced)

    def _log_recovery(self, partition: Partition, found: Recovered | LostPartition) -> None:
        if isinstance(found, LostPartition):
            self._log.error("partition.damaged", partition=partition.name, reason=found.reason)
        elif found.truncated_bytes or partition.log.recovery_point < partition.log.log_end_offset:
            self._log.info(
                "partition.recovered",
                partition=partition.name,
                scanned_bytes=found.scanned_bytes,
                truncated_bytes=found.truncated_bytes,
                log_end_offset=partition.log.log_end_offset,
            )

    def _sync_and_close(self, partitions: list[Partition]) -> None:
        """Sync what recovery found before any client sees it, a few open files at a time."""
        flushes = [(partition, partition.log.begin_flush()) for partition in partitions]
        files = [file for _, flush in flushes for file in flush.files]
        folders = sorted({folder for _, flush in flushes for folder in flush.folders})
        self._directory.disk.sync(files, folders)
        # Only after the fsync: `flushed` lets the high watermark cover these records.
        for partition, flush in flushes:
            partition.flushed(flush)
            partition.log.close_files()
        partitions.clear()

    async def checkpoint_recovered(self) -> None:
        """Advance recovery points to the log ends, so that another crash leaves nothing to recover."""
        await self.checkpoints.run([p for p in self.partitions if p.log.needs_checkpoint])

    async def close(self) -> None:
        """Make everything durable, close the files, and write the mark of a clean shutdown."""
        self.deep_validations.stop()
        try:
            if self.partitions.failure is None:
                await self.checkpoints.run(list(self.partitions))
        except StorageFailed as failure:
            self.fail(failure)
        reason = self._unclean_reason()
        notes = [
            self._directory.store_progress_file(),
            self._directory.inventory_file(self.partitions.inventory()),
        ]
        # The logs are closed before the mark is written: nothing may change on disk after the mark.
        for partition in self.partitions:
            partition.log.close()
        if reason is None:
            try:
                # A process that was never admitted leaves the inventory of the previous process in place
                # (partition_inventory.py).
                if self._directory.broker_epoch != NOT_ADMITTED:
                    await self.store(notes)
                await self._worker.run(self._directory.write_clean_shutdown_mark)
            except (StorageFull, StorageFailed) as problem:
                reason = str(problem)
        if reason is not None:
            self._log.warning("storage.no_clean_mark", reason=reason)
        self._directory.disk.close_sync_descriptors()

    def _unclean_reason(self) -> str | None:
        """Why the next start has something to recover; None if it has nothing."""
        if self.partitions.failure is not None:
            return self.partitions.failure
        for partition in self.partitions:
            if partition.offline_error is not None:
                return f"{partition.name} is offline: {partition.offline_error}"
            if partition.log.needs_checkpoint:
                return f"there was no room for the last checkpoint of {partition.name}"
        return None

    # While running

    def _written(self, partition: Partition) -> None:
        """Note that a partition has something to write to disk: a batch, or an index that was rebuilt."""
        self.checkpoints.touch(partition)
        policy = partition.flush_policy
        if policy is BEFORE_ACK:
            self.flusher.request(partition)
            return
        # With other policies a flush may be far off, and the flusher checks produce timeouts only of
        # partitions that it flushes or that are registered here.
        if partition.leading is not None:
            self.flusher.expect_replicas(partition)
        if policy is INTERVAL:
            log, config = partition.log, partition.config
            if log.log_end_offset - log.flushed_end_offset >= config.flush_messages:
                self.flusher.request(partition)
            else:
                self._flush_due.setdefault(partition, self._clock.monotonic() + config.flush_ms / 1000)

    async def run(self) -> None:
        """Task that expires produce timeouts and requests due flushes. It never waits for the disk."""
        while True:
            await asyncio.sleep(self._limits.tick_ms / 1000)
            now = self._clock.monotonic()
            self.flusher.expire_waits(now)
            self._log_evictions(now)
            if self.partitions.failure is None:
                self._flush_what_is_due(now)

    def _log_evictions(self, now: float) -> None:
        """Log that producers were evicted and lost idempotence early: one line with one example, not a line
        for each.
        """
        roll = self.partitions.producer_registry
        count = roll.evicted - self._evictions_logged
        if not count or (now - self._evictions_logged_at) * 1000 < PRODUCERS_EVICTED_LOGGED_MS:
            return
        self._evictions_logged, self._evictions_logged_at = roll.evicted, now
        evicted_from, roll.last_evicted_from = roll.last_evicted_from, None
        names = (each.name for each in self.partitions if each.log.producers is evicted_from)
        self._log.warning("producers.evicted", count=count, partition=next(names, None), help=EVICTION_HELP)

    async def run_checkpoints(self) -> None:
        """Task that advances recovery points. It waits for the disk, however long that takes."""
        while True:
            await asyncio.sleep(self._limits.tick_ms / 1000)
            if self.partitions.failure is not None:
                continue
            try:
                await self.checkpoints.run_due(self._clock.monotonic())
            except StorageFailed as failure:
                self.fail(failure)

    async def run_retention(self) -> None:
        """Task that removes segments by age and size. It may take long, and nothing waits for it."""
        checked_at = self._clock.monotonic()
        while True:
            await asyncio.sleep(self._limits.tick_ms / 1000)
            now, config = self._clock.monotonic(), self._config().log
            if (now - checked_at) * 1000 < config.retention_check_ms or self.partitions.failure is not None:
                continue
            checked_at = now
            now_ms = self._clock.wall_ms()
            for partition in tuple(self.partitions):
                partition.log.producers.expire(now_ms=now_ms, idle_ms_max=config.producer_expiry_ms)
                await self._enforce_retention(partition)
                if partition.log.is_dirty and partition.offline_error is None:
                    # A new segment was begun: its file stays open until it is synced.
                    self._written(partition)

    async def _enforce_retention(self, partition: Partition) -> None:
        try:
            await self.retention.enforce(partition)
        except (StorageFailed, StorageFull) as problem:
            self._log.warning("retention.postponed", partition=partition.name, reason=str(problem))

    def _flush_what_is_due(self, now: float) -> None:
        # A full descriptor table is relieved by syncing now: the files of synced segments can be closed.
        if self._files_are_short:
            self._files_are_short = False
            for partition in self.partitions:
                if partition.log.is_dirty:
                    self.flusher.request(partition)
        due = [partition for partition, at in self._flush_due.items() if at <= now]
        for partition in due:
            del self._flush_due[partition]
            self.flusher.request(partition)

    async def follow(self, before: ClusterImage, after: ClusterImage) -> None:
        """Apply a change of the cluster's metadata to the partitions on disk.

        The worker renames the folders of deleted topics, after whatever it is writing to them and before a
        topic of the same name can be created: that is a later metadata change.
        """
        gone = self.partitions.follow(before, after, self._config())
        if not gone:
            return
        try:
            pending_deletion = await self.with_reserve(lambda: self._directory.mark_deleted(gone))
        except (StorageFailed, StorageFull) as failure:
            # The remaining folders would block topics that are created under the same names.
            self.fail(StorageFailed(str(failure)))
            return
        self._worker.submit(lambda: self._directory.remove_deleted(pending_deletion), self._removed)

    def _removed(self, _: None, error: BaseException | None) -> None:
        if error is not None:
            self._log.warning("partition.not_removed", reason=str(error))

    async def delete_before(self, starts: Mapping[Partition, Offset]) -> Mapping[Partition, ApiError]:
        """Apply DeleteRecords: a new start counts once it survives a crash. Then what lies below it is
        removed.

        All starts are stored together. Returns the errors of the partitions that were rejected; their logs
        keep their starts. StorageFull, StorageFailed: it is unknown for every partition whether its start was
        stored.
        """
        due, refused = _due_deletions(starts)
        try:
            await self.starts.store({partition.log: start for partition, start in due.items()})
            for partition, start in due.items():
                try:
                    partition.require_online()  # the topic may have been deleted while the start was stored
                    assert partition.log.stored_start >= start, f"no start of {partition.name} was stored"
                    partition.delete_before(start)
                except ApiError as refusal:
                    refused[partition] = refusal
            deleted = [partition for partition in due if partition not in refused]
            await self.checkpoints.run(deleted)  # retention removes nothing above the recovery point
        except StorageFailed as failure:
            self.fail(failure)
            raise
        for partition in deleted:
            await self._enforce_retention(partition)
        return refused

    async def truncate(self, partition: Partition, truncation: Truncation) -> None:
        """Truncate a log to what it shares with its leader's log. Waits for space if the disk is full."""

        # Runs on the event loop in the callback of the worker, so no other task sees the log between the two
        # calls.
        def end(_: None) -> None:
            truncation.end()
            self.partitions.truncation_ended(partition)

        while True:
            try:
                await self._worker.run(truncation.run, on_result=end)
                return
            except StorageFull as full:
                self.note_full(full)
                if not self._directory.release_reserve():
                    await asyncio.sleep(TRUNCATION_PAUSE_MS / 1000)
                if partition.log.is_closed:
                    return  # the folder now belongs to another log, or to none

    async def _store_small_files(self, writes: Sequence[SmallFile]) -> None:
        await self.with_reserve(lambda: self._directory.disk.store(writes))

    async def store(self, writes: Sequence[SmallFile]) -> None:
        """Replace small files, each whole or not at all. StorageFull: there is no room, and the reserve is
        not used.
        """
        await self._worker.run(lambda: self._directory.disk.store(writes))

    async def with_reserve(self, job: Callable[[], JobResult]) -> JobResult:
        """Run a job that frees space, which must work on a full disk: it may use the reserved space.

        The worker makes the second attempt right after the first. Folders are renamed by the same worker, so
        both attempts see the same folder.
        """

        def attempt() -> JobResult:
            try:
                return job()
            except StorageFull:
                if not self._directory.release_reserve():
                    raise
                return job()

        return await self._worker.run(attempt)

    # Failing

    def note_full(self, full: StorageFull) -> None:
        """Log that there is no room for a client's records: every 30 seconds at most, not for every batch."""
        if isinstance(full, TooManyOpenFiles):
            self._files_are_short = True  # until everything written is synced, ahead of its usual time
        now = self._clock.monotonic()
        if (now - self._full_logged_at) * 1000 >= DISK_FULL_LOGGED_MS:
            self._full_logged_at = now
            self._log.warning("storage.full", reason=str(full))

    def fail(self, failure: StorageFailed) -> None:
        """Stop all writes after an I/O error. Nothing is retried: after a failed fsync it is unknown what is
        on disk.
        """
        if self.partitions.failure is None:
            self._log.error("storage.failed", reason=str(failure))
            self.partitions.stop_writes(str(failure))

    def read_failed(self, partition: Partition, problem: CorruptData | StorageFailed) -> None:
        """Handle a failed read of segments that were current when it failed."""
        if isinstance(problem, CorruptData):
            self.damage(partition, problem)
        else:
            self._read_failures.report(partition, problem)

    def damage(self, partition: Partition, damage: Exception) -> None:
        """Take a partition with unreliable files offline for good. Every way of finding damage leads here."""
        found = self.partitions.damage(partition, str(damage))
        if found is None:
            return
        self._log.error("partition.damaged", partition=found.name, reason=str(damage))
        if isinstance(damage, CorruptData) and self.partitions.failure is None:
            name = found.name
            # An I/O error is not recorded: the next start may find nothing wrong. A corrupt batch is
            # recorded, because recovery need not read that part of the log and would not find it again.
            self._worker.submit(
                lambda: self._directory.record_damage(name, str(damage)),
                lambda _, error: self._damage_noted(name, error),
            )
        # Called last: a cluster may hand the partition over at once, and by then it is offline here.
        self.on_damage(found)

    def _damage_noted(self, name: TopicPartition, error: BaseException | None) -> None:
        if isinstance(error, StorageFailed):
            self.fail(error)
        elif error is not None:
            self._log.warning(
                "partition.damage_not_noted",
                partition=name,
                reason=str(error),
                help="after a restart the copy is in use until the damage is read again",
            )

    async def replace_damaged(self, partition: Partition) -> bool:
        """Replace a damaged copy by an empty one that follows the leader.

        Returns False if the partition no longer needs a copy here. StorageFull (NoRoomForCopy),
        StorageFailed: the copy stays damaged, and the caller may try again.
        """
        empty = self.partitions.release_damaged(partition)
        name, mark, room = empty.name, topic_id_text(empty.topic_id), self._room_for(empty)
        # The worker makes one attempt only: before another the owner of the folder has to be checked again.
        discarded = await self._worker.run(lambda: self._directory.discard_damaged(name, mark, room))
        self._copied_bytes[empty.topic_id, name.partition] = max(discarded.size_bytes, room.copy_bytes_min)
        if not self.partitions.begin_replacement(empty):
            return False
        files = (
            {"files": "removed", "reason": "a copy does not fit beside them"}
            if discarded.moved_to is None
            else {"files": "kept", "moved_to": discarded.moved_to}
        )
        self._log.info(
            "partition.replacement_begins", partition=name, size_bytes=discarded.size_bytes, **files
        )
        return True

    def _room_for(self, empty: Partition) -> CopySpaceNeeds:
        """The space that copies fetched anew still need: this copy, and all others that are under way."""
        own = empty.topic_id, empty.name.partition
        lacking: dict[tuple[TopicId, int], int] = {}
        for key, size_bytes in self._copied_bytes.items():
            found = self.partitions.find_by_id(*key)
            if key == own or (found is not None and found.log.size_bytes < size_bytes):
                lacking[key] = size_bytes - (0 if found is None else found.log.size_bytes)
        self._copied_bytes = {key: self._copied_bytes[key] for key in lacking}
        lacking.pop(own, None)
        return CopySpaceNeeds(
            self._copied_bytes.get(own, 0),
            claimed_bytes=sum(lacking.values()),
            others_in_sync=self.partitions.others_in_sync(empty),
        )


def _due_deletions(
    starts: Mapping[Partition, Offset],
) -> tuple[dict[Partition, Offset], dict[Partition, ApiError]]:
    """The log start offsets that have to be stored, and the errors of those that cannot be."""
    due: dict[Partition, Offset] = {}
    refused: dict[Partition, ApiError] = {}
    for partition, offset in starts.items():
        try:
            partition.require_deletable(offset)
        except ApiError as refusal:
            refused[partition] = refusal
            continue
        start = max(offset, partition.log.log_start_offset)  # retention moves the start without storing it
        if start > partition.log.stored_start:
            due[partition] = start
    return due, refused


def _ignore_damage(partition: Partition) -> None:
    """Do nothing: a standalone broker has no other replica, and only rejects requests for the partition."""
