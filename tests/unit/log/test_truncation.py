"""What a cut leaves, in memory and on disk, and what the power may fail in the middle of."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from itertools import count
from random import Random

import pytest

from penstock.errors import StorageFailed
from penstock.host.disk import SmallFile
from penstock.log.partition_log import METADATA_FILE, PartitionLog
from penstock.log.reading.cold_reading import ColdRead
from penstock.log.shared_resources import SharedLogResources
from penstock.log.truncation import Truncation
from penstock.protocol.batches import parse_header
from penstock.sim.disk import PowerLost, SimDisk
from penstock.types import LeaderEpoch, Offset
from tests.unit.log.log_support import (
    LOGS,
    append,
    batch_of,
    batches,
    checkpoint,
    flush,
    log_folder,
    new_disk,
    new_log,
    read,
    reopened,
    truncate_fully_and_start_at,
    truncate_to,
)

SETTINGS = {"segment_bytes": 500}


def written(seed: int, checkpoints: tuple[int, ...] = (4, 9, 14)) -> tuple[SimDisk, PartitionLog]:
    """Twenty batches of one record in several segments; all are flushed, some are checkpointed."""
    disk = SimDisk(Random(seed))
    mount = disk.mount()
    mount.make_folder(LOGS)
    disk.root.sync()
    log = new_log(mount, **SETTINGS)
    for number in range(20):
        write(log, number, b"old", epoch=1 + number // 7)
        if number in checkpoints:
            checkpoint(log)
    flush(log)
    return disk, log


def write(log: PartitionLog, sequence: int, value: bytes, epoch: int) -> None:
    append(log, [value * 20], epoch=epoch, producer_id=5, producer_epoch=0, base_sequence=sequence)


def sequence_of(log: PartitionLog) -> int:
    known = dict(log.producers.items())
    return max((producer.last.last_sequence for producer in known.values()), default=-1)


@pytest.mark.parametrize("offset", range(20))
def test_what_is_left_is_what_was_there_before(offset: int) -> None:
    disk, log = written(0)
    before = batches(log)
    truncate_to(log, Offset(offset))
    assert batches(log) == before[:offset]
    assert log.log_end_offset == log.flushed_end_offset == offset
    assert log.recovery_point <= offset
    assert sequence_of(log) == offset - 1
    assert log.epochs.latest == (parse_header(before[offset - 1]).leader_epoch if offset else -1)
    for number in range(offset, offset + 3):
        write(log, number, b"new", epoch=8)
    flush(log)
    disk.lose_power()
    left = reopened(disk.mount(), **SETTINGS).log
    assert batches(left) == batches(log)
    assert sequence_of(left) == offset + 2
    assert left.epochs.to_bytes() == log.epochs.to_bytes()


def test_a_cut_past_the_end_changes_nothing() -> None:
    _, log = written(0)
    truncate_to(log, Offset(25))
    assert (log.log_end_offset, log.truncation_count) == (20, 0)


def test_a_cut_between_epochs_forgets_the_later_one() -> None:
    """KAFKA-10706: an entry that begins at the end would make a follower cut itself there for ever."""
    _, log = written(0)
    truncate_to(log, Offset(14))
    assert log.epochs.latest == 2
    assert log.epochs.end_of(LeaderEpoch(3), log.log_end_offset) == (2, 14)


def test_a_flush_that_was_under_way_says_nothing_of_what_came_after_the_cut() -> None:
    _, log = written(0)
    plan = log.begin_flush()
    truncate_to(log, Offset(10))
    for number in range(10, 16):
        write(log, number, b"new", epoch=8)
    log.end_flush(plan)
    assert log.flushed_end_offset == 10


def test_a_view_from_before_a_cut_is_not_taken_for_what_is_there_now() -> None:
    disk, log = written(0)
    disk.cold_reads = 1.0
    cold = log.read(Offset(12), log.log_end_offset, 10_000, at_least_one=True)
    assert isinstance(cold, ColdRead)
    truncate_to(log, Offset(11))
    for number in range(11, 20):
        write(log, number, b"new", epoch=8)
    views = [log.view(segment) for segment in log.segments]
    assert not log.is_current(cold.segment)
    assert all(map(log.is_current, views))


def test_no_checkpoint_and_no_flush_are_begun_while_a_worker_cuts() -> None:
    _, log = written(0)
    write(log, 20, b"old", epoch=3)
    cut = Truncation(log, Offset(10))
    assert not log.needs_checkpoint
    assert log.begin_flush().files == ()
    assert not log.may_truncate
    cut.run()
    cut.end()
    assert log.needs_checkpoint
    assert log.may_truncate


def test_a_cut_waits_for_a_checkpoint_under_way() -> None:
    _, log = written(0)
    log.begin_checkpoint()
    assert not log.may_truncate
    with pytest.raises(AssertionError):
        Truncation(log, Offset(10))
    log.abandon_checkpoint()
    Truncation(log, Offset(10))


def test_a_snapshot_that_nobody_remembers_goes_too() -> None:
    """A checkpoint was carried out and its end was never told to the log."""
    disk, log = written(0)
    plan = log.begin_checkpoint()
    log.disk.store(plan.render_stored())
    log.abandon_checkpoint()
    truncate_to(log, Offset(10))
    disk.lose_power()
    assert reopened(disk.mount(), **SETTINGS).log.log_end_offset == 10


def test_what_was_deleted_before_a_cut_stays_deleted() -> None:
    disk, log = written(0)
    log.advance_start(Offset(6))
    truncate_to(log, Offset(10))
    assert (log.log_start_offset, log.log_end_offset) == (6, 10)
    assert reopened(disk.mount(), **SETTINGS).log.log_start_offset == 6


def test_a_truncation_between_snapshots_after_retention_leaves_a_log_that_opens() -> None:
    """The snapshot behind the cut goes, and the one before it lies before the start."""
    _, log = written(1)
    count = next(n for n, segment in enumerate(log.segments) if segment.base_offset > 10)
    for path in log.drop_segments(count):
        log.disk.remove(path)
    start = log.log_start_offset
    assert 10 < start < 14
    truncate_to(log, Offset(14))
    assert (log.log_start_offset, log.log_end_offset) == (start, 14)
    again = reopened(log.disk, **SETTINGS).log  # type: ignore[arg-type]
    assert (again.log_start_offset, again.log_end_offset) == (start, 14)


def test_a_truncation_after_retention_forgets_producers_rather_than_batches() -> None:
    """The newest snapshot that is left lacks batches that retention has removed since."""
    disk = SimDisk(Random(3))
    mount = disk.mount()
    mount.make_folder(LOGS)
    log = new_log(mount, **SETTINGS)
    write(log, 0, b"old", epoch=1)
    checkpoint(log)
    write(log, 1, b"old", epoch=1)
    while len(log.segments) < 3:
        append(log, [b"of another producer"], epoch=1, producer_id=6, producer_epoch=0, base_sequence=0)
    flush(log)
    for path in log.drop_segments(1):
        mount.remove(path)
    truncate_to(log, Offset(log.log_end_offset - 1))
    assert log.log_start_offset > 2
    following = batch_of([b"new"], producer_id=5, producer_epoch=0, base_sequence=2)
    assert log.producers.check(parse_header(following)) is None, "it is neither a repeat nor out of order"


def test_what_all_logs_hold_is_counted_as_before() -> None:
    _, log = written(0)
    shared = SharedLogResources.on(log.disk)
    log.share(shared)
    for _ in range(3):
        truncate_to(log, Offset(log.log_end_offset - 2))
        read(log, 3)
    assert len(shared.producers) == 1
    log.close()
    assert (len(shared.producers), len(shared.files), len(shared.indexes)) == (0, 0, 0)


def test_a_snapshot_below_what_can_be_cut_is_kept() -> None:
    """Checkpoints go on while nothing becomes safe. A cut must not have to read the log from its start."""
    _, log = written(0, checkpoints=(4,))
    for number in range(20, 28):
        write(log, number, b"old", epoch=3)
        checkpoint(log, committed=Offset(7))
    assert log.snapshots == [5, 27, 28]
    checkpoint(log, committed=Offset(28))
    write(log, 28, b"old", epoch=3)
    checkpoint(log, committed=Offset(29))
    assert log.snapshots == [28, 29]
    write(log, 29, b"old", epoch=3)
    checkpoint(log)
    assert log.snapshots == [29, 30]


# Beginning anew


@pytest.mark.parametrize("offset", [0, 7, 20, 500])
def test_a_log_that_begins_anew_is_empty_and_goes_on_where_it_begins(offset: int) -> None:
    disk, log = written(0)
    truncate_fully_and_start_at(log, Offset(offset))
    assert (log.log_start_offset, log.log_end_offset, log.flushed_end_offset) == (offset, offset, offset)
    assert (batches(log), sequence_of(log), log.epochs.latest) == ([], -1, -1)
    write(log, 3, b"new", epoch=8)
    flush(log)
    disk.lose_power()
    left = reopened(disk.mount(), **SETTINGS).log
    assert (left.log_start_offset, left.log_end_offset) == (offset, offset + 1)
    assert batches(left) == batches(log)


def test_a_log_that_begins_earlier_than_before_says_so() -> None:
    """Its start file is what a follower promises its leader: no deletion above it is known to be stored."""
    _, log = written(0)
    log.disk.store([log.start_file(Offset(15))])
    log.start_stored(Offset(15))
    truncate_fully_and_start_at(log, Offset(7))
    assert (log.log_start_offset, log.stored_start) == (7, 7)


def test_a_log_without_a_folder_can_begin_elsewhere() -> None:
    disk = new_disk()
    log = new_log(disk)
    truncate_fully_and_start_at(log, Offset(30))
    write(log, 0, b"new", epoch=1)
    flush(log)
    assert reopened(disk).log.log_end_offset == 31


@pytest.mark.parametrize("seed", range(8))
def test_a_folder_that_a_cut_made_says_whose_it_is_after_a_power_loss(seed: int) -> None:
    """The next start takes a listed folder without partition.metadata and records for one that was lost."""
    disk = SimDisk(Random(seed))
    mount = disk.mount()
    mount.make_folder(LOGS)
    disk.root.sync()
    log = new_log(mount)
    metadata = SmallFile(f"{log.folder}/{METADATA_FILE}", b"topic_id: x")
    log.partition_folder.metadata_file = metadata
    truncate_fully_and_start_at(log, Offset(1))
    disk.lose_power()
    left = disk.mount()
    assert left.read_file(metadata.path) == metadata.content
    assert reopened(left).log.log_start_offset == 1


# Crashes


def mixtures(disk: SimDisk, seed: int) -> Iterator[SimDisk]:
    """What may be left: each subset of the names that were changed and not synced, or a few."""
    changes, random = log_folder(disk).changes_unsynced, Random(seed)
    subsets = range(1 << changes) if changes <= 2 else [random.getrandbits(changes) for _ in range(6)]
    for kept in subsets:
        left = deepcopy(disk)
        log_folder(left).keep_changes(kept)
        left.lose_power()
        yield left


def cut_then_write(log: PartitionLog) -> None:
    truncate_to(log, Offset(8))
    for number in range(8, 13):
        write(log, number, b"new", epoch=9)
    flush(log)


def begin_then_write(log: PartitionLog) -> None:
    truncate_fully_and_start_at(log, Offset(12))
    for number in range(3):
        write(log, number, b"new", epoch=9)
    flush(log)


@pytest.mark.parametrize("change", [cut_then_write, begin_then_write])
@pytest.mark.parametrize("checkpoints", [(4, 9, 14), (12, 18)])
def test_a_crash_at_any_disk_operation_never_mixes_truncated_and_newer_records(
    change: Callable[[PartitionLog], None], checkpoints: tuple[int, ...]
) -> None:
    """The log is as it was, a beginning of that, or one of what was written in its place."""
    _, untouched = written(0, checkpoints)
    old = batches(untouched)
    change(untouched)
    new, start = batches(untouched), untouched.log_start_offset
    kept = len([batch for batch in old if batch in new])
    crashes = states = 0
    for fails_after in count(1):
        disk, log = written(0, checkpoints)
        disk.power_fails_at = disk.calls + fails_after
        with suppress(PowerLost):
            change(log)
        if disk.calls < disk.power_fails_at:
            break
        crashes += 1
        for left in mixtures(disk, crashes):
            states += 1
            found = reopened(left.mount(), **SETTINGS).log
            holds = batches(found)
            first = found.log_start_offset
            assert holds in (old[first : first + len(holds)], new[: len(holds)])
            assert len(holds) >= kept, "what neither cut nor crash takes is there"
            assert first in (0, start), "nothing is missing before what is left"
            if holds:
                assert sequence_of(found) == parse_header(holds[-1]).last_sequence
    assert crashes > 30
    assert states > crashes


def test_a_crash_after_the_cut_brings_nothing_back() -> None:
    _, log = written(0)
    between_segments = log.segments[2].base_offset
    for cut in (8, between_segments):
        for seed in range(12):
            disk, log = written(seed)
            truncate_to(log, Offset(cut))
            for number in range(cut, cut + seed):
                write(log, number, b"new", epoch=9)
            disk.lose_power()
            found = reopened(disk.mount(), **SETTINGS).log
            assert all(parse_header(batch).leader_epoch == 9 for batch in batches(found)[cut:])
            assert found.log_end_offset >= cut


def test_what_a_cut_leaves_is_on_disk() -> None:
    for seed in range(8):
        disk, log = written(seed)
        for number in range(20, 28):
            write(log, number, b"old", epoch=3)  # and nobody flushes it
        truncate_to(log, Offset(25))
        assert log.flushed_end_offset == 25
        disk.lose_power()
        assert reopened(disk.mount(), **SETTINGS).log.log_end_offset == 25


def test_a_cut_that_failed_can_be_done_again() -> None:
    disk, log = written(0)
    before = batches(log)
    write(log, 20, b"old", epoch=3)
    cut = Truncation(log, Offset(8))
    disk.sync_fails = True
    with pytest.raises(StorageFailed):
        cut.run()
    cut.run()
    cut.end()
    assert batches(log) == before[:8]
