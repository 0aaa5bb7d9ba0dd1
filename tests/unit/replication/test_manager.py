"""Which partitions live on a disk, and whose a folder is."""

from collections.abc import Mapping

import pytest

from penstock.config.broker import BrokerConfig
from penstock.errors import ApiError, ErrorCode
from penstock.log.data_directory import DataDirectory, open_directory
from penstock.metadata.image import ClusterImage, PartitionState, Topic
from penstock.replication.manager import Partitions
from penstock.replication.partition import Partition
from penstock.sim.disk import Mount
from penstock.types import NodeId, TopicId, TopicPartition
from tests.unit.log.log_support import NOW_MS, batch_of, flip, new_disk

NODE = NodeId(1)
ORDERS = TopicPartition("orders", 0)
METADATA = "data/logs/orders-0/partition.metadata"
FIRST_ID, SECOND_ID = TopicId(b"first-----------"), TopicId(b"second----------")


class Zeros:
    def bytes(self, count: int) -> bytes:
        return bytes(count)


def image(topics: Mapping[str, TopicId], partitions: int = 1) -> ClusterImage:
    states = tuple(PartitionState(index, NODE, 1, (NODE,), (NODE,), 0, 1) for index in range(partitions))
    made = {name: Topic(name, key, False, NOW_MS, {}, states, 1) for name, key in topics.items()}
    return ClusterImage(
        cluster_id="c", topics=made, topics_by_id={topic.id: topic for topic in made.values()}
    )


NOTHING, FIRST, SECOND = image({}), image({"orders": FIRST_ID}), image({"orders": SECOND_ID})


def directory_on(disk: Mount) -> DataDirectory:
    return open_directory(disk, "data", NODE, Zeros())


def partitions_in(directory: DataDirectory) -> Partitions:
    return Partitions(directory, BrokerConfig.of(), lambda partition: None)


def opened(disk: Mount, cluster: ClusterImage) -> tuple[Partitions, list[Partition]]:
    made = partitions_in(directory_on(disk))
    return made, [partition for partition, _ in made.open_all(cluster)]


def write_and_sync(partition: Partition | None) -> None:
    assert partition is not None
    partition.append(memoryview(bytearray(batch_of([b"x"]))), NOW_MS)
    plan = partition.log.begin_flush()
    partition.log.disk.sync(plan.files, plan.folders)
    partition.flushed(plan)


def written_by_the_first_topic() -> Mount:
    disk = new_disk()
    made, _ = opened(disk, NOTHING)
    made.follow(NOTHING, FIRST, BrokerConfig.of())
    write_and_sync(made.find("orders", 0))
    return disk


def test_a_partition_is_found_by_name_and_by_id() -> None:
    made, _ = opened(new_disk(), FIRST)
    found = made.find("orders", 0)
    assert found is not None
    assert found is made.find_by_id(FIRST_ID, 0)
    assert made.find("orders", 1) is made.find("orders", -1) is made.find("other", 0) is None


def test_what_was_written_is_there_after_a_restart() -> None:
    made, (partition,) = opened(written_by_the_first_topic(), FIRST)
    assert partition.log.log_end_offset == 1
    assert made.strays(FIRST) == []


def test_a_folder_of_an_earlier_topic_of_the_name_is_a_stray() -> None:
    made, _ = opened(written_by_the_first_topic(), NOTHING)
    assert made.strays(SECOND) == made.strays(NOTHING) == [ORDERS]


@pytest.mark.parametrize("damage", ["zeros", "empty", "missing", "flipped"])
def test_a_damaged_note_of_whose_it_is_does_not_make_records_somebody_elses(damage: str) -> None:
    disk = written_by_the_first_topic()
    file = disk.open(METADATA)
    if damage == "zeros":
        file.write(0, bytes(file.size()))
    elif damage == "empty":
        file.truncate(0)
    elif damage == "missing":
        disk.remove(METADATA)
    else:
        flip(disk, METADATA, 3)
    made, (partition,) = opened(disk, FIRST)
    assert made.strays(FIRST) == []
    assert partition.log.log_end_offset == 1


def test_a_damaged_partition_is_offline_and_the_others_are_not() -> None:
    disk = new_disk()
    both = image({"orders": FIRST_ID}, partitions=2)
    made, _ = opened(disk, NOTHING)
    made.follow(NOTHING, both, BrokerConfig.of())
    for index in (0, 1):
        write_and_sync(made.find("orders", index))
    disk.open("data/logs/orders-0/log-start-checkpoint", create=True).write(0, b"?")
    _, (damaged, sound) = opened(disk, both)
    assert damaged.offline is not None
    with pytest.raises(ApiError, match="checkpoint"):
        damaged.append(memoryview(batch_of([b"x"])), NOW_MS)
    assert (sound.offline, sound.log.log_end_offset) == (None, 1)


def test_a_deleted_topic_makes_way_for_another_of_its_name() -> None:
    disk = written_by_the_first_topic()
    made, (partition,) = opened(disk, FIRST)
    (gone,) = made.follow(FIRST, NOTHING, BrokerConfig.of())
    folder = directory_on(disk).doom(gone.name, gone.topic_id)
    assert folder is not None
    assert disk.exists(folder)
    assert partition.offline is not None
    assert partition.offline.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    made.follow(NOTHING, SECOND, BrokerConfig.of())
    again = made.find("orders", 0)
    assert again is not None
    assert again.log.log_end_offset == 0
    write_and_sync(again)
    assert made.strays(SECOND) == []


def test_a_failed_disk_takes_no_writes_for_partitions_made_later_either() -> None:
    made, _ = opened(new_disk(), NOTHING)
    made.stop_writes("the disk broke")
    made.follow(NOTHING, FIRST, BrokerConfig.of())
    partition = made.find("orders", 0)
    assert partition is not None
    with pytest.raises(ApiError, match="the disk broke"):
        write_and_sync(partition)
