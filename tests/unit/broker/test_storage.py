"""Starting with many partitions, and with what producers may have left in them."""

from pathlib import Path

import pytest

from penstock.broker.broker import RunningBroker, World, running_broker
from penstock.config.sources import load
from penstock.controller.topics import NewTopic, TopicDefaults, TopicRequest, create_topic
from penstock.errors import CorruptData
from penstock.host.os_disk import OsDisk, OsFile
from penstock.limits import CHECKPOINT_PARTITIONS_AT_ONCE
from penstock.protocol.batches import HEADER_BYTES, seal_in_place
from penstock.protocol.records import Record, build_batch
from penstock.types import Offset, TopicId

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
            image,
            request,
            NewTopic(TOPIC_ID, NOW_MS),
            defaults=TopicDefaults(1, 1),
            validate_overrides=lambda overrides: None,
        )
    )


def batch(value: bytes, timestamp: int = NOW_MS) -> bytearray:
    return bytearray(build_batch([Record(Offset(0), timestamp, None, value, ())]))


async def test_a_start_opens_few_files_at_a_time_however_many_partitions_there_are(tmp_path: Path) -> None:
    config = load({"data_dir": str(tmp_path / "data"), "kafka": "127.0.0.1:0"})
    async with running_broker(config, World()) as broker:
        await make_topic(broker, PARTITIONS)
        for partition in broker.storage.partitions:
            partition.append(memoryview(batch(b"x")), NOW_MS)
    disk = CountingDisk()
    async with running_broker(config, World(disk=disk)) as broker:
        ends = [partition.log.log_end_offset for partition in broker.storage.partitions]
    assert ends == [1] * PARTITIONS
    assert disk.open_most <= 4 * CHECKPOINT_PARTITIONS_AT_ONCE


async def test_a_batch_that_cannot_be_opened_is_its_producers_fault_and_no_damage(tmp_path: Path) -> None:
    """Batches are not opened when they come. One that holds nonsense must not cost the partition."""
    config = load({"data_dir": str(tmp_path / "data"), "kafka": "127.0.0.1:0"})
    async with running_broker(config, World()) as broker:
        await make_topic(broker, 1)
        partition = broker.storage.partitions.find("t", 0)
        assert partition is not None
        nonsense = batch(b"y" * 50, NOW_MS + 5)
        nonsense[HEADER_BYTES:] = b"\xff" * (len(nonsense) - HEADER_BYTES)
        seal_in_place(nonsense)
        for each in (batch(b"x", NOW_MS), nonsense, batch(b"z", NOW_MS + 9)):
            partition.append(memoryview(each), NOW_MS + 100)
        await broker.storage.flusher.flush_to([(partition, Offset(3))])
        lookup = partition.time_lookup()
        assert lookup.first_at_or_after(NOW_MS + 1) == (1, NOW_MS + 5)
        assert lookup.first_at_or_after(NOW_MS + 6) == (2, NOW_MS + 9)
        assert lookup.newest() == (2, NOW_MS + 9)
        assert partition.offline is None


async def test_a_lost_metadata_file_is_not_taken_for_an_empty_cluster(tmp_path: Path) -> None:
    config = load({"data_dir": str(tmp_path / "data"), "kafka": "127.0.0.1:0"})
    async with running_broker(config, World()) as broker:
        await make_topic(broker, 1)
        for partition in broker.storage.partitions:
            partition.append(memoryview(batch(b"x")), NOW_MS)
    (tmp_path / "data" / "metadata.sqlite").unlink()
    with pytest.raises(CorruptData, match="restore it from a backup"):
        async with running_broker(config, World()):
            pass
    assert (tmp_path / "data" / "logs" / "t-0").is_dir()
