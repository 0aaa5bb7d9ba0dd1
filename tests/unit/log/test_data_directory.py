"""Whose data directory it is, and what is in it."""

import shutil
from pathlib import Path

import pytest

from penstock.errors import CorruptData, StorageFailed
from penstock.host.disk import SmallFile
from penstock.host.folder_lock import FolderLock
from penstock.host.os_disk import OsDisk
from penstock.limits import PARTITIONS_PER_TOPIC_MAX
from penstock.log.data_directory import START_IDS_MAX, DataDirectory, open_directory
from penstock.sim.disk import Mount
from penstock.types import NodeId, TopicPartition
from tests.unit.log.log_support import new_disk

PATH = "disk/data"


class Counting:
    """Ids that differ and can be foreseen; the first would begin with a dash."""

    def __init__(self) -> None:
        self._next = 0xF8 - 1

    def bytes(self, count: int) -> bytes:
        self._next += 1
        return bytes([self._next]) * count


def opened(disk: Mount, node: int = 1) -> DataDirectory:
    return open_directory(disk, PATH, NodeId(node), Counting())


def test_a_new_directory_gets_an_identity_that_stays() -> None:
    disk = new_disk()
    first = opened(disk).identity
    assert opened(disk).identity == first
    assert len(first.cluster_id) == 22
    assert not first.cluster_id.startswith("-")
    assert first.cluster_id != first.directory_id


def test_a_new_directory_survives_a_power_failure() -> None:
    disk = new_disk()
    disk.make_folder("disk")
    disk.sync((), ["."])
    first = opened(disk).identity
    disk.disk.lose_power()
    assert opened(disk.disk.mount()).identity == first


def test_a_folder_of_something_else_is_refused() -> None:
    disk = new_disk()
    disk.make_folder(PATH)
    disk.open(f"{PATH}/holiday.jpg", create=True)
    with pytest.raises(CorruptData, match=r"holiday\.jpg"):
        opened(disk)


def test_another_node_is_refused() -> None:
    disk = new_disk()
    opened(disk, node=1)
    with pytest.raises(CorruptData, match="belongs to node 1, not to node 2"):
        opened(disk, node=2)


@pytest.mark.parametrize(
    "content",
    [
        b'{"format":2,"cluster_id":"c","node_id":1,"directory_id":"d"}',
        b'{"format":1}',
        b"not json",
        b"",
    ],
    ids=["another format", "fields missing", "no json", "empty"],
)
def test_an_identity_that_is_not_understood_is_refused(content: bytes) -> None:
    disk = new_disk()
    disk.make_folder(f"{PATH}/logs")
    disk.open(f"{PATH}/penstock.json", create=True).write(0, content)
    with pytest.raises(CorruptData):
        opened(disk)


def test_logs_that_are_not_mounted_are_not_taken_for_empty_ones() -> None:
    disk = new_disk()
    directory = opened(disk)
    disk.rename(directory.logs_path, f"{PATH}/elsewhere")
    for _ in range(2):
        with pytest.raises(CorruptData, match="is not the folder that the records were written to"):
            opened(disk)
        disk.make_folder(directory.logs_path)  # as an empty disk is mounted there
    disk.remove_folder(directory.logs_path)
    disk.rename(f"{PATH}/elsewhere", directory.logs_path)
    assert opened(disk).identity == directory.identity


def test_logs_of_another_data_directory_are_refused() -> None:
    disk = new_disk()
    directory = opened(disk)
    disk.store([SmallFile(f"{directory.logs_path}/directory-id", b"another")])
    with pytest.raises(CorruptData, match="holds the records of another data directory"):
        opened(disk)


def test_a_start_ended_by_a_power_failure_leaves_a_directory_that_opens() -> None:
    """Whether or not the mark of the logs got there: the identity is written after it."""
    disk = new_disk()
    disk.make_folder(f"{PATH}/logs")
    disk.store([SmallFile(f"{PATH}/logs/directory-id", b"of a process that died before it had an identity")])
    first = opened(disk).identity
    assert opened(disk).identity == first


def test_a_damaged_folder_is_kept_once() -> None:
    disk = new_disk()
    directory = opened(disk)
    orders = TopicPartition("orders", 0)
    for number in (1, 2):
        disk.make_folder(directory.folder_of(orders))
        disk.open(f"{directory.folder_of(orders)}/file {number}", create=True)
        assert directory.move_damaged_to_strays(orders) == f"{PATH}/strays/orders-0.damaged"
        assert disk.list_folder(f"{PATH}/strays/orders-0.damaged") == [f"file {number}"]
    assert disk.list_folder(f"{PATH}/strays") == ["orders-0.damaged"]
    assert directory.partitions_on_disk() == []


@pytest.mark.parametrize("characters", [200, 242, 243, 249])
def test_folders_of_the_longest_topic_names_can_be_moved(tmp_path: Path, characters: int) -> None:
    """On a real file system, whose names have at most 255 bytes."""
    directory = open_directory(OsDisk(), str(tmp_path / "data"), NodeId(1), Counting())
    last = PARTITIONS_PER_TOPIC_MAX - 1
    alike = [TopicPartition("t" * (characters - 1) + end, last) for end in "ab"]
    for partition in alike:
        for move in (directory.move_to_strays, directory.move_to_strays, directory.move_damaged_to_strays):
            directory.disk.make_folder(directory.folder_of(partition))
            moved_to = move(partition)
            assert directory.disk.exists(moved_to)
            assert Path(moved_to).name.startswith("t" * 150), "a person finds it by the topic's name"
        directory.disk.make_folder(directory.folder_of(partition))
        (pending_deletion,) = directory.mark_deleted([(partition, "A" * 22)])
        directory.remove_deleted([pending_deletion])
    assert len(directory.disk.list_folder(f"{directory.path}/strays")) == 6, "each has a name of its own"
    assert directory.partitions_on_disk() == []


def test_the_starts_since_the_last_admitted_one_are_known() -> None:
    disk = new_disk()
    directory = opened(disk)
    assert directory.record_start("a", admitted="") == ("a",)
    assert directory.record_start("b", admitted="") == ("a", "b")
    disk.disk.lose_power()
    directory = opened(disk.disk.mount())
    assert directory.record_start("c", admitted="b") == ("b", "c")
    assert directory.record_start("d", admitted="of a later copy") == ("b", "c", "d")
    for number in range(3 * START_IDS_MAX):
        known = directory.record_start(f"{number}", admitted="b")
        assert known[0] == "b"
        assert known[-1] == f"{number}"
    assert len(known) == START_IDS_MAX + 2
    assert known[-2] == f"{number - 1}", "the one before this may yet be admitted"


def test_a_list_of_starts_that_cannot_be_read_is_refused() -> None:
    disk = new_disk()
    directory = opened(disk)
    disk.store([SmallFile(f"{PATH}/start-ids.json", b"[1")])
    with pytest.raises(CorruptData, match=r"start-ids\.json cannot be read"):
        directory.record_start("a", admitted="")


def test_the_mark_of_a_clean_stop_is_taken_once() -> None:
    directory = opened(new_disk())
    assert not directory.consume_clean_shutdown_mark()
    directory.write_clean_shutdown_mark()
    assert directory.consume_clean_shutdown_mark()
    assert not directory.consume_clean_shutdown_mark()


def test_only_folders_named_like_partitions_are_partitions() -> None:
    disk = new_disk()
    directory = opened(disk)
    for name in ("orders-0", "a-b-12", "orders", "orders-x", "0.abc.deleted", "..-1x"):
        disk.make_folder(f"{directory.logs_path}/{name}")
    assert directory.partitions_on_disk() == [TopicPartition("a-b", 12), TopicPartition("orders", 0)]
    assert directory.deleted_folders() == [f"{directory.logs_path}/0.abc.deleted"]


def test_a_doomed_folder_makes_way_for_another_of_its_name() -> None:
    disk = new_disk()
    directory = opened(disk)
    orders = TopicPartition("orders", 0)
    assert directory.mark_deleted([(orders, "id")]) == []
    for _ in range(2):
        disk.make_folder(directory.folder_of(orders))
        assert directory.mark_deleted([(orders, "id")]) == directory.deleted_folders() != []
    assert directory.partitions_on_disk() == []


def test_what_was_being_removed_is_whole_or_gone_after_a_loss_of_power() -> None:
    """A log that lacks its first segment would be one that starts later."""
    names = ["00000000000000000000.log", "00000000000000000053.log"]
    for seed in range(40):
        disk = new_disk(seed)
        directory = opened(disk)
        folder = directory.folder_of(TopicPartition("orders", 0))
        disk.make_folder(folder)
        disk.store([SmallFile(f"{folder}/{name}", b"batches") for name in names])
        disk.sync((), [folder, directory.logs_path])
        pending_deletion = directory.mark_deleted([(TopicPartition("orders", 0), "id")])
        assert pending_deletion
        directory.remove_deleted(pending_deletion)
        disk.disk.lose_power()
        after = disk.disk.mount()
        assert not after.exists(folder) or sorted(after.list_folder(folder)) == names


def test_a_name_that_was_not_checked_never_becomes_a_path() -> None:
    directory = opened(new_disk())
    for name in ("../etc", "a/b", "", "a" * 250, "a\0"):
        with pytest.raises(AssertionError, match="not checked"):
            directory.folder_of(TopicPartition(name, 0))


def test_a_directory_in_use_is_locked_until_it_is_released(tmp_path: Path) -> None:
    lock = FolderLock(str(tmp_path))
    with pytest.raises(StorageFailed, match="in use by process"):
        FolderLock(str(tmp_path))
    lock.release()
    FolderLock(str(tmp_path)).release()


def test_a_lock_has_the_mark_of_the_previous_one_and_a_copy_has_another(tmp_path: Path) -> None:
    folder, copy = tmp_path / "data", tmp_path / "copy"
    folder.mkdir()
    first = FolderLock(str(folder))
    shutil.copytree(folder, copy)
    other = FolderLock(str(copy))
    assert first.mark
    assert first.mark != other.mark
    mark = first.mark
    first.release()
    other.release()
    again = FolderLock(str(folder))
    assert again.mark == mark
    again.release()
