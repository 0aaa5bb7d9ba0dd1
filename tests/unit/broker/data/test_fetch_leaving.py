"""A client that leaves while its fetch is read from the device: what is not begun never is."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from penstock.broker.apis.fetch import Fetch
from penstock.broker.context import RequestContext
from penstock.broker.data.fetch_reader import NO_FOLLOWERS, FetchReader
from penstock.broker.data.fetch_sessions import FetchSessions
from penstock.broker.data.pending_fetch import FetchCapacity
from penstock.broker.router import DeferredReply
from penstock.broker.storage.cold_reads import ColdReads
from penstock.host.clock import SystemClock
from penstock.host.randomness import SystemRandomness
from penstock.host.tasks import Tasks
from penstock.limits import FETCH_BYTES_TOTAL_MAX
from penstock.log.reading.cold_reading import ColdRead, ColdResult
from penstock.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.replication.partition import Partition
from penstock.security.access import ANONYMOUS, AllowEverything
from tests.unit.broker.config_support import NOW_MS, BrokerHarness, append, running
from tests.unit.broker.waiting import until

VERSION = 12
SECONDS_MAX = 20


class Wiring:
    """A partition of which everything is on the device, and one thread that reads when it may."""

    def __init__(self, inside: BrokerHarness, partition: Partition) -> None:
        self.partition = partition
        self.begun: list[int] = []
        self.release = threading.Event()
        self.failed: list[BaseException] = []
        self.pool = inside.pool
        self.tasks = Tasks(lambda name, failure: self.failed.append(failure))
        self.reads = FetchReader(inside.partitions, ColdReads(inside.pool, lambda partition, problem: None))
        sessions = FetchSessions(10, SystemClock(), SystemRandomness())
        capacity = FetchCapacity(lambda: 2**20, 2**20)
        self.fetch = Fetch(self.reads, NO_FOLLOWERS, sessions, capacity, self.tasks)

    def begin(self, offset: int, *, wait_ms: int = 0) -> DeferredReply:
        wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1)
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=1,
            session_epoch=-1,
            topics=[FetchTopic(topic="t", partitions=[wanted])],
        )
        connection = RequestContext(ANONYMOUS, "PLAINTEXT", "peer", AllowEverything())
        later = self.fetch(request, connection.for_request(VERSION, "tests", frozenset()))
        assert isinstance(later, DeferredReply)
        return later

    async def until(self, condition: Callable[[], bool]) -> None:
        await until(condition, seconds_max=SECONDS_MAX)


@asynccontextmanager
async def cold(folder: Path, monkeypatch: object) -> AsyncIterator[Wiring]:
    async with running(folder) as inside:
        (partition,) = await inside.topic("t")
        for _ in range(5):
            append(partition, NOW_MS)
        partition.log.active.written_from = partition.log.size_bytes  # as after a restart
        wiring = Wiring(inside, partition)
        real = ColdRead.run

        def run(read: ColdRead) -> ColdResult:
            wiring.begun.append(read.offset)
            wiring.release.wait(SECONDS_MAX)
            return real(read)

        monkeypatch.setattr(ColdRead, "run", run)  # type: ignore[attr-defined]
        try:
            yield wiring
        finally:
            wiring.release.set()
            await wiring.tasks.stop()


def answered(later: DeferredReply) -> list[FetchResponse]:
    replies: list[FetchResponse] = []
    later.then(replies.append)  # type: ignore[arg-type]
    return replies


def leave(later: DeferredReply) -> None:
    assert later.abandon is not None
    later.abandon()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_reads_that_wait_for_the_device_are_dropped_when_their_client_leaves(
    tmp_path: Path, monkeypatch: object
) -> None:
    async with cold(tmp_path, monkeypatch) as wiring:
        first = answered(wiring.begin(0))
        left = [wiring.begin(offset) for offset in (1, 2, 3)]
        last = answered(wiring.begin(4))
        await wiring.until(lambda: wiring.begun == [0])
        await turns()
        for later in left:
            leave(later)
        wiring.release.set()
        await wiring.until(lambda: bool(first and last))
        assert wiring.begun == [0, 4]
        assert wiring.failed == []


async def test_one_that_left_before_its_task_began_reads_nothing(tmp_path: Path, monkeypatch: object) -> None:
    async with cold(tmp_path, monkeypatch) as wiring:
        leave(wiring.begin(0))
        await turns()
        assert wiring.begun == []
        assert wiring.failed == []


async def test_one_whose_wait_ended_in_a_cold_read_is_dropped_too(
    tmp_path: Path, monkeypatch: object
) -> None:
    async with cold(tmp_path, monkeypatch) as wiring:
        log = wiring.partition.log
        blocking = answered(wiring.begin(0))
        later = wiring.begin(log.log_end_offset, wait_ms=60_000)
        append(wiring.partition, NOW_MS)
        log.active.written_from = log.size_bytes
        await turns()
        leave(later)
        wiring.release.set()
        await wiring.until(lambda: bool(blocking))
        await wiring.pool.run(lambda: None)
        assert wiring.begun == [0]


async def test_memory_that_was_granted_to_one_that_left_is_given_back(
    tmp_path: Path, monkeypatch: object
) -> None:
    async with cold(tmp_path, monkeypatch) as wiring:
        budget = wiring.reads.cold_budget
        assert budget.try_take(FETCH_BYTES_TOTAL_MAX)
        before, after = wiring.begin(1), wiring.begin(2)
        await turns()
        leave(before)
        budget.release(FETCH_BYTES_TOTAL_MAX)  # grants both, before the first was told that it is cancelled
        leave(after)
        await turns()
        assert budget.try_take(FETCH_BYTES_TOTAL_MAX), "all of it is there again"
        assert wiring.begun == []
        assert wiring.failed == []
