"""Keeps compacted logs compact: the shell around log/compaction.py.

Now and then it looks at every compacted partition, has the dirtiest cleaned in a process of its own,
and puts what comes back in the place of what was there. As long as something is worth cleaning it
goes on without a pause.

Rule 1: a log that cannot be cleaned stays as it is and is left alone until the next start. Others
        are cleaned all the same.
Rule 2: what was cleaned counts only if the segments it came from are still those of the log.
Rule 3: the cleaned segments first, then the note of how far the log is clean. A crash between them
        cleans again what is clean already.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

from penstock.broker.storage import Storage
from penstock.config.broker import CleanerConfig
from penstock.config.topic import TopicConfig
from penstock.errors import ConfigError, CorruptData, StorageFailed, StorageFull
from penstock.host.child_process import ChildDied
from penstock.host.clock import Clock
from penstock.host.disk import Stored
from penstock.host.worker import Worker
from penstock.limits import CLEANER_IDLE_MS_MAX
from penstock.log.cleaner_offsets import FILE_NAME, parse_offsets, render_offsets
from penstock.log.cleaning_job import Cleaned, Job, Replacement
from penstock.log.cleaning_plan import (
    CleaningSetup,
    age_of_active,
    are_current,
    job_for,
    safe_end,
    segment_ages,
)
from penstock.log.compaction import (
    CleaningPolicy,
    Dirt,
    dirtiest,
    is_worth_cleaning,
    measure_dirt,
    must_roll,
)
from penstock.log.data_directory import DataDirectory
from penstock.log.swap import decide, discard, replaced_segments, take_over, tidy, undecide
from penstock.metadata.image import ClusterImage
from penstock.observability.logs import Log
from penstock.replication.partition import Partition
from penstock.types import Offset, TopicPartition


class Cleaner(Protocol):
    """Whatever carries out a cleaning away from the loop."""

    async def clean(self, job: Job) -> Cleaned: ...

    def give_up(self) -> None:
        """Nobody wants the answer any more: whoever waits for it is told so."""
        ...

    async def rest(self) -> None:
        """There was nothing to do for a while."""
        ...


class Means(NamedTuple):
    directory: DataDirectory
    worker: Worker
    clock: Clock
    log: Log


class Compaction:
    def __init__(
        self, storage: Storage, config: Callable[[], CleanerConfig], cleaner: Cleaner, means: Means
    ) -> None:
        self._storage = storage
        self._config = config
        self.cleaner = cleaner
        self._directory, self._worker, self._clock, self._log = means
        self._path = f"{self._directory.logs_path}/{FILE_NAME}"
        self._clean_to: dict[Partition, Offset] = {}
        """The first dirty offset of each log that was cleaned."""
        self._postponed: set[Partition] = set()
        """What found no room the last time; the pass after it looks at others first."""
        self._rows_on_disk = 0
        self.uncleanable: dict[Partition, str] = {}
        """Logs that are left alone, and why."""
        self._turn = asyncio.Lock()
        self._being_cleaned: Partition | None = None

    def open(self) -> None:
        """Read how far the logs are clean. Blocks: nothing is served yet."""
        disk = self._directory.disk
        if not disk.exists(self._path):
            return
        try:
            offsets = parse_offsets(disk.read_file(self._path))
        except CorruptData as damage:
            self._log.warning("compaction.begins_anew", reason=str(damage))
            return
        self._rows_on_disk = len(offsets)
        for partition in self._storage.partitions:
            if (offset := offsets.get(partition.name)) is not None:
                self._clean_to[partition] = offset

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
                await self.cleaner.rest()

    async def clean_dirtiest(self) -> TopicPartition | None:
        """Clean the log that needs it most. Returns its name; None if none does."""
        async with self._turn:
            if self._storage.partitions.failure is not None:
                return None
            await self._forget_the_gone()
            candidates = []
            for partition in tuple(self._storage.partitions):
                dirt = await self._dirt_of(partition) if self._is_candidate(partition) else None
                if dirt is not None:
                    candidates.append((partition, dirt))
            others = [each for each in candidates if each[0] not in self._postponed]
            found = dirtiest(others or candidates)
            if found is None:
                return None
            self._postponed.clear()
            await self._clean(*found)
            return None if found[0] in self._postponed else found[0].name

    async def _forget_the_gone(self) -> None:
        """A topic that is made anew under the same name begins dirty."""
        present = set(self._storage.partitions)
        self._clean_to = {name: offset for name, offset in self._clean_to.items() if name in present}
        self.uncleanable = {name: reason for name, reason in self.uncleanable.items() if name in present}
        if len(self._clean_to) < self._rows_on_disk:
            with suppress(StorageFull):  # they do no harm before one of their names is used again
                await self._store_offsets()

    def _is_candidate(self, partition: Partition) -> bool:
        return (
            partition.config.is_compacted
            and partition.offline is None
            and partition.read_only is None
            and partition not in self.uncleanable
        )

    async def follow(self, before: ClusterImage, after: ClusterImage) -> None:
        """The cluster's metadata changed, and the storage has followed.

        What is noted of a topic that is gone must be gone too before its name is used again: a new
        topic that is believed to be clean would lose its tombstones and keep what they delete.
        """
        if self._being_cleaned is not None and self._being_cleaned.offline is not None:
            self.cleaner.give_up()
        if before.topics is not after.topics and self._rows_on_disk:
            await self._forget_the_gone()

    # Deciding

    async def _dirt_of(self, partition: Partition) -> Dirt | None:
        """What there is to clean; None if it is not worth it."""
        policy, now_ms = _policy(partition.config), self._clock.wall_ms()
        log = partition.log
        try:
            if must_roll(age_of_active(log), policy, now_ms):
                log.roll()
                self._storage.checkpoints.touch(partition)
            if safe_end(log, partition.high_watermark) < log.active.base_offset:
                await self._storage.checkpoints.run([partition])  # cleaning stops at the recovery point
            # Timestamps of old segments may have to be read from the device.
            ages = await self._worker.run(lambda: segment_ages(log, policy))
        except (CorruptData, StorageFailed, StorageFull) as problem:
            self._log.warning("compaction.postponed", partition=partition.name, reason=str(problem))
            return None
        if partition.offline is not None:
            return None  # its topic was deleted meanwhile
        safe = safe_end(log, partition.high_watermark)
        dirt = measure_dirt(ages, self._clean_to.get(partition), safe, policy, now_ms)
        return dirt if is_worth_cleaning(dirt, policy) else None

    # Cleaning

    async def _clean(self, partition: Partition, dirt: Dirt) -> None:
        job = job_for(partition.log, dirt, self._setup(partition))
        self._being_cleaned = partition
        try:
            cleaned = await self.cleaner.clean(job)
            self._being_cleaned = None
            for replacement in cleaned.replacements:
                if not await self._swap(partition, replacement):
                    self._log.info("compaction.overtaken", partition=partition.name)
                    return
            self._clean_to[partition] = cleaned.end_offset
            await self._store_offsets()
            self._say(partition, cleaned)
        except StorageFull as full:
            self._postponed.add(partition)
            self._log.warning("compaction.postponed", partition=partition.name, reason=str(full))
        except (CorruptData, StorageFailed, ConfigError, ChildDied) as failure:
            if partition.offline is not None or not are_current(partition.log, job.segments):
                self._log.info("compaction.overtaken", partition=partition.name)
            else:
                self.uncleanable[partition] = str(failure)
                self._log.error("compaction.failed", partition=partition.name, reason=str(failure))
        finally:
            self._being_cleaned = None
            self._worker.submit(lambda: discard(self._directory.disk, job.folder), self._discarded)

    def _setup(self, partition: Partition) -> CleaningSetup:
        config = self._config()
        return CleaningSetup(
            self._clock.wall_ms(),
            partition.config.delete_retention_ms,
            config.memory_bytes,
            config.bytes_per_second_max,
        )

    async def _swap(self, partition: Partition, replacement: Replacement) -> bool:
        """Put a cleaned segment in its place. False if the log has changed there since."""
        disk, log = self._directory.disk, partition.log
        if partition.offline is not None or not replaced_segments(log, replacement):
            return False
        log.is_swapping = True
        try:
            await self._worker.run(lambda: decide(disk, log.folder, replacement))
            if partition.offline is not None:
                return False
            try:
                taken = take_over(log, replacement)
            except StorageFull:
                await self._worker.run(lambda: undecide(disk, log.folder, replacement))
                raise
        except StorageFailed as failure:
            # Half of it may be done. A restart completes it; until then the log cannot be relied on.
            if partition.offline is None:
                self._storage.damage(partition, failure)
            raise
        finally:
            log.is_swapping = False
        self._worker.submit(lambda: tidy(disk, taken), self._tidied)
        return True

    def _tidied(self, _: None, error: BaseException | None) -> None:
        if isinstance(error, StorageFailed):
            self._storage.fail(error)

    def _discarded(self, _: None, error: BaseException | None) -> None:
        if error is not None:
            self._log.warning("compaction.not_discarded", reason=str(error))

    async def _store_offsets(self) -> None:
        offsets = {partition.name: offset for partition, offset in self._clean_to.items()}
        content = render_offsets(offsets)
        await self._worker.run(lambda: self._directory.disk.store([Stored(self._path, content)]))
        self._rows_on_disk = len(offsets)

    def _say(self, partition: Partition, cleaned: Cleaned) -> None:
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


def _policy(config: TopicConfig) -> CleaningPolicy:
    return CleaningPolicy(
        dirty_ratio_min=config.min_cleanable_dirty_ratio,
        lag_ms_min=config.min_compaction_lag_ms,
        lag_ms_max=config.max_compaction_lag_ms,
    )
