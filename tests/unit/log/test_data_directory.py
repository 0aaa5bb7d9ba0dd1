"""Whose data directory it is, and what is in it."""

from pathlib import Path

import pytest

from penstock.errors import CorruptData, StorageFailed
from penstock.host.folder_lock import FolderLock
from penstock.log.data_directory import DataDirectory, open_directory
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


def test_the_mark_of_a_clean_stop_is_taken_once() -> None:
    directory = opened(new_disk())
    assert not directory.take_clean_mark()
    directory.leave_clean_mark()
    assert directory.take_clean_mark()
    assert not directory.take_clean_mark()


def test_only_folders_named_like_partitions_are_partitions() -> None:
    disk = new_disk()
    directory = opened(disk)
    for name in ("orders-0", "a-b-12", "orders", "orders-x", "0.abc.deleted", "..-1x"):
        disk.make_folder(f"{directory.logs_path}/{name}")
    assert directory.partitions_on_disk() == [TopicPartition("a-b", 12), TopicPartition("orders", 0)]
    assert directory.doomed_folders() == [f"{directory.logs_path}/0.abc.deleted"]


def test_a_doomed_folder_makes_way_for_another_of_its_name() -> None:
    disk = new_disk()
    directory = opened(disk)
    orders = TopicPartition("orders", 0)
    assert directory.doom(orders, "id") is None
    disk.make_folder(directory.folder_of(orders))
    doomed = directory.doom(orders, "id")
    assert doomed in directory.doomed_folders()
    assert directory.partitions_on_disk() == []


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
