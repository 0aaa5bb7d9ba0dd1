"""Reads of segments in worker threads, and the consequences of failed reads.

While a worker thread reads, the event loop continues: compaction replaces segments, retention removes them, a
follower truncates its log, a new leader epoch begins. A failed read may have met any of these. So a failure
is judged on the event loop, by the current state of the log. Fetch, ListOffsets by timestamp, coordinator
loading and the lookup of record timestamps all use this class, so that the same damage has the same
consequence for every reader.

Rule 1: a failure is reported (`Storage.read_failed`) only if the segments that were read are still current. A
        damaged batch is reported once: a partition that is offline has been reported or replaced. A failed
        device is reported each time. A full device, or a lack of descriptors, is not reported.
Rule 2: while the log is being truncated, failures are ignored. Only followers truncate, so the client is sent
        to the leader (NOT_LEADER_OR_FOLLOWER) instead of being kept waiting.
Rule 3: indexes that were loaded are kept for the next reader, and are written to disk if they had to be
        rebuilt.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from penstock.errors import ApiError, CorruptData, ErrorCode, StorageFailed, StorageFull
from penstock.host.worker import WorkerPool
from penstock.log.reading.cold_reading import ReadResult, SegmentRead
from penstock.replication.partition import Partition

SegmentReadResult = TypeVar("SegmentReadResult", bound=ReadResult)
_Problem = CorruptData | StorageFailed | StorageFull
ColdReadFailure = ApiError | CorruptData | StorageFailed | StorageFull
"""The failure of a read, besides `SegmentsChanged`."""


class SegmentsChanged(Exception):
    """A segment was replaced or removed during the read. The caller plans the read again."""


class ColdReads:
    def __init__(
        self, pool: WorkerPool, on_failure: Callable[[Partition, CorruptData | StorageFailed], None]
    ) -> None:
        self._pool = pool
        self.on_failure = on_failure
        """`Storage.read_failed`: takes a damaged partition offline, and in a cluster lets a sound replica
        lead it.
        """

    async def run(self, partition: Partition, read: SegmentRead[SegmentReadResult]) -> SegmentReadResult:
        """Run one read in a worker thread.

        SegmentsChanged: plan the read again. ApiError: the partition is offline or cannot be read now.
        CorruptData: the partition was just found damaged. StorageFailed, StorageFull: the device failed.
        """
        (outcome,) = await self.run_all([(partition, read)])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def run_all(
        self, reads: Sequence[tuple[Partition, SegmentRead[SegmentReadResult]]]
    ) -> list[SegmentReadResult | ColdReadFailure | SegmentsChanged]:
        """Run several reads as one job. Returns their outcomes in the same order."""
        attempts = await self._pool.run(partial(_attempt_all, [read for _, read in reads]))
        return [
            self._judged(partition, read, outcome)
            for (partition, read), outcome in zip(reads, attempts, strict=True)
        ]

    def _judged(
        self,
        partition: Partition,
        read: SegmentRead[SegmentReadResult],
        outcome: SegmentReadResult | _Problem,
    ) -> SegmentReadResult | ColdReadFailure | SegmentsChanged:
        # It was damaged or deleted during the read, or belongs to an old leader epoch.
        if partition.offline_error is not None:
            return partition.offline_error.again()
        if not isinstance(outcome, Exception):
            partition.keep_indexes(outcome.loaded)
            return outcome
        log = partition.log
        # Rule 2: the read may have met a file that the truncation is changing.
        if log.is_truncating:
            return ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the log of {partition.name} is being truncated"
            )
        # Checked after truncation: a truncated log has other segments, and planning again would loop until it
        # ends.
        if not all(log.is_current(segment) for segment in read.segments):
            return SegmentsChanged(str(outcome))
        if not isinstance(outcome, StorageFull):
            self.on_failure(partition, outcome)
        return outcome

    def report_failed_read(self, partition: Partition, failure: StorageFailed) -> None:
        """Report a read that failed on the event loop, before a worker thread was involved."""
        if partition.offline_error is None and not partition.log.is_truncating:
            self.on_failure(partition, failure)


def _attempt_all(reads: Sequence[SegmentRead[SegmentReadResult]]) -> list[SegmentReadResult | _Problem]:
    return [_attempt(read) for read in reads]


def _attempt(read: SegmentRead[SegmentReadResult]) -> SegmentReadResult | _Problem:
    try:
        return read.run()
    except (CorruptData, StorageFailed, StorageFull) as problem:
        return problem
