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
        self._last_segment = log.view(log.segment_holding(offset))
        self._truncated: PartitionLog | None = None
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
            self._truncate_files(disk, folder)
        self._truncated = _reopened(log)

    def _truncate_files(self, disk: Disk, folder: str) -> None:
        for base in offsets_named(disk.list_folder(folder), LOG_SUFFIX):
            if base > self._last_segment.base_offset:
                _remove_segment(disk, folder, base)
        if not disk.exists(self._last_segment.log_path):
            disk.sync((), [folder])
            return
        file = disk.open(self._last_segment.log_path)
        try:
            size = min(self._last_segment.size_bytes, file.size())
            index = self._last_segment.load_indexes(file).by_offset
            file.truncate(find_batch(file, index, self.offset, size))
            # What was dropped must not come back behind what is written in its place.
            disk.sync([file], [folder])
        finally:
            file.release()

    def end(self) -> None:
        _end(self._log, self._truncated)


class FullTruncation:
    """Of one log: every record goes, and it starts at `offset`, wherever that lies."""

    def __init__(self, log: PartitionLog, offset: Offset) -> None:
        assert not log.is_busy, "somebody would bring back what is removed"
        self._log = log
        self._truncated: PartitionLog | None = None
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
        self._truncated = _reopened(log)

    def end(self) -> None:
        _end(self._log, self._truncated)


def truncate_to(log: PartitionLog, offset: Offset) -> None:
    """Drop every batch that reaches `offset` or further. Waits for the device."""
    if offset < log.log_end_offset:
        truncation = Truncation(log, offset)
        truncation.run()
        truncation.end()


def truncate_fully_and_start_at(log: PartitionLog, offset: Offset) -> None:
    """Drop every record and start at `offset`. Waits for the device."""
    truncation = FullTruncation(log, offset)
    truncation.run()
    truncation.end()


def _reopened(log: PartitionLog) -> PartitionLog:
    """What is left on disk, opened and synced. Nobody else knows of it."""
    truncated = open_log(log.disk, log.folder, log.settings, written_by_this_process=True).log
    flush = truncated.begin_flush()
    log.disk.sync(flush.files, flush.folders)
    truncated.end_flush(flush)
    truncated.close_files()
    return truncated


def _end(log: PartitionLog, truncated: PartitionLog | None) -> None:
    assert truncated is not None, "it was run"
    log.is_truncating = False
    if log.is_closed:
        return  # its topic was deleted meanwhile
    log.adopt_truncated(truncated)
    log.resync_folder()


def _remove_snapshots(disk: Disk, folder: str, past: Offset) -> None:
    """As they are on disk: one may have got its name from a checkpoint that nobody ended."""
    removed = [offset for offset in offsets_named(disk.list_folder(folder), SNAPSHOT_SUFFIX) if offset > past]
    for offset in removed:
        disk.remove(f"{folder}/{segment_name(offset)}{SNAPSHOT_SUFFIX}")
    if removed:
        disk.sync((), [folder])


def _remove_segment(disk: Disk, folder: str, base_offset: Offset) -> None:
    for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        disk.remove(f"{folder}/{segment_name(base_offset)}{suffix}")
