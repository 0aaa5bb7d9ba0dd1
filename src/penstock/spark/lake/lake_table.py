"""The interface that every table format of the lake implements, and its vocabulary.

Rule 1: A commit is atomic, and `commit` may be repeated. A batch that the table already holds is not added
        again; the table recognises it by its number or by the offsets of its rows.
Rule 2: A known batch number does not prove that the rows are known: an old checkpoint gives out numbers
        again, for more rows. So offsets are compared as well, and a batch that cannot be the same one is
        rejected.
Rule 3: Files that are not committed belong to no table. `vacuum` removes them once they are old.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from penstock.errors import CommandFailed
from penstock.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

METADATA_FOLDER: Final = "_penstock"
"""The folder inside a table for Penstock's own files. Parquet readers ignore names that begin with an
underscore.
"""
NOTHING_RECORDED: Final = -1
OLD_CHECKPOINT_REMEDY: Final = (
    "Use the newest state of the checkpoint that wrote the table; if it is lost, begin anew with another "
    "folder"
)

EndOffsets = Mapping[TopicPartition, int]
"""For each partition, one past the last offset that a table holds."""


class LakeTableError(CommandFailed):
    """A table cannot accept what it was given. The message is a sentence that names the remedy."""


class DataFile(NamedTuple):
    """Parquet file of a table."""

    folder: str
    """The folder relative to the table: date=2026-11-15/hour=14, or empty."""
    name: str
    rows: int
    bytes: int

    @property
    def path(self) -> str:
        return f"{self.folder}/{self.name}" if self.folder else self.name


class OffsetSpan(NamedTuple):
    """Offsets from `start` to `end`, which is exclusive."""

    start: int
    end: int


class PlannedRange(NamedTuple):
    """The offset range of a topic that one task was to read."""

    partition: TopicPartition
    span: OffsetSpan
    of: int
    """The number of ranges that the whole batch was planned with."""


class LakeBatch(NamedTuple):
    """The files and offsets that are committed in one step."""

    app: str
    """The query's id, which its checkpoint keeps."""
    version: int
    files: tuple[DataFile, ...]
    spans: Mapping[TopicPartition, OffsetSpan]
    """The offsets of the rows. Empty if the rows are not records of topics."""
    schema: "pa.Schema"
    lost: int = 0
    """The number of offsets within the spans that the topic no longer had when they were read."""

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


class RecordedQuery(NamedTuple):
    """Facts that a table records about a query that writes to it."""

    version: int = NOTHING_RECORDED
    rows: int = 0
    bytes: int = 0
    files: int = 0
    lost: int = 0

    def after(self, batch: LakeBatch) -> "RecordedQuery":
        return RecordedQuery(
            batch.version,
            self.rows + batch.rows,
            self.bytes + batch.bytes,
            self.files + len(batch.files),
            self.lost + batch.lost,
        )


class CompactionResult(NamedTuple):
    """Number of small files that a compaction merged, and of the files that replaced them."""

    files_before: int = 0
    files_after: int = 0


class LakeTable(Protocol):
    """Table of one format. The driver opens, commits and closes it."""

    def recorded_query(self, app: str) -> RecordedQuery: ...

    def ends(self, partitions: Iterable[TopicPartition]) -> EndOffsets:
        """The end offsets of those partitions of which the table holds rows."""

    def commit(self, batch: LakeBatch) -> bool:
        """False if the table already held the batch; the given files then belong to no table."""

    def files(self) -> list[str]:
        """The paths of the table's files, oldest first."""

    def compact(self, target_bytes: int) -> CompactionResult: ...

    def vacuum(self, *, older_than_ms: int, history_ms: int | None = None) -> list[str]:
        """Remove files that no commit names and that were last written before `older_than_ms`.

        Returns their paths.

        Files that were part of the table stay for `history_ms` after they were replaced, for readers of an
        older version. None: for as long as the table's own properties define. In Iceberg such files stay
        while a snapshot names them, and a table can limit the number of snapshots whatever their age.
        """

    def close(self) -> None: ...


def check_planned_ranges(version: int, planned_ranges: Sequence[PlannedRange]) -> None:
    """LakeTableError unless the ranges are the whole batch: all planned ranges, each adjacent to the next."""
    if any(each.of != len(planned_ranges) for each in planned_ranges):
        raise LakeTableError(
            f"batch {version} was planned as {planned_ranges[0].of} ranges of offsets and tasks report "
            f"{len(planned_ranges)}: records would be left out. Start the query again"
        )
    ordered = sorted(planned_ranges)
    for one, following in pairwise(ordered):
        if one.partition == following.partition and one.span.end != following.span.start:
            raise LakeTableError(
                f"in batch {version}, tasks read {one.partition.topic}/{one.partition.partition} up to "
                f"offset {one.span.end} and then from offset {following.span.start} on: records would be "
                "left out or be there twice. Start the query again"
            )


def is_already_committed(
    recorded: RecordedQuery, version: int, spans: Mapping[TopicPartition, OffsetSpan], ends: EndOffsets
) -> bool:
    """Whether the table holds the batch.

    LakeTableError if the table holds some of its rows, or other rows under that number.
    """
    if version > recorded.version:
        check_no_overlap(spans, ends)
        return False
    if not spans and version < recorded.version:
        # After a crash Spark may repeat the newest batch, and no older one.
        raise LakeTableError(
            f"batch {version} was to be written, and the table holds batches up to {recorded.version}: the "
            f"checkpoint is older than the table, and rows would be left out. {OLD_CHECKPOINT_REMEDY}"
        )
    check_known_batch(version, spans, ends)
    return True


def check_known_batch(version: int, spans: Mapping[TopicPartition, OffsetSpan], ends: EndOffsets) -> None:
    """Check that a batch with a known number brings only rows that the table holds."""
    for partition, span in spans.items():
        end = ends.get(partition, 0)
        if span.end > end:
            raise LakeTableError(
                f"the table holds batch {version}, and {partition.topic}/{partition.partition} up to "
                f"offset {end}; now that batch goes up to offset {span.end}. The checkpoint is older than "
                f"the table, or a part of it is missing, and rows would be left out. {OLD_CHECKPOINT_REMEDY}"
            )


def check_no_overlap(spans: Mapping[TopicPartition, OffsetSpan], ends: EndOffsets) -> None:
    """Check that no row which the table holds comes again, even from a query that it has no record of."""
    for partition, span in spans.items():
        end = ends.get(partition, 0)
        if span.start < end:
            raise LakeTableError(
                f"the table holds {partition.topic}/{partition.partition} up to offset {end} and was given "
                f"rows from offset {span.start} on: they would be there twice. The checkpoint is not the one "
                "that wrote the table, or the topic was deleted and made anew, or its log was truncated. Use "
                "the checkpoint that belongs to the table, or another folder"
            )
