"""Starts of logs that survive a crash: stored together, stored again after a full disk, never going back."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from penstock.broker.broker import Environment, RunningBroker, running_broker
from penstock.broker.storage.log_start_writer import LogStartWriter
from penstock.config.sources import load
from penstock.controller.topics import delete_topic
from penstock.errors import ErrorCode, StorageFailed, StorageFull
from penstock.host.disk import File, SmallFile
from penstock.host.os_disk import OsDisk
from penstock.log.data_directory import RESERVE_FILE
from penstock.log.file_uses import FileUse
from penstock.log.partition_log import PartitionLog
from penstock.log.recovery import open_log
from penstock.observability.logs import NullLog
from penstock.replication.partition import Partition
from penstock.types import Offset
from tests.unit.broker.storage.test_partition_storage import NOW_MS, batch, make_topic
from tests.unit.broker.waiting import until
from tests.unit.log.log_support import FOLDER, SETTINGS, append, flush, new_disk


class Disk:
    """Stores the starts of logs, when it is let."""

    def __init__(self) -> None:
        self.may_store = asyncio.Event()
        self.may_store.set()
        self.is_full = False
        self.calls: list[int] = []
        self.logs: list[PartitionLog] = []
        self.failures: list[StorageFailed] = []
        self.starts = LogStartWriter(self._store, asyncio.Lock(), self.failures.append, NullLog())

    async def _store(self, writes: Sequence[SmallFile]) -> None:
        await self.may_store.wait()
        self.calls.append(len(writes))
        if self.is_full:
            raise StorageFull("no room")
        for log in self.logs:
            log.disk.store([write for write in writes if write.path.rpartition("/")[0] == log.folder])

    def log(self) -> PartitionLog:
        """With ten records."""
        log = PartitionLog(new_disk(), f"{FOLDER}{len(self.logs)}", SETTINGS)
        for _ in range(10):
            append(log, [b"x"])
        flush(log)
        self.logs.append(log)
        return log


def on_disk(log: PartitionLog) -> Offset:
    return open_log(log.disk, log.folder, log.settings).log.log_start_offset


async def until_stored(disk: Disk) -> None:
    await until(lambda: not any(log.is_start_unstored for log in disk.logs), seconds_max=10)


async def test_starts_that_moved_together_are_stored_together() -> None:
    disk = Disk()
    task = asyncio.ensure_future(disk.starts.run())
    logs = [disk.log() for _ in range(25)]
    for log in logs:
        log.advance_start(Offset(4))
        disk.starts.request(log)
        assert not log.may_truncate, "a truncation would replace the start file"
    await until_stored(disk)
    task.cancel()
    assert disk.calls == [20, 5]
    assert [on_disk(log) for log in logs] == [4] * 25
    assert all(log.may_truncate for log in logs)


async def test_a_start_that_moves_on_while_it_is_stored_is_stored_again() -> None:
    disk = Disk()
    task = asyncio.ensure_future(disk.starts.run())
    log = disk.log()
    disk.may_store.clear()
    for offset in (Offset(3), Offset(7)):
        log.advance_start(offset)
        disk.starts.request(log)
        await asyncio.sleep(0.01)
    disk.may_store.set()
    await until_stored(disk)
    task.cancel()
    assert on_disk(log) == 7


async def test_a_start_that_found_no_room_is_stored_when_there_is_some() -> None:
    disk = Disk()
    log, disk.is_full = disk.log(), True
    log.advance_start(Offset(4))
    disk.starts.request(log)
    task = asyncio.ensure_future(disk.starts.run())
    await until(lambda: bool(disk.calls), seconds_max=10)
    assert log.may_truncate, "a truncation may make room"
    disk.is_full = False
    await until_stored(disk)
    task.cancel()
    assert on_disk(log) == 4


async def test_of_two_starts_that_are_stored_at_once_the_later_one_stays() -> None:
    disk = Disk()
    log = disk.log()
    disk.may_store.clear()
    both = asyncio.gather(*(disk.starts.store({log: Offset(offset)}) for offset in (8, 5)))
    await asyncio.sleep(0.01)
    disk.may_store.set()
    await both
    assert (on_disk(log), log.stored_start, log.log_start_offset) == (8, 8, 8)


async def test_nothing_is_stored_of_a_log_that_is_closed() -> None:
    disk = Disk()
    log = disk.log()
    log.close()
    await disk.starts.store({log: Offset(5)})
    assert disk.calls == []


class SlowDisk(OsDisk):
    """Holds syncs of log files back, and has room for one snapshot of producers."""

    def __init__(self) -> None:
        super().__init__()
        self.is_held = False
        self.holds = threading.Event()
        self.may_go_on = threading.Event()
        self.snapshots = 0

    def sync(self, files: Sequence[File], folders: Sequence[str]) -> None:
        if self.is_held and any(file.path.endswith(".log") for file in files):
            self.holds.set()
            assert self.may_go_on.wait(20)
        super().sync(files, folders)

    def store(self, writes: Sequence[SmallFile]) -> None:
        if self.is_held and any(write.path.endswith(".snapshot") for write in writes):
            self.snapshots += 1
            if self.snapshots > 1:
                raise StorageFull("no room")
        super().store(writes)


async def written(broker: RunningBroker) -> Partition:
    await make_topic(broker, 1)
    (partition,) = broker.storage.partitions
    for _ in range(10):
        partition.append_now(memoryview(batch(b"x")), NOW_MS)
    await broker.storage.flusher.flush_to([(partition, Offset(10))])
    return partition


async def test_a_checkpoint_planned_before_a_deletion_does_not_undo_it(tmp_path: Path) -> None:
    disk = SlowDisk()
    config = load({"data_dir": str(tmp_path / "data"), "kafka": "127.0.0.1:0"})
    async with running_broker(config, Environment(disk=disk)) as broker:
        partition, storage = await written(broker), broker.storage
        log = partition.log
        log.advance_start(Offset(2))  # as retention and a leader's answer move it
        partition.append_now(memoryview(batch(b"not flushed")), NOW_MS)
        disk.is_held = True
        checkpoint = asyncio.ensure_future(storage.checkpoints.run([partition]))
        await until(disk.holds.is_set, seconds_max=10)
        deletion = asyncio.ensure_future(storage.delete_before({partition: Offset(8)}))
        await asyncio.sleep(0.05)
        disk.may_go_on.set()
        await asyncio.gather(checkpoint, deletion)
        assert partition.is_deleted(Offset(8))
        assert open_log(OsDisk(), log.folder, log.settings).log.log_start_offset == 8
        disk.is_held = False


async def test_a_deletion_of_what_retention_removed_is_stored(tmp_path: Path) -> None:
    config = load({"data_dir": str(tmp_path / "data"), "kafka": "127.0.0.1:0"})
    async with running_broker(config, Environment()) as broker:
        partition = await written(broker)
        partition.log.advance_start(Offset(6))
        await broker.storage.delete_before({partition: Offset(3)})
        log = partition.log
        assert partition.is_deleted(Offset(6))
        assert open_log(OsDisk(), log.folder, log.settings).log.log_start_offset == 6


class Counting(OsDisk):
    """Counts how often starts of logs are stored, and breaks if it is to."""

    def __init__(self) -> None:
        super().__init__()
        self.is_counting = False
        self.breaks = False
        self.starts: list[int] = []

    def store(self, writes: Sequence[SmallFile]) -> None:
        starts = [write for write in writes if write.path.endswith("log-start-checkpoint")]
        if self.is_counting and starts:
            self.starts.append(len(starts))
            if self.breaks:
                raise StorageFailed("cannot sync")
        super().store(writes)


async def several(broker: RunningBroker, count: int) -> list[Partition]:
    """With three records each, and nothing left for a checkpoint."""
    await make_topic(broker, count)
    partitions = list(broker.storage.partitions)
    for partition in partitions:
        for _ in range(3):
            partition.append_now(memoryview(batch(b"x")), NOW_MS)
    await broker.storage.checkpoints.run(partitions)
    return partitions


async def test_starts_that_one_request_moves_are_stored_together(tmp_path: Path) -> None:
    disk = Counting()
    config = load({"data_dir": str(tmp_path / "data"), "kafka": "127.0.0.1:0"})
    async with running_broker(config, Environment(disk=disk)) as broker:
        *partitions, wrong = await several(broker, 8)
        disk.is_counting = True
        starts = {partition: Offset(2) for partition in partitions}
        refused = await broker.storage.delete_before({**starts, wrong: Offset(9)})
        disk.is_counting = False
        assert disk.starts == [7]
        assert all(partition.is_deleted(Offset(2)) for partition in partitions)
        assert [each.log.log_start_offset for each in partitions] == [2] * 7
        assert {partition: refusal.code for partition, refusal in refused.items()} == {
            wrong: ErrorCode.OFFSET_OUT_OF_RANGE
        }


async def test_a_partition_that_goes_while_starts_are_stored_keeps_no_other_one(tmp_path: Path) -> None:
    config = load({"data_dir": str(tmp_path / "data"), "kafka": "127.0.0.1:0"})
    async with running_broker(config, Environment()) as broker:
        gone, stays = await several(broker, 2)
        store = broker.storage.starts.store

        async def storing(starts: Mapping[PartitionLog, Offset]) -> None:
            await store(starts)
            gone.go_offline("its topic was deleted", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

        broker.storage.starts.store = storing  # type: ignore[method-assign]
        refused = await broker.storage.delete_before({gone: Offset(2), stays: Offset(2)})
        assert {each: refusal.code for each, refusal in refused.items()} == {
            gone: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }
        assert stays.is_deleted(Offset(2))
        assert stays.log.log_start_offset == 2


async def test_a_disk_that_fails_to_store_a_start_takes_no_more_writes(tmp_path: Path) -> None:
    disk = Counting()
    config = load({"data_dir": str(tmp_path / "data"), "kafka": "127.0.0.1:0"})
    async with running_broker(config, Environment(disk=disk)) as broker:
        (partition,) = await several(broker, 1)
        disk.is_counting = disk.breaks = True
        with pytest.raises(StorageFailed):
            await broker.storage.delete_before({partition: Offset(2)})
        assert broker.storage.partitions.failure == "cannot sync"
        disk.breaks = False


class FullOnce(OsDisk):
    """Has no room for the first start of a log, and takes its time to say so."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = False
        self.holds = threading.Event()
        self.may_go_on = threading.Event()

    def store(self, writes: Sequence[SmallFile]) -> None:
        if self.is_full and any(write.path.endswith("log-start-checkpoint") for write in writes):
            self.is_full = False
            self.holds.set()
            assert self.may_go_on.wait(20)
            raise StorageFull("no room")
        super().store(writes)


async def test_a_log_start_that_needs_the_reserve_is_not_stored_in_a_moved_folder(
    tmp_path: Path,
) -> None:
    disk = FullOnce()
    config = load({"data_dir": str(tmp_path / "data"), "kafka": "127.0.0.1:0"})
    async with running_broker(config, Environment(disk=disk)) as broker:
        partition, storage = await written(broker), broker.storage
        reserve = tmp_path / "data" / RESERVE_FILE
        reserve.touch()
        disk.is_full = True
        partition.log.advance_start(Offset(4))
        storage.starts.request(partition.log)
        await until(disk.holds.is_set, seconds_max=10)
        deletion = asyncio.ensure_future(broker.cluster.change(lambda image: delete_topic(image, name="t")))
        await until(lambda: partition.log.is_closed, seconds_max=10)
        disk.may_go_on.set()
        await deletion
        await until(lambda: FileUse.START_FILE not in partition.log.file_uses, seconds_max=10)
        assert (storage.partitions.failure, reserve.exists()) == (None, False)
