"""A batch for which there is no room leaves nothing behind: no bytes, no open file, no name."""

import pytest

from penstock.errors import StorageFull
from penstock.host.disk import SmallFile, TooManyOpenFiles
from penstock.log.partition_log import METADATA_FILE
from penstock.log.shared_resources import SharedLogResources
from penstock.sim.disk import Mount
from tests.unit.log.log_support import (
    FOLDER,
    append,
    batches,
    checkpoint,
    file_at,
    flush,
    new_disk,
    new_log,
    reopened,
)

BIRTH = SmallFile(f"{FOLDER}/{METADATA_FILE}", b"whose")


@pytest.fixture
def disk() -> Mount:
    return new_disk()


@pytest.mark.parametrize("room", [len(BIRTH.content) - 1, len(BIRTH.content), len(BIRTH.content) + 30])
def test_a_first_batch_that_is_refused_keeps_only_its_segment_open(disk: Mount, room: int) -> None:
    """Nobody flushes a partition that has nothing: what waited for that would stay open for good."""
    shared = SharedLogResources.on(disk)
    log = new_log(disk)
    log.partition_folder.metadata_file = BIRTH
    log.share(shared)
    for _ in range(3):
        disk.disk.room_bytes = room
        with pytest.raises(StorageFull):
            append(log, [b"x"])
        disk.remove(BIRTH.path)  # the next needs its room again
    assert disk.open_files == len(shared.files) == log.active.is_open
    log.close_files()
    assert disk.open_files == len(shared.files) == 0


def test_a_partition_whose_first_batch_was_refused_is_as_durable_as_any() -> None:
    for seed in range(20):
        disk = new_disk(seed)
        log = new_log(disk)
        log.partition_folder.metadata_file = BIRTH
        disk.disk.room_bytes = len(BIRTH.content) + 30
        with pytest.raises(StorageFull):
            append(log, [b"refused"])
        disk.disk.room_bytes = 10_000
        append(log, [b"taken"])
        flush(log)
        disk.disk.lose_power()
        again = disk.disk.mount()
        assert again.read_file(BIRTH.path) == BIRTH.content
        assert len(batches(reopened(again).log)) == 1


def test_a_later_batch_that_is_refused_takes_nothing_back(disk: Mount) -> None:
    log = new_log(disk)
    log.partition_folder.metadata_file = BIRTH
    append(log, [b"taken"])
    disk.disk.room_bytes = 3
    with pytest.raises(StorageFull):
        append(log, [b"refused"])
    assert BIRTH.path in [file.path for file in log.begin_flush().files]


def test_what_was_cut_off_a_segment_never_comes_back_behind_its_end() -> None:
    """Nothing is appended to it any more: the next batch begins another segment."""
    for seed in range(30):
        disk = new_disk(seed)
        log = new_log(disk, segment_bytes=1_000)
        append(log, [bytes(100)])
        flush(log)
        disk.disk.room_bytes = 400
        with pytest.raises(StorageFull):
            append(log, [bytes(700)])
        disk.disk.room_bytes = 10_000
        append(log, [bytes(900)])
        assert len(log.segments) == 2
        checkpoint(log)
        size = log.segments[0].size_bytes
        disk.disk.lose_power()
        again = disk.disk.mount()
        assert file_at(again, log.segments[0].path()).size() == size
        assert len(batches(reopened(again).log)) == 2


def test_a_segment_that_cannot_be_begun_leaves_the_log_as_it_was(disk: Mount) -> None:
    log = new_log(disk, segment_bytes=1_000)
    shared = SharedLogResources.on(disk)
    log.share(shared)
    append(log, [bytes(500)])
    disk.disk.descriptors = disk.open_files
    for _ in range(3):
        with pytest.raises(TooManyOpenFiles):
            append(log, [bytes(600)])
    assert (len(log.segments), log.log_end_offset, disk.open_files) == (1, 1, 1)
    disk.disk.descriptors = None
    assert append(log, [bytes(600)]) == 1
    flush(log)
    assert len(batches(log)) == len(log.segments) == 2
