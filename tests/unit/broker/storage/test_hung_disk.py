"""The disk does not answer: who waits for it is told in time, and what does not need it goes on."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from penstock.broker.broker import BrokerLimits, Environment, RunningBroker, running_broker
from penstock.broker.storage.partition_storage import StorageLimits
from penstock.config.sources import load
from penstock.errors import ErrorCode
from penstock.host.disk import File, SmallFile
from penstock.host.os_disk import OsDisk
from penstock.replication.partition import Partition
from penstock.replication.produce_waits import ProduceWait
from tests.unit.broker.storage.test_partition_storage import NOW_MS, batch, make_topic
from tests.unit.broker.waiting import until

SECONDS_MAX = 10
DUE_AT_ONCE = BrokerLimits(storage=StorageLimits(tick_ms=5, checkpoint_ms=0))


class HangingDisk(OsDisk):
    """Does not come back from the calls that the test says, until it lets them."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs_go_on = threading.Event()
        self.stores_go_on = threading.Event()
        self.stores_begun = threading.Event()
        self.go_on()

    def go_on(self) -> None:
        self.syncs_go_on.set()
        self.stores_go_on.set()

    def sync(self, files: Sequence[File], folders: Sequence[str]) -> None:
        self.syncs_go_on.wait(SECONDS_MAX)
        super().sync(files, folders)

    def store(self, writes: Sequence[SmallFile]) -> None:
        self.stores_begun.set()
        self.stores_go_on.wait(SECONDS_MAX)
        super().store(writes)


@asynccontextmanager
async def broker_on(
    disk: HangingDisk, tmp_path: Path, *settings: str
) -> AsyncIterator[tuple[RunningBroker, Partition]]:
    config = load({"data_dir": str(tmp_path / "data"), "kafka": "127.0.0.1:0"}, settings)
    async with running_broker(config, Environment(disk=disk), DUE_AT_ONCE) as broker:
        await make_topic(broker, 1)
        (partition,) = broker.storage.partitions
        try:
            yield broker, partition
        finally:
            disk.go_on()


async def eventually(look: Callable[[], bool]) -> None:
    await until(look, seconds_max=SECONDS_MAX / 2)


async def test_a_produce_is_answered_in_time_although_a_checkpoint_waits_for_the_disk(tmp_path: Path) -> None:
    disk = HangingDisk()
    async with broker_on(disk, tmp_path) as (_, partition):
        disk.syncs_go_on.clear()
        for _ in range(2):  # the second comes when all the first left behind hangs
            appended = partition.append_now(memoryview(batch(b"x")), NOW_MS)
            answers: list[ProduceWait] = []
            deadline = asyncio.get_running_loop().time() + 0.1
            partition.high_watermark_waits.add(appended.end_offset, ProduceWait(deadline, answers.append), 0)
            await eventually(lambda answers=answers: bool(answers))  # type: ignore[misc]
            assert answers[0].errors == {0: ErrorCode.REQUEST_TIMED_OUT}
        disk.go_on()
        await eventually(lambda: partition.high_watermark == 2)


async def test_a_flush_at_intervals_does_not_wait_for_a_checkpoint(tmp_path: Path) -> None:
    disk = HangingDisk()
    settings = ("log.flush.policy=interval", "log.flush.interval.ms=20")
    async with broker_on(disk, tmp_path, *settings) as (_, partition):
        disk.stores_begun.clear()
        disk.stores_go_on.clear()
        partition.append_now(memoryview(batch(b"x")), NOW_MS)
        await eventually(disk.stores_begun.is_set)
        partition.append_now(memoryview(batch(b"y")), NOW_MS)
        await eventually(lambda: partition.log.flushed_end_offset == 2)
        assert partition.log.recovery_point == 0, "the checkpoint still waits"
        disk.go_on()
        await eventually(lambda: partition.log.recovery_point == 2)


async def test_a_stop_while_the_disk_hangs_ends_when_it_answers(tmp_path: Path) -> None:
    disk = HangingDisk()
    async with broker_on(disk, tmp_path) as (_, partition):
        disk.stores_begun.clear()
        disk.stores_go_on.clear()
        partition.append_now(memoryview(batch(b"x")), NOW_MS)
        await eventually(disk.stores_begun.is_set)
        disk.go_on()
    assert (tmp_path / "data" / "clean-shutdown").exists()
