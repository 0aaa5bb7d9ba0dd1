"""Putting cleaned segments in the place of those they stand for, safe against a crash at any moment.

    .cleaned    being written, or written and not decided. A crash forgets it.
    .swap       an empty file named by two offsets: the cleaned segment that begins at the first is
                decided. It stands for every segment up to the second. A crash, or the process itself,
                goes on from here until only the cleaned one is left, under its own name.

While the mark is there every name within its range may be old, new or gone, in any mixture: a file
system may keep the changes of a folder in another order than they were made. What has to be done is
the same for all of them, and doing it twice is doing it once.

Rule 1: everything that a mark speaks of is on disk before the mark is, and everything that it asks
        for is on disk before the mark goes. Its going is on disk before anything else is cleaned
        there: an old mark would decide on files that are half written.
Rule 2: `commit_swap` and `complete_swap` wait for the device and run in a worker. `swap_in` does not: it
        renames and replaces the segments of the log within one turn of the loop, so that nobody reads new
        bytes with an old index. What it removes stays open until `complete_swap`, because giving back the
        space of a large file takes long.
Rule 3: only segments that are on disk whole, with their indexes, are replaced (`is_settled`).
"""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.errors import StorageFailed, StorageFull
from penstock.host.disk import Disk, File
from penstock.log.compaction.cleaning_job import CLEANED_SUFFIX, SUFFIXES, Replacement
from penstock.log.partition_log import PartitionLog
from penstock.log.segment import Segment, segment_name
from penstock.types import Offset

SWAP_SUFFIX = ".swap"


class SwapMark(NamedTuple):
    """What the name of a mark says."""

    base_offset: Offset
    end_offset: Offset

    @property
    def name(self) -> str:
        return f"{segment_name(self.base_offset)}-{segment_name(self.end_offset)}{SWAP_SUFFIX}"


class SwappedSegments(NamedTuple):
    files: Sequence[File]
    """They have lost their names and are still open."""
    folder: str
    decided: SwapMark


def is_settled(log: PartitionLog, segment: Segment, end_offset: Offset) -> bool:
    """Whether nothing is left to be written to a segment that ends here: no flush, no index."""
    return end_offset <= log.recovery_point and segment.indexes_stored and not segment.dirty


def commit_swap(disk: Disk, folder: str, replacement: Replacement) -> None:
    """From here on the cleaned segment counts, whatever happens. StorageFull: it does not. Blocks."""
    disk.sync((), [folder])
    mark = SwapMark(replacement.base_offset, replacement.end_offset).name
    disk.open(f"{folder}/{mark}", create=True).release()
    disk.sync((), [folder])


def cancel_swap(disk: Disk, folder: str, replacement: Replacement) -> None:
    """The cleaned segment could not be taken over: it counts no longer. Blocks."""
    _unmark(disk, folder, SwapMark(replacement.base_offset, replacement.end_offset))


def _unmark(disk: Disk, folder: str, decided: SwapMark) -> None:
    disk.remove(f"{folder}/{decided.name}")
    disk.sync((), [folder])


def replaced_segments(log: PartitionLog, replacement: Replacement) -> list[Segment]:
    """Those of the log that the cleaned one stands for; empty if they are not all there any more."""
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
    """In one turn: rename, and let the log have the new segment. StorageFull: nothing was changed.

    StorageFailed: the log in memory is no longer what is on disk; a restart completes it.
    """
    disk, old = log.disk, replaced_segments(log, replacement)
    assert old, "the segments were checked before the cleaned one was decided on"
    held: list[File] = []
    try:
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
        disk.rename(cleaned.path(suffix) + CLEANED_SUFFIX, cleaned.path(suffix))
    log.replace_segments(old, cleaned)
    return SwappedSegments(held, log.folder, SwapMark(replacement.base_offset, replacement.end_offset))


def complete_swap(disk: Disk, taken: SwappedSegments) -> None:
    """Give the space back, make the names durable, and take the mark away. Blocks."""
    for file in taken.files:
        file.release()
    disk.sync((), [taken.folder])
    _unmark(disk, taken.folder, taken.decided)


def discard_cleaned(disk: Disk, folder: str) -> None:
    """Remove what a cleaning that came to nothing has left, unless it was decided on. Blocks."""
    if not disk.exists(folder):
        return
    names = disk.list_folder(folder)
    decided = {segment_name(mark.base_offset) for mark in _marks(names)}
    for name in names:
        if name.endswith(CLEANED_SUFFIX) and name.partition(".")[0] not in decided:
            disk.remove(f"{folder}/{name}")


# After a crash


def finish_swaps(disk: Disk, folder: str) -> None:
    """Bring a folder to where it is all segments again. Repeatable, as long as it takes."""
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
