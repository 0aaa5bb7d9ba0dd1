"""Cleaning a log with transactions: what goes, what stays, and how long markers stay."""

import pytest

from penstock.log.partition_log import PartitionLog
from penstock.log.segment import TXN_INDEX_SUFFIX
from penstock.log.transactions.aborted_index import parse_rows_of
from penstock.protocol.batches import DELETE_HORIZON_BIT, parse_header
from penstock.protocol.control_batches import read_marker
from penstock.sim.disk import Mount
from tests.unit.log.compaction.compaction_support import Put, compact, dirt_of, job_of, put, records_of
from tests.unit.log.log_support import FOLDER, NOW_MS, batches, checkpoint, new_disk, new_log, reopened
from tests.unit.log.transactions.transaction_support import aborted, committed_records, end, stable_end

HOUR_MS = 3_600_000
INDEX = f"{FOLDER}/{0:020d}{TXN_INDEX_SUFFIX}"


@pytest.fixture
def disk() -> Mount:
    return new_disk()


@pytest.fixture
def log(disk: Mount) -> PartitionLog:
    return new_log(disk)


def write(log: PartitionLog, producer: int, sequence: int, *puts: Put, epoch: int = 0) -> None:
    options = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
    put(log, puts, transactional=True, **options)


def clean(log: PartitionLog, *, after_ms: int = 0, clean_to: int | None = None) -> int:
    if log.active.size_bytes:
        log.roll()
    checkpoint(log)
    job = job_of(log, clean_to, now_ms=NOW_MS + after_ms, delete_retention_ms=HOUR_MS)
    return compact(log, job).end_offset


def markers(log: PartitionLog) -> list[int]:
    """Offsets of the markers that are in the log."""
    found = [(parse_header(batch), batch) for batch in batches(log)]
    return [
        header.base_offset
        for header, batch in found
        if header.is_control and read_marker(batch, header) is not None
    ]


def values(log: PartitionLog) -> list[bytes | None]:
    return [record.value for record in committed_records(log, log.log_start_offset, stable_end(log))]


def test_aborted_records_are_dropped_and_replace_nothing(log: PartitionLog) -> None:
    put(log, [Put(b"k", b"old")])
    write(log, 1, 0, Put(b"k", b"aborted"))
    end(log, 1, commit=False)
    write(log, 1, 1, Put(b"other", b"kept"))
    end(log, 1, commit=True)
    clean(log)
    data = [record.value for record in records_of(log) if record.key in (b"k", b"other")]
    assert data == [b"old", b"kept"]


def test_committed_records_replace_older_ones(log: PartitionLog) -> None:
    put(log, [Put(b"k", b"old")])
    write(log, 1, 0, Put(b"k", b"new"))
    end(log, 1, commit=True)
    clean(log)
    assert values(log) == [b"new"]


def test_nothing_is_cleaned_from_the_first_open_transaction_on(log: PartitionLog) -> None:
    put(log, [Put(b"k", b"1")])
    log.roll()
    write(log, 1, 0, Put(b"k", b"2"))
    log.roll()
    put(log, [Put(b"k", b"3")])
    log.roll()
    checkpoint(log)
    assert dirt_of(log, stable_end=stable_end(log)).end_offset == 1
    end(log, 1, commit=False)
    assert dirt_of(log, stable_end=stable_end(log)).end_offset == 3


def test_a_marker_stays_while_its_transaction_has_records(log: PartitionLog) -> None:
    write(log, 1, 0, Put(b"k", b"1"))
    end(log, 1, commit=True)
    for after_ms in (0, 2 * HOUR_MS, 4 * HOUR_MS):
        clean(log, after_ms=after_ms)
    assert (markers(log), values(log)) == ([1], [b"1"])


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_goes_after_its_delete_horizon(log: PartitionLog, commit: bool) -> None:
    write(log, 1, 0, Put(b"k", b"1"))
    end(log, 1, commit=commit)
    write(log, 1, 1, Put(b"k", b"2"))
    end(log, 1, commit=True)
    clean(log)
    first = next(header for header in map(parse_header, batches(log)) if header.base_offset == 1)
    assert first.attributes & DELETE_HORIZON_BIT
    assert first.base_timestamp == NOW_MS + HOUR_MS
    clean(log, after_ms=HOUR_MS // 2)
    assert markers(log) == [1, 3]
    clean(log, after_ms=2 * HOUR_MS)
    assert (markers(log), aborted(log), values(log)) == ([3], [], [b"2"])
    assert log.log_end_offset == 4


def test_the_marker_that_fences_a_producer_stays(log: PartitionLog) -> None:
    write(log, 1, 0, Put(b"k", b"1"))
    end(log, 1, commit=False, epoch=1)
    for after_ms in (0, 2 * HOUR_MS):
        clean(log, after_ms=after_ms)
    assert markers(log) == [1]


def test_the_last_sequence_of_an_aborted_producer_stays(disk: Mount, log: PartitionLog) -> None:
    write(log, 1, 0, Put(b"k", b"1"), Put(b"l", b"2"))
    end(log, 1, commit=False)
    for after_ms in (0, 2 * HOUR_MS):
        clean(log, after_ms=after_ms)
    log.close()
    for offset in log.snapshots:
        disk.remove(log.snapshot_path(offset))
    again = reopened(disk).log
    [(_, producer)] = again.producers.items()
    assert (producer.last_sequence, producer.is_in_transaction) == (1, False)
    assert markers(again) == [2], "without it the emptied batch would look open"
    assert stable_end(again) == 3


def test_the_index_follows_its_markers_into_the_cleaned_segment(disk: Mount, log: PartitionLog) -> None:
    for producer in (1, 2, 3):
        write(log, producer, 0, Put(b"k", b"%d" % producer))
        end(log, producer, commit=False)
        put(log, [Put(b"k", b"newer %d" % producer)])
        log.roll()
    clean(log)
    assert aborted(log) == [(1, 0, 1), (2, 3, 4), (3, 6, 7)]
    assert [entry.last_offset for entry in parse_rows_of(disk.read_file(INDEX))] == [1, 4, 7]
    names = disk.list_folder(FOLDER)
    assert [name for name in names if name.endswith(TXN_INDEX_SUFFIX)] == [INDEX.rpartition("/")[2]]
    assert log.needs_checkpoint, "the checksums of the files changed"
    checkpoint(log)
    log.close()
    again = reopened(disk).log
    assert (aborted(again), again.needs_checkpoint) == ([(1, 0, 1), (2, 3, 4), (3, 6, 7)], False)


def test_a_crash_before_the_checksums_are_stored_rebuilds_the_index(disk: Mount, log: PartitionLog) -> None:
    write(log, 1, 0, Put(b"k", b"1"))
    write(log, 2, 0, Put(b"k", b"2"))
    log.roll()
    end(log, 1, commit=False)
    end(log, 2, commit=False)
    put(log, [Put(b"k", b"3")])
    clean(log)
    disk.disk.lose_power()
    again = reopened(disk.disk.mount()).log
    assert {row[0] for row in aborted(again)} <= {1, 2}
    assert values(again) == [b"3"]
    assert stable_end(again) == again.log_end_offset


def test_dropped_rows_are_gone_from_the_file_too(disk: Mount, log: PartitionLog) -> None:
    write(log, 1, 0, Put(b"k", b"1"))
    end(log, 1, commit=False)
    write(log, 1, 1, Put(b"k", b"2"))
    end(log, 1, commit=True)
    put(log, [Put(b"z", b"z")])
    for after_ms in (0, 2 * HOUR_MS):
        clean(log, after_ms=after_ms)
    assert disk.read_file(INDEX) == b""
    checkpoint(log)
    log.close()
    assert aborted(reopened(disk).log) == []
