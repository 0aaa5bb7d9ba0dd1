"""Appending, rolling and reading a log that lives."""

import pytest

from penstock.errors import CorruptData, StorageFull
from penstock.host.disk import SmallFile
from penstock.log.reading.cold_reading import BatchesRead, ColdRead
from penstock.log.segment import SUFFIXES
from penstock.protocol.batches import parse_header
from penstock.types import Offset
from tests.unit.log.log_support import (
    DAY_MS,
    FOLDER,
    NOW_MS,
    append,
    batches,
    checkpoint,
    file_at,
    flush,
    new_disk,
    new_log,
    read,
    reopened,
)


def test_a_batch_is_stamped_with_its_offset_and_epoch() -> None:
    log = new_log(new_disk())
    append(log, [b"a", b"b"], epoch=4)
    assert append(log, [b"c"], epoch=6) == 2
    header = parse_header(batches(log)[1])
    assert (header.base_offset, header.leader_epoch) == (2, 6)
    assert (log.epochs.epoch_at(Offset(1)), log.epochs.epoch_at(Offset(2))) == (4, 6)


def test_a_full_segment_is_followed_by_one_named_by_its_first_offset() -> None:
    disk = new_disk()
    log = new_log(disk, segment_bytes=300)
    for _ in range(4):
        append(log, [bytes(100)])
    names = [name for name in disk.list_folder(FOLDER) if name.endswith(".log")]
    assert names == [f"{base:020d}.log" for base in range(4)] or len(names) > 1
    assert all(segment.size_bytes <= 300 for segment in log.segments)
    assert [parse_header(batch).base_offset for batch in batches(log)] == [0, 1, 2, 3]


def test_a_segment_ends_when_time_has_moved_on() -> None:
    log = new_log(new_disk(), segment_ms=DAY_MS)
    append(log, [b"a"], [NOW_MS])
    append(log, [b"b"], [NOW_MS + DAY_MS])
    assert len(log.segments) == 1
    append(log, [b"c"], [NOW_MS + DAY_MS + 1])
    assert len(log.segments) == 2


def test_a_segment_ends_when_its_index_is_full() -> None:
    log = new_log(new_disk(), index_interval_bytes=1, index_bytes_max=16)
    for _ in range(6):
        append(log, [b"x"])
    assert len(log.segments) == 2


@pytest.mark.parametrize("room", [0, 1, 60, 100])
def test_a_full_disk_leaves_nothing_of_a_batch_and_writing_goes_on_with_room(room: int) -> None:
    disk = new_disk()
    log = new_log(disk)
    append(log, [b"before"])
    size = log.active.file.size()
    disk.disk.room_bytes = room
    with pytest.raises(StorageFull):
        append(log, [bytes(200)])
    assert (log.active.file.size(), log.log_end_offset) == (size, 1)
    disk.disk.room_bytes = 10_000
    assert append(log, [b"after"]) == 1
    flush(log)
    assert len(batches(reopened(disk).log)) == 2


def test_the_rest_of_a_batch_on_a_full_disk_does_not_return_after_a_segment() -> None:
    """It was cut off again, and nobody synced that: nothing else was written to that segment."""
    for seed in range(20):
        disk = new_disk(seed)
        log = new_log(disk)
        append(log, [b"before"])
        flush(log)
        disk.disk.room_bytes = 60
        with pytest.raises(StorageFull):
            append(log, [bytes(200)])
        disk.disk.room_bytes = 10_000
        sealed = log.active
        log.roll()
        append(log, [b"after"])
        assert sealed.dirty, "the cut is synced with what follows"
        flush(log)
        disk.disk.lose_power()
        assert len(batches(reopened(disk.disk.mount()).log)) == 2


def test_a_disk_that_is_full_before_the_first_batch_keeps_the_folder() -> None:
    disk = new_disk()
    log = new_log(disk)
    log.partition_folder.metadata_file = SmallFile(f"{FOLDER}/partition.metadata", b"whose")
    disk.disk.room_bytes = 2
    with pytest.raises(StorageFull):
        append(log, [b"x"])
    disk.disk.room_bytes = 10_000
    append(log, [b"x"])
    flush(log)
    disk.disk.lose_power()
    again = disk.disk.mount()
    assert again.read_file(f"{FOLDER}/partition.metadata") == b"whose"
    assert reopened(again).log.log_end_offset == 1


def test_whose_folder_it_is_becomes_durable_with_the_first_records() -> None:
    """Otherwise a power failure leaves safe records that look like another topic's."""
    for seed in range(20):
        disk = new_disk(seed)
        log = new_log(disk)
        log.partition_folder.metadata_file = SmallFile(f"{FOLDER}/partition.metadata", b"whose")
        append(log, [b"x"])
        flush(log)
        disk.disk.lose_power()
        assert disk.disk.mount().read_file(f"{FOLDER}/partition.metadata") == b"whose"


def test_what_was_appended_during_a_flush_is_not_flushed_by_it() -> None:
    log = new_log(new_disk())
    append(log, [b"a"])
    plan = log.begin_flush()
    append(log, [b"b"])
    log.end_flush(plan)
    assert (log.flushed_end_offset, log.log_end_offset) == (1, 2)
    assert log.is_dirty


def test_a_checkpoint_keeps_two_snapshots_and_says_which_are_needless() -> None:
    disk = new_disk()
    log = new_log(disk)
    for _ in range(4):
        append(log, [b"x"])
        checkpoint(log)
    names = [name for name in disk.list_folder(FOLDER) if name.endswith(".snapshot")]
    assert names == [f"{offset:020d}.snapshot" for offset in (3, 4)]
    assert not log.needs_checkpoint


def test_a_segment_that_ended_after_the_last_checkpoint_has_indexes_to_store() -> None:
    """Nothing may be written after it for long, and it cannot be compacted before."""
    disk = new_disk()
    log = new_log(disk)
    for time in (1_000, 2_000, 3_000):
        append(log, [b"x"], [time])
    checkpoint(log)
    log.roll()
    assert log.needs_checkpoint
    checkpoint(log)
    assert all(segment.indexes_stored for segment in log.segments)
    assert not log.needs_checkpoint


def test_a_log_opened_from_a_checkpoint_reads_little_again() -> None:
    disk = new_disk()
    log = new_log(disk)
    for _ in range(100):
        append(log, [bytes(100)])
    checkpoint(log)
    assert reopened(disk).scanned_bytes < 1_000


def test_a_batch_found_on_disk_is_read_where_its_checksum_is_checked() -> None:
    disk = new_disk()
    log = new_log(disk)
    for _ in range(20):
        append(log, [bytes(100)])
    assert isinstance(log.read(Offset(3), Offset(20), 10_000, at_least_one=True), BatchesRead)
    checkpoint(log)
    again = reopened(disk).log
    assert isinstance(again.read(Offset(3), Offset(20), 10_000, at_least_one=True), ColdRead)
    append(again, [b"new"])
    assert isinstance(again.read(Offset(20), Offset(21), 10_000, at_least_one=True), BatchesRead)


def test_a_segment_that_lost_its_end_is_damage_and_not_the_end_of_the_log() -> None:
    disk = new_disk()
    log = new_log(disk)
    append(log, [bytes(100)])
    log.roll()
    append(log, [b"y"])
    checkpoint(log)
    again = reopened(disk).log
    path = again.segments[0].path()
    file_at(disk, path).truncate(100)
    with pytest.raises(CorruptData, match="ends inside"):
        read(again, 0)


def test_a_base_offset_that_was_changed_is_damage_although_the_checksum_holds() -> None:
    disk = new_disk()
    log = new_log(disk)
    for _ in range(5):
        append(log, [bytes(50)])
    log.roll()
    checkpoint(log)
    again = reopened(disk).log
    size = again.segments[0].size_bytes // 5
    file_at(disk, again.segments[0].path()).write(2 * size + 7, b"\x63")
    assert read(again, 0, bytes_max=size).next_offset == 1
    for offset in (0, 2, 3):
        with pytest.raises(CorruptData, match="where 2 belongs"):
            read(again, offset)


@pytest.mark.parametrize("index", [".timeindex", ".index"])
def test_a_sealed_segment_without_an_index_still_knows_its_newest_timestamp(index: str) -> None:
    disk = new_disk()
    log = new_log(disk)
    append(log, [b"x", b"y"], [NOW_MS + 9, NOW_MS])
    log.roll()
    append(log, [b"z"])
    checkpoint(log)
    disk.remove(f"{FOLDER}/{0:020d}{index}")
    assert reopened(disk).log.segments[0].newest_timestamp == NOW_MS + 9


def test_dropped_segments_take_their_offsets_with_them() -> None:
    disk = new_disk()
    log = new_log(disk, segment_bytes=200)
    for _ in range(5):
        append(log, [bytes(100)])
    dropped = log.drop_segments(2)
    assert log.log_start_offset == log.segments[0].base_offset == 2
    assert len(dropped) == 2 * len(SUFFIXES)
    with pytest.raises(AssertionError, match="active"):
        log.drop_segments(len(log.segments))


def test_closing_files_would_forget_what_must_be_synced() -> None:
    log = new_log(new_disk())
    append(log, [b"x"])
    with pytest.raises(AssertionError, match="forget"):
        log.close_files()
    flush(log)
    log.close_files()
    assert batches(log)


def test_what_has_left_the_page_cache_is_checked_also_when_it_is_back() -> None:
    """A read that misses makes the kernel read ahead: the next one finds bytes that came from the device."""
    disk = new_disk()
    log = new_log(disk)
    for _ in range(3):
        append(log, [b"x" * 100])
    flush(log)

    def at(offset: int) -> BatchesRead | ColdRead:
        return log.read(Offset(offset), log.log_end_offset, 10_000, at_least_one=True)

    assert isinstance(at(0), BatchesRead)
    disk.disk.cold_reads = 1.0
    assert isinstance(at(0), ColdRead)
    disk.disk.cold_reads = 0.0
    assert isinstance(at(0), ColdRead)
    assert isinstance(at(2), ColdRead), "all of the segment"
    append(log, [b"written since"])
    assert isinstance(at(3), BatchesRead)
