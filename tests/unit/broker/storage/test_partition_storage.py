"""Starting with many partitions, and with what producers may have left in them."""

import asyncio
import threading
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path

import pytest

from penstock.broker.broker import BrokerLimits, Environment, RunningBroker, running_broker
from penstock.broker.storage.partition_inventory import InventoryKeeper
from penstock.broker.storage.partition_storage import THREADS_THAT_SYNC, StorageLimits
from penstock.config.sources import load
from penstock.controller.topics import NewTopicFacts, TopicDefaults, TopicRequest, create_topic, delete_topic
from penstock.errors import CorruptData, StorageFailed, StorageFull
from penstock.host.clock import SystemClock
from penstock.host.disk import File, SmallFile
from penstock.host.os_disk import OsDisk, OsFile
from penstock.limits import CHECKPOINT_PARTITIONS_AT_ONCE
from penstock.log import checkpoint_plan
from penstock.log.data_directory import DataDirectory, DirectoryIdentity, StoreProgress
from penstock.log.producer_state import Producer, ProducerLimits, render_snapshot
from penstock.log.reading.cold_reading import ColdRead
from penstock.log.reading.time_lookup import look_up
from penstock.observability.logs import NullLog, StreamLog
from penstock.protocol.batches import HEADER_BYTES, seal_in_place
from penstock.protocol.records import Record, build_batch
from penstock.replication.partition import Partition
from penstock.types import Offset, TopicId
from tests.unit.broker.waiting import until

PARTITIONS = 150
NOW_MS = 1_800_000_000_000
TOPIC_ID = TopicId(b"t" * 16)


class CountedFile(OsFile):
    __slots__ = ("disk",)
    disk: "CountingDisk"

    def release(self) -> None:
        self.disk.open_now -= self._holders == 1
        super().release()


class CountingDisk(OsDisk):
    """Remembers how many files were open at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.open_now = 0
        self.open_most = 0

    def open(self, path: str, *, create: bool = False) -> OsFile:
        plain = super().open(path, create=create)
        file = CountedFile(plain.path, plain.descriptor)
        file.disk = self
        self.open_now += 1
        self.open_most = max(self.open_most, self.open_now)
        return file


async def make_topic(broker: RunningBroker, partitions: int) -> None:
    request = TopicRequest(name="t", partitions=partitions)
    await broker.cluster.change(
        lambda image: create_topic(
            image, request, NewTopicFacts(TOPIC_ID, NOW_MS), defaults=TopicDefaults(1, 1)
        )
    )


def batch(value: bytes, timestamp: int = NOW_MS) -> bytearray:
    return bytearray(build_batch([Record(Offset(0), timestamp, None, value, ())]))


class FailingDisk(OsDisk):
    """Fails once, when it is told to: the next sync of folders, or the next small file."""

    fails_folders = False
    is_full = False

    def sync(self, files: Sequence[File], folders: Sequence[str]) -> None:
        if self.fails_folders and not files:
            self.fails_folders = False
            raise StorageFailed("cannot sync logs: input/output error")
        super().sync(files, folders)

    def store(self, writes: Sequence[SmallFile]) -> None:
        if self.is_full:
            self.is_full = False
            raise StorageFull("no room")
        super().store(writes)


async def test_a_disk_that_does_not_keep_the_names_of_removed_partitions_has_failed(tmp_path: Path) -> None:
    disk = FailingDisk()
    config = load({"data_dir": str(tmp_path / "data"), "kafka": "127.0.0.1:0"})
    async with running_broker(config, Environment(disk=disk)) as broker:
        await make_topic(broker, 1)
        (partition,) = broker.storage.partitions
        partition.append_now(memoryview(batch(b"x")), NOW_MS)
        await broker.storage.flusher.flush_to([(partition, Offset(1))])
        disk.fails_folders = True
        await broker.cluster.change(lambda image: delete_topic(image, name="t"))
        assert broker.storage.partitions.failure == "cannot sync logs: input/output error"


async def test_the_reserve_of_a_full_disk_is_not_spent_on_notes(tmp_path: Path) -> None:
    disk = FailingDisk()
    config = load({"data_dir": str(tmp_path / "data"), "kafka": "127.0.0.1:0"})
    async with running_broker(config, Environment(disk=disk)) as broker:
        identity = DirectoryIdentity(format=1, cluster_id="c", node_id=1, directory_id="d", is_member=True)
        directory = DataDirectory(disk, str(tmp_path / "data"), identity)
        directory.refill_reserve()
        directory.broker_epoch = 5
        keeper = InventoryKeeper(directory, broker.storage, NullLog())
        await keeper.write_inventory()
        directory.store_progress, disk.is_full = StoreProgress(7, "x"), True
        with pytest.raises(StorageFull):
            await keeper.write_inventory()
        assert directory.release_reserve()
        await keeper.write_inventory()
        assert directory.load_store_progress() == StoreProgress(7, "x")


async def test_a_start_opens_few_files_at_a_time_however_many_partitions_there_are(tmp_path: Path) -> None:
    config = load({"data_dir": str(tmp_path / "data"), "kafka": "127.0.0.1:0"})
    async with running_broker(config, Environment()) as broker:
        await make_topic(broker, PARTITIONS)
        for partition in broker.storage.partitions:
            partition.append_now(memoryview(batch(b"x")), NOW_MS)
    disk = CountingDisk()
    async with running_broker(config, Environment(disk=disk)) as broker:
        ends = [partition.log.log_end_offset for partition in broker.storage.partitions]
    assert ends == [1] * PARTITIONS
    assert disk.open_most <= 4 * CHECKPOINT_PARTITIONS_AT_ONCE


async def test_a_batch_that_cannot_be_opened_is_its_producers_fault_and_no_damage(tmp_path: Path) -> None:
    """Batches are not opened when they come. One that holds nonsense must not cost the partition."""
    config = load({"data_dir": str(tmp_path / "data"), "kafka": "127.0.0.1:0"})
    async with running_broker(config, Environment()) as broker:
        await make_topic(broker, 1)
        partition = broker.storage.partitions.find("t", 0)
        assert partition is not None
        nonsense = batch(b"y" * 50, NOW_MS + 5)
        nonsense[HEADER_BYTES:] = b"\xff" * (len(nonsense) - HEADER_BYTES)
        seal_in_place(nonsense)
        for each in (batch(b"x", NOW_MS), nonsense, batch(b"z", NOW_MS + 9)):
            partition.append_now(memoryview(each), NOW_MS + 100)
        await broker.storage.flusher.flush_to([(partition, Offset(3))])
        lookup = partition.time_lookup()
        assert look_up(lookup, NOW_MS + 1) == (1, NOW_MS + 5)
        assert look_up(lookup, NOW_MS + 6) == (2, NOW_MS + 9)
        assert look_up(lookup, None) == (2, NOW_MS + 9)
        assert partition.offline_error is None


async def test_a_lost_metadata_file_is_not_taken_for_an_empty_cluster(tmp_path: Path) -> None:
    config = load({"data_dir": str(tmp_path / "data"), "kafka": "127.0.0.1:0"})
    async with running_broker(config, Environment()) as broker:
        await make_topic(broker, 1)
        for partition in broker.storage.partitions:
            partition.append_now(memoryview(batch(b"x")), NOW_MS)
    (tmp_path / "data" / "metadata.sqlite").unlink()
    with pytest.raises(CorruptData, match="restore it from a backup"):
        async with running_broker(config, Environment()):
            pass
    assert (tmp_path / "data" / "logs" / "t-0").is_dir()


class LinesKept(NullLog):
    def __init__(self) -> None:
        self.warnings: list[tuple[str, dict[str, object]]] = []

    def warning(self, event: str, **fields: object) -> None:
        self.warnings.append((event, fields))

    def reasons(self, event: str) -> list[str]:
        return [str(fields["reason"]) for name, fields in self.warnings if name == event]


class FullDisk(OsDisk):
    """Takes what is appended, and has no room for small files that end as the test says."""

    has_no_room_for = ("nothing",)

    def store(self, writes: Sequence[SmallFile]) -> None:
        for write in writes:
            if write.path.endswith(self.has_no_room_for):
                raise StorageFull(f"cannot write {write.path}: no space is left")
        super().store(writes)


@pytest.mark.parametrize(
    ("no_room_for", "reason"),
    [
        (".snapshot", "there was no room for the last checkpoint of t-0"),
        ("clean-shutdown", "no space is left"),
    ],
)
async def test_a_stop_on_a_full_disk_is_not_called_clean(
    tmp_path: Path, no_room_for: str, reason: str
) -> None:
    config = load({"data_dir": str(tmp_path / "data"), "kafka": "127.0.0.1:0"})
    disk, lines = FullDisk(), LinesKept()
    async with running_broker(config, Environment(disk=disk, log=lines)) as broker:
        await make_topic(broker, 1)
        (partition,) = broker.storage.partitions
        partition.append_now(memoryview(batch(b"x")), NOW_MS)
        disk.has_no_room_for = (no_room_for,)
    assert not (tmp_path / "data" / "clean-shutdown").exists()
    (said,) = lines.reasons("storage.no_clean_mark")
    assert reason in said
    async with running_broker(config, Environment(log=lines)) as broker:
        (partition,) = broker.storage.partitions
        assert partition.high_watermark == 1, "nothing was lost"
        assert partition.leader_epoch == 1, "but the start was one after an unclean stop"
    assert (tmp_path / "data" / "clean-shutdown").exists()
    assert len(lines.reasons("storage.no_clean_mark")) == 1


async def test_a_lost_index_is_written_again_after_somebody_read_there(tmp_path: Path) -> None:
    config = load({"data_dir": str(tmp_path / "data"), "kafka": "127.0.0.1:0"})
    lost = tmp_path / "data" / "logs" / "t-0" / f"{0:020d}.index"
    async with running_broker(config, Environment()) as broker:
        await make_topic(broker, 1)
        (partition,) = broker.storage.partitions
        for _ in range(20):
            partition.append_now(memoryview(batch(bytes(1_000))), NOW_MS)
        partition.log.roll()
        partition.append_now(memoryview(batch(b"y")), NOW_MS)
    expected = lost.read_bytes()
    assert expected
    lost.unlink()
    async with running_broker(config, Environment()) as broker:
        (partition,) = broker.storage.partitions
        read = partition.read(Offset(3), 100, at_least_one=True)
        assert isinstance(read, ColdRead)
        partition.keep_indexes(read.run().loaded)
        assert not lost.exists()
        await broker.storage.checkpoints.run_due(float("inf"))
        assert lost.read_bytes() == expected


async def test_snapshots_are_rendered_where_they_are_written_and_not_on_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered_by: list[str] = []

    def render(producers: Iterable[Producer]) -> bytes:
        rendered_by.append(threading.current_thread().name)
        return render_snapshot(producers)

    monkeypatch.setattr(checkpoint_plan, "render_snapshot", render)
    config = load({"data_dir": str(tmp_path / "data"), "kafka": "127.0.0.1:0"})
    async with running_broker(config, Environment()) as broker:
        await make_topic(broker, 3)
        for partition in broker.storage.partitions:
            partition.append_now(memoryview(batch(b"x")), NOW_MS)
        await broker.storage.checkpoints.run(list(broker.storage.partitions))
        assert rendered_by == ["storage"] * 3


async def test_a_checkpoint_that_is_cut_short_is_made_up_for(tmp_path: Path) -> None:
    """Its task is cancelled when the broker stops; what it was about to store is stored at the end."""
    config = load({"data_dir": str(tmp_path / "data"), "kafka": "127.0.0.1:0"})
    async with running_broker(config, Environment()) as broker:
        await make_topic(broker, 1)
        (partition,) = broker.storage.partitions
        partition.append_now(memoryview(batch(b"x")), NOW_MS)
        running = asyncio.ensure_future(broker.storage.checkpoints.run([partition]))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    folder = tmp_path / "data" / "logs" / "t-0"
    assert (folder / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"
    assert (folder / f"{1:020d}.snapshot").exists()


class BrokenSnapshots(OsDisk):
    def store(self, writes: Sequence[SmallFile]) -> None:
        if any(write.path.endswith(".snapshot") for write in writes):
            raise StorageFailed("cannot sync")
        super().store(writes)


async def test_a_checkpoint_that_the_disk_failed_is_no_longer_under_way(tmp_path: Path) -> None:
    config = load({"data_dir": str(tmp_path / "data"), "kafka": "127.0.0.1:0"})
    async with running_broker(config, Environment(disk=BrokenSnapshots())) as broker:
        await make_topic(broker, 1)
        (partition,) = broker.storage.partitions
        partition.append_now(memoryview(batch(b"x")), NOW_MS)
        for _ in range(2):
            with pytest.raises(StorageFailed):
                await broker.storage.checkpoints.run([partition])
            assert partition.log.may_truncate


async def test_producers_of_all_partitions_together_are_bounded(tmp_path: Path) -> None:
    limits = BrokerLimits(storage=StorageLimits(producers=ProducerLimits(total_max=10)))
    config = load({"data_dir": str(tmp_path / "data"), "kafka": "127.0.0.1:0"})
    async with running_broker(config, Environment(), limits) as broker:
        await make_topic(broker, 5)
        partitions = list(broker.storage.partitions)
        for producer_id in range(40):
            record = Record(Offset(0), NOW_MS, None, b"x", ())
            made = build_batch([record], producer_id=producer_id, producer_epoch=0, base_sequence=0)
            partitions[producer_id % 5].append_now(memoryview(bytearray(made)), NOW_MS)
        kept = [producer_id for each in partitions for producer_id, _ in each.log.producers.items()]
        assert sorted(kept) == list(range(30, 40))
        assert broker.storage.partitions.producer_registry.evicted == 30
    async with running_broker(config, Environment(), limits) as broker:
        assert sum(len(each.log.producers) for each in broker.storage.partitions) == 10
        assert broker.storage.partitions.producer_registry.evicted == 0, "none was forgotten since the start"


def write_as(partition: Partition, producers: range) -> None:
    """One batch of each idempotent producer."""
    for producer_id in producers:
        record = Record(Offset(0), NOW_MS, None, b"x", ())
        made = build_batch([record], producer_id=producer_id, producer_epoch=0, base_sequence=0)
        partition.append_now(memoryview(bytearray(made)), NOW_MS)


async def test_a_broker_that_forgets_a_producer_early_logs_it_by_itself(tmp_path: Path) -> None:
    limits = BrokerLimits(storage=StorageLimits(producers=ProducerLimits(per_partition_max=3)))
    config, lines = load({"data_dir": str(tmp_path / "data"), "kafka": "127.0.0.1:0"}), StringIO()
    async with running_broker(config, Environment(log=StreamLog(SystemClock(), lines)), limits) as broker:
        await make_topic(broker, 1)
        (partition,) = broker.storage.partitions
        write_as(partition, range(4))
        await until(lambda: "producers.evicted count=1 " in lines.getvalue(), seconds_max=10)


async def test_producers_that_are_forgotten_early_are_logged_now_and_then(tmp_path: Path) -> None:
    limits = BrokerLimits(storage=StorageLimits(producers=ProducerLimits(per_partition_max=3)))
    config, lines = load({"data_dir": str(tmp_path / "data"), "kafka": "127.0.0.1:0"}), StringIO()
    async with running_broker(config, Environment(log=StreamLog(SystemClock(), lines)), limits) as broker:
        await make_topic(broker, 2)
        partition = list(broker.storage.partitions)[1]

        def write(producers: range) -> None:
            write_as(partition, producers)

        def said(seconds: float) -> list[str]:
            broker.storage._log_evictions(seconds)
            return [line for line in lines.getvalue().splitlines() if "producers.evicted" in line]

        write(range(3))
        assert said(1_000.0) == []
        write(range(3, 8))
        (line,) = said(1_001.0)
        assert f"count=5 partition={partition.name} " in line
        assert "docs/operations.md" in line
        write(range(8, 10))
        assert len(said(1_060.0)) == 1, "a minute has not passed"
        assert "count=2 " in said(1_061.0)[1]
        assert len(said(2_000.0)) == 2, "there is nothing new"


async def test_a_stopped_broker_holds_no_descriptor_of_its_folder(tmp_path: Path) -> None:
    config = load({"data_dir": str(tmp_path / "data"), "kafka": "127.0.0.1:0"})

    def held() -> int:
        links = [entry for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
        return [str(link.readlink()) for link in links if link.is_symlink()].count(str(tmp_path / "data"))

    async with running_broker(config, Environment()):
        assert held() == THREADS_THAT_SYNC
    assert held() == 0
