"""What opening a log makes of whatever the last process left."""

import pytest

from penstock.errors import CorruptData, StorageFailed
from penstock.log.reading.cold_reading import ColdRead
from penstock.protocol.batches import parse_header
from penstock.types import LeaderEpoch, Offset
from tests.unit.log.log_support import (
    FOLDER,
    LOGS,
    NOW_MS,
    append,
    batches,
    checkpoint,
    file_at,
    flip,
    flush,
    new_disk,
    new_log,
    reopened,
    truncate_to,
)

FIRST = f"{FOLDER}/{0:020d}.log"
INDEX = f"{FOLDER}/{0:020d}.index"
TIME_INDEX = f"{FOLDER}/{0:020d}.timeindex"


def test_a_folder_that_is_not_there_is_an_empty_log() -> None:
    recovered = reopened(new_disk())
    assert (recovered.log.log_end_offset, recovered.scanned_bytes, recovered.truncated_bytes) == (0, 0, 0)


def test_a_tail_torn_at_any_byte_is_cut_back_to_the_last_whole_batch() -> None:
    disk = new_disk()
    log = new_log(disk)
    for number in range(3):
        append(log, [b"%d" % number])
    whole = file_at(disk, FIRST).read(0, 10_000)
    last = len(batches(log)[2])
    for size in range(len(whole) - last, len(whole)):
        file = file_at(disk, FIRST)
        file.truncate(0)
        file.write(0, whole[:size])
        recovered = reopened(disk)
        assert recovered.log.log_end_offset == 2
        assert recovered.truncated_bytes == size - (len(whole) - last)
        assert file_at(disk, FIRST).size() == len(whole) - last


def test_what_was_cut_off_never_comes_back() -> None:
    """A second power failure finds the tail gone, whether or not anything was written since."""
    disk = new_disk()
    log = new_log(disk)
    append(log, [b"safe"])
    checkpoint(log)
    append(log, [b"torn"])
    size = file_at(disk, FIRST).size()
    file_at(disk, FIRST).truncate(size - 1)
    disk.sync([file_at(disk, FIRST)], [FOLDER])
    assert reopened(disk).truncated_bytes > 0
    assert not file_at(disk, FIRST).node.is_dirty


def test_damage_above_the_recovery_point_is_cut_and_below_it_is_reported() -> None:
    disk = new_disk()
    log = new_log(disk)
    append(log, [b"first"])
    checkpoint(log)
    size = file_at(disk, FIRST).size()
    append(log, [b"second"])
    flush(log)
    flip(disk, FIRST, size + 70)
    assert reopened(disk).log.log_end_offset == 1
    flip(disk, FIRST, 70)
    with pytest.raises(CorruptData, match="checksum"):
        reopened(disk)


def test_records_that_were_safe_and_are_missing_are_reported() -> None:
    disk = new_disk()
    log = new_log(disk)
    append(log, [b"first"])
    checkpoint(log)
    file_at(disk, FIRST).truncate(0)
    with pytest.raises(CorruptData, match="were safe and are missing"):
        reopened(disk)
    disk.remove(FIRST)
    with pytest.raises(CorruptData, match="were safe and are gone"):
        reopened(disk)


def test_a_hole_below_the_recovery_point_is_reported_and_nothing_is_removed() -> None:
    """A segment that ends too early must not make the sound ones behind it go away."""
    disk = new_disk()
    log = new_log(disk, segment_bytes=400)
    while len(log.segments) < 3:
        append(log, [bytes(100)])
    checkpoint(log)
    snapshot = log.snapshot_path(log.recovery_point)
    flip(disk, snapshot, 8)  # so that everything is replayed
    first = disk.list_folder(FOLDER)
    size = len(batches(log)[0])
    file_at(disk, FIRST).truncate(size)
    disk.remove(INDEX)
    with pytest.raises(CorruptData, match="were safe and are missing"):
        reopened(disk, segment_bytes=400)
    assert [name for name in disk.list_folder(FOLDER) if name.endswith(".log")] == [
        name for name in first if name.endswith(".log")
    ]


@pytest.mark.parametrize("damage", ["missing", "torn", "zeros", "stale"])
def test_a_bad_index_beside_a_torn_tail_is_rebuilt_and_the_tail_is_cut(damage: str) -> None:
    """One power failure in the middle of a checkpoint does both."""
    disk = new_disk()
    log = new_log(disk)
    for _ in range(10):
        append(log, [bytes(100)])
    checkpoint(log)
    end = log.log_end_offset
    append(log, [bytes(100)])
    file = file_at(disk, FIRST)
    file.truncate(file.size() - len(batches(log)[0]) + 30)
    index = file_at(disk, INDEX)
    entries = index.read(0, 10_000)
    if damage == "missing":
        disk.remove(INDEX)
    elif damage == "torn":
        index.truncate(len(entries) - 3)
    elif damage == "zeros":
        index.write(0, bytes(len(entries)))
    else:
        index.write(len(entries), entries)
    log = reopened(disk).log
    assert log.log_end_offset == end
    assert len(batches(log)) == 10
    append(log, [b"more"])
    checkpoint(log)
    assert len(batches(reopened(disk).log)) == 11


def test_entries_of_cut_records_do_not_stay_behind_in_an_index_file() -> None:
    disk = new_disk()
    log = new_log(disk)
    for _ in range(40):
        append(log, [bytes(90)])
    checkpoint(log)
    truncate_to(log, Offset(5))
    for _ in range(60):
        append(log, [bytes(37)])
    checkpoint(log)
    log = reopened(disk).log
    assert log.log_end_offset == 65
    assert [parse_header(batch).base_offset for batch in batches(log)] == list(range(65))


def test_a_damaged_newest_snapshot_makes_producers_replay_from_an_older_one() -> None:
    disk = new_disk()
    log = new_log(disk)
    for sequence in range(12):
        append(log, [bytes(90)], producer_id=7, producer_epoch=0, base_sequence=sequence)
        if sequence in (2, 11):
            checkpoint(log)
    expected = log.producers.to_bytes()
    flip(disk, log.snapshot_path(log.recovery_point), 9)
    assert reopened(disk).log.producers.to_bytes() == expected


def test_an_epoch_that_began_again_after_a_truncation_keeps_its_true_start() -> None:
    disk = new_disk()
    log = new_log(disk)
    for number in range(10):
        append(log, [b"x"], epoch=1 if number < 8 else 5)
        if number in (3, 9):
            checkpoint(log)
    truncate_to(log, Offset(6))
    append(log, [b"y"], epoch=5)
    flush(log)
    log = reopened(disk).log
    assert log.epochs.end_of(LeaderEpoch(1), log.log_end_offset) == (1, 6)


def test_what_a_failed_sync_left_in_memory_is_written_again() -> None:
    """The kernel shows it as written. A process that believes so loses it with the power."""
    disk = new_disk()
    log = new_log(disk)
    append(log, [b"safe"])
    checkpoint(log)
    append(log, [b"unsure"])
    disk.disk.sync_fails = True
    with pytest.raises(StorageFailed):
        flush(log)
    log = reopened(disk).log  # the process was restarted; the machine was not
    flush(log)
    assert log.flushed_end_offset == 2
    disk.disk.lose_power()
    assert reopened(disk.disk.mount()).log.log_end_offset == 2


def test_a_folder_made_by_a_killed_process_becomes_durable_with_the_next() -> None:
    disk = new_disk()
    append(new_log(disk), [b"first"])
    log = reopened(disk).log
    log.resync_folder()
    flush(log)
    disk.disk.root.lose_power(disk.disk.random)
    assert reopened(disk.disk.mount()).log.log_end_offset == 1


def test_a_start_past_everything_that_survived_is_where_the_log_goes_on() -> None:
    disk = new_disk()
    log = new_log(disk)
    for _ in range(5):
        append(log, [b"x"])
    flush(log)
    log.advance_start(Offset(5))
    disk.store([log.start_file(log.log_start_offset)])
    file_at(disk, FIRST).truncate(200)
    log = reopened(disk).log
    assert (log.log_start_offset, log.log_end_offset) == (5, 5)
    flush(log)
    assert append(log, [b"next"]) == 5
    checkpoint(log)
    assert reopened(disk).log.log_end_offset == 6


@pytest.mark.parametrize("content", [b"", b"0\n0\n", b"0\n2\n1\n2\n", b"0\n1\n-4\n", b"x", b"9\n1\n3\n"])
def test_a_start_file_that_makes_no_sense_is_reported(content: bytes) -> None:
    disk = new_disk()
    append(new_log(disk), [b"x"])
    disk.open(f"{FOLDER}/log-start-checkpoint", create=True).write(0, content)
    with pytest.raises(CorruptData):
        reopened(disk)


def test_leftovers_of_an_unfinished_replacement_are_removed() -> None:
    disk = new_disk()
    append(new_log(disk), [b"x"])
    disk.open(f"{FOLDER}/leader-epoch-checkpoint.tmp", create=True)
    reopened(disk)
    assert not disk.exists(f"{FOLDER}/leader-epoch-checkpoint.tmp")


def test_opening_twice_gives_the_same_log() -> None:
    disk = new_disk()
    log = new_log(disk, segment_bytes=500)
    for sequence in range(20):
        append(log, [bytes(60)], producer_id=1, producer_epoch=0, base_sequence=sequence)
        if sequence == 7:
            checkpoint(log)
    first, second = reopened(disk, segment_bytes=500), reopened(disk, segment_bytes=500)
    assert repr(first.log) == repr(second.log)
    assert batches(first.log) == batches(second.log) == batches(log)
    assert first.log.producers.to_bytes() == log.producers.to_bytes()


def test_the_newest_timestamp_covers_both_sides_of_the_last_index_entry() -> None:
    disk = new_disk()
    log = new_log(disk)
    for number, time in enumerate((5, 9, 1, 2, 3, 4, 7, 1, 1, 1)):
        append(log, [bytes(90)], [NOW_MS + time])
        if number == 6:
            checkpoint(log)
    assert log.active.newest_timestamp == NOW_MS + 9
    assert reopened(disk).log.active.newest_timestamp == NOW_MS + 9


def test_the_newest_timestamp_of_a_segment_ended_after_a_checkpoint_is_known() -> None:
    """Its time index on disk lacks the last entry, which is made when the next segment begins."""
    disk = new_disk()
    log = new_log(disk)
    for time in (1, 2, 3, 9):
        append(log, [bytes(90)], [NOW_MS + time])
    checkpoint(log)
    log.roll()
    append(log, [b"x"], [NOW_MS + 5])
    flush(log)
    again = reopened(disk).log
    assert [segment.newest_timestamp for segment in again.segments] == [NOW_MS + 9, NOW_MS + 5]
    checkpoint(again)
    again.close()
    again = reopened(disk).log
    assert [segment.newest_timestamp for segment in again.segments] == [NOW_MS + 9, NOW_MS + 5]


def test_the_folder_name_is_durable_with_the_first_flush() -> None:
    disk = new_disk()
    log = new_log(disk)
    append(log, [b"x"])
    plan = log.begin_flush()
    assert {LOGS, FOLDER} <= set(plan.folders)


@pytest.mark.parametrize("damage", ["missing", "garbage behind it", "torn"])
@pytest.mark.parametrize("lost", [INDEX, TIME_INDEX])
def test_a_rebuilt_index_of_a_sealed_segment_is_on_disk_after_a_checkpoint(lost: str, damage: str) -> None:
    disk = new_disk()
    log = new_log(disk)
    for number in range(12):
        append(log, [bytes(90)], [NOW_MS + number])
    log.roll()
    append(log, [b"y"], [NOW_MS + 99])
    checkpoint(log)
    expected = disk.read_file(lost)
    file = file_at(disk, lost)
    if damage == "missing":
        disk.remove(lost)
    elif damage == "torn":
        file.truncate(len(expected) - 1)
    else:
        file.write(len(expected), bytes(240))
    log = reopened(disk).log
    found = log.read(Offset(3), log.log_end_offset, 500, at_least_one=True)
    assert isinstance(found, ColdRead)
    log.keep_indexes(*found.run().loaded)
    assert log.needs_checkpoint
    assert not log.segments[0].indexes_stored, "nobody may forget them yet"
    checkpoint(log)
    assert disk.read_file(lost) == expected
    assert not log.needs_checkpoint
    assert log.segments[0].indexes_stored
    assert batches(log) == batches(reopened(disk).log)


def test_a_rebuilt_index_of_the_active_segment_is_on_disk_after_the_start() -> None:
    disk = new_disk()
    log = new_log(disk)
    for _ in range(12):
        append(log, [bytes(90)])
    checkpoint(log)
    expected = disk.read_file(INDEX)
    disk.remove(INDEX)
    log = reopened(disk).log
    assert log.needs_checkpoint
    checkpoint(log)
    assert disk.read_file(INDEX) == expected
    assert not reopened(disk).log.needs_checkpoint


def test_a_segment_that_is_dropped_takes_its_unwritten_index_along() -> None:
    disk = new_disk()
    log = new_log(disk)
    append(log, [bytes(90)])
    log.roll()
    append(log, [b"y"])
    checkpoint(log)
    disk.remove(INDEX)
    log = reopened(disk).log
    found = log.read(Offset(0), log.log_end_offset, 500, at_least_one=True)
    assert isinstance(found, ColdRead)
    log.keep_indexes(*found.run().loaded)
    for path in log.drop_segments(1):
        disk.remove(path)
    checkpoint(log)
    assert not disk.exists(INDEX)
