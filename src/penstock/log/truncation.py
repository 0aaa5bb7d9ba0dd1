"""Taking records off the end of a log, or all of them, safe against a crash at any moment.

A replica whose records are not those of its leader drops them and takes the leader's instead. What
it dropped must never come back behind what it took, and what it keeps must not be doubted, so files
are changed in this order, each step durable before the next:

    1. snapshots past the cut go. One that survived would claim that what is missing was once safe.
    2. segments past the cut go, and the one that holds it is cut.
    3. what is left is opened as after a crash (log/recovery.py): producers from the newest snapshot at
       or below the cut, and the batches behind it; epochs and indexes likewise. A note that it is clean
       further than it reaches goes. And it is synced.

A crash between any two leaves the log as it was, or a part of it from its start, that opens. Leader
epochs and indexes on disk need no step of their own: a start believes them below the newest snapshot
only. The log is the same object before and after.

Rule 1: `begin` and `end` belong to the event loop, `run` waits for the device and belongs to a worker.
        Between them the log can be read and not changed. `run` may be repeated after it failed.
Rule 2: nobody else may be at the files: a cleaned segment that is swapped in, or a checkpoint that
        ends, would bring back what is cut (`PartitionLog.is_busy`).
"""

from penstock.host.disk import Disk
from penstock.log.compaction.cleaner_offsets import forget_clean_to
from penstock.log.partition_log import SNAPSHOT_SUFFIX, PartitionLog
from penstock.log.reading.cold_reading import find_batch
from penstock.log.recovery import offsets_named, open_log
from penstock.log.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, segment_name
from penstock.types import NO_OFFSET, Offset


class Truncation:
    """Of one log: every batch that reaches `offset` or further goes."""

    def __init__(self, log: PartitionLog, offset: Offset) -> None:
        assert not log.is_busy, "somebody would bring back what is cut"
        assert log.log_start_offset <= offset
        self._log = log
        self._holder = log.view(log.segment_holding(offset))
        self._left: PartitionLog | None = None
        self.offset = offset
        log.is_truncating = True

    def run(self) -> None:
        """Blocks. Until it succeeds the log stays as it was for whoever reads below the cut."""
        log = self._log
        disk, folder = log.disk, log.folder
        if disk.exists(folder):
            # Opening it again must not bring back what was deleted. And the snapshot that is left may lie
            # before the start: without this file, what retention has removed would be taken for damage.
            if log.log_start_offset > 0:
                disk.store([log.start_file(log.log_start_offset)])
            _remove_snapshots(disk, folder, past=self.offset)
            self._cut(disk, folder)
        self._left = _opened(log)

    def _cut(self, disk: Disk, folder: str) -> None:
        for base in offsets_named(disk.list_folder(folder), LOG_SUFFIX):
            if base > self._holder.base_offset:
                _remove_segment(disk, folder, base)
        if not disk.exists(self._holder.log_path):
            disk.sync((), [folder])
            return
        file = disk.open(self._holder.log_path)
        try:
            size = min(self._holder.size_bytes, file.size())
            index = self._holder.load_indexes(file).by_offset
            file.truncate(find_batch(file, index, self.offset, size))
            # What was dropped must not come back behind what is written in its place.
            disk.sync([file], [folder])
        finally:
            file.release()

    def end(self) -> None:
        _end(self._log, self._left)


class BeginningAnew:
    """Of one log: every record goes, and it starts at `offset`, wherever that lies."""

    def __init__(self, log: PartitionLog, offset: Offset) -> None:
        assert not log.is_busy, "somebody would bring back what is removed"
        self._log = log
        self._left: PartitionLog | None = None
        self.offset = offset
        log.is_truncating = True

    def run(self) -> None:
        """Blocks. StorageFull: nothing was changed. Otherwise nothing can be read until it succeeds."""
        log = self._log
        disk, folder = log.disk, log.folder
        disk.make_folder(folder)
        # First, because it takes room. Whatever is left of a log that ends before it goes at a start.
        disk.store([log.start_file(self.offset)])
        _remove_snapshots(disk, folder, past=NO_OFFSET)
        forget_clean_to(disk, folder)
        first, rest = slice(None, 1), slice(1, None)
        for part in (rest, first):
            # The first goes last: without it those behind it would be a log that starts there.
            for base in offsets_named(disk.list_folder(folder), LOG_SUFFIX)[part]:
                _remove_segment(disk, folder, base)
            disk.sync((), [folder])
        self._left = _opened(log)

    def end(self) -> None:
        _end(self._log, self._left)


def truncate_to(log: PartitionLog, offset: Offset) -> None:
    """Drop every batch that reaches `offset` or further. Waits for the device."""
    if offset < log.log_end_offset:
        cut = Truncation(log, offset)
        cut.run()
        cut.end()


def begin_anew(log: PartitionLog, offset: Offset) -> None:
    """Drop every record and start at `offset`. Waits for the device."""
    anew = BeginningAnew(log, offset)
    anew.run()
    anew.end()


def _opened(log: PartitionLog) -> PartitionLog:
    """What is left on disk, opened and synced. Nobody else knows of it."""
    left = open_log(log.disk, log.folder, log.settings, after_us=True).log
    flush = left.begin_flush()
    log.disk.sync(flush.files, flush.folders)
    left.end_flush(flush)
    left.close_files()
    return left


def _end(log: PartitionLog, left: PartitionLog | None) -> None:
    assert left is not None, "it was run"
    log.is_truncating = False
    if log.is_closed:
        return  # its topic was deleted meanwhile
    log.adopt(left)
    log.claim_folder()


def _remove_snapshots(disk: Disk, folder: str, past: Offset) -> None:
    """As they are on disk: one may have got its name from a checkpoint that nobody ended."""
    doomed = [offset for offset in offsets_named(disk.list_folder(folder), SNAPSHOT_SUFFIX) if offset > past]
    for offset in doomed:
        disk.remove(f"{folder}/{segment_name(offset)}{SNAPSHOT_SUFFIX}")
    if doomed:
        disk.sync((), [folder])


def _remove_segment(disk: Disk, folder: str, base_offset: Offset) -> None:
    for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        disk.remove(f"{folder}/{segment_name(base_offset)}{suffix}")
