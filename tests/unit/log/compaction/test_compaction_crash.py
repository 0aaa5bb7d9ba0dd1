"""The power fails during each disk operation of a cleaning and its swap, one after the other.

Whatever is left opens, holds the last value of every key at its offset, and can be cleaned again.
"""

from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from itertools import count, pairwise
from random import Random

import pytest
from msgspec import structs

from penstock.errors import StorageFailed, StorageFull
from penstock.log.compaction.cleanable import group_segments
from penstock.log.compaction.cleaner import clean
from penstock.log.compaction.cleaning_job import CleaningJob, CleaningResult, Replacement
from penstock.log.compaction.swap import commit_swap, discard_cleaned
from penstock.log.partition_log import PartitionLog
from penstock.protocol.records import Record
from penstock.sim.device import FileNode, FolderNode
from penstock.sim.disk import Mount, PowerLost, SimDisk
from tests.unit.log.compaction.compaction_support import Put, compact, job_of, put, records_of, swap
from tests.unit.log.log_support import FOLDER, LOGS, checkpoint, new_log, reopened

SETTINGS = {"segment_bytes": 500}
KEYS = 4


def written(seed: int) -> tuple[SimDisk, PartitionLog, list[Record]]:
    disk = SimDisk(Random(seed))
    mount = disk.mount()
    mount.make_folder(LOGS)
    disk.root.sync()
    log = new_log(mount, **SETTINGS)
    history = []
    for number in range(24):
        value = None if number % 5 == 4 else b"%d" % number
        key = b"key-%d" % (number * 7 % 11 % KEYS)
        history += put(log, [Put(key, value), Put(b"every", b"%d" % number)])
    log.roll()
    checkpoint(log)
    return disk, log, history


def merging_job(log: PartitionLog) -> CleaningJob:
    """Several segments become one."""
    job = job_of(log, delete_retention_ms=10**9)
    return structs.replace(job, limits=job.limits._replace(segment_bytes=1_500))


def crashed_and_reopened(seed: int, fails_after: int) -> tuple[PartitionLog, list[Record], bool]:
    """The log after the power failed during that operation of a cleaning, and whether it did."""
    disk, log, history = written(seed)
    disk.power_fails_at = disk.calls + fails_after
    has_crashed = False
    try:
        compact(log, merging_job(log))
    except PowerLost:
        has_crashed = True
    disk.lose_power()
    return reopened(disk.mount(), **SETTINGS).log, history, has_crashed


def leftovers(log: PartitionLog) -> list[str]:
    assert isinstance(log.disk, Mount)
    return [name for name in log.disk.list_folder(log.folder) if name.endswith((".cleaned", ".swap"))]


@pytest.mark.parametrize("seed", range(4))
def test_a_crash_during_any_disk_operation_loses_no_key(seed: int) -> None:
    _, uncleaned, history = written(seed)
    before = records_of(uncleaned)
    job = merging_job(uncleaned)
    assert 1 < len(group_segments(job.segments, uncleaned.log_end_offset, job.limits)) < len(job.segments)
    compact(uncleaned, job)
    after = records_of(uncleaned)
    assert len(after) < len(before)
    crashes = 0
    while True:
        log, _, has_crashed = crashed_and_reopened(seed, crashes + 1)
        found = records_of(log)
        assert set(after) <= set(found) <= set(before)
        assert found == sorted(found)
        assert log.log_end_offset == len(history)
        assert leftovers(log) == []
        checkpoint(log)
        compact(log, merging_job(log))
        assert records_of(log) == after
        if not has_crashed:
            break
        crashes += 1
    assert crashes > 60, "every read, write, rename, removal and sync was one of them"


def swaps(log: PartitionLog) -> Iterator[None]:
    """A cleaning; stops after every swap."""
    for step in clean(log.disk, merging_job(log)):
        if not isinstance(step, CleaningResult):
            swap(log, step)
            yield


def mixtures(disk: SimDisk) -> Iterator[SimDisk]:
    """What may be left: each subset of the names that were changed and not synced."""
    folder = log_folder(disk)
    for kept in range(1 << folder.changes_unsynced):
        left = deepcopy(disk)
        log_folder(left).keep_changes(kept)
        left.lose_power()
        yield left


def log_folder(disk: SimDisk) -> FolderNode:
    folder: object = disk.root
    for name in FOLDER.split("/"):
        assert isinstance(folder, FolderNode)
        folder = folder.seen[name]
    assert isinstance(folder, FolderNode)
    return folder


def contents(disk: SimDisk) -> frozenset[tuple[str, bytes]]:
    files = log_folder(disk).seen.items()
    return frozenset((name, bytes(node.seen)) for name, node in files if isinstance(node, FileNode))


def reopened_with_crashes(disk: SimDisk, random: Random) -> PartitionLog:
    """Recovery itself is cut off again and again, each time a little later."""
    for step in range(1, 400):
        disk.power_fails_at = disk.calls + step
        try:
            log = reopened(disk.mount(), **SETTINGS).log
        except PowerLost:
            log_folder(disk).keep_changes(random.getrandbits(30))
            disk.lose_power()
            continue
        disk.power_fails_at = None
        return log
    raise AssertionError("it never comes to its end")


def test_renames_that_reach_the_disk_in_any_order_lose_and_revive_no_key() -> None:
    """At each disk operation of a cleaning: every subset of the changes that were not synced yet."""
    _, log, _ = written(0)
    states = [records_of(log), *(records_of(log) for _ in swaps(log))]
    assert len(states) == 3
    assert all(len(after) < len(before) for before, after in pairwise(states))
    random, left_states, most_unsynced = Random(0), 0, 0
    known: set[object] = set()
    for fails_after in count(1):
        disk, log, _ = written(0)
        disk.power_fails_at = disk.calls + fails_after
        reported = 0
        with suppress(PowerLost):
            for _ in swaps(log):
                reported += 1
        if disk.calls < disk.power_fails_at:
            break
        most_unsynced = max(most_unsynced, log_folder(disk).changes_unsynced)
        for left in mixtures(disk):
            left_states += 1
            if (state := (reported, contents(left))) in known:
                continue
            known.add(state)
            again = deepcopy(left) if random.random() < 0.1 else None
            # As before the swap that was under way or as after it, and never as before one that was reported.
            possible = states[reported : reported + 2]
            assert records_of(reopened(left.mount(), **SETTINGS).log) in possible
            if again is not None:
                assert records_of(reopened_with_crashes(again, random)) in possible
    assert most_unsynced >= 9, "two segments removed and one renamed are nine names"
    assert left_states > 1_000


def test_a_mark_that_was_taken_away_does_not_decide_on_the_next_cleaning() -> None:
    """Nothing else syncs the folder between the end of one cleaning and the files of the next."""
    for fails_after in count(1):
        disk, log, _ = written(0)
        job = merging_job(log)
        compact(log, structs.replace(job, limits=job.limits._replace(segment_bytes=100_000)))
        after = records_of(log)
        disk.power_fails_at = disk.calls + fails_after
        try:
            compact(log, merging_job(log))
            break
        except PowerLost:
            for left in mixtures(disk):
                assert records_of(reopened(left.mount(), **SETTINGS).log) == after
    assert fails_after > 10


def test_what_was_decided_is_not_discarded() -> None:
    """Whoever was cancelled between the two halves of a swap tidies up, and a start completes it."""
    _, uncleaned, _ = written(0)
    next(swaps(uncleaned))
    disk, log, _ = written(0)
    replacement = next(clean(log.disk, merging_job(log)))
    assert isinstance(replacement, Replacement)
    commit_swap(log.disk, log.folder, replacement)
    discard_cleaned(log.disk, log.folder)
    log.close()
    assert records_of(reopened(disk.mount(), **SETTINGS).log) == records_of(uncleaned)


def test_a_crash_while_a_crash_is_recovered_from_is_recovered_from() -> None:
    _, uncleaned, _ = written(0)
    compact(uncleaned, merging_job(uncleaned))
    after = set(records_of(uncleaned))
    for fails_after in range(1, 400, 7):
        disk, log, history = written(fails_after)
        disk.power_fails_at = disk.calls + fails_after
        with suppress(PowerLost):
            compact(log, merging_job(log))
        disk.lose_power()
        for step in range(1, 400):
            disk.power_fails_at = disk.calls + step
            try:
                log = reopened(disk.mount(), **SETTINGS).log
            except PowerLost:
                disk.lose_power()
                continue
            break
        disk.power_fails_at = None
        assert after <= set(records_of(log)) <= set(history)
        assert leftovers(log) == []


def test_a_disk_with_room_for_one_group_is_enough_for_a_log_of_many() -> None:
    disk, log, _ = written(0)
    for number in range(60):  # most of it stays
        put(log, [Put(b"%d" % number, bytes(150)), Put(b"every", b"")])
    log.roll()
    checkpoint(log)
    before = records_of(log)
    job = job_of(log, delete_retention_ms=10**9)
    room_bytes = SETTINGS["segment_bytes"] + 200  # and the indexes
    disk.room_bytes = room_bytes
    cleaned = compact(log, job)
    assert cleaned.bytes_after > 10 * room_bytes
    assert len(records_of(log)) < len(before) - 60


def test_a_full_disk_leaves_the_log_as_it_was() -> None:
    disk, log, _ = written(0)
    before = records_of(log)
    disk.room_bytes = 10
    with pytest.raises(StorageFull):
        compact(log, merging_job(log))
    discard_cleaned(log.disk, log.folder)
    assert leftovers(log) == []
    assert records_of(log) == before


def test_a_failed_sync_leaves_the_log_as_it_was() -> None:
    disk, log, _ = written(0)
    before = records_of(log)
    disk.sync_fails = True
    with pytest.raises(StorageFailed):
        compact(log, merging_job(log))
    assert records_of(log) == before
    log.close()
    assert records_of(reopened(disk.mount(), **SETTINGS).log) == before
