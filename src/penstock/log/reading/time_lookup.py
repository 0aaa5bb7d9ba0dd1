"""Lookup of an offset by timestamp, with bounded work.

Timestamps need not ascend. So the result for a timestamp is the first record, in offset order, whose
timestamp is equal or later; the newest record is the earliest of those with the largest timestamp. Segments
are selected by the last entry of their time index, batches by their indexes and headers, and usually one
batch is decompressed.

The largest timestamp in a header is a claim of the producer: batches are stored without being decompressed. A
header that claims more than its records hold makes a lookup decompress a batch in vain, so each lookup has
limits (`LookupLimits`). Beyond them the header counts for its batch: the result is then the first offset of
the batch. No record before it is as new as requested, so a consumer that begins there reads too much and
misses nothing. Correct headers never come near the limits.

Rule 1: a lookup runs in a worker thread in steps, so that other lookups run in between. A step ends when a
        batch was decompressed, or a number of headers was read; no file is open between steps.
Rule 2: `yield_gil` is called every few hundred records. It lets the event loop run, and raises when the
        client no longer waits for the result.
Rule 3: batches without records claim nothing: compaction writes them in the position of removed records, with
        the largest timestamp of those.
Rule 4: every header continues the offsets of the header before it. Compaction may replace a segment between
        two steps, and at the position where the next step begins the new file has another batch.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Final, NamedTuple

from penstock.errors import CorruptData
from penstock.host.disk import File
from penstock.limits import (
    LOOKUP_EXPANDED_BYTES_MAX,
    LOOKUP_HEADERS_PER_STEP,
    LOOKUP_RECORDS_MAX,
    LOOKUP_RECORDS_PER_CHUNK,
)
from penstock.log.reading.cold_reading import (
    Indexes,
    LoadedIndexes,
    SegmentView,
    find_batch,
    header_at,
    validate_stored_batch,
    wrong_offset_error,
)
from penstock.log.segment import Segment
from penstock.protocol.batches import BatchHeader
from penstock.protocol.records import timed_records
from penstock.types import NO_TIMESTAMP, Offset


class LookupLimits(NamedTuple):
    """Work of a lookup before other code gets to run, and in total."""

    headers_per_step: int = LOOKUP_HEADERS_PER_STEP
    records_per_chunk: int = LOOKUP_RECORDS_PER_CHUNK
    records_max: int = LOOKUP_RECORDS_MAX
    """Records of all batches that one lookup may decompress."""
    expanded_bytes_max: int = LOOKUP_EXPANDED_BYTES_MAX
    """Size of these batches when they are decompressed."""


LOOKUP_LIMITS: Final = LookupLimits()


class TimedOffset(NamedTuple):
    offset: Offset
    timestamp: int


class TimedSegment(NamedTuple):
    view: SegmentView
    segment: Segment
    """Used only for its newest timestamp, which may have to be read from disk."""

    @property
    def newest_timestamp(self) -> int:
        return self.segment.newest_timestamp


class TimeLookup(NamedTuple):
    """Range of a lookup: the records from `start_offset` up to `end_offset`."""

    segments: Sequence[TimedSegment]
    start_offset: Offset
    end_offset: Offset


class LookupStep(NamedTuple):
    """Outcome of one step of a lookup."""

    is_done: bool
    found: TimedOffset | None
    """The result, if the lookup is done; None: no record is as new."""
    loaded: Sequence[LoadedIndexes]


class _Place(NamedTuple):
    """Position of a batch in its segment."""

    position: int
    offset: Offset | None = None
    """Its base offset; None: `find_batch` has just checked it."""


class _Claim(NamedTuple):
    """A batch, with the largest timestamp that its header claims."""

    position: int
    header: BatchHeader

    @property
    def next_place(self) -> _Place:
        return _Place(self.position + self.header.size, self.header.next_offset)


_Steps = Generator[None, None, TimedOffset | None]


class TimeSearch:
    """One lookup in progress. Made on the event loop; a worker thread runs each step."""

    def __init__(
        self,
        lookup: TimeLookup,
        timestamp: int | None,
        yield_gil: Callable[[], None],
        limits: LookupLimits = LOOKUP_LIMITS,
    ) -> None:
        """`timestamp`: None searches for the newest record."""
        self.segments: Sequence[SegmentView] = [segment.view for segment in lookup.segments]
        self._lookup = lookup
        self._give_way = yield_gil
        self._limits = limits
        self._records_left, self._bytes_left = limits.records_max, limits.expanded_bytes_max
        self._steps = self._newest() if timestamp is None else self._first_at_or_after(timestamp)
        self._file: File | None = None
        self._headers_left = 0
        self._current: LoadedIndexes | None = None
        """Indexes of the current segment."""
        self._loaded: list[LoadedIndexes] = []
        """Indexes that were loaded in this step."""

    def run(self) -> LookupStep:
        """Run one step. Blocks. Raises CorruptData if a batch that was read is damaged."""
        self._headers_left = self._limits.headers_per_step
        try:
            next(self._steps)
        except StopIteration as end:
            return LookupStep(True, end.value, self._taken())
        finally:
            self._close()
        return LookupStep(False, None, self._taken())

    def _taken(self) -> list[LoadedIndexes]:
        loaded, self._loaded = self._loaded, []
        return loaded

    # The first record that is as new

    def _first_at_or_after(self, timestamp: int) -> _Steps:
        for segment in self._lookup.segments:
            if segment.newest_timestamp >= timestamp:
                found = yield from self._first_in_segment(segment.view, timestamp)
                if found is not None:
                    return found if found.offset < self._lookup.end_offset else None
            yield from self._count_header()
        return None

    def _first_in_segment(self, view: SegmentView, timestamp: int) -> _Steps:
        place = _Place(self._first_position(view, timestamp))
        while True:
            claim = yield from self._next_claim(view, place, timestamp)
            if claim is None:
                return None
            for timed in self._records(view, claim):
                if timed.timestamp >= timestamp:
                    return timed
            place = claim.next_place
            yield

    def _first_position(self, view: SegmentView, timestamp: int) -> int:
        """Position before which no batch is as new."""
        indexes = self._indexes(view)
        first = Offset(indexes.by_time.offset_before(timestamp) + 1)
        brought_by = indexes.by_time.offset_at_or_after(timestamp)
        if brought_by is not None:
            # Both indexes get their entries at the same batches. The time index has no entry as new before
            # this one, so the batches before the last entry of the offset index are older.
            first = max(first, indexes.by_offset.last_offset_before(brought_by))
        first = max(first, self._lookup.start_offset)
        return find_batch(self._open_file(view), indexes.by_offset, first, view.size_bytes)

    # The newest record

    def _newest(self) -> _Steps:
        best: TimedOffset | None = None
        ranked = yield from self._ranked()
        for newest, view in ranked:
            if best is not None and newest < best.timestamp:
                break
            is_no_better = best is not None and newest == best.timestamp and view.base_offset > best.offset
            if is_no_better:
                continue
            found = yield from self._newest_in_segment(view, newest)
            if found is not None and (best is None or _is_better(found, best)):
                best = found
        return best

    def _ranked(self) -> Generator[None, None, list[tuple[int, SegmentView]]]:
        """Segments with the newest timestamp of their time index, the largest first."""
        ranked = []
        for segment in self._lookup.segments:
            ranked.append((segment.newest_timestamp, segment.view))
            yield from self._count_header()
        ranked.sort(key=lambda entry: (-entry[0], entry[1].base_offset))
        return ranked

    def _newest_in_segment(self, view: SegmentView, newest: int) -> _Steps:
        start = self._lookup.start_offset
        first = _Place(
            find_batch(self._open_file(view), self._indexes(view).by_offset, start, view.size_bytes)
        )
        best: TimedOffset | None = None
        if view.base_offset < start and first.position < view.size_bytes:
            # Only some records of the batch that holds the log start count, so its header alone does not
            # decide.
            claim = _Claim(first.position, self._header(view, first.position))
            if claim.header.base_offset < start:
                if claim.header.record_count:
                    best = self._newest_of(view, claim)
                first = claim.next_place
                yield
        claimed = yield from self._largest_claim(view, first, newest)
        if claimed is not None and (best is None or claimed.header.max_timestamp > best.timestamp):
            found = self._newest_of(view, claimed)
            yield
            if found is not None and (best is None or found.timestamp > best.timestamp):
                best = found
        return best

    def _largest_claim(
        self, view: SegmentView, first: _Place, newest: int
    ) -> Generator[None, None, _Claim | None]:
        """First batch from `first` on with the largest claimed timestamp of all in range."""
        indexes, end = self._indexes(view), self._lookup.end_offset
        brought_by, last_indexed = (
            indexes.by_time.newest_before(end),
            indexes.by_offset.last_offset_before(end),
        )
        if brought_by is not None:
            file = self._open_file(view)
            position = find_batch(file, indexes.by_offset, brought_by, view.size_bytes)
            if position >= first.position:
                best = _Claim(position, self._header(view, position))
                # Batches behind the last entry of both indexes are in neither.
                behind = _Place(
                    find_batch(file, indexes.by_offset, max(last_indexed, brought_by), view.size_bytes)
                )
                later = yield from self._largest_of(view, behind, newest)
                if later is not None and later.header.max_timestamp > best.header.max_timestamp:
                    best = later
                if best.header.record_count:
                    return best
        return (yield from self._largest_of(view, first, newest))

    def _largest_of(
        self, view: SegmentView, place: _Place, newest: int
    ) -> Generator[None, None, _Claim | None]:
        """The same by reading every header. None of them claims more than `newest`."""
        best: _Claim | None = None
        while best is None or best.header.max_timestamp < newest:
            least = NO_TIMESTAMP if best is None else best.header.max_timestamp + 1
            claim = yield from self._next_claim(view, place, least)
            if claim is None:
                break
            best, place = claim, claim.next_place
            yield from self._count_header()
        return best

    def _newest_of(self, view: SegmentView, claim: _Claim) -> TimedOffset | None:
        best: TimedOffset | None = None
        for timed in self._records(view, claim):
            if best is None or timed.timestamp > best.timestamp:
                best = timed
        return best

    # Headers

    def _next_claim(
        self, view: SegmentView, place: _Place, timestamp: int
    ) -> Generator[None, None, _Claim | None]:
        """Next batch with records whose header claims a timestamp as new as this."""
        position, expected = place
        while position < view.size_bytes:
            header = self._header(view, position, expected)
            if header.base_offset >= self._lookup.end_offset:
                return None
            if header.record_count and header.max_timestamp >= timestamp:
                return _Claim(position, header)
            position, expected = position + header.size, header.next_offset
            yield from self._count_header()
        return None

    def _count_header(self) -> Generator[None, None, None]:
        """Count one header, or one segment, that was read; end the step at the limit."""
        self._headers_left -= 1
        if self._headers_left <= 0:
            yield

    def _header(self, view: SegmentView, position: int, expected: Offset | None = None) -> BatchHeader:
        """Read a header. CorruptData: the batch there does not begin at the expected offset (rule 4)."""
        header = header_at(self._open_file(view), position)
        if expected is not None and header.base_offset != expected:
            raise wrong_offset_error(f"{view.log_path} at {position}", header, expected)
        return header

    # Records

    def _records(self, view: SegmentView, claim: _Claim) -> Generator[TimedOffset, None, None]:
        """Records of a batch that are within the log: its first ones may have been deleted.

        Some batches cannot be decompressed, or not within the limits. Their producer sent them so; this is
        not damage. The header then counts for the batch.
        """
        header, start = claim.header, self._lookup.start_offset
        by_header = TimedOffset(max(header.base_offset, start), header.max_timestamp)
        batch = self._batch(view, claim)
        # The checksum is valid here (`_batch`), so an error from here on is what the producer sent.
        if header.record_count > self._records_left:
            yield by_header
            return
        self._records_left -= header.record_count
        try:
            size_bytes, timed = timed_records(batch, limit_bytes=self._bytes_left)
            self._bytes_left -= size_bytes
            for number, (offset, timestamp) in enumerate(timed, 1):
                if offset >= start:
                    yield TimedOffset(offset, timestamp)
                if number % self._limits.records_per_chunk == 0:
                    self._give_way()
        except CorruptData:
            yield by_header

    def _batch(self, view: SegmentView, claim: _Claim) -> bytes:
        position, header = claim
        batch = self._open_file(view).read(position, header.size)
        if len(batch) < header.size:
            raise CorruptData(f"{view.log_path} ends inside the batch at {position}")
        validate_stored_batch(batch, header, 0, f"{view.log_path} at {position}")
        return batch

    # Files

    def _open_file(self, view: SegmentView) -> File:
        if self._file is None or self._file.path != view.log_path:
            self._close()
            self._file = view.disk.open(view.log_path)
        return self._file

    def _close(self) -> None:
        if self._file is not None:
            self._file.release()
            self._file = None

    def _indexes(self, view: SegmentView) -> Indexes:
        if self._current is None or self._current.segment is not view:
            self._current = LoadedIndexes(view, view.load_indexes(self._open_file(view)))
            self._loaded.append(self._current)
        return self._current.indexes


def look_up(lookup: TimeLookup, timestamp: int | None) -> TimedOffset | None:
    """Run a whole lookup at once, for callers outside the event loop. Waits for the device."""
    search = TimeSearch(lookup, timestamp, yield_gil=lambda: None)
    while not (step := search.run()).is_done:
        pass
    return step.found


def _is_better(found: TimedOffset, best: TimedOffset) -> bool:
    return (found.timestamp, -found.offset) > (best.timestamp, -best.offset)
