"""What is kept of the times of records, while others read theirs."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.broker.groups.record_timestamps import (
    RecordTimestamps,
    RecordTimestampsLimits,
    TimestampAtOffset,
)
from penstock.broker.storage.cold_reads import ColdReads
from penstock.host.clock import SystemClock
from penstock.replication.partition import Partition
from penstock.types import Offset
from tests.unit.broker.storage.test_broker_compaction import broker_with, fill, make


class SlowPool:
    """Reads when it is told to."""

    def __init__(self) -> None:
        self.may_read = asyncio.Event()

    async def run(self, read: Callable[[], Any]) -> Any:
        await self.may_read.wait()
        return read()


def no_damage(partition: Partition, damage: Exception) -> None:
    raise AssertionError(damage)


async def test_a_timestamp_evicted_from_the_cache_still_answers_earlier_queries(
    tmp_path: Path,
) -> None:
    async with broker_with(tmp_path) as broker:
        partition = await make(broker, "t")
        await fill(broker, partition, 1, time_ms=77)
        pool: Any = SlowPool()
        times = RecordTimestamps(
            ColdReads(pool, no_damage), SystemClock(), RecordTimestampsLimits(cache_entries_max=1)
        )
        kept, missing, another = (TimestampAtOffset(partition, Offset(offset)) for offset in (1, 20, 40))
        pool.may_read.set()
        assert await times.find([kept]) == [77]
        pool.may_read.clear()
        slow = [asyncio.create_task(times.find(wanted)) for wanted in ([another], [kept, missing])]
        await asyncio.sleep(0)
        pool.may_read.set()
        assert await asyncio.gather(*slow) == [[77], [77, 77]]


async def test_times_that_are_not_read_in_time_are_unknown_and_the_others_are_kept(tmp_path: Path) -> None:
    limits = RecordTimestampsLimits(wait_ms_max=100, read_at_once=1)
    async with broker_with(tmp_path) as broker:
        partition = await make(broker, "t")
        await fill(broker, partition, 1, time_ms=77)
        pool: Any = SlowPool()
        times = RecordTimestamps(ColdReads(pool, no_damage), SystemClock(), limits)
        first, second = (TimestampAtOffset(partition, Offset(offset)) for offset in (1, 20))
        pool.may_read.set()
        assert await times.find([first]) == [77]
        pool.may_read.clear()
        assert await times.find([first, second]) == [77, None]
        pool.may_read.set()
        assert await times.find([first, second]) == [77, 77]
