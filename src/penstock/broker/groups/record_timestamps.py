"""When records that wait for a group were written: read away from the event loop, and kept a while.

Rule 1: what is read is a batch for each offset, in jobs of a few, one job after another, in the thread
        for lookups by time: those who ask for numbers must not hold up those who read records.
Rule 2: what was read is kept by partition and offset. A record can be compacted away, so not for long.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.broker.storage.cold_reads import ColdReads, SegmentsChanged
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


class TimestampQuery(NamedTuple):
    partition: Partition
    offset: Offset

    @property
    def key(self) -> _Key:
        return self.partition.topic_id, self.partition.name.partition, self.offset

    def is_readable(self) -> bool:
        """Retention and failures go on while a question waits for its turn."""
        partition = self.partition
        is_there = partition.log.log_start_offset <= self.offset < partition.high_watermark
        return is_there and partition.offline is None


class _CachedTimestamp(NamedTuple):
    timestamp_ms: int | None
    read_at: float


class RecordTimestampsLimits(NamedTuple):
    """How many times are kept and read at once, and how long one question waits for them."""

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
        """The one read last at the end."""

    async def find(self, queries: Sequence[TimestampQuery]) -> list[int | None]:
        """For each the time in ms of the first record at or after its offset; None if none was found in time.

        What was read is kept, so a question that is asked again goes on where this one ended.
        """
        # Taken out at once: what is kept now may have made room for others when the reading is done.
        known = self._cached(queries)
        missing = [item for item in queries if item.key not in known]
        try:
            async with asyncio.timeout(self._limits.wait_ms_max / 1000):
                for start in range(0, len(missing), self._limits.read_at_once):
                    found = await self._read(missing[start : start + self._limits.read_at_once])
                    self._add_to_cache(found)
                    known |= found
        except TimeoutError:
            pass  # the reading thread is busy: ages are unknown rather than everything late
        return [known.get(item.key) for item in queries]

    def _cached(self, queries: Sequence[TimestampQuery]) -> dict[_Key, int | None]:
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

    async def _read(self, queries: Sequence[TimestampQuery]) -> dict[_Key, int | None]:
        """Where a batch has no record that counts, the next one is looked at."""
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
                    following.append((key, item))
                elif isinstance(outcome, FirstRecordTime):
                    found[key] = outcome.timestamp_ms
                    if outcome.timestamp_ms is None and outcome.next_offset > item.offset:
                        following.append((key, TimestampQuery(item.partition, outcome.next_offset)))
                # Any other failure leaves the time unknown; damage has been reported.
            left = following
        return found


def _plan(item: TimestampQuery) -> FirstRecordRead:
    return plan_first_record(item.partition.log, item.offset, item.partition.high_watermark)
