"""The power fails during each disk operation of a cleaning and its swap, one after the other.

Whatever is left opens, holds the last value of every key at its offset, and can be cleaned again.
"""

from contextlib import suppress
from random import Random

import pytest
from msgspec import structs

from penstock.errors import StorageFailed, StorageFull
from penstock.log.cleaning_job import Job
from penstock.log.compaction import group_segments
from penstock.log.partition_log import PartitionLog
from penstock.log.swap import discard
from penstock.protocol.records import Record
from penstock.sim.disk import Mount, PowerLost, SimDisk
from tests.unit.log.compaction_support import Put, compact, job_of, put, records_of
from tests.unit.log.log_support import LOGS, checkpoint, new_log, reopened

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


def merging_job(log: PartitionLog) -> Job:
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


def test_a_full_disk_leaves_the_log_as_it_was() -> None:
    disk, log, _ = written(0)
    before = records_of(log)
    disk.room_bytes = 100
    with pytest.raises(StorageFull):
        compact(log, merging_job(log))
    discard(log.disk, log.folder)
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
