"""Timestamps of the first records that a group has not consumed: read in a worker thread and cached.

Rule 1: each offset needs one batch read. The reads run in jobs of a few offsets, one job after another, in
        the thread for lookups by time, so that monitoring does not delay clients that fetch records.
Rule 2: results are cached by partition and offset, for RECORD_TIME_KEPT_MS only, because compaction can
        remove a record.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.broker.storage.cold_reads import ColdReads, SegmentsChanged
from penstock.chunks import chunks
from penstock.host.clock import Clock
from penstock.limits import (
    RECORD_TIME_BATCHES_MAX,
    RECORD_TIME_KEPT_MS,
    RECORD_TIMES_KEPT_MAX,
    RECORD_TIMES_MS_MAX,
    RECORD_TIMES_READ_AT_ONCE,
)
from penstock.log.reading.first_record_time import FirstRecordRead, FirstRecordTime, plan_first_record
from penstock.replication.partition import Partition
from penstock.types import Offset, TopicId

_Key = tuple[TopicId, int, Offset]


class TimestampAtOffset(NamedTuple):
    """A question: the timestamp of the record at this offset, or of the first one after it."""

    partition: Partition
    offset: Offset

    @property
    def key(self) -> _Key:
        return self.partition.topic_id, self.partition.name.partition, self.offset

    def is_readable(self) -> bool:
        """Check again right before the read: retention and failures continue while a query waits."""
        partition = self.partition
        is_there = partition.log.log_start_offset <= self.offset < partition.high_watermark
        return is_there and partition.offline_error is None


class _CachedTimestamp(NamedTuple):
    timestamp_ms: int | None
    read_at: float


class RecordTimestampsLimits(NamedTuple):
    """Limits for cached timestamps, for timestamps per read job, and for the wait of one query."""

    cache_entries_max: int = RECORD_TIMES_KEPT_MAX
    read_at_once: int = RECORD_TIMES_READ_AT_ONCE
    wait_ms_max: int = RECORD_TIMES_MS_MAX


RECORD_TIMESTAMPS_LIMITS: Final = RecordTimestampsLimits()


class RecordTimestamps:
    def __init__(
        self, cold_reads: ColdReads, clock: Clock, limits: RecordTimestampsLimits = RECORD_TIMESTAMPS_LIMITS
    ) -> None:
        self._limits = limits
        self._cold_reads = cold_reads
        self._clock = clock
        self._cache: dict[_Key, _CachedTimestamp] = {}
        """Cached timestamps, in the order in which they were read."""

    async def find(self, queries: Sequence[TimestampAtOffset]) -> list[int | None]:
        """For each query the timestamp (ms) of the first record at or after its offset; None: not found in
        time.

        Results are cached, so a repeated query continues where this one ended.
        """
        # Copied before the reads: entries that are cached now may be evicted by the time the reads are done.
        known = self._cached(queries)
        missing = [item for item in queries if item.key not in known]
        try:
            async with asyncio.timeout(self._limits.wait_ms_max / 1000):
                for some in chunks(missing, self._limits.read_at_once):
                    found = await self._read(some)
                    self._add_to_cache(found)
                    known |= found
        except TimeoutError:
            pass  # the thread is busy: report unknown ages instead of delaying the whole report
        return [known.get(item.key) for item in queries]

    def _cached(self, queries: Sequence[TimestampAtOffset]) -> dict[_Key, int | None]:
        now, known = self._clock.monotonic(), {}
        for item in queries:
            kept = self._cache.get(key := item.key)
            if kept is not None and (now - kept.read_at) * 1000 <= RECORD_TIME_KEPT_MS:
                known[key] = kept.timestamp_ms
        return known

    def _add_to_cache(self, found: dict[_Key, int | None]) -> None:
        now = self._clock.monotonic()
        for key, timestamp_ms in found.items():
            self._cache.pop(key, None)
            self._cache[key] = _CachedTimestamp(timestamp_ms, now)
        while len(self._cache) > self._limits.cache_entries_max:
            del self._cache[next(iter(self._cache))]

    async def _read(self, queries: Sequence[TimestampAtOffset]) -> dict[_Key, int | None]:
        """Read timestamps. If a batch has no record at or after the offset, read the next batch."""
        found: dict[_Key, int | None] = {item.key: None for item in queries}
        left = [(item.key, item) for item in queries]
        for _ in range(RECORD_TIME_BATCHES_MAX):
            left = [(key, item) for key, item in left if item.is_readable()]
            if not left:
                break
            outcomes = await self._cold_reads.run_all([(item.partition, _plan(item)) for _, item in left])
            following = []
            for (key, item), outcome in zip(left, outcomes, strict=True):
                if isinstance(outcome, SegmentsChanged):
                    following.append((key, item))  # compaction replaced the segment: read this offset again
                elif isinstance(outcome, FirstRecordTime):
                    found[key] = outcome.timestamp_ms
                    if outcome.timestamp_ms is None and outcome.next_offset > item.offset:
                        following.append((key, TimestampAtOffset(item.partition, outcome.next_offset)))
                # Any other failure leaves the time unknown; damage has been reported.
            left = following
        return found


def _plan(item: TimestampAtOffset) -> FirstRecordRead:
    return plan_first_record(item.partition.log, item.offset, item.partition.high_watermark)
