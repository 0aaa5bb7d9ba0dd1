"""Which partitions live on a disk, and whose a folder is."""

from collections.abc import Mapping

import pytest

from penstock.config.broker import BrokerConfig
from penstock.errors import ApiError, ErrorCode, StorageFailed
from penstock.host.disk import SmallFile
from penstock.log.data_directory import DataDirectory, open_directory
from penstock.log.recovery import Recovered
from penstock.metadata.cluster_image import ClusterImage, PartitionState, Topic
from penstock.metadata.keys import topic_id_text
from penstock.replication.partition import Partition
from penstock.replication.replica_manager import LostPartition, ReplicaManager
from penstock.sim.disk import Mount, SimFile
from penstock.types import NodeId, TopicId, TopicPartition
from tests.unit.log.log_support import NOW_MS, batch_of, flip, new_disk

NODE = NodeId(1)
ORDERS = TopicPartition("orders", 0)
METADATA = "data/logs/orders-0/partition.metadata"
FIRST_ID, SECOND_ID = TopicId(b"first-----------"), TopicId(b"second----------")


class Zeros:
    def bytes(self, count: int) -> bytes:
        return bytes(count)


def image(topics: Mapping[str, TopicId], partitions: int = 1, epoch: int = 1) -> ClusterImage:
    states = tuple(
        PartitionState((NODE,), NODE, epoch, (NODE,), epoch - 1, index=index, revision=1)
        for index in range(partitions)
    )
    made = {name: Topic(name, key, False, NOW_MS, {}, states, 1) for name, key in topics.items()}
    return ClusterImage(
        cluster_id="c", topics=made, topics_by_id={topic.id: topic for topic in made.values()}
    )


NOTHING, FIRST, SECOND = image({}), image({"orders": FIRST_ID}), image({"orders": SECOND_ID})


def directory_on(disk: Mount) -> DataDirectory:
    return open_directory(disk, "data", NODE, Zeros())


def partitions_in(directory: DataDirectory) -> ReplicaManager:
    return ReplicaManager(directory, BrokerConfig.of(), lambda partition: None)


def opened(disk: Mount, cluster: ClusterImage) -> tuple[ReplicaManager, list[Partition]]:
    made = partitions_in(directory_on(disk))
    return made, [partition for partition, _ in made.open_all(cluster)]


def write_and_sync(partition: Partition | None) -> None:
    assert partition is not None
    partition.append_now(memoryview(bytearray(batch_of([b"x"]))), NOW_MS)
    sync(partition)


def sync(partition: Partition) -> None:
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
    assert damaged.offline_error is not None
    with pytest.raises(ApiError, match="checkpoint"):
        damaged.append_now(memoryview(batch_of([b"x"])), NOW_MS)
    assert (sound.offline_error, sound.log.log_end_offset) == (None, 1)


def test_a_deleted_topic_makes_way_for_another_of_its_name() -> None:
    disk = written_by_the_first_topic()
    made, (partition,) = opened(disk, FIRST)
    (gone,) = made.follow(FIRST, NOTHING, BrokerConfig.of())
    (folder,) = directory_on(disk).mark_deleted([gone])
    assert disk.exists(folder)
    assert partition.offline_error is not None
    assert partition.offline_error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
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


def opened_in_a_cluster(
    disk: Mount,
) -> tuple[ReplicaManager, list[tuple[Partition, Recovered | LostPartition]]]:
    made = partitions_in(directory_on(disk))
    made.is_in_cluster = True
    found = list(made.open_all(FIRST))
    for partition, _ in found:
        sync(partition)
    return made, found


def listed(made: ReplicaManager, disk: Mount) -> None:
    disk.store([directory_on(disk).inventory_file(made.inventory())])


LOST = {topic_id_text(FIRST_ID): [0]}


@pytest.mark.parametrize("leaves_folder", [False, True])
def test_a_folder_that_was_there_and_is_gone_is_lost(leaves_folder: bool) -> None:
    disk = written_by_the_first_topic()
    made, ((_, found),) = opened_in_a_cluster(disk)
    assert (made.lost, made.inventory(), isinstance(found, Recovered)) == ({}, LOST, True)
    listed(made, disk)
    disk.remove_folder("data/logs/orders-0")
    if leaves_folder:
        disk.make_folder("data/logs/orders-0")
    for _ in range(2):  # the list stays until the cluster knows
        made, ((partition, found),) = opened_in_a_cluster(disk)
        assert made.lost == LOST
        assert isinstance(found, LostPartition)
        assert found.reason == "data/logs/orders-0 was there, and is gone"
        assert partition.offline_error is None, "it begins anew"
        assert made.inventory() == {}


def test_a_replica_that_was_taken_away_and_given_back_is_no_alarm() -> None:
    """Nobody counts on what it had. The cluster is told all the same that it has nothing."""
    disk = written_by_the_first_topic()
    made, _ = opened_in_a_cluster(disk)
    listed(made, disk)
    disk.remove_folder("data/logs/orders-0")
    made = partitions_in(directory_on(disk))
    made.is_in_cluster = True
    given_back = PartitionState((9, NODE), 9, 1, (9,), 0, index=0, revision=1)
    topic = Topic("orders", FIRST_ID, False, NOW_MS, {}, (given_back,), 1)
    led_elsewhere = ClusterImage(cluster_id="c", topics={"orders": topic}, topics_by_id={FIRST_ID: topic})
    assert list(made.open_all(led_elsewhere)) == []
    assert made.lost == LOST


def test_a_partition_that_was_never_written_is_not_lost() -> None:
    disk = new_disk()
    made, found = opened_in_a_cluster(disk)
    assert (made.inventory(), found) == ({}, [])
    listed(made, disk)
    made, _ = opened_in_a_cluster(disk)
    assert made.lost == {}


def test_what_is_not_yet_durable_is_not_listed() -> None:
    """A crash would take its folder, and it would be missed."""
    made, _ = opened_in_a_cluster(new_disk())
    partition = made.find("orders", 0)
    assert partition is not None
    partition.append_now(memoryview(bytearray(batch_of([b"x"]))), NOW_MS)
    new_partition_files = made.new_partition_files
    assert made.inventory() == {}
    write_and_sync(partition)
    assert made.inventory() == LOST
    assert made.new_partition_files > new_partition_files


def test_the_folder_of_a_topic_that_is_gone_is_not_missed() -> None:
    disk = written_by_the_first_topic()
    made, _ = opened_in_a_cluster(disk)
    listed(made, disk)
    disk.remove_folder("data/logs/orders-0")
    again = partitions_in(directory_on(disk))
    again.is_in_cluster = True
    assert list(again.open_all(SECOND)) == []
    assert again.lost == {}


def made_unopenable(disk: Mount) -> None:
    disk.store([SmallFile("data/logs/orders-0/00000000000000000005.snapshot", b"of records that are gone")])


@pytest.mark.parametrize("in_cluster", [False, True])
def test_a_copy_that_cannot_be_opened_stays_where_it_is(in_cluster: bool) -> None:
    """No start knows who else is there, so none of them can tell the last copy from one of several."""
    disk = written_by_the_first_topic()
    made_unopenable(disk)
    for _ in range(2):
        made = partitions_in(directory_on(disk))
        made.is_in_cluster = in_cluster
        ((partition, found),) = made.open_all(FIRST)
        assert isinstance(found, LostPartition)
        assert (partition.is_damaged, made.lost) == (True, {})
        assert partition.offline_error is not None
        assert disk.exists(LOG_FILE)
    assert not disk.exists("data/strays")


@pytest.mark.parametrize("can_be_opened", [True, False])
def test_a_damaged_copy_that_is_taken_away_is_missed_at_the_next_start(can_be_opened: bool) -> None:
    """Otherwise this broker would lead, or be in sync, with an empty log."""
    disk = written_by_the_first_topic()
    if can_be_opened:
        damaged_by_reading(disk)
    else:
        made_unopenable(disk)
    made = partitions_in(directory_on(disk))
    made.is_in_cluster = True
    list(made.open_all(FIRST))
    assert made.inventory() == LOST
    listed(made, disk)
    disk.remove_folder("data/logs/orders-0")
    made, ((_, found),) = opened_in_a_cluster(disk)
    assert (made.lost, isinstance(found, LostPartition)) == (LOST, True)


LOG_FILE = "data/logs/orders-0/00000000000000000000.log"


class Refusing(Mount):
    """A disk with one file that cannot be opened."""

    reason = ""
    path = LOG_FILE

    def open(self, path: str, *, create: bool = False) -> SimFile:
        if self.reason and path == self.path:
            raise StorageFailed(f"cannot open {path}: {self.reason}")
        return super().open(path, create=create)


@pytest.mark.parametrize("reason", ["Input/output error", "Permission denied", "No such file or directory"])
def test_an_io_error_at_the_start_demotes_no_copy(reason: str) -> None:
    disk = Refusing(written_by_the_first_topic().disk)
    disk.reason = reason
    made = partitions_in(directory_on(disk))
    made.is_in_cluster = True
    with pytest.raises(StorageFailed) as refused:
        list(made.open_all(FIRST))
    for part in (LOG_FILE, reason, "start the broker again", "move data/logs/orders-0 away"):
        assert part in str(refused.value)
    assert made.lost == {}
    assert not disk.exists("data/strays")
    disk.reason = ""
    made, ((partition, _),) = opened_in_a_cluster(disk)
    assert (made.lost, partition.offline_error, partition.log.log_end_offset) == ({}, None, 1)


def test_an_io_error_of_a_copy_known_to_be_damaged_does_not_stop_a_start() -> None:
    disk = Refusing(written_by_the_first_topic().disk)
    damaged_by_reading(disk)
    disk.reason = "Input/output error"
    made = partitions_in(directory_on(disk))
    made.is_in_cluster = True
    ((partition, found),) = made.open_all(FIRST)
    assert isinstance(found, LostPartition)
    assert (partition.is_damaged, made.lost) == (True, {})
    assert disk.exists("data/logs/orders-0/damaged")


@pytest.mark.parametrize("in_cluster", [False, True])
def test_a_start_truncates_no_copy_that_is_known_to_be_damaged(in_cluster: bool) -> None:
    """Recovery would take the flipped bit for the end of a torn write. People may need what follows it."""
    disk = written_by_the_first_topic()
    damaged_by_reading(disk)
    flip(disk, LOG_FILE, 66)
    content = disk.read_file(LOG_FILE)
    made = partitions_in(directory_on(disk))
    made.is_in_cluster = in_cluster
    ((partition, _),) = made.open_all(FIRST)
    assert partition.is_damaged
    assert disk.read_file(LOG_FILE) == content


@pytest.mark.parametrize("unseen", ["data/logs/orders-0", METADATA, "data/logs/orders-0/damaged"])
def test_a_name_that_cannot_be_looked_at_at_the_start_demotes_no_copy(unseen: str) -> None:
    disk = written_by_the_first_topic()
    disk.store([directory_on(disk).inventory_file(LOST)])
    disk.disk.unreadable_paths.add(unseen)
    made = partitions_in(directory_on(disk))
    made.is_in_cluster = True
    look = made.strays if unseen == METADATA else lambda image: list(made.open_all(image))
    with pytest.raises(StorageFailed, match=f"cannot look at {unseen}"):
        look(FIRST)
    assert made.lost == {}
    disk.disk.unreadable_paths.clear()
    assert not disk.exists("data/strays")
    made, ((partition, _),) = opened_in_a_cluster(disk)
    assert (made.lost, partition.offline_error, partition.log.log_end_offset) == ({}, None, 1)


def test_a_folder_that_cannot_be_examined_is_neither_recorded_nor_moved() -> None:
    disk = written_by_the_first_topic()
    directory = directory_on(disk)
    disk.disk.unreadable_paths.add("data/logs/orders-0")
    with pytest.raises(StorageFailed):
        directory.record_damage(ORDERS, "bit rot")
    with pytest.raises(StorageFailed):
        directory.move_damaged_to_strays(ORDERS)


def test_a_failed_sync_at_the_start_demotes_no_copy() -> None:
    disk = written_by_the_first_topic()
    file = disk.open(LOG_FILE)
    file.write(file.size(), b"a write that a crash cut short")
    file.release()
    disk.disk.sync_fails = True
    made = partitions_in(directory_on(disk))
    made.is_in_cluster = True
    with pytest.raises(StorageFailed, match="start the broker again"):
        list(made.open_all(FIRST))
    assert (made.lost, disk.exists("data/logs/orders-0")) == ({}, True)


def test_a_lone_broker_serves_the_others_when_one_partition_cannot_be_opened() -> None:
    disk = Refusing(written_by_the_first_topic().disk)
    both = image({"orders": FIRST_ID, "other": SECOND_ID})
    disk.reason = "Permission denied"
    made, (unreadable,) = opened(disk, both)
    assert unreadable.offline_error is not None
    assert "start the broker again" in unreadable.offline_error.detail
    write_and_sync(made.find("other", 0))
    disk.reason = ""
    assert opened(disk, both)[1][0].log.log_end_offset == 1


def test_a_lone_broker_serves_the_others_when_one_note_of_damage_cannot_be_read() -> None:
    disk = Refusing(written_by_the_first_topic().disk)
    damaged_by_reading(disk)
    both = image({"orders": FIRST_ID, "other": SECOND_ID})
    disk.path, disk.reason = "data/logs/orders-0/damaged", "Input/output error"
    made, (unreadable,) = opened(disk, both)
    assert unreadable.offline_error is not None
    assert "start the broker again" in unreadable.offline_error.detail
    write_and_sync(made.find("other", 0))
    assert disk.exists("data/logs/orders-0")


def damaged_by_reading(disk: Mount) -> None:
    directory_on(disk).record_damage(ORDERS, "the checksum of the batch at offset 0 does not match")


@pytest.mark.parametrize("in_cluster", [False, True])
def test_the_last_copy_stays_offline_over_restarts_until_a_person_has_mended_it(in_cluster: bool) -> None:
    disk = written_by_the_first_topic()
    damaged_by_reading(disk)
    for _ in range(2):
        made = partitions_in(directory_on(disk))
        made.is_in_cluster = in_cluster
        ((partition, found),) = made.open_all(FIRST)
        assert isinstance(found, LostPartition)
        assert "checksum" in found.reason
        assert "remove data/logs/orders-0/damaged and start again" in found.reason
        assert (partition.is_damaged, made.lost) == (True, {})
        assert disk.exists("data/logs/orders-0/00000000000000000000.log")
    disk.remove("data/logs/orders-0/damaged")
    _, (partition,) = opened(disk, FIRST)
    assert (partition.offline_error, partition.log.log_end_offset) == (None, 1)


@pytest.mark.parametrize("can_be_opened", [True, False])
@pytest.mark.parametrize(
    ("isr", "elr"), [((NODE,), (3,)), ((NODE, 2), ()), ((NODE,), ()), ((2,), ()), ((2, 3), ())]
)
def test_no_start_moves_a_damaged_copy(
    isr: tuple[int, ...], elr: tuple[int, ...], can_be_opened: bool
) -> None:
    """Whoever else is named may be dead, or be damaged as well: the image of a start does not say."""
    disk = written_by_the_first_topic()
    if can_be_opened:
        damaged_by_reading(disk)
    else:
        made_unopenable(disk)
    state = PartitionState((NODE, 2, 3), isr[0], 1, isr, 0, elr, index=0, revision=1)
    topic = Topic("orders", FIRST_ID, False, NOW_MS, {}, (state,), 1)
    made = partitions_in(directory_on(disk))
    made.is_in_cluster = True
    cluster = ClusterImage(cluster_id="c", topics={"orders": topic}, topics_by_id={FIRST_ID: topic})
    ((partition, found),) = made.open_all(cluster)
    assert isinstance(found, LostPartition)
    assert (partition.is_damaged, made.lost) == (True, {})
    assert partition.offline_error is not None, "it serves nobody, and nobody follows it"
    assert disk.exists(LOG_FILE)
    assert not disk.exists("data/strays")


def test_a_new_leader_epoch_does_not_make_a_damaged_copy_usable() -> None:
    made, (partition,) = opened(written_by_the_first_topic(), FIRST)
    assert made.damage(partition, "bit rot") is partition
    assert made.damage(partition, "bit rot") is None, "it is known"
    elected = image({"orders": FIRST_ID}, epoch=2)
    made.follow(FIRST, elected, BrokerConfig.of())
    successor = made.find("orders", 0)
    assert successor is not None
    assert (successor.leader_epoch, successor.is_damaged) == (2, True)
    with pytest.raises(ApiError, match="bit rot"):
        write_and_sync(successor)
    assert made.damage(partition, "bit rot") is None


def test_damage_that_an_object_of_an_earlier_epoch_finds_is_of_the_present_one() -> None:
    made, (earlier,) = opened(written_by_the_first_topic(), FIRST)
    made.follow(FIRST, image({"orders": FIRST_ID}, epoch=2), BrokerConfig.of())
    present = made.find("orders", 0)
    assert present is not earlier
    assert made.damage(earlier, "bit rot") is present
    assert present is not None
    assert present.offline_error is not None
