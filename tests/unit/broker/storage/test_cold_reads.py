"""A read that fails in a worker thread: whether it met damage, or a log that changed meanwhile."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from io import StringIO
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.broker.apis.list_offsets import ListOffsets
from penstock.broker.broker import Environment, RunningBroker
from penstock.broker.context import RequestContext
from penstock.broker.data.fetch_reader import FetchParams, FetchReader
from penstock.broker.data.fetch_sessions import FetchPartitionKey, FetchTarget
from penstock.broker.data.timestamp_lookups import TimeLookups
from penstock.broker.groups.record_timestamps import RecordTimestamps, TimestampAtOffset
from penstock.broker.router import DeferredReply
from penstock.broker.storage.cold_reads import ColdReads, SegmentsChanged
from penstock.config.listeners import Address
from penstock.errors import ApiError, CorruptData, ErrorCode, StorageFailed
from penstock.host.clock import SystemClock
from penstock.host.os_disk import OsDisk, OsFile
from penstock.host.tasks import Tasks
from penstock.host.worker import WorkerPool
from penstock.limits import COLD_READ_THREADS, MIB, READ_FAILURES_APART_MS
from penstock.log.partition_log import PartitionLog
from penstock.log.reading.cold_reading import ColdRead
from penstock.log.recovery import open_log
from penstock.log.truncation import FullTruncation, Truncation
from penstock.observability.logs import StreamLog
from penstock.protocol.messages.fetch import (
    FETCH,
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
)
from penstock.protocol.messages.list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from penstock.replication.partition import Partition, log_settings
from penstock.security.access import ANONYMOUS, AllowEverything
from penstock.types import NO_TOPIC_ID, Offset, TopicId
from penstock.wire.async_client import connected
from tests.unit.broker.groups.test_group_lag import ORDERS, Living
from tests.unit.broker.storage.test_broker_compaction import broker_with, fill, found, make
from tests.unit.broker.waiting import until
from tests.unit.log.log_support import FOLDER, append, checkpoint, flush, new_disk
from tests.unit.replication.replica_support import DEFAULTS, follower_on

COMMITTED = 20
LAST_OF_NONE = -1
"""The epoch of a fetch without a session."""
CONTEXT = RequestContext(ANONYMOUS, "PLAINTEXT", "peer", AllowEverything())
SECONDS_MAX = 10

Meanwhile = Callable[[], None]


class Thread:
    """A reading thread, with what other threads do to the files before it gets to them."""

    def __init__(self, meanwhile: Meanwhile) -> None:
        self._meanwhile = meanwhile

    async def run(self, job: Callable[[], Any]) -> Any:
        self._meanwhile()
        return job()


class Following:
    """A restarted follower, read cold, with records past the high watermark that its new leader lacks."""

    def __init__(self) -> None:
        disk, settings = new_disk(), log_settings(DEFAULTS)._replace(index_interval_bytes=200)
        log = PartitionLog(disk, FOLDER, settings)
        for number in range(COMMITTED):
            append(log, [b"%02d" % number * 20])
        checkpoint(log)
        self.log = open_log(disk, FOLDER, settings).log
        flush(self.log)
        for _ in range(5):
            append(self.log, [b"never committed" * 20])
        flush(self.log)
        self.partition = follower_on(self.log, 2, high_watermark_before=COMMITTED, index_interval_bytes=200)
        self.damaged: list[Exception] = []
        self.truncation: Truncation | FullTruncation | None = None

    def truncate(self, offset: int) -> Meanwhile:
        def run() -> None:
            answer = PartitionData(0, 0, 20, 20, 0, diverging_epoch=EpochEndOffset(1, offset))
            fetch_position = self.partition.fetch_position()
            assert fetch_position is not None
            step = self.partition.handle_fetch_response(fetch_position, answer)
            assert isinstance(step, Truncation)
            step.run()  # the event loop has not ended it yet
            self.truncation = step

        return run

    def find(self, topic: str, index: int) -> Partition:
        return self.partition

    def reads(self, meanwhile: Meanwhile) -> ColdReads:
        return ColdReads(cast(Any, Thread(meanwhile)), lambda _, damage: self.damaged.append(damage))

    async def fetch(self, meanwhile: Meanwhile) -> PartitionData:
        reads = FetchReader(cast(Any, self), self.reads(meanwhile))
        wanted = FetchTarget(
            FetchPartitionKey("orders", NO_TOPIC_ID, 0), FetchPartition(0, -1, 12, 0, 0, MIB)
        )
        wanted.params.last_fetched_epoch = -1
        gathered = await reads.gather_cold(
            [wanted], FetchParams(MIB, 0, -1, may_read_from_follower=True), CONTEXT
        )
        return gathered.answers[0]


async def test_records_below_the_high_watermark_are_read_beside_a_truncation() -> None:
    it = Following()
    expected = await it.fetch(lambda: None)
    assert (expected.error_code, it.damaged) == (ErrorCode.NONE, [])

    answer = await it.fetch(it.truncate(COMMITTED))

    assert (answer.error_code, answer.records, it.damaged) == (ErrorCode.NONE, expected.records, [])
    assert it.truncation is not None
    it.truncation.end()
    it.partition.truncated()
    assert it.partition.offline_error is None
    assert it.partition.fetch_position() is not None, "it goes on following"


async def test_a_read_of_what_is_being_truncated_sends_the_client_to_the_leader() -> None:
    """An unclean election takes off what was shown before."""
    it = Following()
    answer = await it.fetch(it.truncate(15))
    assert (answer.error_code, it.damaged) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])
    assert it.partition.offline_error is None


async def test_a_read_beside_a_log_that_begins_anew_is_no_damage() -> None:
    it = Following()

    def replace_log() -> None:
        it.truncation = FullTruncation(it.log, Offset(100))
        it.truncation.run()

    answer = await it.fetch(replace_log)
    assert (answer.error_code, it.damaged) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])


def test_no_view_of_a_log_is_current_while_it_is_truncated() -> None:
    it = Following()
    view = it.log.view(it.log.active)
    assert it.log.is_current(view)
    truncation = Truncation(it.log, Offset(COMMITTED))
    assert not it.log.is_current(view)
    truncation.run()
    assert not it.log.is_current(view)
    truncation.end()
    assert not it.log.is_current(view)
    assert it.log.is_current(it.log.view(it.log.active))


def test_a_file_too_short_for_what_lies_below_the_end_is_damaged() -> None:
    it = Following()
    read = it.log.read(Offset(12), Offset(COMMITTED), MIB, at_least_one=True)
    assert isinstance(read, ColdRead)
    it.log.active.file.truncate(read.run().found.next_position - 1)
    with pytest.raises(CorruptData, match="ends inside the batch"):
        read.run()


async def test_a_read_is_planned_again_when_its_segment_was_removed() -> None:
    it = Following()
    it.log.roll()
    append(it.log, [b"in the next segment"])
    read = it.log.read(Offset(12), Offset(COMMITTED), MIB, at_least_one=True)
    assert isinstance(read, ColdRead)

    def removed() -> None:
        for path in it.log.drop_segments(1):
            it.log.disk.remove(path)

    with pytest.raises(SegmentsChanged):
        await it.reads(removed).run(it.partition, read)
    assert it.damaged == []


async def test_damage_of_a_partition_that_is_offline_is_not_reported_again() -> None:
    it = Following()
    read = it.log.read(Offset(12), Offset(COMMITTED), MIB, at_least_one=True)
    assert isinstance(read, ColdRead)

    def damaged_and_replaced() -> None:
        it.log.active.file.truncate(10)
        it.partition.resign()

    with pytest.raises(ApiError) as refusal:
        await it.reads(damaged_and_replaced).run(it.partition, read)
    assert refusal.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert it.damaged == []


# In a whole broker: the same damage has the same consequence, whoever reads it


def flip_a_byte(log: Path) -> None:
    content = bytearray(log.read_bytes())
    content[100] ^= 1
    log.write_bytes(content)


def recording(broker: RunningBroker) -> list[Partition]:
    told: list[Partition] = []
    broker.storage.on_damage = told.append
    return told


async def by_fetch(
    broker: RunningBroker,
    partition: Partition,
    reads: ColdReads,
    expected: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR,
) -> None:
    fetches = FetchReader(broker.storage.partitions, reads)
    wanted = FetchTarget(
        FetchPartitionKey("t", NO_TOPIC_ID, 0), FetchPartition(partition=0, partition_max_bytes=MIB)
    )
    gathered = await fetches.gather_cold([wanted], FetchParams(MIB, 0, -1), CONTEXT)
    assert gathered.answers[0].error_code == expected


async def by_lookup(broker: RunningBroker, partition: Partition, reads: ColdReads) -> None:
    asked = ListOffsetsTopic("t", [ListOffsetsPartition(0, timestamp=5)])
    tasks = Tasks(lambda name, failure: pytest.fail(f"{name}: {failure}"))
    handler = ListOffsets(broker.storage.partitions, TimeLookups(reads, tasks, SystemClock()))
    later = handler(ListOffsetsRequest(topics=[asked]), CONTEXT.for_request(11, "tests", frozenset()))
    assert isinstance(later, DeferredReply)
    finished: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    later.then(finished.set_result)
    entry = (await finished).topics[0].partitions[0]
    assert entry.error_code == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("find", [by_fetch, by_lookup])
async def test_whoever_finds_damage_it_is_logged_and_handed_over(tmp_path: Path, find: Any) -> None:
    async with broker_with(tmp_path) as broker:
        await fill(broker, await make(broker, "t"), 1, time_ms=77)
    flip_a_byte(tmp_path / "data/logs/t-0" / f"{0:020d}.log")
    lines = StringIO()
    async with broker_with(tmp_path, Environment(log=StreamLog(SystemClock(), lines))) as broker:
        told, partition = recording(broker), found(broker, "t")
        pool = WorkerPool("test", 1, asyncio.get_running_loop())
        try:
            await find(broker, partition, ColdReads(pool, broker.storage.read_failed))
        finally:
            pool.stop()
        assert told == [partition]
        assert partition.offline_error is not None
        assert lines.getvalue().count("partition.damaged") == 1


FETCH_ALL = FetchRequest(
    max_wait_ms=0,
    topics=[FetchTopic("t", TopicId(b"t".ljust(16)), [FetchPartition(partition=0, partition_max_bytes=MIB)])],
    session_epoch=LAST_OF_NONE,
)
FIND_TIME = ListOffsetsRequest(topics=[ListOffsetsTopic("t", [ListOffsetsPartition(0, timestamp=5)])])


@pytest.mark.parametrize(("api", "request_"), [(FETCH, FETCH_ALL), (LIST_OFFSETS, FIND_TIME)])
async def test_a_request_of_a_client_that_meets_damage_hands_over(
    tmp_path: Path, api: Any, request_: Any
) -> None:
    """By the reads that the broker gave to its handlers."""
    async with broker_with(tmp_path) as broker:
        await fill(broker, await make(broker, "t"), 1, time_ms=77)
    flip_a_byte(tmp_path / "data/logs/t-0" / f"{0:020d}.log")
    async with broker_with(tmp_path) as broker:
        told, partition, (listener,) = recording(broker), found(broker, "t"), broker.listeners
        async with connected(Address(listener.host, listener.port), "tests") as client:
            reply = await client.ask(api, request_, SECONDS_MAX)
        (answered,) = reply.responses if api is FETCH else reply.topics
        assert answered.partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert told == [partition]
        assert partition.is_damaged


class HangingDisk(OsDisk):
    """Does not open the files of one topic until it is let."""

    def __init__(self, topic: str) -> None:
        super().__init__()
        self._folder = f"/{topic}-0/"
        self.may_open = threading.Event()
        self.waiting = 0

    def open(self, path: str, *, create: bool = False) -> OsFile:
        if self._folder in path and path.endswith(".log"):
            self.waiting += 1
            assert self.may_open.wait(SECONDS_MAX)
        return super().open(path, create=create)


async def test_lookups_by_time_that_hang_hold_up_no_fetch(tmp_path: Path) -> None:
    async with broker_with(tmp_path) as broker:
        for name in ("t", "hangs"):
            await fill(broker, await make(broker, name), 1, time_ms=77)
    disk = HangingDisk("hangs")
    disk.may_open.set()
    async with broker_with(tmp_path, Environment(disk=disk)) as broker, AsyncExitStack() as stack:
        (listener,) = broker.listeners
        address = Address(listener.host, listener.port)
        fetching, *asking = [
            await stack.enter_async_context(connected(address, "tests")) for _ in range(1 + COLD_READ_THREADS)
        ]
        disk.may_open.clear()
        disk.waiting = 0
        asked = ListOffsetsRequest(topics=[ListOffsetsTopic("hangs", [ListOffsetsPartition(0, timestamp=5)])])
        lookups = [asyncio.create_task(client.ask(LIST_OFFSETS, asked, 2 * SECONDS_MAX)) for client in asking]

        def are_begun() -> bool:
            names = [task.get_name() for task in asyncio.all_tasks()]
            return disk.waiting > 0 and names.count("lookup by time") == len(asking)

        await until(are_begun, seconds_max=SECONDS_MAX)
        reply = await fetching.ask(FETCH, FETCH_ALL, SECONDS_MAX / 2)
        assert reply.responses[0].partitions[0].records
        assert not any(lookup.done() for lookup in lookups)
        disk.may_open.set()
        for lookup in asyncio.as_completed(lookups):
            assert (await lookup).topics[0].partitions[0].offset == 0


class BadSector(OsFile):
    disk: "Aging"

    def read(self, position: int, length: int) -> bytes:
        if self.disk.is_bad and self.path.endswith(".log"):
            raise StorageFailed(f"cannot read {self.path}: Input/output error")
        return super().read(position, length)

    def read_cached(self, position: int, length: int) -> bytes | None:
        return None


class Aging(OsDisk):
    """Cannot read logs, or not even open them, for a while."""

    is_bad = False
    is_worse = False

    def open(self, path: str, *, create: bool = False) -> OsFile:
        if self.is_worse and path.endswith(".log"):
            raise StorageFailed(f"cannot open {path}: Input/output error")
        plain = super().open(path, create=create)
        file = BadSector(plain.path, plain.descriptor)
        file.disk = self
        return file


@pytest.mark.parametrize("is_worse", [False, True])
async def test_a_lone_broker_serves_a_partition_again_when_its_disk_reads_again(
    tmp_path: Path, is_worse: bool
) -> None:
    disk, lines = Aging(), StringIO()
    async with broker_with(tmp_path, Environment(log=StreamLog(SystemClock(), lines), disk=disk)) as broker:
        await fill(broker, await make(broker, "t"), 1, time_ms=77)
        told, partition = recording(broker), found(broker, "t")
        for segment in partition.log.segments:
            segment.abandon_file()
        pool = WorkerPool("test", 1, asyncio.get_running_loop())
        reads = ColdReads(pool, broker.storage.read_failed)
        try:
            disk.is_bad, disk.is_worse = True, is_worse
            for _ in range(4):
                await by_fetch(broker, partition, reads)
                await asyncio.sleep(READ_FAILURES_APART_MS / 1000)
            disk.is_bad = disk.is_worse = False
            await by_fetch(broker, partition, reads, ErrorCode.NONE)
        finally:
            pool.stop()
        assert (told, partition.offline_error) == ([], None)
        assert lines.getvalue().count("partition.read_failed") == 1
        assert "Input/output error" in lines.getvalue()


async def test_damage_that_a_coordinator_finds_is_logged_and_handed_over(tmp_path: Path) -> None:
    async with broker_with(tmp_path) as broker:
        alive = Living(broker, SystemClock())  # type: ignore[arg-type]
        await alive.topic("orders")
        for offset in range(100):  # the first one is far below what the next start looks at
            await alive.commit("g", {ORDERS: offset})
    log = max(
        (tmp_path / "data/logs").glob("__consumer_offsets-*/*.log"), key=lambda path: path.stat().st_size
    )
    flip_a_byte(log)
    lines = StringIO()
    async with broker_with(tmp_path, Environment(log=StreamLog(SystemClock(), lines))) as broker:
        await until(lambda: "coordinator.not_loaded" in lines.getvalue(), seconds_max=SECONDS_MAX)
        index = int(log.parent.name.rpartition("-")[2])
        partition = broker.storage.partitions.find("__consumer_offsets", index)
        assert partition is not None
        assert partition.offline_error is not None
        assert lines.getvalue().count("partition.damaged") == 1
        assert "A damaged coordinator" in lines.getvalue()


async def test_an_index_that_a_group_page_had_to_rebuild_is_written_to_disk(tmp_path: Path) -> None:
    async with broker_with(tmp_path) as broker:
        await fill(broker, await make(broker, "t"), 2, time_ms=77)
    lost = tmp_path / "data/logs/t-0" / f"{0:020d}.timeindex"
    expected = lost.read_bytes()
    lost.unlink()
    async with broker_with(tmp_path) as broker:
        pool = WorkerPool("test", 1, asyncio.get_running_loop())
        times = RecordTimestamps(ColdReads(pool, broker.storage.read_failed), SystemClock())
        try:
            assert await times.find([TimestampAtOffset(found(broker, "t"), Offset(3))]) == [77]
        finally:
            pool.stop()
        await broker.storage.checkpoints.run_due(float("inf"))
        assert lost.read_bytes() == expected
