"""Counts reads that the device failed, and decides when the broker gives up a copy because of them.

An I/O error may pass: a volume was unavailable for seconds, or a controller was reset. A sector that cannot
be read does not recover, and no reader of this copy gets past it: no consumer, no follower, no coordinator.

Rule 1: the first failure of a partition is logged. Failures that follow closely are not.
Rule 2: repeated failures are reported as damage if another replica could lead. That replica leads from then
        on, and this copy is fetched anew. Nothing is recorded on disk.
Rule 3: if no other replica could lead, the partition stays online. What can be read is served, and the rest
        as soon as the device reads it again.
Rule 4: reads that fail together count as one failure. A volume that becomes unavailable fails all reads that
        wait for it.
"""

from collections.abc import Callable

from penstock.errors import StorageFailed
from penstock.limits import READ_FAILURES_APART_MS, READ_FAILURES_MAX, READ_FAILURES_MS
from penstock.log.partition_log import PartitionLog
from penstock.observability.logs import Log
from penstock.replication.partition import Partition


class ReadFailures:
    def __init__(
        self,
        on_damage: Callable[[Partition, Exception], None],
        has_other_eligible_leader: Callable[[Partition], bool],
        monotonic: Callable[[], float],
        log: Log,
        *,
        failures_max: int = READ_FAILURES_MAX,
        within_ms: int = READ_FAILURES_MS,
        apart_ms: int = READ_FAILURES_APART_MS,
    ) -> None:
        """`failures_max` failures within `within_ms`, each at least `apart_ms` after the previous one, are
        damage.
        """
        self._on_damage = on_damage
        self._others_could_lead = has_other_eligible_leader
        self._monotonic = monotonic
        self._log = log
        self._failures_max = failures_max
        self._within_seconds = within_ms / 1000
        self._apart_seconds = apart_ms / 1000
        self._failed_at: dict[PartitionLog, list[float]] = {}
        """Times of the last failures of each log, ordered by the last failure. Keyed by log: a partition
        object changes with every leader epoch.
        """

    def report(self, partition: Partition, failure: StorageFailed) -> None:
        """Count a failed read of current segments."""
        now = self._monotonic()
        self._forget_until(now - self._within_seconds)
        before = self._failed_at.pop(partition.log, [])
        if not before:
            self._log.warning("partition.read_failed", partition=partition.name, reason=str(failure))
        # Rule 4: reads that fail within `apart_ms` count once.
        is_new = not before or now - before[-1] >= self._apart_seconds
        failed_at = [*before, now][-self._failures_max :] if is_new else before
        is_repeated = len(failed_at) == self._failures_max and now - failed_at[0] <= self._within_seconds
        # Rule 3: without another eligible leader, giving up this copy would make the partition unavailable.
        if is_repeated and self._others_could_lead(partition):
            self._on_damage(partition, failure)
        else:
            self._failed_at[partition.log] = failed_at

    def _forget_until(self, time: float) -> None:
        while self._failed_at:
            log = next(iter(self._failed_at))
            if self._failed_at[log][-1] > time:
                return
            del self._failed_at[log]
