"""Open and aborted transactions of a log: over restarts, crashes, truncation, retention and damage."""

import struct

import pytest

from penstock.errors import ApiError, CorruptData, ErrorCode
from penstock.log.follower_append import append_as_follower
from penstock.log.partition_log import PartitionLog
from penstock.log.segment import TXN_INDEX_SUFFIX
from penstock.log.transactions.aborted_index import (
    CHECKPOINT_NAME,
    ROW_BYTES,
    AbortedEntry,
    AbortedIndex,
    parse_rows_of,
)
from penstock.log.transactions.log_transactions import LogTransactions
from penstock.protocol.batches import parse_header
from penstock.protocol.records import Record, build_batch
from penstock.sim.disk import Mount
from penstock.types import LeaderEpoch, Offset, ProducerId
from tests.unit.log.log_support import (
    FOLDER,
    append,
    batch_of,
    checkpoint,
    file_at,
    flush,
    new_disk,
    new_log,
    read,
    reopened,
    truncate_fully_and_start_at,
    truncate_to,
)
from tests.unit.log.transactions.transaction_support import (
    aborted,
    committed_records,
    end,
    stable_end,
    write,
)

INDEX = f"{FOLDER}/{0:020d}{TXN_INDEX_SUFFIX}"
SUMS = f"{FOLDER}/{CHECKPOINT_NAME}"


@pytest.fixture
def disk() -> Mount:
    return new_disk()


@pytest.fixture
def log(disk: Mount) -> PartitionLog:
    return new_log(disk)


def two_aborted(log: PartitionLog) -> list[tuple[int, int, int]]:
    """Two transactions that overlap, both aborted, and one that was committed."""
    write(log, 1, 0)
    write(log, 2, 0)
    write(log, 3, 0)
    end(log, 2, commit=False)
    end(log, 3, commit=True)
    end(log, 1, commit=False)
    return [(2, 1, 3), (1, 0, 5)]


# The last stable offset


def test_a_log_without_transactions_is_stable_up_to_the_high_watermark(log: PartitionLog) -> None:
    append(log, [b"a", b"b"], producer_id=1, producer_epoch=0, base_sequence=0)
    assert (stable_end(log), stable_end(log, 1)) == (2, 1)


def test_the_oldest_open_transaction_holds_the_last_stable_offset(log: PartitionLog) -> None:
    append(log, [b"a"])
    write(log, 1, 0)
    write(log, 2, 0)
    assert stable_end(log) == 1
    end(log, 2, commit=True)
    assert stable_end(log) == 1
    end(log, 1, commit=True)
    assert stable_end(log) == 5


def test_an_ended_transaction_counts_until_its_marker_is_committed(log: PartitionLog) -> None:
    write(log, 1, 0)
    marker = end(log, 1, commit=True)
    append(log, [b"later"])
    assert stable_end(log, marker) == 0
    assert stable_end(log, marker + 1) == marker + 1


def test_the_last_stable_offset_is_never_below_the_log_start(log: PartitionLog) -> None:
    write(log, 1, 0, b"a", b"b", b"c")
    append(log, [b"d"])
    log.advance_start(Offset(2))
    assert stable_end(log) == 2


# Aborted transactions


def test_only_aborted_transactions_are_listed_with_their_markers(log: PartitionLog) -> None:
    assert two_aborted(log) == aborted(log)


def test_a_row_has_the_stable_offset_behind_its_marker(log: PartitionLog) -> None:
    two_aborted(log)
    assert [entry.last_stable_offset for entry in log.transactions.aborted.entries()] == [0, 6]


def test_overlapping_transactions_are_found_by_first_offset(log: PartitionLog) -> None:
    two_aborted(log)
    index = log.transactions.aborted

    def found(start: int, stop: int) -> list[int]:
        return [entry.producer_id for entry in index.overlapping(Offset(start), Offset(stop))]

    assert found(0, 6) == [1, 2]
    assert found(0, 1) == [1], "the other one begins at the end of what is read"
    assert found(3, 6) == [1, 2], "the marker itself is read"
    assert found(4, 6) == [1], "the marker lies before"
    assert found(6, 9) == []


def test_a_marker_of_a_producer_without_a_transaction_changes_nothing(log: PartitionLog) -> None:
    end(log, 1, commit=False)
    assert (aborted(log), stable_end(log)) == ([], 1)


def test_a_control_batch_that_cannot_be_read_is_not_appended(log: PartitionLog) -> None:
    record = Record(Offset(0), 0, b"?", b"?")
    batch = bytearray(build_batch([record], producer_id=1, producer_epoch=0, control=True))
    with pytest.raises(CorruptData):
        log.append(batch, parse_header(batch), LeaderEpoch(1))
    assert (log.log_end_offset, log.size_bytes) == (0, 0)


def test_too_many_aborted_transactions_let_none_begin(log: PartitionLog) -> None:
    transactions = LogTransactions(aborted_max=2)
    transactions.aborted.add(AbortedEntry(ProducerId(1), Offset(0), Offset(1), Offset(2)), Offset(0))
    transactions.require_room()
    transactions.aborted.add(AbortedEntry(ProducerId(1), Offset(2), Offset(3), Offset(4)), Offset(0))
    with pytest.raises(ApiError) as raised:
        transactions.require_room()
    assert raised.value.code is ErrorCode.POLICY_VIOLATION


# Files


def test_the_index_has_kafkas_rows(disk: Mount, log: PartitionLog) -> None:
    two_aborted(log)
    checkpoint(log)
    rows = list(struct.iter_unpack(">hqqqq", disk.read_file(INDEX)))
    assert rows == [(0, 2, 1, 3, 0), (0, 1, 0, 5, 6)]


def test_a_log_without_aborted_transactions_has_no_such_files(disk: Mount, log: PartitionLog) -> None:
    write(log, 1, 0)
    end(log, 1, commit=True)
    checkpoint(log)
    names = disk.list_folder(FOLDER)
    assert not [name for name in names if name.endswith(TXN_INDEX_SUFFIX) or name == CHECKPOINT_NAME]


@pytest.mark.parametrize("checkpoints", [0, 1, 2])
def test_a_restart_finds_all_of_it_again(disk: Mount, log: PartitionLog, checkpoints: int) -> None:
    expected = two_aborted(log)
    write(log, 4, 0)
    if checkpoints:
        checkpoint(log)
    write(log, 5, 0)
    end(log, 5, commit=False)
    if checkpoints == 2:
        checkpoint(log)
    log.close()
    again = reopened(disk).log
    assert aborted(again) == [*expected, (5, 7, 8)]
    assert stable_end(again) == 6
    end(again, 4, commit=False)
    assert stable_end(again) == 10


def test_a_restart_after_a_lost_snapshot_replays_the_log(disk: Mount, log: PartitionLog) -> None:
    expected = two_aborted(log)
    checkpoint(log)
    write(log, 4, 0)
    checkpoint(log)
    log.close()
    file_at(disk, log.snapshot_path(log.snapshots[-1])).write(0, b"damaged")
    again = reopened(disk).log
    assert (aborted(again), stable_end(again)) == (expected, 6)


def test_rows_of_several_segments_are_in_the_files_of_their_markers(disk: Mount, log: PartitionLog) -> None:
    write(log, 1, 0)
    log.roll()
    checkpoint(log)
    end(log, 1, commit=False)
    write(log, 2, 0)
    end(log, 2, commit=False)
    log.roll()
    write(log, 1, 1)
    end(log, 1, commit=False)
    checkpoint(log)
    assert not disk.exists(INDEX)
    files = [disk.read_file(f"{FOLDER}/{base:020d}{TXN_INDEX_SUFFIX}") for base in (1, 4)]
    assert [len(parse_rows_of(content)) for content in files] == [2, 1]
    log.close()
    assert aborted(reopened(disk).log) == [(1, 0, 1), (2, 2, 3), (1, 4, 5)]


@pytest.mark.parametrize("damage", ["missing", "shorter", "zeros", "another producer", "empty"])
def test_a_damaged_index_is_rebuilt_from_the_log(disk: Mount, log: PartitionLog, damage: str) -> None:
    expected = two_aborted(log)
    checkpoint(log)
    write(log, 4, 0)
    end(log, 4, commit=False)
    log.close()
    file = file_at(disk, INDEX)
    match damage:
        case "missing":
            disk.remove(INDEX)
        case "shorter":
            file.truncate(2 * ROW_BYTES - 5)
        case "empty":
            file.truncate(0)
        case "zeros":
            file.write(0, bytes(2 * ROW_BYTES))
        case _:
            file.write(2, struct.pack(">q", 9))
    again = reopened(disk).log
    assert aborted(again) == [*expected, (4, 6, 7)]
    assert again.needs_checkpoint
    checkpoint(again)
    again.close()
    assert len(parse_rows_of(disk.read_file(INDEX))) == 3
    third = reopened(disk).log
    assert aborted(third) == [*expected, (4, 6, 7)]
    assert not third.needs_checkpoint, "the files are sound again"


@pytest.mark.parametrize("damage", ["missing", "noise"])
def test_damaged_checksums_cost_only_a_scan(disk: Mount, log: PartitionLog, damage: str) -> None:
    expected = two_aborted(log)
    checkpoint(log)
    log.close()
    if damage == "missing":
        disk.remove(SUMS)
    else:
        file_at(disk, SUMS).write(0, b"noise")
    again = reopened(disk).log
    assert aborted(again) == expected
    checkpoint(again)
    again.close()
    assert aborted(reopened(disk).log) == expected


def test_an_abandoned_checkpoint_is_made_up_for(disk: Mount, log: PartitionLog) -> None:
    expected = two_aborted(log)
    log.begin_checkpoint()
    log.abandon_checkpoint()
    checkpoint(log)
    log.close()
    assert disk.exists(SUMS)
    assert aborted(reopened(disk).log) == expected


# Truncation and retention


@pytest.mark.parametrize("checkpoints", [True, False])
@pytest.mark.parametrize("offset", range(7))
def test_a_truncation_restores_the_state_before(
    disk: Mount, log: PartitionLog, offset: int, checkpoints: bool
) -> None:
    write(log, 1, 0)
    if checkpoints:
        checkpoint(log)
    write(log, 2, 0)
    end(log, 2, commit=False)
    if checkpoints:
        checkpoint(log)
    end(log, 1, commit=False)
    write(log, 1, 1)
    end(log, 1, commit=True)
    if checkpoints:
        checkpoint(log)
    truncate_to(log, Offset(offset))
    rows = [row for row in [(2, 1, 2), (1, 0, 3)] if row[2] < offset]
    assert aborted(log) == rows
    stable = {0: 0, 1: 0, 2: 0, 3: 0, 4: 4, 5: 4, 6: 6}
    assert stable_end(log) == stable[offset]
    # What is appended instead is as before, and a restart finds the same.
    end(log, 1, commit=False, coordinator_epoch=1)
    after = aborted(log)
    checkpoint(log)
    log.close()
    again = reopened(disk).log
    assert (aborted(again), stable_end(again)) == (after, stable_end(log))


@pytest.mark.parametrize("segments", [1, 2])
def test_rows_that_were_truncated_do_not_come_back(disk: Mount, log: PartitionLog, segments: int) -> None:
    append(log, [b"first"])
    if segments == 2:
        log.roll()
    checkpoint(log)
    write(log, 1, 0)
    end(log, 1, commit=False)
    checkpoint(log)
    truncate_to(log, Offset(1))
    for _ in range(5):
        append(log, [b"another"])
    checkpoint(log)
    log.close()
    again = reopened(disk).log
    assert (aborted(again), stable_end(again)) == ([], 6)


def test_a_truncation_keeps_what_the_high_watermark_has_not_passed(log: PartitionLog) -> None:
    write(log, 1, 0)
    end(log, 1, commit=True)
    checkpoint(log)
    append(log, [b"diverges"])
    truncate_to(log, Offset(2))
    assert stable_end(log, 1) == 0, "the marker is not committed"
    assert stable_end(log, 2) == 2


def test_a_full_truncation_forgets_everything(disk: Mount, log: PartitionLog) -> None:
    two_aborted(log)
    write(log, 4, 0)
    checkpoint(log)
    truncate_fully_and_start_at(log, Offset(50))
    append(log, [b"x"])
    assert (aborted(log), stable_end(log)) == ([], 51)
    checkpoint(log)
    log.close()
    assert aborted(reopened(disk).log) == []


def test_retention_removes_rows_and_files_with_their_segments(disk: Mount, log: PartitionLog) -> None:
    two_aborted(log)
    log.roll()
    write(log, 4, 0)
    end(log, 4, commit=False)
    checkpoint(log)
    removed = log.drop_segments(1)
    assert INDEX in removed
    for path in removed:
        disk.remove(path)
    assert aborted(log) == [(4, 6, 7)]
    log.close()
    assert aborted(reopened(disk).log) == [(4, 6, 7)]


def test_a_snapshot_from_before_the_first_segment_is_not_used(disk: Mount, log: PartitionLog) -> None:
    """It would leave the transaction open for ever: retention removed the marker."""
    write(log, 1, 0)
    append(log, [b"x"], producer_id=2, producer_epoch=0, base_sequence=0)
    checkpoint(log)
    end(log, 1, commit=True)
    append(log, [b"x"], producer_id=2, producer_epoch=0, base_sequence=1)
    log.roll()
    append(log, [b"x"], producer_id=2, producer_epoch=0, base_sequence=2)
    checkpoint(log)
    for path in log.drop_segments(1):
        disk.remove(path)
    truncate_to(log, Offset(4))
    assert log.snapshots == [2]
    assert stable_end(log) == 4
    again = batch_of([b"x"], producer_id=2, producer_epoch=0, base_sequence=2)
    assert log.producers.check(parse_header(again)) is None


def test_a_transaction_that_retention_cut_is_still_ended(disk: Mount, log: PartitionLog) -> None:
    write(log, 1, 0)
    log.roll()
    write(log, 1, 1)
    append(log, [b"other"])
    checkpoint(log)
    for path in log.drop_segments(1):
        disk.remove(path)
    assert stable_end(log) == 1
    log.close()
    again = reopened(disk).log
    assert stable_end(again) == 1
    end(again, 1, commit=False)
    assert stable_end(again) == 4
    assert [record.value for record in committed_records(again, 1, 4)] == [b"other"]


# Followers


def test_a_follower_comes_to_the_same_state(log: PartitionLog) -> None:
    two_aborted(log)
    write(log, 4, 0)
    end(log, 5, commit=False, epoch=3, coordinator_epoch=8)
    follower = new_log(new_disk())
    fetched = memoryview(bytearray(read(log, 0).data))
    assert append_as_follower(follower, fetched, LeaderEpoch(1)) == 8
    assert aborted(follower) == aborted(log)
    assert stable_end(follower) == stable_end(log) == 6
    assert follower.producers.to_bytes() == log.producers.to_bytes()


# Readers


def test_a_reader_in_the_middle_of_an_aborted_transaction_drops_the_rest(log: PartitionLog) -> None:
    write(log, 1, 0, b"a")
    write(log, 2, 0, b"b")
    write(log, 1, 1, b"c")
    end(log, 2, commit=True)
    end(log, 1, commit=False)
    write(log, 1, 2, b"d")
    end(log, 1, commit=True)
    for offset in range(7):
        for bytes_max in (1, 200, 10_000):
            found = [record.value for record in committed_records(log, offset, 7, bytes_max)]
            assert found == ([b"b"] if offset <= 1 else []) + ([b"d"] if offset <= 5 else [])


# The index alone


def test_rows_survive_until_a_power_loss_can_take_them(disk: Mount, log: PartitionLog) -> None:
    expected = two_aborted(log)
    checkpoint(log)
    write(log, 4, 0)
    end(log, 4, commit=False)
    flush(log)
    disk.disk.lose_power()
    again = reopened(disk.disk.mount()).log
    assert aborted(again) == [*expected, (4, 6, 7)]


@pytest.mark.parametrize(
    "row",
    [
        struct.pack(">hqqqq", 1, 1, 0, 1, 2),
        struct.pack(">hqqqq", 0, 1, 1, 1, 2),
        struct.pack(">hqqqq", 0, 1, 0, 1, 3),
        struct.pack(">hqqqq", 0, 1, -1, 1, 2),
        bytes(33),
    ],
)
def test_an_impossible_row_is_not_taken(row: bytes) -> None:
    with pytest.raises(CorruptData):
        parse_rows_of(row)


def test_a_long_search_ends_at_the_stable_offset() -> None:
    index = AbortedIndex()
    for number in range(1_000):
        first, last = Offset(2 * number), Offset(2 * number + 1)
        index.add(AbortedEntry(ProducerId(number), first, last, Offset(last + 1)), Offset(0))
    found = index.overlapping(Offset(500), Offset(503))
    assert [(entry.producer_id, entry.first_offset) for entry in found] == [(250, 500), (251, 502)]
