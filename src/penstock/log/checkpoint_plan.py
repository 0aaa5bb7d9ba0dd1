"""Plan of the writes of a checkpoint: made on the event loop, rendered by the thread that writes it.

A plan refers to the log's own indexes and producers instead of holding their bytes: to render those of many
partitions would block the event loop for too long. Indexes only grow behind the counts that the plan holds,
and producers never change, so the event loop continues to append meanwhile.
"""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.host.disk import SmallFile
from penstock.log.index.offset_index import OffsetIndex
from penstock.log.index.time_index import TimeIndex
from penstock.log.producer_state import Producer, render_snapshot
from penstock.log.segment import INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, Segment
from penstock.log.transactions.aborted_index import AbortedIndex, AbortedRows
from penstock.types import Offset


class IndexWrite(NamedTuple):
    """Entries of one index that are not on disk yet."""

    path: str
    entries: OffsetIndex | TimeIndex
    first_entry: int
    end_entry: int

    @property
    def position(self) -> int:
        return self.first_entry * self.entries.entry_bytes

    def render(self) -> bytes:
        return self.entries.to_bytes(self.first_entry, self.end_entry)

    def stored(self) -> None:
        """Record that the entries are on disk."""
        self.entries.stored_entries = max(self.entries.stored_entries, self.end_entry)


class IndexPlan(NamedTuple):
    """Index writes of one checkpoint."""

    writes: Sequence[IndexWrite | AbortedRows]
    rebuilt: Sequence[IndexWrite | AbortedRows]
    """Whole indexes whose files were lost or damaged, and are replaced."""
    segments: Sequence[Segment]
    """Segments whose indexes are written."""


class Checkpoint(NamedTuple):
    """Writes to carry out once the log is flushed to the recovery point, in this order: index writes, their
    sync, the small files. The name of the snapshot makes the recovery point valid, so it comes last.
    """

    indexes: IndexPlan
    small_files: Sequence[SmallFile]
    producers: Sequence[Producer]
    snapshot_path: str
    recovery_point: Offset
    log_start: Offset
    """Content of the start file once the small files are on disk."""

    def render_stored(self) -> list[SmallFile]:
        """Render the files to replace, in the order in which they must become durable. Too slow for the
        loop.
        """
        rebuilt = [SmallFile(write.path, write.render()) for write in self.indexes.rebuilt]
        return [*rebuilt, *self.small_files, SmallFile(self.snapshot_path, render_snapshot(self.producers))]


def plan_indexes(
    segments: Sequence[Segment], rebuilt: Sequence[Segment], aborted: AbortedIndex, log_end_offset: Offset
) -> IndexPlan:
    """Plan the entries of the newest segments that are not on disk, and all entries of rebuilt indexes."""
    growing: list[Segment] = []
    for segment in reversed(segments):
        if segment.indexes_stored and segment is not segments[-1]:
            break
        if segment.size_bytes and segment.has_index and segment not in rebuilt:
            growing.append(segment)
    rows, rebuilt_rows = _plan_rows(segments, aborted, log_end_offset)
    return IndexPlan(
        writes=[*(write for segment in growing for write in _writes(segment)), *rows],
        rebuilt=[*(write for segment in rebuilt for write in _writes(segment)), *rebuilt_rows],
        segments=(*growing, *rebuilt),
    )


def _writes(segment: Segment) -> list[IndexWrite]:
    """Plan both indexes of a segment, from the first entry that is not on disk to the current last one."""
    indexes = ((INDEX_SUFFIX, segment.index), (TIME_INDEX_SUFFIX, segment.time_index))
    return [
        IndexWrite(segment.path(suffix), index, index.stored_entries, len(index)) for suffix, index in indexes
    ]


def _plan_rows(
    segments: Sequence[Segment], aborted: AbortedIndex, log_end_offset: Offset
) -> tuple[list[AbortedRows], list[AbortedRows]]:
    """Plan the rows of aborted transactions that are not on disk, and all rows of damaged files."""
    if not aborted and not aborted.unusable_files:
        return [], []  # the usual case
    ends = [*(following.base_offset for following in segments[1:]), log_end_offset]
    spans = [
        (segment.base_offset, end, segment.path(TXN_INDEX_SUFFIX))
        for segment, end in zip(segments, ends, strict=True)
    ]
    return aborted.plan(spans), aborted.plan_rebuilt(spans)
