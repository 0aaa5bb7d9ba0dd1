"""The task that has compacted logs cleaned, in a broker with a real disk and a real cleaner process."""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.broker import Environment, RunningBroker, running_broker
from penstock.broker.context import RequestContext
from penstock.broker.data.fetch_reader import FetchParams, FetchReader
from penstock.broker.data.fetch_sessions import FetchPartitionKey, FetchTarget
from penstock.broker.storage.cold_reads import ColdReads
from penstock.config.sources import load
from penstock.controller.topics import NewTopicFacts, TopicDefaults, TopicRequest, create_topic, delete_topic
from penstock.errors import ConfigError, CorruptData, ErrorCode, StorageFailed, StorageFull
from penstock.host.child_process import ChildProcessEnded
from penstock.host.clock import AdjustableClock
from penstock.http.metrics import compaction_metrics
from penstock.http.prometheus import lines as metric_lines
from penstock.limits import MIB
from penstock.log.compaction.cleanable import LogToClean
from penstock.log.compaction.cleaner import clean
from penstock.log.compaction.cleaning_job import CleanerFailed, CleaningJob, CleaningStep
from penstock.observability.logs import StreamLog
from penstock.protocol.batches import HEADER_BYTES, parse_header, seal_in_place, split_batches
from penstock.protocol.messages.fetch import FetchPartition
from penstock.protocol.records import Record, build_batch, iterate_records
from penstock.replication.partition import Partition
from penstock.security.access import ANONYMOUS, AllowEverything
from penstock.types import LeaderEpoch, Offset, TopicId, TopicPartition

COMPACTED = {"cleanup.policy": "compact", "segment.bytes": str(MIB), "min.cleanable.dirty.ratio": "0.1"}
CHECKPOINT = "cleaner-offset-checkpoint"
LOGS = "data/logs"


class HandClock(AdjustableClock):
    """Its time passes when it is told so; `advance` sets its wall clock alone."""

    def __init__(self) -> None:
        super().__init__()
        self._passed_ms = 0
        self._began_ms, self._began = super().wall_ms(), super().monotonic()

    def pass_time(self, ms: int) -> None:
        self._passed_ms += ms

    def wall_ms(self) -> int:
        return self._began_ms + self._passed_ms + self._ahead_ms

    def monotonic(self) -> float:
        return self._began + self._passed_ms / 1000


class InlineCleaner:
    """Cleans in the test itself; `meanwhile` is what happens before it answers."""

    def __init__(self, broker: RunningBroker) -> None:
        self._disk = next(iter(broker.storage.partitions)).log.disk
        self.meanwhile: Callable[[CleaningJob], Awaitable[None]] | None = None
        self.jobs: list[CleaningJob] = []
        self.given_up = 0
        self._steps: Iterator[CleaningStep] = iter(())

    async def begin(self, job: CleaningJob) -> CleaningStep:
        self.jobs.append(job)
        if self.meanwhile is not None:
            await self.meanwhile(job)
        self._steps = clean(self._disk, job)
        return next(self._steps)

    async def go_on(self) -> CleaningStep:
        return next(self._steps)

    async def abandon(self) -> None:
        self._steps = iter(())

    def interrupt(self) -> None:
        self.given_up += 1

    async def shut_down(self) -> None:
        pass


@asynccontextmanager
async def broker_with(path: Path, world: Environment | None = None) -> AsyncIterator[RunningBroker]:
    flags = {"data_dir": str(path / "data"), "kafka": "127.0.0.1:0"}
    async with running_broker(load(flags), world or Environment()) as broker:
        yield broker


async def make(
    broker: RunningBroker, name: str, topic_id: TopicId | None = None, **overrides: str
) -> Partition:
    settings = COMPACTED | {key.replace("_", "."): value for key, value in overrides.items()}
    await broker.cluster.change(
        lambda image: create_topic(
            image,
            TopicRequest(name=name, partitions=1, overrides=settings),
            NewTopicFacts(topic_id or TopicId(name.encode().ljust(16)), 0),
            defaults=TopicDefaults(1, 1),
        )
    )
    return found(broker, name)


def found(broker: RunningBroker, name: str) -> Partition:
    partition = broker.storage.partitions.find(name, 0)
    assert partition is not None
    return partition


async def fill(broker: RunningBroker, partition: Partition, mebibytes: int, time_ms: int = 1) -> None:
    """Values of ten keys, in segments of a mebibyte."""
    for number in range(mebibytes * 20):
        records = [Record(Offset(0), time_ms, b"%d" % key, bytes(5_000), ()) for key in range(10)]
        records[0] = records[0]._replace(value=b"%d" % number)
        partition.append_now(memoryview(bytearray(build_batch(records))), time_ms)
    await broker.storage.checkpoints.run([partition])


def read_all(partition: Partition) -> list[Record]:
    records: list[Record] = []
    offset = partition.log.log_start_offset
    while offset < partition.high_watermark:
        got: Any = partition.read(offset, MIB, at_least_one=True)
        got = got.run().found if hasattr(got, "run") else got
        for at, header in split_batches(got.data):
            records += iterate_records(bytes(got.data)[at : at + header.size], limit_bytes=64 * MIB)
        offset = got.next_offset
    return records


def values(partition: Partition) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in read_all(partition)}


async def test_the_dirtiest_log_is_cleaned_first_and_what_is_clean_is_remembered(tmp_path: Path) -> None:
    async with broker_with(tmp_path) as broker:
        small, large = await make(broker, "small"), await make(broker, "large")
        plain = await make(broker, "plain", cleanup_policy="delete")
        for partition, size in ((small, 3), (large, 6), (plain, 3)):
            await fill(broker, partition, size)
        before = {partition: values(partition) for partition in (small, large)}
        size, plain_size = large.log.size_bytes, plain.log.size_bytes
        cleaned = [await broker.compaction.clean_dirtiest() for _ in range(3)]
        assert set(cleaned) == {small.name, large.name, None}
        assert cleaned[-1] is None
        assert large.log.size_bytes < size / 3
        assert plain.log.size_bytes == plain_size
        assert {partition: values(partition) for partition in (small, large)} == before
        note = (tmp_path / LOGS / "large-0" / CHECKPOINT).read_text()
        assert note == f"0\n1\n{large.log.active.base_offset}\n"
    async with broker_with(tmp_path) as broker:
        assert await broker.compaction.clean_dirtiest() is None, "it is remembered over a restart"
        assert values(found(broker, "large")) == before[large]


async def failing(broker: RunningBroker, failure: Exception) -> InlineCleaner:
    """A cleaner that fails at the topic named bad."""
    cleaner = InlineCleaner(broker)
    broker.compaction.cleaner = cleaner

    async def fail(job: CleaningJob) -> None:
        if job.folder.endswith("bad-0"):
            raise failure

    cleaner.meanwhile = fail
    return cleaner


def begun(cleaner: InlineCleaner, topic: str) -> int:
    return sum(job.folder.endswith(f"{topic}-0") for job in cleaner.jobs)


@pytest.mark.parametrize(
    "failure",
    [
        ChildProcessEnded("killed"),
        StorageFull("no space"),
        ConfigError("too small"),
        CleanerFailed("KeyError: 1"),
    ],
)
async def test_a_failed_cleaning_is_retried_after_others_and_with_longer_pauses(
    tmp_path: Path, failure: Exception
) -> None:
    clock, said = HandClock(), StringIO()
    async with broker_with(tmp_path, Environment(clock=clock, log=StreamLog(clock, said))) as broker:
        bad, good = await make(broker, "bad"), await make(broker, "good")
        await fill(broker, bad, 4)
        await fill(broker, good, 3)
        cleaner = await failing(broker, failure)
        assert [await broker.compaction.clean_dirtiest() for _ in range(3)] == [bad.name, good.name, None]
        assert good.log.size_bytes < 2 * MIB
        for retry_ms in (15_000, 30_000, 60_000, 120_000, 240_000, 480_000, 600_000, 600_000):
            before = begun(cleaner, "bad")
            clock.pass_time(retry_ms - 1)
            assert await broker.compaction.clean_dirtiest() is None
            clock.pass_time(1)
            assert await broker.compaction.clean_dirtiest() == bad.name
            assert begun(cleaner, "bad") == before + 1
        assert (broker.compaction.failures, broker.compaction.cleanings) == (9, 1)
        assert broker.compaction.postponed_cleanings[bad.log].reason == str(failure)
        assert said.getvalue().count("compaction.postponed") == 1
        cleaner.meanwhile = None
        clock.pass_time(600_000)
        assert await broker.compaction.clean_dirtiest() == bad.name
        assert bad.log.size_bytes < 2 * MIB
        assert broker.compaction.postponed_cleanings == {}
        assert broker.compaction.uncleanable == {}


async def test_logs_cleaned_later_and_logs_never_cleaned_are_counted_separately(
    tmp_path: Path,
) -> None:
    clock = HandClock()
    async with broker_with(tmp_path, Environment(clock=clock)) as broker:
        await fill(broker, await make(broker, "bad"), 3)
        await failing(broker, StorageFull("no space"))
        await broker.compaction.clean_dirtiest()
        assert set_aside(broker) == {"postponed": 1, "uncleanable": 0}
        await failing(broker, StorageFailed("cannot read: Input/output error"))
        clock.pass_time(600_000)
        await broker.compaction.clean_dirtiest()
        assert set_aside(broker) == {"postponed": 0, "uncleanable": 1}


def set_aside(broker: RunningBroker) -> dict[str, int]:
    text = "".join(metric_lines(compaction_metrics(broker.compaction)))
    counts = re.findall(r"^penstock_compaction_(\w+)_logs (\d+)$", text, re.MULTILINE)
    return {state: int(count) for state, count in counts}


async def test_a_setback_for_another_reason_is_said_too(tmp_path: Path) -> None:
    clock, said = HandClock(), StringIO()
    async with broker_with(tmp_path, Environment(clock=clock, log=StreamLog(clock, said))) as broker:
        await fill(broker, await make(broker, "bad"), 3)
        for failure in (StorageFull("no space"), CleanerFailed("KeyError: 1"), CleanerFailed("KeyError: 1")):
            await failing(broker, failure)
            await broker.compaction.clean_dirtiest()
            clock.pass_time(600_000)
        lines = [line for line in said.getvalue().splitlines() if "compaction.postponed" in line]
        assert [line.partition("reason=")[2] for line in lines] == ['"no space"', '"KeyError: 1"']


async def small_logs(broker: RunningBroker, count: int) -> list[Partition]:
    """Each has one segment that is dirty."""
    logs = []
    for number in range(count):
        partition = await make(broker, f"t{number}")
        for value in range(2):
            batch = build_batch([Record(Offset(0), 1, b"key", b"%d" % value)])
            partition.append_now(memoryview(bytearray(batch)), 1)
        partition.log.roll()
        logs.append(partition)
    await broker.storage.checkpoints.run(logs)
    return logs


async def test_each_log_is_looked_at_a_few_times_however_many_are_cleaned(tmp_path: Path) -> None:
    count = 12
    async with broker_with(tmp_path) as broker:
        logs = await small_logs(broker, count)
        broker.compaction.cleaner = InlineCleaner(broker)
        look, looks = broker.compaction.find_log_to_clean, 0

        async def counted(partition: Partition) -> LogToClean | None:
            nonlocal looks
            looks += 1
            return await look(partition)

        broker.compaction.find_log_to_clean = counted  # type: ignore[method-assign]
        names = [await broker.compaction.clean_dirtiest() for _ in range(count + 1)]
        assert names == [*(partition.name for partition in logs), None]
        assert looks < 3 * count + 10  # the logs of the broker itself are looked at as well


async def test_a_log_that_becomes_overdue_does_not_wait_for_all_other_cleanings(
    tmp_path: Path,
) -> None:
    clock = HandClock()
    async with broker_with(tmp_path, Environment(clock=clock)) as broker:
        logs = await small_logs(broker, 4)
        late = await make(broker, "late", max_compaction_lag_ms="60000")
        batch = build_batch([Record(Offset(0), clock.wall_ms() - 50_000, b"key", b"")])
        late.append_now(memoryview(bytearray(batch)), clock.wall_ms())
        broker.compaction.cleaner = InlineCleaner(broker)
        names = []
        for _ in range(5):
            names.append(await broker.compaction.clean_dirtiest())
            clock.pass_time(10_000)
        assert names == [logs[0].name, logs[1].name, late.name, logs[2].name, logs[3].name]


async def test_a_log_that_is_clean_or_gone_when_its_turn_comes_is_passed_over(tmp_path: Path) -> None:
    async with broker_with(tmp_path) as broker:
        logs = await small_logs(broker, 4)
        broker.compaction.cleaner = cleaner = InlineCleaner(broker)
        await broker.compaction.clean_dirtiest()
        await broker.cluster.change(lambda image: delete_topic(image, name="t1"))
        logs[2].log.clean_to = logs[2].log.log_end_offset
        assert await broker.compaction.clean_dirtiest() == logs[3].name
        assert await broker.compaction.clean_dirtiest() is None
        assert len(cleaner.jobs) == 2
        assert broker.compaction.failures == 0


async def test_a_batch_that_cannot_be_opened_is_spoken_of_once(tmp_path: Path) -> None:
    clock, said = HandClock(), StringIO()
    async with broker_with(tmp_path, Environment(clock=clock, log=StreamLog(clock, said))) as broker:
        partition = await make(broker, "t")
        broker.compaction.cleaner = InlineCleaner(broker)
        batch = bytearray(build_batch([Record(Offset(0), 1, b"key", b"y" * 20)]))
        batch[HEADER_BYTES:] = b"\xff" * (len(batch) - HEADER_BYTES)
        seal_in_place(batch)
        partition.log.append(batch, parse_header(batch), LeaderEpoch(0))  # as before it was compacted
        for _ in range(2):
            await fill(broker, partition, 3)
            assert await broker.compaction.clean_dirtiest() == partition.name
            assert partition.log.size_bytes < 2 * MIB
        lines = [line for line in said.getvalue().splitlines() if "compaction.unopened" in line]
        assert [line.partition("unopened ")[2] for line in lines] == [
            "partition=t-0 batches=1 first_offset=0"
        ]
        assert broker.compaction.uncleanable == {}


async def test_a_disk_that_fills_up_in_the_middle_keeps_what_was_cleaned_so_far(tmp_path: Path) -> None:
    clock = HandClock()
    async with broker_with(tmp_path, Environment(clock=clock)) as broker:
        partition = await make(broker, "t")
        await fill(broker, partition, 4)
        before, segments = values(partition), len(partition.log.segments)
        real = InlineCleaner(broker)

        class FillsUp(InlineCleaner):
            async def go_on(self) -> CleaningStep:
                raise StorageFull("no space")

        broker.compaction.cleaner = FillsUp(broker)
        size = partition.log.size_bytes
        await broker.compaction.clean_dirtiest()
        assert partition.log.size_bytes < size
        assert not (tmp_path / LOGS / "t-0" / CHECKPOINT).exists()
        assert values(partition) == before
        folder = tmp_path / "data" / "logs" / "t-0"
        await broker.compaction._worker.run(lambda: None)  # it discards behind the scenes
        assert not [*folder.glob("*.cleaned"), *folder.glob("*.swap")]
        broker.compaction.cleaner = real
        clock.pass_time(15_000)
        await broker.compaction.clean_dirtiest()
        assert real.jobs[-1].first_dirty_offset == 0
        assert len(partition.log.segments) < segments
        assert values(partition) == before


async def test_a_topic_made_anew_is_dirty_whatever_the_old_one_left(tmp_path: Path) -> None:
    async with broker_with(tmp_path) as broker:
        partition = await make(broker, "t", TopicId(b"first".ljust(16)))
        await fill(broker, partition, 3)
        await broker.compaction.clean_dirtiest()
        assert (tmp_path / LOGS / "t-0" / CHECKPOINT).exists()
        await broker.cluster.change(lambda image: delete_topic(image, name="t"))
        again = await make(broker, "t", TopicId(b"second".ljust(16)))
        await fill(broker, again, 4)
        broker.compaction.cleaner = cleaner = InlineCleaner(broker)
        assert await broker.compaction.clean_dirtiest() == TopicPartition("t", 0)
        assert cleaner.jobs[0].first_dirty_offset == 0


async def test_another_copy_of_a_log_is_not_believed_to_be_clean(tmp_path: Path) -> None:
    """A copy that was cleaned goes, and one that was not comes: fetched anew, or from a backup."""
    clock, folder, backup = HandClock(), tmp_path / LOGS / "t-0", tmp_path / "backup"
    async with broker_with(tmp_path, Environment(clock=clock)) as broker:
        partition = await make(broker, "t", delete_retention_ms="1000")
        for value in (b"deleted long ago", None):
            batch = build_batch([Record(Offset(0), clock.wall_ms(), b"K", value)])
            partition.append_now(memoryview(bytearray(batch)), clock.wall_ms())
        await fill(broker, partition, 2, clock.wall_ms())
    shutil.copytree(folder, backup)
    async with broker_with(tmp_path, Environment(clock=clock)) as broker:
        assert await broker.compaction.clean_dirtiest() is not None
        assert found(broker, "t").log.clean_to is not None
    shutil.rmtree(folder)
    shutil.move(backup, folder)
    async with broker_with(tmp_path, Environment(clock=clock)) as broker:
        partition = found(broker, "t")
        for _ in range(3):
            await fill(broker, partition, 2, clock.wall_ms())
            clock.pass_time(20_000)
            while await broker.compaction.clean_dirtiest():
                pass
        assert b"K" not in values(partition)


async def test_a_log_that_lost_its_records_is_dirty(tmp_path: Path) -> None:
    async with broker_with(tmp_path) as broker:
        partition = await make(broker, "t")
        await fill(broker, partition, 3)
        await broker.compaction.clean_dirtiest()
    shutil.rmtree(tmp_path / "data" / "logs" / "t-0")
    async with broker_with(tmp_path) as broker:
        await fill(broker, found(broker, "t"), 4)
        broker.compaction.cleaner = cleaner = InlineCleaner(broker)
        await broker.compaction.clean_dirtiest()
        assert cleaner.jobs[0].first_dirty_offset == 0


async def test_a_clock_that_leaps_ahead_does_not_end_the_life_of_tombstones(tmp_path: Path) -> None:
    clock = HandClock()
    async with broker_with(tmp_path, Environment(clock=clock)) as broker:
        partition = await make(broker, "t", delete_retention_ms="3600000")
        broker.compaction.cleaner = InlineCleaner(broker)
        batch = bytearray(build_batch([Record(Offset(0), clock.wall_ms(), b"gone", None)]))
        partition.append_now(memoryview(batch), clock.wall_ms())

        async def clean_more() -> bool:
            await fill(broker, partition, 3, time_ms=clock.wall_ms())
            assert await broker.compaction.clean_dirtiest() == partition.name
            return b"gone" in values(partition)

        assert await clean_more()
        clock.advance(24 * 3_600_000)
        assert await clean_more(), "an hour has not passed"
        clock.pass_time(3_600_000 - 1)
        assert await clean_more()
        clock.pass_time(1)
        assert not await clean_more()


async def test_a_topic_deleted_during_its_cleaning_is_simply_gone(tmp_path: Path) -> None:
    async with broker_with(tmp_path) as broker:
        await make(broker, "stays")
        partition = await make(broker, "goes")
        await fill(broker, partition, 3)
        cleaner = InlineCleaner(broker)
        broker.compaction.cleaner = cleaner

        async def delete(_: CleaningJob) -> None:
            await broker.cluster.change(lambda image: delete_topic(image, name="goes"))

        cleaner.meanwhile = delete
        assert await broker.compaction.clean_dirtiest() == TopicPartition("goes", 0)
        assert cleaner.given_up == 1
        cleaner.meanwhile = None
        assert broker.compaction.uncleanable == {}
        again = await make(broker, "goes")
        await fill(broker, again, 3)
        await broker.compaction.clean_dirtiest()
        assert cleaner.jobs[-1].first_dirty_offset == 0, "it is another topic"
        assert again.log.size_bytes < 2 * MIB


async def test_retention_that_removes_what_is_being_cleaned_wins(tmp_path: Path) -> None:
    clock = AdjustableClock()
    async with broker_with(tmp_path, Environment(clock=clock)) as broker:
        partition = await make(broker, "t", cleanup_policy="compact,delete", retention_ms="1000")
        await fill(broker, partition, 3, time_ms=clock.wall_ms())
        cleaner = InlineCleaner(broker)
        broker.compaction.cleaner = cleaner

        async def expire(_: CleaningJob) -> None:
            clock.advance(5_000)
            await broker.storage.retention.enforce(partition)

        cleaner.meanwhile = expire
        await broker.compaction.clean_dirtiest()
        assert broker.compaction.uncleanable == {}
        assert partition.log.log_start_offset == partition.log.log_end_offset
        assert partition.log.size_bytes == 0


async def test_retention_that_removes_what_was_found_dirty_leaves_nothing_to_ask_for(tmp_path: Path) -> None:
    clock = AdjustableClock()
    async with broker_with(tmp_path, Environment(clock=clock)) as broker:
        partition = await make(broker, "t", cleanup_policy="compact,delete", retention_ms="1000")
        await fill(broker, partition, 3, time_ms=clock.wall_ms())
        broker.compaction.cleaner = cleaner = InlineCleaner(broker)
        look = broker.compaction.find_log_to_clean

        async def expire_then(partition: Partition) -> LogToClean | None:
            log_to_clean = await look(partition)
            clock.advance(5_000)
            await broker.storage.retention.enforce(partition)
            return log_to_clean

        broker.compaction.find_log_to_clean = expire_then  # type: ignore[method-assign]
        await broker.compaction.clean_dirtiest()
        assert cleaner.jobs == []
        assert broker.compaction.failures == 0


async def test_a_record_that_waited_too_long_is_cleaned_from_the_active_segment(
    tmp_path: Path,
) -> None:
    clock = AdjustableClock()
    async with broker_with(tmp_path, Environment(clock=clock)) as broker:
        partition = await make(broker, "t", max_compaction_lag_ms="60000")
        for value in (b"old", b"new"):
            batch = bytearray(build_batch([Record(Offset(0), clock.wall_ms(), b"key", value)]))
            partition.append_now(memoryview(batch), clock.wall_ms())
        assert await broker.compaction.clean_dirtiest() is None
        clock.advance(61_000)
        assert await broker.compaction.clean_dirtiest() == partition.name
        assert [record.value for record in read_all(partition)] == [b"new"]


async def test_a_read_that_a_swap_overtakes_is_answered_from_what_is_there_now(tmp_path: Path) -> None:
    async with broker_with(tmp_path) as broker:
        partition = await make(broker, "t")
        await fill(broker, partition, 4)
    async with broker_with(tmp_path) as broker:  # what it found on disk is read away from the loop
        partition = found(broker, "t")
        damages: list[Exception] = []
        outcomes: list[str] = []

        class OvertakenPool:
            async def run(self, read: Callable[[], Any]) -> Any:
                await broker.compaction.clean_dirtiest()
                (outcome,) = read()
                outcomes.append("refused" if isinstance(outcome, CorruptData) else "read")
                return [outcome]

        pool: Any = OvertakenPool()
        reads = FetchReader(
            broker.storage.partitions, ColdReads(pool, lambda _, damage: damages.append(damage))
        )
        context = RequestContext(ANONYMOUS, "PLAINTEXT", "peer", AllowEverything())
        offset = partition.log.segments[2].base_offset + 50
        wanted = FetchTarget(
            FetchPartitionKey("t", partition.topic_id, 0),
            FetchPartition(
                partition=0, fetch_offset=offset, partition_max_bytes=MIB, current_leader_epoch=-1
            ),
        )
        wanted.partition = partition
        gathered = await reads.gather_cold([wanted], FetchParams(MIB, 0, -1), context)
        (data,) = gathered.answers
        assert outcomes == ["refused", "read"]
        assert damages == []
        assert data.error_code == ErrorCode.NONE
        assert data.records


@pytest.mark.parametrize("is_enabled", [True, False])
async def test_the_task_cleans_unless_it_is_switched_off(tmp_path: Path, is_enabled: bool) -> None:
    flags = {"data_dir": str(tmp_path / "data"), "kafka": "127.0.0.1:0"}
    settings = ["log.cleaner.backoff.ms=10", f"log.cleaner.enable={str(is_enabled).lower()}"]
    async with running_broker(load(flags, settings), Environment()) as broker:
        partition = await make(broker, "t")
        cleaner = InlineCleaner(broker)
        broker.compaction.cleaner = cleaner
        await fill(broker, partition, 3)
        asked = asyncio.Event()

        async def note(_: CleaningJob) -> None:
            asked.set()

        cleaner.meanwhile = note
        with suppress(TimeoutError):
            async with asyncio.timeout(10 if is_enabled else 0.3):
                await asked.wait()
        assert asked.is_set() == is_enabled
