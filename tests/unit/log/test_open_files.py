"""However many partitions are written to, few files are open."""

from contextlib import suppress
from typing import cast

from penstock.host.disk import SmallFile, TooManyOpenFiles
from penstock.log.partition_log import PartitionLog
from penstock.log.producer_state import ProducerRegistry
from penstock.log.reading.cold_reading import ColdRead
from penstock.log.segment import Segment
from penstock.log.shared_resources import CLOSED_WHEN_SHORT, IndexCache, OpenFiles, SharedLogResources
from penstock.sim.disk import Mount
from penstock.types import Offset
from tests.unit.log.log_support import LOGS, SETTINGS, append, batches, flush, new_disk


def logs_with(most: int, count: int, disk: Mount) -> tuple[OpenFiles, list[PartitionLog]]:
    files = OpenFiles(most)
    shared = SharedLogResources(IndexCache(10_000), files, ProducerRegistry())
    logs = [PartitionLog(disk, f"{LOGS}/t-{number}", SETTINGS) for number in range(count)]
    for log in logs:
        log.share(shared)
    return files, logs


def writable(logs: list[PartitionLog]) -> list[int]:
    """Writes to each, and returns which of them took it."""
    taken = []
    for number, log in enumerate(logs):
        with suppress(TooManyOpenFiles):
            append(log, [b"x"])
            taken.append(number)
    return taken


def test_the_longest_open_file_is_closed_for_the_next_and_reopened_later() -> None:
    files, logs = logs_with(3, 10, new_disk())
    for turn in range(3):
        for log in logs:
            append(log, [b"%d" % turn])
            flush(log)
            assert len(files) <= 3
    assert sum(log.active.is_open for log in logs) == 3
    assert [len(batches(log)) for log in logs] == [3] * 10


def test_a_file_that_must_be_synced_stays_open_and_no_other_is_opened_beside_it() -> None:
    """Closed and opened again it would not be told of a failed writeback."""
    files, logs = logs_with(2, 6, new_disk())
    assert writable(logs) == [0, 1]
    assert writable(logs) == [0, 1], "they are open"
    assert [log.active.is_open for log in logs] == [True, True, False, False, False, False]
    flush(logs[0])
    assert writable(logs[2:]) == [0]
    assert not logs[0].active.is_open
    assert len(files) == 2


def test_a_file_that_is_being_synced_still_counts() -> None:
    """Its descriptor is given back when the sync has ended, not before."""
    disk = new_disk()
    _, logs = logs_with(2, 4, disk)
    assert writable(logs[:2]) == [0, 1]
    syncs = [log.begin_flush() for log in logs[:2]]
    assert writable(logs[2:]) == []
    assert disk.open_files == 2
    for log, sync in zip(logs, syncs, strict=False):
        log.end_flush(sync)
    assert writable(logs[2:]) == [0, 1]
    assert disk.open_files == 2


def test_the_files_that_say_whose_a_folder_is_count_until_they_are_synced() -> None:
    disk = new_disk()
    files, logs = logs_with(4, 5, disk)
    for log in logs:
        log.partition_folder.metadata_file = SmallFile(f"{log.folder}/partition.metadata", b"whose")
    assert writable(logs) == [0, 1], "each needs two"
    assert (len(files), disk.open_files) == (4, 4)
    for log in logs[:2]:
        flush(log)
    assert (len(files), disk.open_files) == (2, 2)
    assert writable(logs[2:]) == [0, 1]
    for log in logs:
        log.close()
    assert (len(files), disk.open_files) == (0, 0)


def test_synced_files_are_closed_when_the_process_has_no_descriptor_left() -> None:
    disk = new_disk()
    files, logs = logs_with(100, 40, disk)
    for log in logs[:30]:
        append(log, [b"x"])
        flush(log)
    append(logs[0], [b"unsynced"])
    disk.disk.descriptors = 30
    append(logs[30], [b"x"])
    assert logs[0].active.is_open
    assert len(files) == disk.open_files == 30 - CLOSED_WHEN_SHORT + 1
    disk.disk.descriptors = 0
    assert writable(logs[31:]) == [], "there is nothing to be had"
    assert logs[0].active.is_open


class Unsynced:
    """A segment that is looked at, and must stay open."""

    looked_at = 0

    @property
    def is_unsynced(self) -> bool:
        Unsynced.looked_at += 1
        return True


def test_a_refusal_costs_little_however_many_files_must_be_synced() -> None:
    files, logs = logs_with(300, 500, new_disk())
    for _ in range(300):
        files.opened(cast(Segment, Unsynced()))
    assert writable(logs) == []
    assert Unsynced.looked_at == 300, "once each, and not for every refusal"


def test_a_reader_is_given_what_is_in_memory_although_no_file_may_be_opened() -> None:
    _, logs = logs_with(2, 3, new_disk())
    append(logs[0], [b"wanted"])
    flush(logs[0])
    assert writable(logs[1:]) == [0, 1]
    assert not logs[0].active.is_open
    assert isinstance(logs[0].read(Offset(0), Offset(1), 1_000, at_least_one=True), ColdRead)
    assert len(batches(logs[0])) == 1


def test_what_a_closed_log_held_is_counted_no_more() -> None:
    files, logs = logs_with(20, 2, new_disk())
    for log in logs:
        append(log, [b"x"], producer_id=7, producer_epoch=0, base_sequence=0)
        log.roll()
        append(log, [b"y"])
    shared = logs[0].shared
    assert shared is not None
    assert (len(files), len(shared.producers)) == (4, 2)
    for log in logs:
        log.close()
    assert (len(files), len(shared.producers)) == (0, 0)
