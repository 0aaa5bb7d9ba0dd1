"""Applies retention to logs: the I/O around log/retention.py.

Rule: damage that is found by reading a log is reported (`Storage.damage`), if the files of the log have not
      changed since the read began.
"""

from collections.abc import Callable

from penstock.config.topic import CleanupPolicy
from penstock.errors import CorruptData, StorageFailed, StorageFull
from penstock.host.clock import Clock
from penstock.host.disk import Disk
from penstock.host.worker import Worker
from penstock.log.retention import RetentionPolicy, must_roll, segments_to_drop
from penstock.observability.logs import Log
from penstock.replication.partition import Partition
from penstock.types import Offset

UNLIMITED = -1


class Retention:
    def __init__(
        self,
        disk: Disk,
        worker: Worker,
        clock: Clock,
        log: Log,
        on_damage: Callable[[Partition, Exception], None],
    ) -> None:
        self._disk = disk
        self._worker = worker
        self._clock = clock
        self._log = log
        self._on_damage = on_damage

    async def enforce(self, partition: Partition) -> None:
        """Remove the segments that a partition no longer needs."""
        if partition.offline_error is not None or partition.disk_error is not None:
            return
        files_version = partition.log.files_version
        try:
            # Warms the cache in the worker: reading the newest timestamps of old segments may wait for the
            # device.
            await self._worker.run(partition.log.segment_facts)
            if partition.offline_error is not None or not partition.log.has_stable_segments:
                return  # its topic was deleted meanwhile, or compaction is replacing segments now
            files_version = partition.log.files_version
            facts = partition.log.segment_facts()
        except CorruptData as damage:
            if partition.log.is_unchanged_since(files_version):
                self._on_damage(partition, damage)
            return  # the read met a file that was removed meanwhile; the next check repeats it
        policy, now_ms = self._policy(partition), self._clock.wall_ms()
        try:
            if must_roll(facts, policy, now_ms):
                partition.log.roll()
                facts = partition.log.segment_facts()
        except (StorageFull, StorageFailed) as problem:
            self._log.warning("retention.postponed", partition=partition.name, reason=str(problem))
            return
        count = segments_to_drop(facts, policy, now_ms)
        if count:
            files = partition.log.drop_segments(count)
            await self._remove(partition, files)
            self._log.info(
                "partition.trimmed",
                partition=partition.name,
                segments=count,
                log_start_offset=partition.log.log_start_offset,
            )

    async def _remove(self, partition: Partition, files: list[str]) -> None:
        def remove() -> None:
            for path in files:
                self._disk.remove(path)

        try:
            await self._worker.run(remove)
        except StorageFailed as problem:
            self._log.warning("retention.not_removed", partition=partition.name, reason=str(problem))

    def _policy(self, partition: Partition) -> RetentionPolicy:
        config = partition.config
        # A follower's log starts where its leader's log does: the next leader must not have fewer records.
        deletes = CleanupPolicy.DELETE in config.cleanup_policy and partition.is_leader
        return RetentionPolicy(
            retention_ms=config.retention_ms if deletes else UNLIMITED,
            retention_bytes=(
                config.retention_bytes_of_partition(partition.partition_count) if deletes else UNLIMITED
            ),
            start_offset=Offset(partition.log.log_start_offset),
            # Not past the recovery point either: after a crash the producer state above it is rebuilt from
            # the batches there.
            high_watermark=min(partition.high_watermark, partition.log.recovery_point),
        )
