"""More partitions than files may be open: each is served in its turn, and nothing stays locked out."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.broker.broker import BROKER_LIMITS, BrokerLimits, Environment, RunningBroker, running_broker
from penstock.broker.storage.partition_storage import StorageLimits
from penstock.config.sources import load
from penstock.host.disk import TooManyOpenFiles
from penstock.host.os_disk import OsDisk, OsFile
from penstock.replication.partition import Partition
from penstock.types import Offset
from tests.unit.broker.storage.test_hung_disk import eventually
from tests.unit.broker.storage.test_partition_storage import (
    NOW_MS,
    CountingDisk,
    LinesKept,
    batch,
    make_topic,
)

LOG_FILES = 8
CHECKPOINT_FILES = LOG_FILES // 4
PARTITIONS = 50
SECONDS_MAX = 10


class FewFiles(CountingDisk):
    """The process may have `limit` files open, and of those logs LOG_FILES."""

    limit = LOG_FILES + CHECKPOINT_FILES

    @property
    def open_files_max(self) -> int:
        return LOG_FILES

    def open(self, path: str, *, create: bool = False) -> OsFile:
        if self.open_now >= self.limit:
            raise TooManyOpenFiles(f"cannot open {path}")
        return super().open(path, create=create)


def checkpoints_every(interval_ms: int) -> BrokerLimits:
    """And whatever is due is noticed at once."""
    return BrokerLimits(storage=StorageLimits(tick_ms=5, checkpoint_ms=interval_ms))


@asynccontextmanager
async def broker_on(
    disk: OsDisk, tmp_path: Path, *settings: str, limits: BrokerLimits = BROKER_LIMITS
) -> AsyncIterator[RunningBroker]:
    config = load({"data_dir": str(tmp_path / "data"), "kafka": "127.0.0.1:0"}, settings)
    async with running_broker(config, Environment(disk=disk), limits) as broker:
        await make_topic(broker, PARTITIONS)
        yield broker


async def write(broker: RunningBroker, partitions: list[Partition]) -> int:
    """As a client that sends again what is refused. Returns how often it was."""
    refusals = 0
    async with asyncio.timeout(SECONDS_MAX):
        while partitions:
            refused = []
            for partition in partitions:
                try:
                    partition.append_now(memoryview(batch(b"x")), NOW_MS)
                except TooManyOpenFiles as full:
                    broker.storage.note_full(full)
                    refused.append(partition)
            refusals += len(refused)
            partitions = refused
            await asyncio.sleep(0.002)
    return refusals


@pytest.mark.parametrize("policy", ["before_ack", "os"])
async def test_who_is_refused_for_want_of_files_is_served_when_it_tries_again(
    tmp_path: Path, policy: str
) -> None:
    """Also where nobody would flush for minutes: that is asked for."""
    disk, limits = FewFiles(), checkpoints_every(10**9)
    async with broker_on(disk, tmp_path, f"log.flush.policy={policy}", limits=limits) as broker:
        partitions = list(broker.storage.partitions)
        for _ in range(2):
            assert await write(broker, partitions) > 0
            assert disk.open_now <= LOG_FILES
        assert [partition.log.log_end_offset for partition in partitions] == [2] * PARTITIONS
    assert disk.open_most <= LOG_FILES + CHECKPOINT_FILES
    assert disk.open_now == 0
    assert (tmp_path / "data" / "clean-shutdown").exists()


async def test_checkpoints_go_on_when_others_have_taken_the_descriptors(tmp_path: Path) -> None:
    """Files of logs that are on disk are closed for them."""
    disk, lines = FewFiles(), LinesKept()
    config = load({"data_dir": str(tmp_path / "data"), "kafka": "127.0.0.1:0"})
    async with running_broker(config, Environment(disk=disk, log=lines), checkpoints_every(10)) as broker:
        await make_topic(broker, LOG_FILES // 2)
        partitions = list(broker.storage.partitions)
        disk.limit = LOG_FILES
        await write(broker, partitions)
        disk.limit = len(partitions)  # just what is open
        await eventually(lambda: all(partition.log.recovery_point == 1 for partition in partitions))
    assert lines.reasons("checkpoint.postponed"), "nothing was short"


async def test_a_segment_begun_by_retention_keeps_no_file_open(tmp_path: Path) -> None:
    """Nobody may ever write to that partition again."""
    disk = CountingDisk()
    settings = ("log.retention.check.interval.ms=1", "log.retention.ms=1000")
    async with broker_on(disk, tmp_path, *settings, limits=checkpoints_every(20)) as broker:
        partition = next(iter(broker.storage.partitions))
        partition.append_now(memoryview(batch(b"x", 1_000)), NOW_MS)
        await broker.storage.flusher.flush_to([(partition, Offset(1))])
        await eventually(lambda: partition.log.log_start_offset == 1 and disk.open_now == 0)


async def test_files_of_idle_partitions_are_closed_a_few_in_each_turn_of_the_loop(tmp_path: Path) -> None:
    limits = BrokerLimits(storage=StorageLimits(partitions_at_once=5))
    disk = CountingDisk()
    async with broker_on(disk, tmp_path, limits=limits) as broker:
        partitions = list(broker.storage.partitions)
        for partition in partitions:
            partition.append_now(memoryview(batch(b"x")), NOW_MS)
        checkpoints = broker.storage.checkpoints
        await checkpoints.run_due(float("inf"))
        assert disk.open_now == PARTITIONS
        checkpoints._since_all = 0.0
        round_of_idle = asyncio.ensure_future(checkpoints.run_due(10.0**9))
        open_before, closed_in_a_turn = disk.open_now, []
        while not round_of_idle.done():
            await asyncio.sleep(0)
            closed_in_a_turn.append(open_before - disk.open_now)
            open_before = disk.open_now
        assert (sum(closed_in_a_turn), max(closed_in_a_turn)) == (PARTITIONS, 5)
