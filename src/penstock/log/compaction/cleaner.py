"""One cleaning of one log: reads segments, writes cleaned ones beside them, and changes nothing else.

A cleaning runs in steps, one for each group of segments that becomes one segment. The caller swaps in the
result of a step before the next one begins, so a cleaning needs disk space for one group: `segment.bytes`, or
the largest segment where that is larger, and its indexes. (A batch that gets a delete horizon may grow, by at
most ten bytes for each record.)

Two passes. The first reads the dirty part and notes for every offset whether its record is the last of its
key. The second reads all segments from the start of the log: dirty batches are filtered by these notes,
mostly without being decompressed; clean ones by a lookup of their keys.

Every cleaned segment covers exactly the offsets of those it replaces. Where whole batches are removed, one
batch without records covers the gap (61 bytes). The checksum of a batch does not cover its offset: only that
each batch begins where the one before ends proves its position, here as everywhere.

Rule 1: the job limits the memory. When it is used up, the cleaning covers the part that was read so far, and
        the result contains the end of that part.
Rule 2: damage ends the cleaning. The segments of the log are only read; the caller removes the written files.
Rule 3: a batch that is not damaged and cannot be decompressed was written so, while the topic was not
        compacted. It stays whole, is counted, and does not affect other records.
Rule 4: a segment is reported as cleaned only after it is on disk, under a name that ends in `.cleaned`.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.errors import ConfigError, CorruptData
from penstock.host.disk import Disk, File, opened
from penstock.limits import (
    CLEANER_NOTES_SHARE,
    CLEANER_READ_BYTES,
    CLEANER_SYNC_BYTES,
    CLEANER_WRITE_BYTES,
)
from penstock.log.compaction.batch_filter import (
    DeleteHorizons,
    Gap,
    emptied,
    gap_batch,
    gap_of,
    horizon_of,
    is_gap,
    keeps_tombstones,
    marker_with_horizon,
    payload_of,
    rewritten,
    spans_of,
)
from penstock.log.compaction.cleanable import SegmentToClean, group_segments
from penstock.log.compaction.cleaned_transactions import CleanedTransactions
from penstock.log.compaction.cleaning_job import (
    CLEANED_SUFFIX,
    CleanedRows,
    CleaningJob,
    CleaningResult,
    CleaningStep,
    Replacement,
)
from penstock.log.compaction.key_map import KeyMap
from penstock.log.compaction.record_spans import NO_KEY, RecordSpan
from penstock.log.reading.stored_batches import stored_batches
from penstock.log.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SUFFIXES,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
    segment_name,
)
from penstock.protocol.batches import BatchHeader, parse_header
from penstock.protocol.control_batches import read_marker
from penstock.types import Buffer, Offset

IoThrottle = Callable[[int], None]
"""Called with the number of bytes after every read or write; may wait."""

OBSOLETE, LAST, LAST_TOMBSTONE, UNREADABLE = 0, 1, 2, 3
"""Notes for an offset of the dirty part."""


def no_throttle(_: int) -> None:
    return None


def clean(disk: Disk, job: CleaningJob, throttle: IoThrottle = no_throttle) -> Iterator[CleaningStep]:
    """Run a cleaning. Each step blocks for long. CorruptData: the data on disk is not what was written.

    Steps follow the order of the log, so that a tombstone is never removed before the records that it
    deletes. Unchanged segments make no step.
    """
    transactions = CleanedTransactions(job.aborted, job.epochs_at)
    dirty_scan = _scan_dirty(disk, job, transactions, throttle)
    groups = group_segments(job.segments, dirty_scan.end_offset, job.limits)
    cleaning = _Cleaning(disk, job, dirty_scan, transactions, throttle)
    for group in groups:
        if (made := cleaning.rewrite(group)) is not None:
            yield made
    yield CleaningResult(
        end_offset=dirty_scan.end_offset,
        keys=dirty_scan.last_offsets.count,
        bytes_before=sum(segment.size_bytes for group in groups for segment in group),
        bytes_after=cleaning.bytes_after,
        records_removed=cleaning.records_removed,
        keyless_removed=cleaning.keyless_removed + dirty_scan.keyless,
        unopened=cleaning.unopened,
        first_unopened=cleaning.first_unopened,
    )


# First pass: the dirty part


class _DirtyScan(NamedTuple):
    """Result of the first pass."""

    last_offsets: KeyMap
    notes: bytearray
    """One for each offset from the first dirty one."""
    end_offset: Offset
    keyless: int


def _scan_dirty(
    disk: Disk, job: CleaningJob, transactions: CleanedTransactions, throttle: IoThrottle
) -> _DirtyScan:
    origin, end = job.first_dirty_offset, job.segments[-1].end_offset
    notes_max = max(job.memory_bytes // CLEANER_NOTES_SHARE, 1)
    span = min(end - origin, notes_max)
    keys = KeyMap(memory_bytes=job.memory_bytes - notes_max, keys_max=span)
    notes = bytearray(span)
    keyless = 0
    for segment in job.segments:
        if segment.end_offset <= origin:
            continue
        for header, batch in _batches(disk, job.folder, segment, throttle):
            if header.base_offset < origin or header.is_control or transactions.is_aborted(header):
                continue
            if header.record_count == 0:
                if header.next_offset - origin > len(notes):  # a gap longer than the notes
                    return _DirtyScan(keys, notes, header.next_offset, keyless)
                continue
            if header.next_offset - origin > len(notes) or header.record_count > keys.room:
                # Even the first batch does not fit: a shorter scan would make no progress.
                if header.base_offset <= origin:
                    raise ConfigError(
                        f"log.cleaner.dedupe.buffer.size = {job.memory_bytes} is too small "
                        f"for the batch at offset {header.base_offset}"
                    )
                return _DirtyScan(keys, notes, header.base_offset, keyless)
            try:
                keyless += _note(keys, notes, origin, header, payload_of(batch, header), job.horizons)
            except CorruptData:
                first, count = header.base_offset - origin, header.last_offset_delta + 1
                notes[first : first + count] = bytes((UNREADABLE,)) * count
    return _DirtyScan(keys, notes, end, keyless)


def _note(
    keys: KeyMap,
    notes: bytearray,
    origin: Offset,
    header: BatchHeader,
    payload: bytes,
    horizons: DeleteHorizons,
) -> int:
    """Note which records of a batch are the last of their keys so far. Returns how many have no key.

    Raises CorruptData with nothing noted.
    """
    put = keys.put
    base = header.base_offset
    tombstone = LAST_TOMBSTONE if keeps_tombstones(header, horizons) else OBSOLETE
    keyless = 0
    for _, delta, key_start, key_end, is_tombstone, _ in spans_of(payload, header):
        if key_start == NO_KEY:
            keyless += 1
            continue
        offset = base + delta
        before = put(payload[key_start:key_end], Offset(offset))
        if before >= 0:
            notes[before - origin] = OBSOLETE
        notes[offset - origin] = tombstone if is_tombstone else LAST
    return keyless


# Second pass: writing the records that stay


class _Cleaning:
    """Second pass over the groups of segments."""

    def __init__(
        self,
        disk: Disk,
        job: CleaningJob,
        dirty_scan: _DirtyScan,
        transactions: CleanedTransactions,
        throttle: IoThrottle,
    ) -> None:
        self._disk = disk
        self._job = job
        self._dirty_scan = dirty_scan
        self._transactions = transactions
        self._throttle = throttle
        self._horizons = job.horizons
        self._sequences_at = frozenset(job.sequences_at)
        self.bytes_after = 0
        self.records_removed = 0
        self.keyless_removed = 0
        self.unopened = 0
        self.first_unopened: Offset | None = None

    def rewrite(self, group: list[SegmentToClean]) -> Replacement | None:
        """Write the cleaned segment of a group. None if nothing changes: the segment stays as it is."""
        cleaned = _CleanedSegment(self._disk, self._job, group[0].base_offset, self._throttle)
        try:
            for segment in group:
                for header, batch in _batches(self._disk, self._job.folder, segment, self._throttle):
                    kept_before = cleaned.batches
                    self._filter(header, batch, cleaned)
                    if cleaned.batches > kept_before:
                        self._transactions.kept(header)
            cleaned.end()
            rows = self._transactions.rows_between(group[0].base_offset, group[-1].end_offset)
            if cleaned.has_changes or len(group) > 1:
                cleaned.make_durable(rows)
        finally:
            cleaned.close()
        self.bytes_after += cleaned.size_bytes
        if not cleaned.has_changes and len(group) == 1:
            cleaned.remove()
            return None
        aborted = None if rows is None else rows[0]
        return Replacement(group[0].base_offset, group[-1].end_offset, cleaned.size_bytes, aborted)

    def _filter(self, header: BatchHeader, batch: memoryview, cleaned: "_CleanedSegment") -> None:
        # Past the scanned part there are no notes; the next cleaning covers it.
        if header.base_offset >= self._dirty_scan.end_offset:
            cleaned.copy(header, batch)
        elif header.is_control:
            self._filter_control(header, batch, cleaned)
        elif header.record_count == 0:
            if is_gap(header):
                cleaned.add_gap(gap_of(header), is_new=False)
            elif header.last_offset in self._sequences_at:
                cleaned.copy(header, batch)
            else:
                cleaned.add_gap(gap_of(header), is_new=True)
        elif self._transactions.is_aborted(header):
            self._remove_batch(header, cleaned)
        else:
            try:
                if header.base_offset >= self._job.first_dirty_offset:
                    self._filter_dirty(header, batch, cleaned)
                else:
                    payload = payload_of(batch, header)
                    self._write_kept(header, batch, payload, self._kept_by_key(header, payload), cleaned)
            except CorruptData:  # its checksum is valid, and no part of it was written yet
                self._copy_unreadable(header, batch, cleaned)

    def _filter_control(self, header: BatchHeader, batch: memoryview, cleaned: "_CleanedSegment") -> None:
        """Keep a marker while its transaction has batches, and then until its delete horizon."""
        is_marker = read_marker(batch, header) is not None
        if not is_marker or not self._transactions.ends_without_batches(header):
            cleaned.copy(header, batch)
        elif horizon_of(header) is None:
            dated = marker_with_horizon(header, payload_of(batch, header), self._horizons)
            if dated is None:
                cleaned.copy(header, batch)
            else:
                cleaned.write(dated)
        elif keeps_tombstones(header, self._horizons) or self._transactions.fences(header):
            cleaned.copy(header, batch)
        else:
            self._transactions.removed(header)
            cleaned.add_gap(gap_of(header), is_new=True)

    def _copy_unreadable(self, header: BatchHeader, batch: memoryview, cleaned: "_CleanedSegment") -> None:
        self.unopened += 1
        if self.first_unopened is None:
            self.first_unopened = header.base_offset
        cleaned.copy(header, batch)

    def _filter_dirty(self, header: BatchHeader, batch: memoryview, cleaned: "_CleanedSegment") -> None:
        """Filter a batch by the notes. Decompressed only if records are removed or a horizon is set."""
        first = header.base_offset - self._job.first_dirty_offset
        notes = self._dirty_scan.notes[first : first + header.last_offset_delta + 1]
        kept_count = len(notes) - notes.count(OBSOLETE)
        needs_horizon = horizon_of(header) is None and notes.count(LAST_TOMBSTONE) > 0
        if notes[0] == UNREADABLE:
            self._copy_unreadable(header, batch, cleaned)
        elif kept_count == header.record_count and not needs_horizon:
            cleaned.copy(header, batch)
        elif kept_count == 0:
            self._remove_batch(header, cleaned)
        else:
            payload = payload_of(batch, header)
            kept = [span for span in spans_of(payload, header) if notes[span[1]]]
            self._write_kept(header, batch, payload, kept, cleaned)

    def _kept_by_key(self, header: BatchHeader, payload: bytes) -> list[RecordSpan]:
        """Records to keep of a batch before the dirty part: a key in the map has a newer record there."""
        find = self._dirty_scan.last_offsets.find
        with_tombstones = keeps_tombstones(header, self._horizons)
        kept = []
        for span in spans_of(payload, header):
            _, _, key_start, key_end, is_tombstone, _ = span
            if key_start == NO_KEY:
                self.keyless_removed += 1
            elif (with_tombstones or not is_tombstone) and find(payload[key_start:key_end]) < 0:
                kept.append(span)
        return kept

    def _write_kept(
        self,
        header: BatchHeader,
        batch: memoryview,
        payload: bytes,
        kept: list[RecordSpan],
        cleaned: "_CleanedSegment",
    ) -> None:
        needs_horizon = horizon_of(header) is None and any(span[4] for span in kept)
        if len(kept) == header.record_count and not needs_horizon:
            cleaned.copy(header, batch)
        elif kept:
            batch_left = rewritten(header, payload, kept, self._horizons)
            self.records_removed += header.record_count - len(kept)
            cleaned.write(batch_left)
        else:
            self._remove_batch(header, cleaned)

    def _remove_batch(self, header: BatchHeader, cleaned: "_CleanedSegment") -> None:
        self.records_removed += header.record_count
        if header.last_offset in self._sequences_at:
            cleaned.write(emptied(header))
        else:
            cleaned.add_gap(gap_of(header), is_new=True)


class _CleanedSegment:
    """Files of one cleaned segment while they are written."""

    def __init__(self, disk: Disk, job: CleaningJob, base_offset: Offset, throttle: IoThrottle) -> None:
        self._disk = disk
        self._interval_bytes = job.limits.index_interval_bytes
        self._throttle = throttle
        self._segment = Segment(disk, job.folder, base_offset)
        """Only its indexes are used: the files have other names."""
        self._files: list[File] = []
        self._log = self._create(LOG_SUFFIX)
        self._buffered = bytearray()
        """Copies: a view of a few bytes would keep the whole chunk that was read with them."""
        self._written = self._synced = 0
        self._gap: Gap | None = None
        self.batches = 0
        """Number of batches that stay, without those that cover gaps."""
        self.has_changes = False

    @property
    def size_bytes(self) -> int:
        return self._segment.size_bytes

    def _create(self, suffix: str) -> File:
        path = self._segment.path(suffix) + CLEANED_SUFFIX
        self._disk.remove(path)
        file = self._disk.open(path, create=True)
        self._files.append(file)
        return file

    def copy(self, header: BatchHeader, batch: memoryview) -> None:
        self.batches += 1
        self._end_gap()
        self._add(header, batch)

    def write(self, batch: bytes) -> None:
        self.has_changes = True
        self.batches += 1
        self._end_gap()
        self._add(parse_header(batch), batch)

    def add_gap(self, gap: Gap, *, is_new: bool) -> None:
        self.has_changes = self.has_changes or is_new or self._gap is not None
        self._gap = gap if self._gap is None else self._gap.merged(gap)

    def _end_gap(self) -> None:
        if self._gap is not None:
            batch = gap_batch(self._gap)
            self._gap = None
            self._add(parse_header(batch), batch)

    def _add(self, header: BatchHeader, batch: Buffer) -> None:
        self._segment.note(header, header.base_offset, header.size, self._interval_bytes)
        self._buffered += batch
        if len(self._buffered) >= CLEANER_WRITE_BYTES:
            self._write_buffered()

    def _write_buffered(self) -> None:
        self._log.write(self._written, self._buffered)
        self._throttle(len(self._buffered))
        self._written += len(self._buffered)
        self._buffered.clear()
        if self._written - self._synced >= CLEANER_SYNC_BYTES:
            # Periodic syncs, so that the last one does not fill the device's queue for seconds.
            self._disk.sync([self._log], ())
            self._synced = self._written

    def end(self) -> None:
        self._end_gap()
        if self._buffered:
            self._write_buffered()

    def make_durable(self, rows: tuple[CleanedRows, bytes] | None) -> None:
        self._segment.seal()
        self._create(INDEX_SUFFIX).write(0, self._segment.index.to_bytes())
        self._create(TIME_INDEX_SUFFIX).write(0, self._segment.time_index.to_bytes())
        if rows is not None:
            index = self._create(TXN_INDEX_SUFFIX)
            if rows[1]:
                index.write(0, rows[1])
        self._disk.sync(self._files, ())

    def close(self) -> None:
        for file in self._files:
            file.release()

    def remove(self) -> None:
        for suffix in SUFFIXES:
            self._disk.remove(self._segment.path(suffix) + CLEANED_SUFFIX)


# Reading


def _batches(
    disk: Disk, folder: str, segment: SegmentToClean, throttle: IoThrottle
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the batches of a segment, each validated for position and checksum."""
    path = f"{folder}/{segment_name(segment.base_offset)}{LOG_SUFFIX}"
    end_offset = segment.base_offset
    with opened(disk, path) as file:
        for header, batch in stored_batches(
            file, 0, segment.size_bytes, end_offset, chunk_bytes=CLEANER_READ_BYTES, on_read=throttle
        ):
            yield header, batch
            end_offset = header.next_offset
    if end_offset != segment.end_offset:
        raise CorruptData(f"{path} ends at offset {end_offset}, not at {segment.end_offset}")
