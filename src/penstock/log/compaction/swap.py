"""Swap of cleaned segments for the segments they replace, safe against a crash at any moment.

    .cleaned    being written, or written and not committed. A crash discards it.
    .swap       an empty file named by two offsets, the commit mark: the cleaned segment that begins at the
                first offset replaces every segment up to the second. After a crash the swap continues,
                until only the cleaned segment is left, under its own name.

While the mark exists, every name within its range may be old, new or missing, in any combination: a file
system may persist the changes of a folder in another order than they were made. The same steps complete the
swap from each of these states, and they may be repeated.

Rule 1: every file that a mark refers to is durable before the mark, and every change that it requires is
        durable before the mark is removed. The removal is durable before the next cleaning there starts: an
        old mark would commit files that are half written.
Rule 2: `commit_swap` and `complete_swap` wait for the device and run in a worker. `swap_in` does not: it
        renames the files and replaces the segments of the log within one callback of the event loop, so that
        no read uses new bytes with an old index. The removed files stay open until `complete_swap`, because
        to free the space of a large file takes long.
Rule 3: only segments that are on disk completely, with their indexes, are replaced (`is_settled`).
"""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.errors import StorageFailed, StorageFull
from penstock.host.disk import Disk, File
from penstock.log.compaction.cleaning_job import CLEANED_SUFFIX, Replacement
from penstock.log.partition_log import PartitionLog
from penstock.log.segment import SUFFIXES, TXN_INDEX_SUFFIX, Segment, segment_name
from penstock.log.transactions.aborted_index import RowsSum
from penstock.types import Offset

SWAP_SUFFIX = ".swap"


class SwapMark(NamedTuple):
    """Content of the name of a commit mark."""

    base_offset: Offset
    end_offset: Offset

    @property
    def name(self) -> str:
        return f"{segment_name(self.base_offset)}-{segment_name(self.end_offset)}{SWAP_SUFFIX}"


class SwappedSegments(NamedTuple):
    """A swap that `complete_swap` has to finish."""

    files: Sequence[File]
    """Removed from the folder, and still open."""
    folder: str
    decided: SwapMark


def is_settled(log: PartitionLog, segment: Segment, end_offset: Offset) -> bool:
    """Whether no write to a segment that ends here is pending: no flush, no index."""
    return end_offset <= log.recovery_point and segment.indexes_stored and not segment.dirty


def commit_swap(disk: Disk, folder: str, replacement: Replacement) -> None:
    """Commit the cleaned segment, whatever happens later. StorageFull: not committed. Blocks."""
    disk.sync((), [folder])
    mark = SwapMark(replacement.base_offset, replacement.end_offset).name
    # Between two syncs of the folder: the `.cleaned` names must be durable before the mark, and the mark
    # before the swap.
    disk.open(f"{folder}/{mark}", create=True).release()
    disk.sync((), [folder])


def cancel_swap(disk: Disk, folder: str, replacement: Replacement) -> None:
    """Remove the mark of a cleaned segment that could not be swapped in. Blocks."""
    _unmark(disk, folder, SwapMark(replacement.base_offset, replacement.end_offset))


def _unmark(disk: Disk, folder: str, decided: SwapMark) -> None:
    disk.remove(f"{folder}/{decided.name}")
    disk.sync((), [folder])


def replaced_segments(log: PartitionLog, replacement: Replacement) -> list[Segment]:
    """Segments of the log that the cleaned one replaces; empty if some of them are no longer there."""
    within = [
        segment
        for segment in log.segments[:-1]
        if replacement.base_offset <= segment.base_offset < replacement.end_offset
    ]
    if not within or within[0].base_offset != replacement.base_offset:
        return []
    following = log.segments[log.segments.index(within[-1]) + 1]
    return within if following.base_offset == replacement.end_offset else []


def swap_in(log: PartitionLog, replacement: Replacement) -> SwappedSegments:
    """Rename the files and replace the segments in the log, in one callback. StorageFull: nothing changed.

    StorageFailed: log and disk differ; a restart completes the swap.
    """
    disk, old = log.disk, replaced_segments(log, replacement)
    assert old, "the segments were checked before the cleaned one was decided on"
    held: list[File] = []
    try:
        # Opened before anything changes: this may fail for lack of descriptors.
        held += [disk.open(segment.path()) for segment in old]
    except (StorageFull, StorageFailed):
        for file in held:
            file.release()
        raise
    for segment in old[1:]:
        for suffix in SUFFIXES:
            disk.remove(segment.path(suffix))
    cleaned = Segment(disk, log.folder, replacement.base_offset, replacement.size_bytes)
    for suffix in SUFFIXES:
        if suffix != TXN_INDEX_SUFFIX or replacement.aborted is not None:
            disk.rename(cleaned.path(suffix) + CLEANED_SUFFIX, cleaned.path(suffix))
    log.replace_segments(old, cleaned)
    if (rows := replacement.aborted) is not None:
        base, end = replacement.base_offset, replacement.end_offset
        aborted_sum = RowsSum(rows.count, rows.checksum)
        log.transactions.aborted.replace(base, end, frozenset(rows.removed), aborted_sum)
    return SwappedSegments(held, log.folder, SwapMark(replacement.base_offset, replacement.end_offset))


def complete_swap(disk: Disk, taken: SwappedSegments) -> None:
    """Free the space, make the names durable, and remove the mark. Blocks."""
    for file in taken.files:
        file.release()
    disk.sync((), [taken.folder])
    _unmark(disk, taken.folder, taken.decided)


def discard_cleaned(disk: Disk, folder: str) -> None:
    """Remove the files of a cleaning that failed, unless it was committed. Blocks."""
    if not disk.exists(folder):
        return
    names = disk.list_folder(folder)
    decided = {segment_name(mark.base_offset) for mark in _marks(names)}
    for name in names:
        if name.endswith(CLEANED_SUFFIX) and name.partition(".")[0] not in decided:
            disk.remove(f"{folder}/{name}")


# After a crash


def finish_swaps(disk: Disk, folder: str) -> None:
    """Complete every committed swap in a folder. May be repeated, as often as it is interrupted."""
    for decided in _marks(disk.list_folder(folder)):
        _finish(disk, folder, decided)
    discard_cleaned(disk, folder)


def _finish(disk: Disk, folder: str, decided: SwapMark) -> None:
    for name in disk.list_folder(folder):
        stem = name.partition(".")[0]
        is_segment = name.endswith(SUFFIXES) and stem.isdigit()
        if is_segment and decided.base_offset < int(stem) < decided.end_offset:
            disk.remove(f"{folder}/{name}")
    stem = f"{folder}/{segment_name(decided.base_offset)}"
    for suffix in SUFFIXES:
        if disk.exists(stem + suffix + CLEANED_SUFFIX):
            # A missing `.cleaned` file was renamed before the crash.
            disk.rename(stem + suffix + CLEANED_SUFFIX, stem + suffix)
    disk.sync((), [folder])
    _unmark(disk, folder, decided)


def _marks(names: Sequence[str]) -> list[SwapMark]:
    found = []
    for name in names:
        if name.endswith(SWAP_SUFFIX):
            base, _, end = name.removesuffix(SWAP_SUFFIX).partition("-")
            if base.isdigit() and end.isdigit():
                found.append(SwapMark(Offset(int(base)), Offset(int(end))))
    return found
