"""What every format of the lake offers, and the words for it.

Rule 1: a commit is whole or not there, and `commit` may be asked again: what the table holds already it
        does not take twice, whether it is told so by the number of the batch or by the offsets of the rows.
Rule 2: that a number is known does not prove that the rows are: an old checkpoint gives numbers again, for
        more rows. So offsets are compared too, and what cannot be the same batch is refused.
Rule 3: files that are not committed are nobody's. `vacuum` removes them once they are old.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from penstock.errors import CommandFailed
from penstock.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

METADATA_FOLDER: Final = "_penstock"
"""The folder inside a table that holds what is ours. Readers of Parquet pass over such names."""
NOTHING_RECORDED: Final = -1
OLD_CHECKPOINT_REMEDY: Final = (
    "Use the newest state of the checkpoint that wrote the table; if it is lost, begin anew with another "
    "folder"
)

EndOffsets = Mapping[TopicPartition, int]
"""One past the last offset that a table holds."""


class LakeTableError(CommandFailed):
    """A table cannot take what it was given. The message is a sentence that names the remedy."""


class DataFile(NamedTuple):
    folder: str
    """Below the table: date=2026-11-15/hour=14, or empty."""
    name: str
    rows: int
    bytes: int

    @property
    def path(self) -> str:
        return f"{self.folder}/{self.name}" if self.folder else self.name


class OffsetSpan(NamedTuple):
    start: int
    end: int


class PlannedRange(NamedTuple):
    """What one task was to read of a topic."""

    partition: TopicPartition
    span: OffsetSpan
    of: int
    """How many pieces the whole batch was planned with."""


class LakeBatch(NamedTuple):
    """What is committed in one step."""

    app: str
    """The query; its checkpoint gives it a name that stays."""
    version: int
    files: tuple[DataFile, ...]
    spans: Mapping[TopicPartition, OffsetSpan]
    """Which offsets the rows are from. Empty if the rows are not records of topics."""
    schema: "pa.Schema"
    lost: int = 0
    """Offsets within the spans that the topic no longer had when they were read."""

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


class QueryRecord(NamedTuple):
    """What a table knows of a query that writes to it."""

    version: int = NOTHING_RECORDED
    rows: int = 0
    bytes: int = 0
    files: int = 0
    lost: int = 0

    def after(self, batch: LakeBatch) -> "QueryRecord":
        return QueryRecord(
            batch.version,
            self.rows + batch.rows,
            self.bytes + batch.bytes,
            self.files + len(batch.files),
            self.lost + batch.lost,
        )


class Compacted(NamedTuple):
    files_before: int = 0
    files_after: int = 0


class LakeTable(Protocol):
    def recorded(self, app: str) -> QueryRecord: ...

    def ends(self, partitions: Iterable[TopicPartition]) -> EndOffsets:
        """Of those that it holds something of."""

    def commit(self, batch: LakeBatch) -> bool:
        """False if the table held it already; the files given are nobody's then."""

    def files(self) -> list[str]:
        """Where the files are that make up the table, oldest first."""

    def compact(self, target_bytes: int) -> Compacted: ...

    def vacuum(self, *, older_than_ms: int, history_ms: int | None = None) -> list[str]:
        """Remove what no commit names and was last written before then. Returns what it removed.

        Files that were part of the table stay for `history_ms` after they were replaced, for those who read
        an older version of it. None: as long as the table's own properties say. In Iceberg they stay while a
        snapshot names them, and a table can bound the number of those whatever their age.
        """

    def close(self) -> None: ...


def check_planned_ranges(version: int, pieces: Sequence[PlannedRange]) -> None:
    """LakeRefused unless the pieces are the whole batch: all that were planned, one after the other."""
    if any(each.of != len(pieces) for each in pieces):
        raise LakeTableError(
            f"batch {version} was planned as {pieces[0].of} ranges of offsets and tasks report "
            f"{len(pieces)}: records would be left out. Start the query again"
        )
    ordered = sorted(pieces)
    for one, following in pairwise(ordered):
        if one.partition == following.partition and one.span.end != following.span.start:
            raise LakeTableError(
                f"in batch {version}, tasks read {one.partition.topic}/{one.partition.partition} up to "
                f"offset {one.span.end} and then from offset {following.span.start} on: records would be "
                "left out or be there twice. Start the query again"
            )


def is_already_committed(
    recorded: QueryRecord, version: int, spans: Mapping[TopicPartition, OffsetSpan], ends: EndOffsets
) -> bool:
    """Whether the table has the batch. LakeRefused if it has some of its rows, or others by that number."""
    if version > recorded.version:
        check_no_overlap(spans, ends)
        return False
    if not spans and version < recorded.version:
        # After a crash the newest batch may come again, and no other.
        raise LakeTableError(
            f"batch {version} was to be written, and the table holds batches up to {recorded.version}: the "
            f"checkpoint is older than the table, and rows would be left out. {OLD_CHECKPOINT_REMEDY}"
        )
    check_known_batch(version, spans, ends)
    return True


def check_known_batch(version: int, spans: Mapping[TopicPartition, OffsetSpan], ends: EndOffsets) -> None:
    """A batch whose number is known brings only rows that are known."""
    for partition, span in spans.items():
        end = ends.get(partition, 0)
        if span.end > end:
            raise LakeTableError(
                f"the table holds batch {version}, and {partition.topic}/{partition.partition} up to "
                f"offset {end}; now that batch goes up to offset {span.end}. The checkpoint is older than "
                f"the table, or a part of it is missing, and rows would be left out. {OLD_CHECKPOINT_REMEDY}"
            )


def check_no_overlap(spans: Mapping[TopicPartition, OffsetSpan], ends: EndOffsets) -> None:
    """Rows that the table has cannot come again, not even from a query that does not know of it."""
    for partition, span in spans.items():
        end = ends.get(partition, 0)
        if span.start < end:
            raise LakeTableError(
                f"the table holds {partition.topic}/{partition.partition} up to offset {end} and was given "
                f"rows from offset {span.start} on: they would be there twice. The checkpoint is not the one "
                "that wrote the table, or the topic was deleted and made anew, or its log was truncated. Use "
                "the checkpoint that belongs to the table, or another folder"
            )
