"""Index of the aborted transactions of one log, in memory, and its rows on disk.

A read_committed consumer gets the records of aborted transactions too, together with a list of these
transactions, and drops the records itself. The list must have every aborted transaction that overlaps what
the reply holds, and none whose marker lies before the fetch offset: the consumer ignores a producer from the
first offset of the transaction up to its marker.

On disk: Kafka's .txnindex file of the segment that holds the marker; a segment without one has no file. A row
has 34 bytes, big endian: version 0, producer id, first offset, offset of the marker, and the last stable
offset after the marker. The rows have no checksum, and a wrong one would show aborted records or hide others.
So `aborted-index-checkpoint` has, for each segment with rows, their number and checksum:

    0             version
    1             number of segments
    120 3 91834   base offset, number of rows, checksum (CRC-32C) of the rows

Rule 1: rows are ordered by the offsets of their markers. The last stable offset ends a search: every
        transaction that was aborted later begins there or behind it.
Rule 2: a row is in memory only until the next checkpoint writes it (log/checkpoint_plan.py). Recovery repeats
        the rows above the recovery point.
Rule 3: rows on disk count if the checkpoint file confirms them. Otherwise they are rebuilt from the log
        (log/transactions/aborted_files.py), and the next checkpoint replaces the files.
"""

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.errors import CorruptData
from penstock.log.checkpoint_file import render_rows
from penstock.types import Offset, ProducerId

VERSION = 0
ROW = Struct(">hqqqq")
ROW_BYTES = ROW.size
CHECKPOINT_NAME = "aborted-index-checkpoint"


class AbortedEntry(NamedTuple):
    """One aborted transaction of a log."""

    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    """Offset of the marker."""
    last_stable_offset: Offset
    """Smallest first offset of the transactions that were open after the marker; the offset behind the marker
    if there were none."""

    def to_bytes(self) -> bytes:
        return ROW.pack(VERSION, *self)


class RowsSum(NamedTuple):
    """Number and checksum of the rows of one segment."""

    row_count: int
    checksum: int


NO_ROWS = RowsSum(0, 0)
_NO_VALUES: Final = array("q")
"""Never changed. Most logs have no aborted transaction."""


class AbortedRows(NamedTuple):
    """Rows to write to the file of one segment. A checkpoint renders them in a worker thread."""

    path: str
    position: int
    entries: Sequence[AbortedEntry]

    def render(self) -> bytes:
        return b"".join([entry.to_bytes() for entry in self.entries])

    def stored(self) -> None:
        """Nothing to record: `AbortedIndex.rows_stored` covers all rows of a checkpoint."""


def parse_rows_of(data: bytes) -> list[AbortedEntry]:
    """Parse the rows of a segment. CorruptData: these are no rows of an index."""
    if len(data) % ROW_BYTES:
        raise CorruptData(f"an index of aborted transactions has {len(data)} bytes and ends inside a row")
    entries: list[AbortedEntry] = []
    for version, producer_id, first, last, stable in ROW.iter_unpack(data):
        ascends = not entries or last > entries[-1].last_offset
        if version != VERSION or not 0 <= first < last or stable > last + 1 or not ascends:
            raise CorruptData("an index of aborted transactions has an impossible row")
        entries.append(AbortedEntry(ProducerId(producer_id), Offset(first), Offset(last), Offset(stable)))
    return entries


class AbortedIndex:
    """Aborted transactions of one log, ordered by the offsets of their markers."""

    __slots__ = (
        "_firsts",
        "_lasts",
        "_producer_ids",
        "_stables",
        "_sums",
        "has_stored_sums",
        "stored_end",
        "unusable_files",
    )

    def __init__(self) -> None:
        # Machine arrays: a transaction takes 32 bytes, and not 200. Made for the first one.
        self._producer_ids = self._firsts = self._lasts = self._stables = _NO_VALUES
        self._sums: dict[Offset, RowsSum] = {}
        self.stored_end = Offset(0)
        """The rows of markers below this offset are on disk."""
        self.has_stored_sums = True
        """Whether the checkpoint file holds the current sums, or a checkpoint under way writes it."""
        self.unusable_files: frozenset[Offset] = frozenset()
        """Segments whose file is missing or damaged, and is replaced by the next checkpoint."""

    def __len__(self) -> int:
        return len(self._lasts)

    @property
    def is_stored(self) -> bool:
        """Whether everything below the recovery point is on disk."""
        return self.has_stored_sums and not self.unusable_files

    @property
    def sums(self) -> Mapping[Offset, RowsSum]:
        """Number and checksum of the rows, by the base offset of the segment that holds the markers."""
        return self._sums

    def entries(self, start: int = 0, end: int | None = None) -> Iterator[AbortedEntry]:
        columns = (self._producer_ids, self._firsts, self._lasts, self._stables)
        for producer_id, first, last, stable in zip(*[column[start:end] for column in columns], strict=True):
            yield AbortedEntry(ProducerId(producer_id), Offset(first), Offset(last), Offset(stable))

    def between(self, start: Offset, end: Offset) -> list[AbortedEntry]:
        """Entries whose markers are in this range of offsets."""
        return list(self.entries(bisect_left(self._lasts, start), bisect_left(self._lasts, end)))

    def add(self, entry: AbortedEntry, segment_base: Offset) -> None:
        """Add the transaction whose marker was just appended to this segment."""
        assert not self._lasts or entry.last_offset > self._lasts[-1], "markers come in their order"
        if self._lasts is _NO_VALUES:
            self._producer_ids, self._firsts = array("q"), array("q")
            self._lasts, self._stables = array("q"), array("q")
        self._producer_ids.append(entry.producer_id)
        self._firsts.append(entry.first_offset)
        self._lasts.append(entry.last_offset)
        self._stables.append(entry.last_stable_offset)
        count, checksum = self._sums.get(segment_base, NO_ROWS)
        self._sums[segment_base] = RowsSum(count + 1, crc32c(entry.to_bytes(), checksum))
        self.has_stored_sums = False

    def overlapping(self, start: Offset, end: Offset) -> list[AbortedEntry]:
        """Transactions with a marker at `start` or behind it that begin before `end`, by first offset."""
        lasts, firsts, stables = self._lasts, self._firsts, self._stables
        found: list[AbortedEntry] = []
        for number in range(bisect_left(lasts, start), len(lasts)):
            if firsts[number] < end:
                found.append(self._entry(number))
            if stables[number] >= end:
                break  # rule 1
        return sorted(found, key=lambda entry: entry.first_offset)

    def _entry(self, number: int) -> AbortedEntry:
        return AbortedEntry(
            ProducerId(self._producer_ids[number]),
            Offset(self._firsts[number]),
            Offset(self._lasts[number]),
            Offset(self._stables[number]),
        )

    # Removing

    def drop_before(self, base_offset: Offset) -> None:
        """Forget the rows of segments that retention removed."""
        count = bisect_left(self._lasts, base_offset)
        if count:
            for column in (self._producer_ids, self._firsts, self._lasts, self._stables):
                del column[:count]
        for base in [base for base in self._sums if base < base_offset]:
            del self._sums[base]
        self.unusable_files = frozenset(base for base in self.unusable_files if base >= base_offset)

    def replace(self, start: Offset, end: Offset, removed: Collection[Offset], rows: RowsSum) -> None:
        """Adapt to a cleaned segment from `start` to `end`, which lacks the markers `removed`."""
        first, stop = bisect_left(self._lasts, start), bisect_left(self._lasts, end)
        kept = [entry for entry in self.entries(first, stop) if entry.last_offset not in removed]
        assert len(kept) == rows.row_count, "the cleaner wrote the rows that stay"
        if len(kept) < stop - first:
            for number, column in enumerate((self._producer_ids, self._firsts, self._lasts, self._stables)):
                column[first:stop] = array("q", [entry[number] for entry in kept])
        before = {base: self._sums.pop(base) for base in list(self._sums) if start <= base < end}
        if rows.row_count:
            self._sums[start] = rows
        if before != ({start: rows} if rows.row_count else {}):
            self.has_stored_sums = False
        self.unusable_files = frozenset(base for base in self.unusable_files if not start <= base < end)

    # Durability

    def plan(self, segments: Sequence[tuple[Offset, Offset, str]]) -> list[AbortedRows]:
        """Rows that are not on disk, by segment: base offset, end offset and path of its file."""
        planned = []
        for base, end, path in segments:
            if base in self.unusable_files or end <= self.stored_end or base not in self._sums:
                continue
            first = bisect_left(self._lasts, base)
            new = max(first, bisect_left(self._lasts, self.stored_end))
            entries = tuple(self.entries(new, bisect_left(self._lasts, end)))
            if entries:
                planned.append(AbortedRows(path, (new - first) * ROW_BYTES, entries))
        return planned

    def plan_rebuilt(self, segments: Sequence[tuple[Offset, Offset, str]]) -> list[AbortedRows]:
        """All rows of the segments whose files are replaced as a whole."""
        return [
            AbortedRows(path, 0, tuple(self.between(base, end)))
            for base, end, path in segments
            if base in self.unusable_files
        ]

    def sums_to_bytes(self) -> bytes:
        return render_rows(
            f"{base} {rows.row_count} {rows.checksum}" for base, rows in sorted(self._sums.items())
        )

    def rows_stored(self, end: Offset) -> None:
        """Record that a checkpoint up to `end` is on disk."""
        self.stored_end = max(self.stored_end, end)
        self.unusable_files = frozenset()

    def checkpoint_abandoned(self) -> None:
        """Record that the checkpoint file was not written."""
        self.has_stored_sums = self.has_stored_sums and not self._sums
