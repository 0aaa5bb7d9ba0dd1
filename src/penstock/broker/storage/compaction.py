"""Runs log compaction: the I/O and scheduling around log/compaction/cleanable.py.

At intervals the task checks every compacted partition and ranks the logs that are worth cleaning. A child
process cleans one log after another. Each cleaned segment replaces its source segments before the cleaner
makes the next one. The task continues without a pause as long as a log is worth cleaning. Checking a
partition costs a job of the storage worker, so a ranking is used to its end unless it gets older than 15
seconds. A log is checked once more right before it is cleaned.

Rule 1: a damaged log is not cleaned, and its partition goes offline (`Storage.damage`): in a cluster a sound
        replica then leads it. A log whose files the device fails to read or write is not cleaned again before
        the next start. A log for which there was no room, or whose cleaner died or failed, is tried again,
        each time after twice as long. Such logs do not delay the others.
Rule 2: a cleaned segment is used only if its source segments are still segments of the log.
Rule 3: the cleaned segments are in place before the offset up to which the log is clean is stored
        (log/compaction/cleaner_offsets.py). A crash between the two cleans again what is clean already. The
        storage thread both stores that offset and truncates logs, so an offset that was passed to it before a
        truncation is on disk when the truncation removes it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from penstock.broker.storage.partition_storage import Storage
from penstock.config.broker import CleanerConfig
from penstock.config.topic import TopicConfig
from penstock.errors import ConfigError, CorruptData, StorageFailed, StorageFull
from penstock.host.backoff import Backoff
from penstock.host.child_process import ChildProcessEnded
from penstock.host.clock import Clock
from penstock.host.worker import Worker
from penstock.limits import CLEANER_IDLE_MS_MAX, MINUTE_MS, SECOND_MS
from penstock.log.compaction.batch_filter import DeleteHorizons
from penstock.log.compaction.cleanable import (
    CleaningPolicy,
    LogToClean,
    is_worth_cleaning,
    measure_log_to_clean,
    must_roll,
    ranked,
)
from penstock.log.compaction.cleaner_offsets import cleaner_offset_file
from penstock.log.compaction.cleaning_job import (
    CleanerFailed,
    CleaningJob,
    CleaningResult,
    CleaningStep,
    Replacement,
)
from penstock.log.compaction.cleaning_plan import (
    are_current,
    job_for,
    safe_end,
    segment_facts,
)
from penstock.log.compaction.swap import (
    cancel_swap,
    commit_swap,
    complete_swap,
    discard_cleaned,
    replaced_segments,
    swap_in,
)
from penstock.log.data_directory import DataDirectory
from penstock.log.file_uses import FileUse
from penstock.log.partition_log import PartitionLog
from penstock.log.trusted_time import TrustedTime
from penstock.metadata.cluster_image import ClusterImage
from penstock.observability.logs import Log
from penstock.replication.partition import Partition
from penstock.types import TopicPartition

RETRY_MS_MIN: Final = 15 * SECOND_MS
RETRY_MS_MAX: Final = 10 * MINUTE_MS
RANKING_MS_MAX: Final = 15 * SECOND_MS
"""Longest wait of a log that becomes overdue while others are cleaned, besides the current cleaning."""


class Cleaner(Protocol):
    """Cleaner of one log at a time, outside the event loop."""

    async def begin(self, job: CleaningJob) -> CleaningStep: ...

    async def go_on(self) -> CleaningStep:
        """Continue with the next segment. The caller has swapped in the previous one."""
        ...

    async def abandon(self) -> None:
        """Stop the current cleaning. When this returns, the cleaner writes nothing more."""
        ...

    def interrupt(self) -> None:
        """Fail the current request at once: its result is no longer needed."""
        ...

    async def shut_down(self) -> None:
        """Release the cleaner's process after an idle time."""
        ...


class CompactionDependencies(NamedTuple):
    directory: DataDirectory
    worker: Worker
    clock: Clock
    log: Log


class PostponedCleaning(NamedTuple):
    """A cleaning that failed for a reason that may pass."""

    reason: str
    backoff: Backoff
    retry_at: float


class Compaction:
    def __init__(
        self,
        storage: Storage,
        config: Callable[[], CleanerConfig],
        cleaner: Cleaner,
        dependencies: CompactionDependencies,
    ) -> None:
        self._storage = storage
        self._config = config
        self.cleaner = cleaner
        self._directory, self._worker, self._clock, self._log = dependencies
        # By log, because a partition object changes with every leader epoch.
        self.postponed_cleanings: dict[PartitionLog, PostponedCleaning] = {}
        """Logs that are cleaned again later."""
        self.uncleanable: dict[PartitionLog, str] = {}
        """Logs that are not cleaned again, and why."""
        self.cleanings = 0
        self.failures = 0
        """Counts of this process: cleanings that completed, and cleanings that failed."""
        self._trusted = TrustedTime(self._clock.wall_ms(), self._clock.monotonic())
        self._lock = asyncio.Lock()
        self._ranking: deque[tuple[Partition, LogToClean]] = deque()
        """The logs that were worth cleaning at the last check of all logs, dirtiest first."""
        self._ranked_at = self._clock.monotonic()
        self._unopened: dict[PartitionLog, int] = {}
        """For each log, how many batches the cleaner could not open and kept whole, as last logged."""
        self._being_cleaned: Partition | None = None

    async def run(self) -> None:
        """Task that cleans logs. Ends when it is cancelled."""
        busy_at = self._clock.monotonic()
        while True:
            await asyncio.sleep(self._config().backoff_ms / 1000)
            if not self._config().is_enabled:
                continue
            while await self.clean_dirtiest():
                busy_at = self._clock.monotonic()
            # The process and its key map take memory, so an idle cleaner is stopped.
            if (self._clock.monotonic() - busy_at) * 1000 >= CLEANER_IDLE_MS_MAX:
                await self.cleaner.shut_down()

    async def clean_dirtiest(self) -> TopicPartition | None:
        """Clean the dirtiest log. Returns its name; None if no log is worth cleaning."""
        async with self._lock:
            self._trusted.observe(self._clock.wall_ms(), self._clock.monotonic())
            if self._storage.partitions.failure is not None:
                return None
            found = await self._dirtiest()
            if found is None:
                return None
            await self._clean(*found)
            return found[0].name

    async def _dirtiest(self) -> tuple[Partition, LogToClean] | None:
        while self._ranking and (self._clock.monotonic() - self._ranked_at) * 1000 < RANKING_MS_MAX:
            partition, _ = self._ranking.popleft()
            if (log_to_clean := await self.find_log_to_clean(partition)) is not None:
                return partition, log_to_clean
        await self._rank()
        return self._ranking.popleft() if self._ranking else None

    async def _rank(self) -> None:
        """Check every log and rank those worth cleaning."""
        for known in (self.postponed_cleanings, self.uncleanable, self._unopened):
            for log in [log for log in known if log.is_closed]:
                del known[log]
        candidates = [
            (partition, log_to_clean)
            for partition in tuple(self._storage.partitions)
            if (log_to_clean := await self.find_log_to_clean(partition)) is not None
        ]
        self._ranking = deque(ranked(candidates))
        self._ranked_at = self._clock.monotonic()

    def _is_candidate(self, partition: Partition) -> bool:
        postponed = self.postponed_cleanings.get(partition.log)
        return (
            partition.config.is_compacted
            and partition.offline_error is None
            and partition.disk_error is None
            and partition.log not in self.uncleanable
            and (postponed is None or self._clock.monotonic() >= postponed.retry_at)
        )

    async def follow(self, before: ClusterImage, after: ClusterImage) -> None:
        """Interrupt the cleaning of a partition that went offline. Runs after the storage has applied the
        change.
        """
        if self._being_cleaned is not None and self._being_cleaned.offline_error is not None:
            self.cleaner.interrupt()

    # Deciding

    async def find_log_to_clean(self, partition: Partition) -> LogToClean | None:
        """Measure what can be cleaned; None if it is not worth cleaning."""
        if not self._is_candidate(partition):
            return None
        policy, now_ms = _policy(partition.config), self._clock.wall_ms()
        log = partition.log
        files_version = log.files_version
        try:
            if log.has_stable_segments and must_roll(log.active.first_timestamp, policy, now_ms):
                log.roll()
                self._storage.checkpoints.touch(partition)
            if safe_end(log, partition.last_stable_offset) < log.active.base_offset:
                await self._storage.checkpoints.run([partition])  # cleaning stops at the recovery point
            # Reading the timestamps of old segments may wait for the device.
            facts = await self._worker.run(lambda: segment_facts(log, policy))
        except CorruptData as damage:
            if log.is_unchanged_since(files_version):
                self._storage.damage(partition, damage)
            return None  # the read met a file that was removed meanwhile; the next check repeats it
        except (StorageFailed, StorageFull) as problem:
            self._log.warning("compaction.postponed", partition=partition.name, reason=str(problem))
            return None
        if partition.offline_error is not None:
            return None  # its topic was deleted meanwhile
        safe = safe_end(log, partition.last_stable_offset)
        log_to_clean = measure_log_to_clean(facts, log.clean_to, safe, policy, now_ms)
        return log_to_clean if is_worth_cleaning(log_to_clean, policy) else None

    # Cleaning

    async def _clean(self, partition: Partition, log_to_clean: LogToClean) -> None:
        log = partition.log
        config = self._config()
        job = job_for(
            log,
            log_to_clean,
            self._horizons(partition),
            memory_bytes=config.memory_bytes,
            bytes_per_second_max=config.bytes_per_second_max,
        )
        if partition.offline_error is not None or not job.segments:
            return  # retention removed the dirty segments meanwhile, or the topic was deleted
        self._being_cleaned = partition
        truncation_count = log.truncation_count

        def is_truncated() -> bool:
            # Checked before every use of a result: other records may be at the offsets that are cleaned.
            return log.is_truncating or log.truncation_count != truncation_count

        waiting = job.segments
        try:
            step = await self.cleaner.begin(job)
            while isinstance(step, Replacement):
                if is_truncated() or not await self._swap(partition, step):
                    await self._abandon(partition)
                    return
                waiting = [piece for piece in waiting if piece.base_offset >= step.end_offset]
                step = await self.cleaner.go_on()
            # Checked again: the last segment may have been truncated after its swap, and then the log is not
            # clean to the end.
            if is_truncated() or log.is_closed:
                await self._abandon(partition)
                return
            await self._end(partition, step)
        except (
            CorruptData,
            StorageFailed,
            StorageFull,
            ConfigError,
            CleanerFailed,
            ChildProcessEnded,
        ) as failure:
            # A failure counts only if the cleaner read current segments. Otherwise it met files that were
            # replaced.
            if partition.offline_error is None and not is_truncated() and are_current(log, waiting):
                self._note_failure(partition, failure)
                await self.cleaner.abandon()
            else:
                await self._abandon(partition)
        finally:
            self._being_cleaned = None
            # Runs behind all earlier jobs of the storage thread, so no swap still needs the files that it
            # removes.
            self._worker.submit(lambda: discard_cleaned(self._directory.disk, job.folder), self._discarded)

    async def _abandon(self, partition: Partition) -> None:
        self._log.info("compaction.overtaken", partition=partition.name)
        await self.cleaner.abandon()

    async def _end(self, partition: Partition, cleaned: CleaningResult) -> None:
        log = partition.log
        # In memory first: a truncation that runs before the note is on disk lowers this value and removes the
        # note.
        log.clean_to = cleaned.end_offset
        note = cleaner_offset_file(log.folder, cleaned.end_offset)
        await self._worker.run(lambda: self._directory.disk.store([note]))
        if not log.transactions.aborted.is_stored:
            self._storage.checkpoints.touch(partition)  # it has the checksums of the new segments' indexes
        self.postponed_cleanings.pop(log, None)
        self.cleanings += 1
        self._log_cleaned(partition, cleaned)

    def _note_failure(self, partition: Partition, failure: Exception) -> None:
        """Handle a failed cleaning. The reason is logged once, and again only when it changes."""
        self.failures += 1
        reason, before = str(failure), self.postponed_cleanings.get(partition.log)
        if isinstance(failure, CorruptData):
            self.postponed_cleanings.pop(partition.log, None)
            self._storage.damage(partition, failure)
            return
        if isinstance(failure, StorageFailed):
            self.postponed_cleanings.pop(partition.log, None)
            self.uncleanable[partition.log] = reason
            self._log.error("compaction.failed", partition=partition.name, reason=reason)
            return
        backoff = Backoff(RETRY_MS_MIN, RETRY_MS_MAX) if before is None else before.backoff
        retry_at = self._clock.monotonic() + backoff.next_delay_s()
        self.postponed_cleanings[partition.log] = PostponedCleaning(reason, backoff, retry_at)
        if before is None or before.reason != reason:
            self._log.warning("compaction.postponed", partition=partition.name, reason=reason)

    def _horizons(self, partition: Partition) -> DeleteHorizons:
        self._trusted.observe(now_ms := self._clock.wall_ms(), self._clock.monotonic())
        retention_ms = partition.config.delete_retention_ms
        return DeleteHorizons(now_ms, self._trusted.now_ms(retention_ms), retention_ms)

    async def _swap(self, partition: Partition, replacement: Replacement) -> bool:
        """Replace source segments by a cleaned segment. Returns False if the log changed there meanwhile."""
        disk, log = self._directory.disk, partition.log
        if not log.has_stable_segments or not replaced_segments(log, replacement):
            return False
        # A cancellation does not end this use: the commit mark on disk may outlive this process, so the log
        # must not change before a restart has completed the swap.
        log.file_uses.begin(FileUse.SWAP)
        try:
            # The commit mark is durable before a source segment is removed. A crash after it completes the
            # swap.
            await self._worker.run(lambda: commit_swap(disk, log.folder, replacement))
            if log.is_closed:
                return False
            try:
                taken = swap_in(log, replacement)
            except StorageFull:
                await self._worker.run(lambda: cancel_swap(disk, log.folder, replacement))
                raise
            await self._worker.run(lambda: complete_swap(disk, taken))
        except StorageFull:
            log.file_uses.end(FileUse.SWAP)
            raise
        except StorageFailed as failure:
            # The swap may be half done. A restart completes it; until then the log cannot be used.
            if partition.offline_error is None:
                self._storage.damage(partition, failure)
            raise
        log.file_uses.end(FileUse.SWAP)
        return True

    def _discarded(self, _: None, error: BaseException | None) -> None:
        if error is not None:
            self._log.warning("compaction.not_discarded", reason=str(error))

    def _log_cleaned(self, partition: Partition, cleaned: CleaningResult) -> None:
        self._log.info(
            "compaction.cleaned",
            partition=partition.name,
            clean_to=cleaned.end_offset,
            keys=cleaned.keys,
            bytes_before=cleaned.bytes_before,
            bytes_after=cleaned.bytes_after,
            records_removed=cleaned.records_removed,
            keyless_removed=cleaned.keyless_removed,
        )
        if cleaned.unopened > self._unopened.get(partition.log, 0):
            self._unopened[partition.log] = cleaned.unopened
            self._log.warning(
                "compaction.unopened",
                partition=partition.name,
                batches=cleaned.unopened,
                first_offset=cleaned.first_unopened,
            )


def _policy(config: TopicConfig) -> CleaningPolicy:
    return CleaningPolicy(
        dirty_ratio_min=config.min_cleanable_dirty_ratio,
        lag_ms_min=config.min_compaction_lag_ms,
        lag_ms_max=config.max_compaction_lag_ms,
    )
