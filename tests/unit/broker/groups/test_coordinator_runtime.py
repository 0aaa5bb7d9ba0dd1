"""Shards are loaded whole or not at all, say what they cannot read, and live through a full disk."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from penstock.broker.groups.coordinator_runtime import (
    COORDINATOR_LIMITS,
    CoordinatorDependencies,
    CoordinatorLimits,
    ErrorCounts,
    ShardRunner,
)
from penstock.broker.storage.cold_reads import ColdReads
from penstock.coordinator.outcome import CommandOutcome, StateRecord
from penstock.coordinator.shard import Phase
from penstock.errors import CorruptData, ErrorCode, StorageFull
from penstock.host.clock import SystemClock
from penstock.host.disk import Space
from penstock.host.tasks import Tasks
from penstock.host.worker import WorkerPool
from penstock.limits import COORDINATOR_ROOM_BYTES
from penstock.log.reading.cold_reading import BatchesRead, ColdRead, ColdResult
from penstock.protocol.records import Record, build_batch
from penstock.replication.partition import Partition
from penstock.types import NO_OFFSET, Offset
from tests.unit.broker.waiting import until
from tests.unit.coordinator.test_shard import Client, Counters, look, put
from tests.unit.log.log_support import NOW_MS, new_disk
from tests.unit.replication.test_partition import partition_on, sync


class Lines:
    """A log that remembers."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, **fields: object) -> None:
        self.events.append((event, fields))

    warning = error = info

    def named(self, event: str) -> list[dict[str, object]]:
        return [fields for name, fields in self.events if name == event]


class Wrapped:
    """A partition that a test can make behave otherwise."""

    def __init__(self, partition: Partition) -> None:
        self.inner = partition
        self.log: Any = partition.log
        self.is_full = False
        self.read: Callable[..., BatchesRead | ColdRead] = partition.read

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def append_now(self, payload: memoryview, now_ms: int) -> object:
        if self.is_full:
            raise StorageFull("no space left")
        return self.inner.append_now(payload, now_ms)


class Running:
    def __init__(
        self,
        lines: Lines,
        partition: Wrapped,
        runner: ShardRunner[Counters],
        counts: ErrorCounts,
        damaged: list[Exception],
    ) -> None:
        self.lines = lines
        self.counts = counts
        self.damaged = damaged
        self.partition = partition
        self.runner = runner

    @property
    def shard(self) -> Any:
        return self.runner.shard

    async def loaded(self) -> None:
        await until(lambda: self.shard.phase is Phase.ACTIVE, seconds_max=5)

    def put(self, key: bytes) -> list[object]:
        client = Client()
        put(self.shard, key, b"1", client)
        sync(self.partition.inner)
        return client.replies

    def look(self) -> list[object]:
        client = Client()
        look(self.shard, client)
        return client.replies


class PartlyRead(Counters):
    def unreadable(self) -> Sequence[str]:
        return [f"offset {number}" for number in range(50)]


@asynccontextmanager
async def running(
    new_state: Callable[[], Counters] = Counters, limits: CoordinatorLimits = COORDINATOR_LIMITS
) -> AsyncIterator[Running]:
    """A shard whose log holds two records."""
    partition = Wrapped(partition_on(new_disk()))
    for key in (b"a", b"b"):
        batch = build_batch([Record(NO_OFFSET, NOW_MS, key, b"0")])
        partition.inner.append_now(memoryview(bytearray(batch)), NOW_MS)
    sync(partition.inner)
    failures: list[BaseException] = []
    tasks = Tasks(lambda name, failure: failures.append(failure))
    pool = WorkerPool("read", 1, asyncio.get_running_loop())
    lines, damaged = Lines(), list[Exception]()

    def on_damage(found_in: Partition, damage: Exception) -> None:
        damaged.append(damage)
        found_in.go_offline(str(damage))

    dependencies = CoordinatorDependencies(
        partitions=cast(Any, None),
        pool=pool,
        cold_reads=ColdReads(pool, on_damage),
        tasks=tasks,
        clock=SystemClock(),
        log=lines,
        on_full=lambda full: None,
        on_failed=lambda failed: None,
        load_lock=asyncio.Lock(),
        limits=limits,
    )
    counts = ErrorCounts()
    runner = ShardRunner(cast(Partition, partition), new_state, dependencies, counts)
    try:
        yield Running(lines, partition, runner, counts, damaged)
    finally:
        runner.shard.end()
        await tasks.stop()
        pool.stop()
    assert failures == []


# Loading


async def test_an_unreadable_log_is_damaged_and_no_reply_has_half_of_its_state() -> None:
    async with running() as it:

        def read(offset: Offset, bytes_max: int, *, at_least_one: bool) -> BatchesRead | ColdRead:
            return BatchesRead(b"", offset, 0)

        it.partition.read = read
        it.runner.load()
        await until(lambda: bool(it.lines.named("coordinator.not_loaded")), seconds_max=5)
        assert "nothing can be read at offset 0" in str(it.lines.named("coordinator.not_loaded")[0]["reason"])
        assert "nothing can be read at offset 0" in str(it.damaged[0])
        assert it.look() == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]


async def test_damage_is_said_once_with_what_to_do_and_looked_at_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def remembered(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    async with running() as it:
        is_damaged = True

        def read(offset: Offset, bytes_max: int, *, at_least_one: bool) -> BatchesRead | ColdRead:
            if is_damaged:
                return BatchesRead(b"", offset, 0)
            return it.partition.inner.read(offset, bytes_max, at_least_one=at_least_one)

        it.partition.read = read
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "sleep", remembered)
            it.runner.load()
            while len(pauses) < 10:
                await sleep(0)
        (said,) = it.lines.named("coordinator.not_loaded")
        assert "docs/operations.md" in str(said["help"])
        assert pauses[:8] == [0, 1, 2, 4, 8, 16, 32, 60]
        assert it.look() == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]


class Rewritten(ColdRead):
    """A read of a segment that compaction replaced meanwhile."""

    def run(self) -> ColdResult:
        raise CorruptData("another file is there now")


class LogThatMoved:
    def __init__(self, log: Any, is_current: bool) -> None:
        self._log = log
        self._is_current = is_current

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def is_current(self, segment: object) -> bool:
        return self._is_current


@pytest.mark.parametrize("is_current", [False, True], ids=["rewritten", "damaged"])
async def test_what_compaction_replaced_is_read_again_and_damage_is_not(is_current: bool) -> None:
    async with running() as it:
        reads: list[Offset] = []

        def read(offset: Offset, bytes_max: int, *, at_least_one: bool) -> Any:
            reads.append(offset)
            if len(reads) == 1:
                return Rewritten(cast(Any, None), offset, offset, bytes_max, at_least_one)
            return it.partition.inner.read(offset, bytes_max, at_least_one=at_least_one)

        it.partition.read = read
        it.partition.log = LogThatMoved(it.partition.inner.log, is_current)
        it.runner.load()
        if is_current:
            await until(lambda: bool(it.lines.named("coordinator.not_loaded")), seconds_max=5)
            assert [str(damage) for damage in it.damaged] == ["another file is there now"]
        else:
            await it.loaded()
            assert it.damaged == []
            assert it.lines.named("coordinator.not_loaded") == []
            assert it.look() == [{b"a": b"0", b"b": b"0"}]


async def test_what_cannot_be_read_is_said_and_counted() -> None:
    async with running(PartlyRead) as it:
        it.runner.load()
        await it.loaded()
        assert len(it.lines.named("coordinator.unreadable")) == 20
        assert [each["count"] for each in it.lines.named("coordinator.records_unreadable")] == [50]


# A full disk


class Gauge:
    """A disk whose space a test sets."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self.usable_bytes = 0
        self.looks = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    @property
    def disk(self) -> "Gauge":
        return self

    def space(self, path: str) -> Space:
        self.looks += 1
        return Space(10**9, self.usable_bytes)


async def test_a_full_disk_is_noticed_once_and_so_is_the_room_that_comes_back() -> None:
    async with running(limits=CoordinatorLimits(space_check_ms=1)) as it:
        gauge = it.partition.log = Gauge(it.partition.inner.log)
        it.runner.load()
        await it.loaded()
        it.partition.is_full = True
        assert it.put(b"c") == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        await it.loaded()
        for _ in range(10):
            assert it.put(b"c") == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
            assert it.look() == [{b"a": b"0", b"b": b"0"}]
        await until(lambda: gauge.looks > 2, seconds_max=5)
        assert len(it.lines.named("coordinator.loaded")) == 2
        it.partition.is_full = False
        gauge.usable_bytes = 10**7
        await until(lambda: not it.shard.is_full, seconds_max=5)
        assert it.put(b"c") != [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert it.shard.phase is Phase.ACTIVE


async def test_too_little_free_space_reloads_the_state_at_most_once_per_check() -> None:
    """As with a quota, or where no more files can be opened."""
    async with running(limits=CoordinatorLimits(space_check_ms=20, reload_ms=1)) as it:
        gauge = it.partition.log = Gauge(it.partition.inner.log)
        gauge.usable_bytes = 10**9
        it.runner.load()
        await it.loaded()
        it.partition.is_full = True
        for _ in range(100):
            it.put(b"c")
            await asyncio.sleep(0.001)
        assert len(it.lines.named("coordinator.broken")) <= gauge.looks + 1
        it.partition.is_full = False
        await until(lambda: not it.shard.is_full, seconds_max=5)
        await it.loaded()
        assert it.put(b"c") != [ErrorCode.COORDINATOR_NOT_AVAILABLE]


async def test_room_is_what_there_was_no_room_for() -> None:
    async with running(limits=CoordinatorLimits(space_check_ms=1)) as it:
        gauge = it.partition.log = Gauge(it.partition.inner.log)
        gauge.usable_bytes = COORDINATOR_ROOM_BYTES
        it.runner.load()
        await it.loaded()
        it.partition.is_full = True
        it.partition.inner.reconfigure(it.partition.config._replace(max_message_bytes=COORDINATOR_ROOM_BYTES))
        large = CommandOutcome([StateRecord(b"k", bytes(COORDINATOR_ROOM_BYTES // 80))] * 50)
        it.shard.execute(lambda state, now: large, Client().pending)
        looks = gauge.looks
        await until(lambda: gauge.looks > looks + 2, seconds_max=5)
        assert it.shard.is_full, "that much was free before"
        gauge.usable_bytes = 2 * COORDINATOR_ROOM_BYTES
        await until(lambda: not it.shard.is_full, seconds_max=5)


async def test_room_that_was_none_is_looked_for_less_often_until_something_is_written() -> None:
    async with running(limits=CoordinatorLimits(space_check_ms=20, reload_ms=1)) as it:
        gauge = it.partition.log = Gauge(it.partition.inner.log)
        gauge.usable_bytes = 10**9
        it.runner.load()
        await it.loaded()
        it.partition.is_full = True
        began = time.monotonic()
        while time.monotonic() - began < 1:
            it.put(b"c")
            await asyncio.sleep(0.001)
        assert gauge.looks <= 5, "after 20, 40, 80, 160, 320 and 640 ms"
        it.partition.is_full = False
        await until(lambda: not it.shard.is_full, seconds_max=5)
        await it.loaded()
        assert it.put(b"c") != [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        it.partition.is_full = True
        looks, began = gauge.looks, time.monotonic()
        it.put(b"c")
        await until(lambda: gauge.looks > looks, seconds_max=5)
        assert time.monotonic() - began < 0.6


async def test_troubles_are_counted() -> None:
    async with running() as it:
        it.runner.too_large(10, 1, 5)
        it.runner.unanswered(RuntimeError("this cannot be encoded"))
        assert (it.counts.too_large, it.counts.unanswered) == (1, 1)
        assert it.lines.named("coordinator.too_large")[0]["limit_bytes"] == 5
        assert "RuntimeError: this cannot be encoded" in str(it.lines.named("task.failed")[0]["traceback"])
