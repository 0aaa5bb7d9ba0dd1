"""Lookups by time for requests: they end with the client and with the time, and hold nobody up."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.apis.list_offsets import ListOffsets
from penstock.broker.context import RequestContext
from penstock.broker.data.timestamp_lookups import Lookup, TimeLookups
from penstock.broker.router import DeferredReply
from penstock.broker.storage.cold_reads import ColdReads
from penstock.errors import ErrorCode
from penstock.host.clock import AdjustableClock
from penstock.host.tasks import Tasks
from penstock.log.reading.time_lookup import LookupLimits, TimeLookup
from penstock.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.replication.partition import Partition
from penstock.security.access import ANONYMOUS, AllowEverything
from tests.unit.broker.config_support import NOW_MS, append, running
from tests.unit.broker.waiting import until

SECONDS_MAX = 10


class Watch(AdjustableClock):
    """Its time stands still until it is moved."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


def report(name: str, failure: BaseException) -> None:
    raise AssertionError(f"{name}: {failure}")


class Wiring:
    """A partition of many records, and a lookup thread that stops whenever it gives way."""

    def __init__(
        self, handler: ListOffsets, lookups: TimeLookups, partition: Partition, watch: Watch
    ) -> None:
        self.lookups = lookups
        self.partition = partition
        self.watch = watch
        self.turns = 0
        self.may_go_on = threading.Semaphore(0)
        self._handler = handler

    def yield_gil(self) -> None:
        self.turns += 1
        assert self.may_go_on.acquire(timeout=SECONDS_MAX)

    def begin(self, *, version: int = 11, timeout_ms: int = 0) -> tuple[DeferredReply, "asyncio.Future[Any]"]:
        asked = ListOffsetsTopic("t", [ListOffsetsPartition(0, timestamp=NOW_MS)])
        request = ListOffsetsRequest(topics=[asked], timeout_ms=timeout_ms)
        connection = RequestContext(ANONYMOUS, "PLAINTEXT", "peer", AllowEverything())
        later = self._handler(request, connection.for_request(version, "tests", frozenset()))
        assert isinstance(later, DeferredReply)
        finished: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        later.then(finished.set_result)
        return later, finished

    async def gives_way(self, turns: int) -> None:
        await until(lambda: self.turns == turns, seconds_max=SECONDS_MAX)


@asynccontextmanager
async def wired(folder: Path) -> AsyncIterator[Wiring]:
    failed: list[BaseException] = []
    tasks = Tasks(lambda name, failure: failed.append(failure))
    async with running(folder) as inside:
        (partition,) = await inside.topic("t")
        append(partition, *([5] * 100), NOW_MS)
        watch = Watch()
        reads = ColdReads(inside.pool, lambda partition, damage: None)
        limits = LookupLimits(records_per_chunk=10)
        lookups = TimeLookups(reads, tasks, watch, limits, lambda: wiring.yield_gil())
        wiring = Wiring(ListOffsets(inside.partitions, lookups), lookups, partition, watch)
        try:
            yield wiring
        finally:
            wiring.may_go_on.release(1_000)
            await tasks.stop()
    assert failed == []


async def test_a_lookup_finds_its_record_in_as_many_turns_as_it_takes(tmp_path: Path) -> None:
    async with wired(tmp_path) as it:
        it.may_go_on.release(1_000)
        entry = (await it.begin()[1]).topics[0].partitions[0]
        assert (entry.error_code, entry.offset, entry.timestamp) == (0, 100, NOW_MS)
        assert it.turns == 10


async def test_a_lookup_ends_when_its_client_has_left(tmp_path: Path) -> None:
    async with wired(tmp_path) as it:
        later, finished = it.begin()
        await it.gives_way(1)
        assert later.abandon is not None
        later.abandon()
        it.may_go_on.release()
        await finished
        assert it.turns == 1


@pytest.mark.parametrize(
    ("version", "timeout_ms", "seconds"), [(11, 2_000, 2), (11, 0, 30), (9, 2_000, 30), (11, 90_000, 30)]
)
async def test_a_lookup_ends_when_the_time_of_its_request_is_up(
    tmp_path: Path, version: int, timeout_ms: int, seconds: int
) -> None:
    async with wired(tmp_path) as it:
        _, finished = it.begin(version=version, timeout_ms=timeout_ms)
        await it.gives_way(1)
        it.watch.now += seconds - 0.1
        it.may_go_on.release()
        await it.gives_way(2)
        it.watch.now += 0.2
        it.may_go_on.release()
        entry = (await finished).topics[0].partitions[0]
        assert (entry.error_code, entry.offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)
        assert it.turns == 2


async def test_a_lookup_that_reads_only_headers_ends_when_its_time_is_up(tmp_path: Path) -> None:
    async with running(tmp_path) as inside:
        (partition,) = await inside.topic("t")
        for _ in range(50):
            append(partition, NOW_MS - 1)
        append(partition, NOW_MS)
        watch, entry = Watch(), ListOffsetsPartitionResponse(0)

        class SlowPool:
            async def run(self, job: Callable[[], Any]) -> Any:
                watch.now += 1
                return job()

        pool: Any = SlowPool()
        reads = ColdReads(pool, lambda partition, damage: None)
        lookups = TimeLookups(reads, Tasks(report), watch, LookupLimits(headers_per_step=5), lambda: None)
        finished: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        reply = lookups.begin([Lookup(entry, partition, NOW_MS)], ListOffsetsResponse(), timeout_ms=3_000)
        reply.then(finished.set_result)
        await finished
        assert entry.error_code == ErrorCode.REQUEST_TIMED_OUT


async def test_a_lookup_starts_over_when_retention_removes_a_segment(tmp_path: Path) -> None:
    async with running(tmp_path) as inside:
        (partition,) = await inside.topic("t")
        log, entry = partition.log, ListOffsetsPartitionResponse(0)
        append(partition, 5, NOW_MS)
        log.roll()
        append(partition, NOW_MS)

        class OvertakenPool:
            async def run(self, job: Callable[[], Any]) -> Any:
                if len(log.segments) > 1:
                    for path in log.drop_segments(1):
                        log.disk.remove(path)
                return job()

        pool: Any = OvertakenPool()
        lookups = TimeLookups(ColdReads(pool, lambda partition, damage: None), Tasks(report), Watch())
        finished: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        reply = lookups.begin([Lookup(entry, partition, NOW_MS)], ListOffsetsResponse(), timeout_ms=0)
        reply.then(finished.set_result)
        await finished
        assert (entry.error_code, entry.offset, entry.timestamp) == (0, 2, NOW_MS)


async def test_a_broker_that_stops_waits_for_no_lookup(tmp_path: Path) -> None:
    async with wired(tmp_path) as it:
        _, finished = it.begin()
        await it.gives_way(1)
        (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "lookup by time"]
        task.cancel()
        assert (await finished).topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        it.may_go_on.release()
    assert it.turns == 1, "its thread went on"


async def test_once_the_time_is_up_no_further_lookup_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[Partition] = []
    prepare = Partition.time_lookup

    def recorded(partition: Partition, *, is_committed: bool) -> TimeLookup:
        prepared.append(partition)
        return prepare(partition, is_committed=is_committed)

    monkeypatch.setattr(Partition, "time_lookup", recorded)
    async with wired(tmp_path) as it:
        entries = [ListOffsetsPartitionResponse(index) for index in range(100)]
        wanted = [Lookup(entry, it.partition, NOW_MS) for entry in entries]
        finished: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        it.lookups.begin(wanted, ListOffsetsResponse(), timeout_ms=2_000).then(finished.set_result)
        await it.gives_way(1)
        it.watch.now += 2
        it.may_go_on.release()
        await finished
        assert {entry.error_code for entry in entries} == {ErrorCode.REQUEST_TIMED_OUT}
        assert len(prepared) == 1
