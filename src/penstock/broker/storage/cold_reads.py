"""Reads of segments in worker threads, and what a read that failed means.

While a worker thread reads, the event loop goes on: compaction replaces segments, retention removes
them, a follower truncates its log, another leader epoch begins. A read that fails may have met any of
these, so a failure is judged on the event loop, by what the log is then. Fetches, ListOffsets by time,
the loading of coordinators and the times of records all come here, so that the same bytes on disk have
the same consequence whoever reads them.

Rule 1: only what a read met in segments that are still current is reported (`Storage.read_failed`). A
        damaged batch is reported once: a partition that is offline has been reported or replaced. A device
        that failed is reported each time; one that is full, or has no descriptor, is not.
Rule 2: while the log is being truncated no failure says anything. Only followers truncate, so the
        client is sent to the leader (NOT_LEADER_OR_FOLLOWER), and is not kept waiting.
Rule 3: indexes that were loaded are kept for the next reader, and are written to disk if they had to
        be made anew.
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
"""Why a read has no result, or `SegmentsChanged`."""


class SegmentsChanged(Exception):
    """A segment was replaced or removed while it was read: the caller plans the read again."""


class ColdReads:
    def __init__(
        self, pool: WorkerPool, on_failure: Callable[[Partition, CorruptData | StorageFailed], None]
    ) -> None:
        self._pool = pool
        self.on_failure = on_failure
        """`Storage.read_failed`: takes a damaged partition offline, and in a cluster lets a sound replica
        lead it."""

    async def run(self, partition: Partition, read: SegmentRead[SegmentReadResult]) -> SegmentReadResult:
        """Run one read in a worker thread.

        Outdated: plan it again. ApiError: the partition is offline, or cannot be read just now.
        CorruptData: the partition was just found damaged. StorageFailed, StorageFull: the device failed.
        """
        (outcome,) = await self.run_all([(partition, read)])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def run_all(
        self, reads: Sequence[tuple[Partition, SegmentRead[SegmentReadResult]]]
    ) -> list[SegmentReadResult | ColdReadFailure | SegmentsChanged]:
        """Run several reads as one job. Each has its own outcome, in their order."""
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
        if partition.offline is not None:  # while it was read: damaged, deleted, or of an older epoch
            return partition.offline.again()
        if not isinstance(outcome, Exception):
            partition.keep_indexes(outcome.loaded)
            return outcome
        log = partition.log
        if log.is_truncating:
            return ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the log of {partition.name} is being truncated"
            )
        if not all(log.is_current(segment) for segment in read.segments):
            return SegmentsChanged(str(outcome))
        if not isinstance(outcome, StorageFull):
            self.on_failure(partition, outcome)
        return outcome

    def report_failed_read(self, partition: Partition, failure: StorageFailed) -> None:
        """Report a read that failed on the event loop, before there was anything to run in a thread."""
        if partition.offline is None and not partition.log.is_truncating:
            self.on_failure(partition, failure)


def _attempt_all(reads: Sequence[SegmentRead[SegmentReadResult]]) -> list[SegmentReadResult | _Problem]:
    return [_attempt(read) for read in reads]


def _attempt(read: SegmentRead[SegmentReadResult]) -> SegmentReadResult | _Problem:
    try:
        return read.run()
    except (CorruptData, StorageFailed, StorageFull) as problem:
        return problem
