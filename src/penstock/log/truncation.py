"""Truncation of a log, at an offset or fully, safe against a crash at any moment.

A follower whose records differ from its leader's truncates them and fetches the leader's. A truncated record
must never reappear behind the fetched ones, and a kept record must not be reported as damaged. So the files
are changed in this order, and each step is durable before the next:

    1. Remove snapshots past the offset. One that survived would claim that the missing records were safe.
    2. Remove segments past the offset, and truncate the one that holds it.
    3. Reopen the rest as after a crash (log/recovery.py): producers from the newest snapshot at or below the
       offset and the batches behind it; epochs and indexes likewise. Remove a cleaner checkpoint that reaches
       past the end. Then sync.

A crash between two steps leaves the log as it was, or a prefix of it, which opens. Leader epochs and indexes
on disk need no step of their own: a start trusts them below the newest snapshot only. The `PartitionLog`
object stays the same.

Rule 1: `begin` and `end` run on the event loop; `run` waits for the device and runs in a worker. Between them
        the log can be read and not changed. `run` may be repeated after a failure.
Rule 2: no other writer may use the files: a swap of a cleaned segment, or a checkpoint that ends, would bring
        back truncated data (log/file_uses.py).
"""

from penstock.host.disk import Disk, opened
from penstock.log.compaction.cleaner_offsets import forget_clean_to
from penstock.log.file_uses import FileUse
from penstock.log.partition_log import SNAPSHOT_SUFFIX, PartitionLog
from penstock.log.reading.cold_reading import find_batch
from penstock.log.recovery import offsets_named, open_log
from penstock.log.segment import LOG_SUFFIX, SUFFIXES, segment_name
from penstock.types import NO_OFFSET, Offset


class Truncation:
    """Removal of every batch of a log that reaches `offset` or further."""

    def __init__(self, log: PartitionLog, offset: Offset) -> None:
        log.file_uses.begin(FileUse.TRUNCATION)
        self._log = log
        self._last_segment = log.view(log.segment_holding(offset))
        self._truncated: PartitionLog | None = None
        self.offset = offset

    def run(self) -> None:
        """Change the files. Blocks. Until it succeeds, the log below the offset stays readable."""
        self._change_files(self._log.disk, self._log.folder)
        self._truncated = _reopened(self._log)

    def end(self) -> None:
        assert self._truncated is not None, "it was run"
        self._log.end_truncation(self._truncated)

    def _change_files(self, disk: Disk, folder: str) -> None:
        log_start = self._log.log_start_offset
        assert log_start <= self.offset, "only a full truncation moves the log start back"
        if not disk.exists(folder):
            return
        # The start file first: reopening must not bring deleted records back, and the remaining snapshot may
        # lie before the log start, so that without this file recovery would take what retention removed for
        # damage.
        if log_start > 0:
            disk.store([self._log.start_file(log_start)])
        _remove_snapshots(disk, folder, past=self.offset)
        for base in offsets_named(disk.list_folder(folder), LOG_SUFFIX):
            if base > self._last_segment.base_offset:
                _remove_segment(disk, folder, base)
        if not disk.exists(self._last_segment.log_path):
            disk.sync((), [folder])
            return
        with opened(disk, self._last_segment.log_path) as file:
            # The file is shorter after an earlier attempt that failed.
            size = min(self._last_segment.size_bytes, file.size())
            index = self._last_segment.load_indexes(file).by_offset
            file.truncate(find_batch(file, index, self.offset, size))
            # Durable before the next append: the old bytes must not reappear behind the new ones.
            disk.sync([file], [folder])


class FullTruncation(Truncation):
    """Removal of every record of a log, which then starts at `offset`, wherever that lies.

    StorageFull from `run`: nothing changed. Until `run` succeeds, the log is unreadable.
    """

    def _change_files(self, disk: Disk, folder: str) -> None:
        disk.make_folder(folder)
        # First, because this write needs space and may fail. At a start, recovery removes segments that end
        # before it. A log without records had no folder: the new one says whose it is, and survives a crash,
        # or the next start would report it as lost (broker/storage/partition_inventory.py).
        metadata = self._log.partition_folder.metadata_file
        disk.store([*([] if metadata is None else [metadata]), self._log.start_file(self.offset)])
        disk.sync((), [folder.rpartition("/")[0]])
        _remove_snapshots(disk, folder, past=NO_OFFSET)
        forget_clean_to(disk, folder)
        first, rest = slice(None, 1), slice(1, None)
        for part in (rest, first):
            # The first segment last: after a crash without it, the rest would look like a log that starts
            # later.
            for base in offsets_named(disk.list_folder(folder), LOG_SUFFIX)[part]:
                _remove_segment(disk, folder, base)
            disk.sync((), [folder])


def _reopened(log: PartitionLog) -> PartitionLog:
    """Open and sync what is left on disk. No other code has this log yet."""
    truncated = open_log(log.disk, log.folder, log.settings, written_by_this_process=True).log
    flush = truncated.begin_flush()
    log.disk.sync(flush.files, flush.folders)
    truncated.end_flush(flush)
    truncated.close_files()
    return truncated


def _remove_snapshots(disk: Disk, folder: str, past: Offset) -> None:
    """Remove snapshots by their files: a checkpoint that was never ended may have left one."""
    removed = [offset for offset in offsets_named(disk.list_folder(folder), SNAPSHOT_SUFFIX) if offset > past]
    for offset in removed:
        disk.remove(f"{folder}/{segment_name(offset)}{SNAPSHOT_SUFFIX}")
    if removed:
        disk.sync((), [folder])


def _remove_segment(disk: Disk, folder: str, base_offset: Offset) -> None:
    for suffix in SUFFIXES:
        disk.remove(f"{folder}/{segment_name(base_offset)}{suffix}")
