"""Putting cleaned segments in the place of those they stand for, safe against a crash at any moment.

    .cleaned    being written, or written and not decided. A crash forgets it.
    .swap       decided: it stands for every segment within its range of offsets. A crash, or the
                process itself, goes on from here until only the segment is left.

The rename of the log from .cleaned to .swap is the decision; the rename from .swap to the segment's
own name is the end. Its indexes go before it both times, so that wherever there is a .log.swap its
indexes are there or already in place, and an index that is left without one was never decided.

Rule 1: `decide` and `tidy` wait for the device and run in a worker. `take_over` does not: it renames
        and replaces the segments of the log within one turn of the loop, so that nobody reads new
        bytes with an old index. What it removes stays open until `tidy`, because giving back the
        space of a large file takes long.
Rule 2: only segments that are on disk whole, with their indexes, are replaced (`is_settled`).
"""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.errors import CorruptData, StorageFailed, StorageFull
from penstock.host.disk import Disk, File
from penstock.log.cleaning_job import CLEANED_SUFFIX, SUFFIXES, Replacement
from penstock.log.partition_log import PartitionLog
from penstock.log.segment import LOG_SUFFIX, Segment, segment_name
from penstock.protocol.batches import HEADER_BYTES, parse_header
from penstock.types import Offset

SWAP_SUFFIX = ".swap"
INDEXES_FIRST = (*SUFFIXES[1:], LOG_SUFFIX)


class TakenOver(NamedTuple):
    """Files that have lost their names and are still open."""

    files: Sequence[File]
    folder: str


def is_settled(log: PartitionLog, segment: Segment, end_offset: Offset) -> bool:
    """Whether nothing is left to be written to a segment that ends here: no flush, no index."""
    return end_offset <= log.recovery_point and segment.indexes_stored and not segment.dirty


def decide(disk: Disk, folder: str, replacement: Replacement) -> None:
    """From here on the cleaned segment counts, whatever happens. Blocks."""
    stem = f"{folder}/{segment_name(replacement.base_offset)}"
    for suffix in SUFFIXES[1:]:
        disk.rename(stem + suffix + CLEANED_SUFFIX, stem + suffix + SWAP_SUFFIX)
    disk.sync((), [folder])
    disk.rename(stem + LOG_SUFFIX + CLEANED_SUFFIX, stem + LOG_SUFFIX + SWAP_SUFFIX)
    disk.sync((), [folder])


def undecide(disk: Disk, folder: str, replacement: Replacement) -> None:
    """The cleaned segment could not be taken over: forget it. Blocks."""
    stem = f"{folder}/{segment_name(replacement.base_offset)}"
    for suffix in SUFFIXES:  # the log first: what is left of the indexes without it counts for nothing
        disk.remove(stem + suffix + SWAP_SUFFIX)
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


def take_over(log: PartitionLog, replacement: Replacement) -> TakenOver:
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
    stem = f"{log.folder}/{segment_name(replacement.base_offset)}"
    for segment in old[1:]:
        for suffix in SUFFIXES:
            disk.remove(segment.path(suffix))
    for suffix in INDEXES_FIRST:
        disk.rename(stem + suffix + SWAP_SUFFIX, stem + suffix)
    log.replace_segments(old, Segment(disk, log.folder, replacement.base_offset, replacement.size_bytes))
    return TakenOver(held, log.folder)


def tidy(disk: Disk, taken: TakenOver) -> None:
    """Give the space back and make the names durable. Blocks."""
    for file in taken.files:
        file.release()
    disk.sync((), [taken.folder])


def discard(disk: Disk, folder: str) -> None:
    """Remove what a cleaning that came to nothing has left. Blocks."""
    if disk.exists(folder):
        for name in disk.list_folder(folder):
            if name.endswith(CLEANED_SUFFIX):
                disk.remove(f"{folder}/{name}")


# After a crash


def finish_swaps(disk: Disk, folder: str) -> None:
    """Bring a folder to where it is all segments again. Repeatable, as long as it takes."""
    names = disk.list_folder(folder)
    left = [name for name in names if name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX))]
    if not left:
        return
    decided = [
        name.removesuffix(LOG_SUFFIX + SWAP_SUFFIX)
        for name in left
        if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)
    ]
    for name in left:
        undecided_index = name.endswith(SWAP_SUFFIX) and name.partition(".")[0] not in decided
        if name.endswith(CLEANED_SUFFIX) or undecided_index:
            disk.remove(f"{folder}/{name}")
    for stem in decided:
        _finish(disk, folder, stem)
    disk.sync((), [folder])


def _finish(disk: Disk, folder: str, stem: str) -> None:
    base_offset = Offset(int(stem))
    end_offset = _end_offset(disk, f"{folder}/{stem}{LOG_SUFFIX}{SWAP_SUFFIX}", base_offset)
    for name in disk.list_folder(folder):
        other = name.partition(".")[0]
        is_segment = name.endswith(SUFFIXES) and other.isdigit()
        if is_segment and base_offset < int(other) < end_offset:
            disk.remove(f"{folder}/{name}")
    # The old names must be gone for good before the marker that says so is.
    disk.sync((), [folder])
    for suffix in INDEXES_FIRST:
        source = f"{folder}/{stem}{suffix}{SWAP_SUFFIX}"
        if disk.exists(source):
            disk.rename(source, f"{folder}/{stem}{suffix}")


def _end_offset(disk: Disk, path: str, base_offset: Offset) -> Offset:
    """Where the offsets of a decided segment end: all of it was on disk before it was decided on."""
    file, size_bytes = disk.open(path), disk.size_of(path)
    try:
        position, end_offset = 0, base_offset
        while position < size_bytes:
            header = parse_header(file.read(position, HEADER_BYTES))
            if header.base_offset != end_offset:
                raise CorruptData(
                    f"{path} at {position}: offset {header.base_offset} where {end_offset} belongs"
                )
            end_offset = header.next_offset
            position += header.size
        return end_offset
    finally:
        file.release()
