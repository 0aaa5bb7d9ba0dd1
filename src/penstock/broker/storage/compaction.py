"""Keeps compacted logs compact: the shell around log/compaction/cleanable.py.

Now and then it looks at every compacted partition and ranks those that are worth it; then it has one
after another cleaned in a process of its own, and puts each segment that comes back in the place of
those it stands for, before the next is made. As long as something is worth cleaning it goes on without
a pause. Looking costs a turn of the worker for each partition, so a ranking is used to its end, unless
it gets too old; a log is looked at once more when its turn comes.

Rule 1: a log that is damaged stays as it is, and its partition is taken out of use (`Storage.damage`): in
        a cluster a sound replica leads it then. One whose files the device fails to read or write is left
        alone until the next start. One that found no room, or whose cleaner died or made a mistake, is
        tried again, each time after twice as long. Others are cleaned all the same.
Rule 2: what was cleaned counts only if the segments it came from are still those of the log.
Rule 3: the cleaned segments first, then the note of how far the log is clean
        (log/compaction/cleaner_offsets.py). A crash between them cleans again what is clean already. The
        storage thread writes the note, and truncates logs: a note that was given to it before a truncation
        is on disk when that removes it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from penstock.broker.storage.partition_storage import Storage
from penstock.config.broker import CleanerConfig
from penstock.config.topic import TopicConfig
from penstock.errors import ConfigError, CorruptData, StorageFailed, StorageFull
from penstock.host.child_process import ChildDied
from penstock.host.clock import Clock
from penstock.host.worker import Worker
from penstock.limits import CLEANER_IDLE_MS_MAX, MINUTE_MS, SECOND_MS
from penstock.log.compaction.cleanable import (
    CleaningPolicy,
    LogToClean,
    is_worth_cleaning,
    measure_log_to_clean,
    must_roll,
    ranked,
)
from penstock.log.compaction.cleaner_offsets import FILE_NAME, cleaner_offset_file
from penstock.log.compaction.cleaning_job import (
    CleanerFailed,
    CleaningJob,
    CleaningResult,
    CleaningStep,
    Replacement,
)
from penstock.log.compaction.cleaning_plan import (
    CleaningSetup,
    age_of_active,
    are_current,
    job_for,
    safe_end,
    segment_ages,
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
from penstock.log.trusted_time import TrustedTime
from penstock.metadata.cluster_image import ClusterImage
from penstock.observability.logs import Log
from penstock.replication.partition import Partition
from penstock.types import TopicPartition

RETRY_MS_MIN: Final = 15 * SECOND_MS
RETRY_MS_MAX: Final = 10 * MINUTE_MS
RANKING_MS_MAX: Final = 15 * SECOND_MS
"""A log that becomes overdue while others are cleaned waits for so long, and for the cleaning under way."""


class Cleaner(Protocol):
    """Whatever carries out a cleaning away from the loop."""

    async def begin(self, job: CleaningJob) -> CleaningStep: ...

    async def go_on(self) -> CleaningStep:
        """What was made is to be taken over before the next step is asked for."""
        ...

    async def abandon(self) -> None:
        """The cleaning that was begun is not gone on with: when this returns, nothing writes any more."""
        ...

    def interrupt(self) -> None:
        """Nobody wants the answer any more: whoever waits for it is told so."""
        ...

    async def shut_down(self) -> None:
        """There was nothing to do for a while."""
        ...


class CompactionDependencies(NamedTuple):
    directory: DataDirectory
    worker: Worker
    clock: Clock
    log: Log


class PostponedCleaning(NamedTuple):
    """A cleaning that came to nothing, for a reason that may pass."""

    reason: str
    retry_ms: int
    retry_at: float


class Compaction:
    def __init__(
        self,
        storage: Storage,
        config: Callable[[], CleanerConfig],
        cleaner: Cleaner,
        means: CompactionDependencies,
    ) -> None:
        self._storage = storage
        self._config = config
        self.cleaner = cleaner
        self._directory, self._worker, self._clock, self._log = means
        self.postponed_cleanings: dict[Partition, PostponedCleaning] = {}
        """Logs that are to be tried again, later."""
        self.uncleanable: dict[Partition, str] = {}
        """Logs that are left alone, and why."""
        self.cleanings = 0
        self.failures = 0
        """Of this process: cleanings that came to their end, and those that did not."""
        self._trusted = TrustedTime(self._clock.wall_ms(), self._clock.monotonic())
        self._lock = asyncio.Lock()
        self._ranking: deque[tuple[Partition, LogToClean]] = deque()
        """What was worth cleaning when all logs were looked at, the dirtiest first."""
        self._ranked_at = self._clock.monotonic()
        self._unopened: dict[Partition, int] = {}
        """How many batches of a log that cannot be opened were spoken of."""
        self._being_cleaned: Partition | None = None

    def open(self) -> None:
        """Remove the file of earlier versions, which spoke of all logs. Blocks: nothing is served yet.

        A row of it may be about a log that was replaced by another copy since, so none is believed. A
        process of such a version that finds it gone cleans every log from its start, which is safe.
        """
        disk, path = self._directory.disk, f"{self._directory.logs_path}/{FILE_NAME}"
        if disk.exists(path):
            disk.remove(path)
            self._log.info("compaction.begins_anew", reason=f"{path} was of an earlier version")

    async def run(self) -> None:
        """The task. Ends when it is cancelled."""
        busy_at = self._clock.monotonic()
        while True:
            await asyncio.sleep(self._config().backoff_ms / 1000)
            if not self._config().is_enabled:
                continue
            while await self.clean_dirtiest():
                busy_at = self._clock.monotonic()
            if (self._clock.monotonic() - busy_at) * 1000 >= CLEANER_IDLE_MS_MAX:
                await self.cleaner.shut_down()

    async def clean_dirtiest(self) -> TopicPartition | None:
        """Clean the log that needs it most. Returns its name; None if none does."""
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
            log_to_clean = await self._dirt_of(partition) if self._is_candidate(partition) else None
            if log_to_clean is not None:
                return partition, log_to_clean
        await self._rank()
        return self._ranking.popleft() if self._ranking else None

    async def _rank(self) -> None:
        """Look at every log."""
        self._forget_the_gone()
        candidates = []
        for partition in tuple(self._storage.partitions):
            log_to_clean = await self._dirt_of(partition) if self._is_candidate(partition) else None
            if log_to_clean is not None:
                candidates.append((partition, log_to_clean))
        self._ranking = deque(ranked(candidates))
        self._ranked_at = self._clock.monotonic()

    def _forget_the_gone(self) -> None:
        """And keep for a partition what was found out about its log under another leader epoch."""
        now = {partition.log: partition for partition in self._storage.partitions}
        self._unopened = {now[known.log]: n for known, n in self._unopened.items() if known.log in now}
        self.uncleanable = {
            now[known.log]: why for known, why in self.uncleanable.items() if known.log in now
        }
        self.postponed_cleanings = {
            now[known.log]: back for known, back in self.postponed_cleanings.items() if known.log in now
        }

    def _is_candidate(self, partition: Partition) -> bool:
        return (
            partition.config.is_compacted
            and partition.offline is None
            and partition.failure is None
            and partition not in self.uncleanable
            and not self._is_set_aside(partition)
        )

    def _is_set_aside(self, partition: Partition) -> bool:
        setback = self.postponed_cleanings.get(partition)
        return setback is not None and self._clock.monotonic() < setback.retry_at

    async def follow(self, before: ClusterImage, after: ClusterImage) -> None:
        """The cluster's metadata changed, and the storage has followed."""
        if self._being_cleaned is not None and self._being_cleaned.offline is not None:
            self.cleaner.interrupt()

    # Deciding

    async def _dirt_of(self, partition: Partition) -> LogToClean | None:
        """What there is to clean; None if it is not worth it."""
        policy, now_ms = _policy(partition.config), self._clock.wall_ms()
        log = partition.log
        files_version = log.files_version
        try:
            if log.has_stable_segments and must_roll(age_of_active(log), policy, now_ms):
                log.roll()
                self._storage.checkpoints.touch(partition)
            if safe_end(log, partition.high_watermark) < log.active.base_offset:
                await self._storage.checkpoints.run([partition])  # cleaning stops at the recovery point
            # Timestamps of old segments may have to be read from the device.
            ages = await self._worker.run(lambda: segment_ages(log, policy))
        except CorruptData as damage:
            if log.is_unchanged_since(files_version):
                self._storage.damage(partition, damage)
            return None  # otherwise it met what is not there any more, and the next look is as good
        except (StorageFailed, StorageFull) as problem:
            self._log.warning("compaction.postponed", partition=partition.name, reason=str(problem))
            return None
        if partition.offline is not None:
            return None  # its topic was deleted meanwhile
        safe = safe_end(log, partition.high_watermark)
        log_to_clean = measure_log_to_clean(ages, log.clean_to, safe, policy, now_ms)
        return log_to_clean if is_worth_cleaning(log_to_clean, policy) else None

    # Cleaning

    async def _clean(self, partition: Partition, log_to_clean: LogToClean) -> None:
        job = job_for(partition.log, log_to_clean, self._setup(partition))
        if partition.offline is not None or not job.segments:
            return  # while others were looked at, retention removed what was dirty, or somebody the topic
        self._being_cleaned = partition
        waiting, truncation_count = job.segments, partition.log.truncation_count
        try:
            step = await self.cleaner.begin(job)
            while isinstance(step, Replacement):
                if truncation_count != partition.log.truncation_count or not await self._swap(
                    partition, step
                ):
                    await self._abandon(partition)
                    return
                waiting = [piece for piece in waiting if piece.base_offset >= step.end_offset]
                step = await self.cleaner.go_on()
            if (
                truncation_count != partition.log.truncation_count
                or partition.log.is_truncating
                or partition.log.is_closed
            ):
                await self._abandon(partition)
                return
            await self._end(partition, step)
        except (CorruptData, StorageFailed, StorageFull, ConfigError, CleanerFailed, ChildDied) as failure:
            log = partition.log
            is_current = (
                truncation_count == log.truncation_count
                and not log.is_truncating
                and are_current(log, waiting)
            )
            if partition.offline is None and is_current:
                self._note_failure(partition, failure)
                await self.cleaner.abandon()
            else:
                await self._abandon(partition)
        finally:
            self._being_cleaned = None
            self._worker.submit(lambda: discard_cleaned(self._directory.disk, job.folder), self._discarded)

    async def _abandon(self, partition: Partition) -> None:
        self._log.info("compaction.overtaken", partition=partition.name)
        await self.cleaner.abandon()

    async def _end(self, partition: Partition, cleaned: CleaningResult) -> None:
        log = partition.log
        log.clean_to = cleaned.end_offset
        note = cleaner_offset_file(log.folder, cleaned.end_offset)
        await self._worker.run(lambda: self._directory.disk.store([note]))
        self.postponed_cleanings.pop(partition, None)
        self.cleanings += 1
        self._log_cleaned(partition, cleaned)

    def _note_failure(self, partition: Partition, failure: Exception) -> None:
        """Said once, however often it is tried again, unless for another reason."""
        self.failures += 1
        reason, before = str(failure), self.postponed_cleanings.get(partition)
        if isinstance(failure, CorruptData):
            self._storage.damage(partition, failure)
            return
        if isinstance(failure, StorageFailed):
            self.uncleanable[partition] = reason
            self._log.error("compaction.failed", partition=partition.name, reason=reason)
            return
        retry_ms = RETRY_MS_MIN if before is None else min(2 * before.retry_ms, RETRY_MS_MAX)
        self.postponed_cleanings[partition] = PostponedCleaning(
            reason, retry_ms, self._clock.monotonic() + retry_ms / 1000
        )
        if before is None or before.reason != reason:
            self._log.warning("compaction.postponed", partition=partition.name, reason=reason)

    def _setup(self, partition: Partition) -> CleaningSetup:
        config = self._config()
        self._trusted.observe(now_ms := self._clock.wall_ms(), self._clock.monotonic())
        retention_ms = partition.config.delete_retention_ms
        return CleaningSetup(
            now_ms,
            self._trusted.now_ms(retention_ms),
            retention_ms,
            config.memory_bytes,
            config.bytes_per_second_max,
        )

    async def _swap(self, partition: Partition, replacement: Replacement) -> bool:
        """Put a cleaned segment in its place. False if the log has changed there since."""
        disk, log = self._directory.disk, partition.log
        if log.is_closed or not log.has_stable_segments or not replaced_segments(log, replacement):
            return False
        # Whoever is cancelled in here leaves it so: the mark on disk may outlive this process.
        log.is_swapping = True
        try:
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
            log.is_swapping = False
            raise
        except StorageFailed as failure:
            # Half of it may be done. A restart completes it; until then the log cannot be relied on.
            if partition.offline is None:
                self._storage.damage(partition, failure)
            raise
        log.is_swapping = False
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
        if cleaned.unopened > self._unopened.get(partition, 0):
            self._unopened[partition] = cleaned.unopened
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
