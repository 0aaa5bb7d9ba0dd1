"""The note of how far a log is clean: it stays with the records it speaks of, and goes with them."""

import pytest

from penstock.host.disk import SmallFile
from penstock.log.compaction.cleaner_offsets import FILE_NAME, cleaner_offset_file
from penstock.log.partition_log import PartitionLog
from penstock.sim.disk import Mount
from penstock.types import Offset
from tests.unit.log.log_support import (
    FOLDER,
    append,
    checkpoint,
    new_disk,
    new_log,
    reopened,
    truncate_fully_and_start_at,
    truncate_to,
)

PATH = f"{FOLDER}/{FILE_NAME}"
END, CLEAN_TO = 20, 12


def cleaned() -> tuple[Mount, PartitionLog]:
    """A log that is clean up to an offset, and says so."""
    disk = new_disk()
    log = new_log(disk)
    for number in range(END):
        append(log, [b"%d" % number])
    checkpoint(log)
    disk.store([cleaner_offset_file(FOLDER, Offset(CLEAN_TO))])
    log = reopened(disk).log
    assert log.clean_to == CLEAN_TO
    return disk, log


def grown(log: PartitionLog) -> PartitionLog:
    while log.log_end_offset < 2 * END:
        append(log, [b"new"])
    checkpoint(log)
    return log


def test_the_note_has_kafkas_form_and_one_row() -> None:
    assert cleaner_offset_file(FOLDER, Offset(1200)) == (PATH, b"0\n1\n1200\n")


@pytest.mark.parametrize(
    ("offset", "expected"), [(15, CLEAN_TO), (CLEAN_TO, CLEAN_TO), (11, None), (1, None)]
)
def test_a_truncation_below_the_note_removes_it(offset: int, expected: int | None) -> None:
    disk, log = cleaned()
    truncate_to(log, Offset(offset))
    assert log.clean_to == expected
    assert disk.exists(PATH) == (expected is not None)
    grown(log)
    assert log.clean_to == expected
    assert reopened(disk).log.clean_to == expected


@pytest.mark.parametrize("offset", [5, END, 100])
def test_a_log_that_begins_anew_is_not_clean(offset: int) -> None:
    disk, log = cleaned()
    truncate_fully_and_start_at(log, Offset(offset))
    assert log.clean_to is None
    assert not disk.exists(PATH)
    grown(log)
    assert reopened(disk).log.clean_to is None


def test_a_start_that_finds_less_than_the_note_says_removes_it() -> None:
    """A person removed the snapshots, so that what is damaged is truncated."""
    disk, log = cleaned()
    log.active.file.truncate(log.active.size_bytes // 2)
    for offset in log.snapshots:
        disk.remove(log.snapshot_path(offset))
    found = reopened(disk).log
    assert found.log_end_offset < CLEAN_TO
    assert found.clean_to is None
    assert not disk.exists(PATH)
    assert reopened(disk).log.clean_to is None
    grown(found)
    assert reopened(disk).log.clean_to is None


@pytest.mark.parametrize(
    "text",
    [b"", b"1\n1\norders 0 12 aa\n", b"0\n2\n1\n2\n", b"0\n0\n", b"0\n1\n-1\n", b"0\n1\n21\n", b"\xff"],
)
def test_a_note_that_makes_no_sense_is_removed_and_costs_only_time(text: bytes) -> None:
    disk, _ = cleaned()
    disk.store([SmallFile(PATH, text)])
    log = reopened(disk).log
    assert (log.clean_to, log.log_end_offset) == (None, END)
    assert not disk.exists(PATH)
