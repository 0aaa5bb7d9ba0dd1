"""However many partitions are written to, few files are open."""

from penstock.log.index_shelf import IndexShelf
from penstock.log.open_files import OpenFiles
from penstock.log.partition_log import PartitionLog
from penstock.log.producers import ProducerRoll
from penstock.log.shared_bounds import SharedBounds
from penstock.sim.disk import Mount
from tests.unit.log.log_support import LOGS, SETTINGS, append, batches, flush, new_disk


def logs_with(most: int, count: int, disk: Mount) -> tuple[OpenFiles, list[PartitionLog]]:
    files = OpenFiles(most)
    shared = SharedBounds(IndexShelf(10_000), files, ProducerRoll(100))
    logs = [PartitionLog(disk, f"{LOGS}/t-{number}", SETTINGS) for number in range(count)]
    for log in logs:
        log.share(shared)
    return files, logs


def test_the_longest_open_file_is_closed_for_the_next_and_opened_again_when_needed() -> None:
    files, logs = logs_with(3, 10, new_disk())
    for turn in range(3):
        for log in logs:
            append(log, [b"%d" % turn])
            flush(log)
            assert len(files) <= 3
    assert sum(log.active.is_open for log in logs) == 3
    assert [len(batches(log)) for log in logs] == [3] * 10


def test_a_file_that_must_be_synced_stays_open() -> None:
    """Closed and opened again it would not be told of a failed writeback."""
    files, logs = logs_with(2, 6, new_disk())
    for log in logs:
        append(log, [b"x"])
    assert len(files) == 6
    assert all(log.active.is_open for log in logs)
    for log in logs:
        flush(log)
    append(logs[0], [b"y"])
    flush(logs[0])
    logs[0].roll()
    assert len(files) == 2


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
