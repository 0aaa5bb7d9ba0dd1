"""Log of one partition: append, read, truncate, roll, delete segments.

A list of segments; the last one is active. Two positions matter beside log start and log end:

    flushed end       everything below is on disk
    recovery point    everything below is on disk, indexed on disk, and in a producer snapshot;
                      a start after a crash scans only what lies above it

Rule 1: one owner. Appends, rolls and truncations run on the event loop; worker threads get only values made
        for them (`Flush`, `Checkpoint`, `ColdRead`).
Rule 2: a batch is in the log whole or not at all. A part that a full disk leaves is truncated.
Rule 3: nothing here waits for the device. `begin_flush` and `begin_checkpoint` return what must become
        durable; `end_flush` and `end_checkpoint` record that it is.

Files, in Kafka's layout, in a folder named topic-partition:
    00000000000000000000.log .index .timeindex    a segment, named by its first offset
    00000000000000000000.txnindex                 its aborted transactions, if it has markers of any
    00000000000000000042.snapshot                 producers as of offset 42, the recovery point
    leader-epoch-checkpoint, log-start-checkpoint, aborted-index-checkpoint, partition.metadata
    cleaner-offset-checkpoint                     how far a compacted log is clean
"""

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from penstock.errors import StorageFull
from penstock.host.disk import Disk, File, SmallFile, TooManyOpenFiles
from penstock.limits import SEGMENT_OFFSETS_MAX
from penstock.log import leader_epochs as epoch_file
from penstock.log.checkpoint_file import render_rows
from penstock.log.checkpoint_plan import Checkpoint, plan_indexes
from penstock.log.file_uses import FileUse, FileUses
from penstock.log.leader_epochs import LeaderEpochs
from penstock.log.partition_folder import PartitionFolder
from penstock.log.producer_state import Producers
from penstock.log.reading.cold_reading import BatchesRead, ColdRead, LoadedIndexes, SegmentView
from penstock.log.reading.warm_reading import WarmReads
from penstock.log.retention import SegmentFacts
from penstock.log.segment import Segment, segment_name
from penstock.log.shared_resources import SharedLogResources
from penstock.log.transactions.aborted_index import CHECKPOINT_NAME
from penstock.log.transactions.log_transactions import LogTransactions
from penstock.protocol.batches import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader, stamp_in_place
from penstock.protocol.control_batches import EndTransactionMarker, read_marker
from penstock.types import LeaderEpoch, Offset

SNAPSHOT_SUFFIX = ".snapshot"
LOG_START_FILE = "log-start-checkpoint"
METADATA_FILE = "partition.metadata"
_TRANSACTIONAL_OR_CONTROL = TRANSACTIONAL_BIT | CONTROL_BIT
SNAPSHOTS_KEPT = 2
"""One more than recovery needs: a truncation below the newest snapshot starts from the one before."""


class LogSettings(NamedTuple):
    """Settings of the topic that its logs use."""

    segment_bytes: int
    segment_ms: int
    index_interval_bytes: int
    index_bytes_max: int


class Flush(NamedTuple):
    """Files and folders to sync so that everything below `end_offset` is on disk."""

    files: Sequence[File]
    folders: Sequence[str]
    end_offset: Offset
    appended_bytes: int
    new_partition_files: int
    """Number of the files that are not segment files."""
    truncation_count: int
    """Truncations so far. A sync that began before a truncation proves nothing about the log after it."""


class PartitionLog:
    def __init__(self, disk: Disk, folder: str, settings: LogSettings) -> None:
        self.disk = disk
        self.folder = folder
        self.settings = settings
        self.segments: list[Segment] = [Segment(disk, folder, Offset(0))]
        self.producers = Producers()
        self.transactions = LogTransactions()
        self.epochs = LeaderEpochs()
        self.log_start_offset = Offset(0)
        self.log_end_offset = Offset(0)
        self.stored_start = Offset(0)
        """Offset in the start file on disk: after a crash the log begins there, or later."""
        self.flushed_end_offset = Offset(0)
        self.recovery_point = Offset(0)
        self.bytes_since_checkpoint = 0
        self.appended_bytes = 0
        """Bytes appended by this process; `flushed_bytes` of them are on disk."""
        self.flushed_bytes = 0
        self.clean_to: Offset | None = None
        """First dirty offset of a compacted log; None: no part is known to be clean."""
        self.snapshots: list[Offset] = []
        """Ascending offsets of the producer snapshots on disk; the last is the recovery point."""
        self.shared: SharedLogResources | None = None
        self.partition_folder = PartitionFolder(disk, folder)
        self.file_uses = FileUses()
        self.truncation_count = 0
        """Number of truncations of the end of the log."""
        self._generation = 0
        """Number of times that segments were replaced or truncated since the log was opened."""
        self._dirty: list[Segment] = []
        self._rebuilt: dict[Segment, None] = {}
        """Sealed segments whose indexes were rebuilt and are not on disk yet."""
        self._warm = WarmReads()

    # Positions

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def is_dirty(self) -> bool:
        return bool(self._dirty) or self.partition_folder.is_dirty

    def segment_holding(self, offset: Offset) -> Segment:
        found = bisect_right(self.segments, offset, key=lambda segment: segment.base_offset) - 1
        return self.segments[max(found, 0)]

    # Appending

    def append(self, batch: bytearray | memoryview, header: BatchHeader, leader_epoch: LeaderEpoch) -> Offset:
        """Write one valid batch at the end and return its first offset. Writes into `batch`."""
        segment = self.segments[-1]
        attributes, size = header.attributes, len(batch)
        # Before the write: a control batch that cannot be read is not a part of the log.
        marker = read_marker(batch, header) if attributes & CONTROL_BIT else None
        if self._must_roll(segment, header, size):
            self.roll()
            segment = self.segments[-1]
        base_offset = self.log_end_offset
        stamp_in_place(batch, base_offset, leader_epoch)
        position = segment.size_bytes
        try:
            self.partition_folder.require()
            segment.append(batch, header, base_offset, self.settings.index_interval_bytes)
        except StorageFull:
            if segment.is_open:
                # Rule 2. After a crash recovery would truncate this part too, so only `roll` must sync this.
                segment.file.truncate(position)
                segment.has_unsynced_truncation = not segment.dirty
            if not self._dirty:
                self.partition_folder.undo()
            raise
        if position == 0 or not segment.dirty:
            self.mark_dirty(segment, is_new=position == 0)
        self.log_end_offset = Offset(base_offset + header.last_offset_delta + 1)
        self.bytes_since_checkpoint += size
        self.appended_bytes += size
        self._warm.remember(base_offset, segment, position)
        if header.producer_id >= 0:
            if attributes & _TRANSACTIONAL_OR_CONTROL:
                base = segment.base_offset
                self.transactions.replay(self.producers, header, base_offset, marker, base)
            else:
                self.producers.replay(header, base_offset)
        if leader_epoch > self.epochs.latest:
            self.epochs.assign(leader_epoch, base_offset)
        return base_offset

    def _must_roll(self, segment: Segment, header: BatchHeader, size: int) -> bool:
        settings = self.settings
        first = segment.first_timestamp
        if first is None:
            return False  # the segment is empty
        return (
            segment.size_bytes + size > settings.segment_bytes
            or header.max_timestamp - first > settings.segment_ms
            or self.log_end_offset + header.last_offset_delta - segment.base_offset > SEGMENT_OFFSETS_MAX
            or (
                segment.bytes_since_entry > settings.index_interval_bytes  # an index entry is due
                and segment.index.size_bytes >= settings.index_bytes_max
            )
        )

    def roll(self) -> None:
        """Start a new segment at the end of the log."""
        sealed = self.segments[-1]
        assert sealed.size_bytes > 0, "an empty segment is never rolled"
        if sealed.has_unsynced_truncation:
            # After a crash the rest of a rejected batch could reappear, between this segment and the next.
            sealed.file.truncate(sealed.size_bytes)
            self.mark_dirty(sealed, is_new=False)
        following = Segment(self.disk, self.folder, self.log_end_offset)
        following.open_files = sealed.open_files
        # creates the file: its name keeps the end offset known, even if nothing is appended
        following.file.truncate(0)
        sealed.seal()
        self.segments.append(following)
        # a view of an earlier segment with this base offset may still be in use
        following.generation = self._generation
        self.mark_dirty(following, is_new=True)
        self._warm.clear()

    def mark_dirty(self, segment: Segment, *, is_new: bool) -> None:
        segment.has_unsynced_truncation = False
        if not segment.dirty:
            segment.dirty = True
            self._dirty.append(segment)
        if is_new:
            self.partition_folder.entries_changed()

    # Opening (log/recovery.py drives this)

    def share(self, shared: SharedLogResources) -> None:
        """Count the resources of this log in the totals of all logs."""
        self.shared = shared
        self.partition_folder.open_files = shared.files
        self.producers.share(shared.producers)
        for segment in self.segments:
            segment.open_files = shared.files

    def resync_folder(self) -> None:
        """Make the folder durable again, unless a snapshot proves that it is: its process may have been
        killed before its first flush.
        """
        if not self.snapshots:
            with suppress(StorageFull):  # the folder exists; only the rewrite waits for space
                self.partition_folder.make()

    def apply_recovered(
        self, header: BatchHeader, marker: EndTransactionMarker | None, segment: Segment, *, replay: bool
    ) -> None:
        """Account for a valid batch found at the end of this segment. `replay`: no snapshot covers its
        producer.
        """
        self.log_end_offset = header.next_offset
        if replay and header.producer_id >= 0:
            offset = header.base_offset
            if header.attributes & _TRANSACTIONAL_OR_CONTROL:
                self.transactions.replay(self.producers, header, offset, marker, segment.base_offset)
            else:
                self.producers.replay(header, offset)
        if header.leader_epoch > self.epochs.latest:
            self.epochs.assign(header.leader_epoch, header.base_offset)

    # Reading

    def read(
        self, offset: Offset, end_offset: Offset, bytes_max: int, *, at_least_one: bool
    ) -> BatchesRead | ColdRead:
        """Read whole batches from the one that holds `offset`, below `end_offset`.

        At most `bytes_max`, but at least one batch if `at_least_one`. A ColdRead is for a worker thread.
        """
        assert self.log_start_offset <= offset <= end_offset <= self.log_end_offset
        if offset == end_offset:
            return BatchesRead(b"", offset, 0)
        start = self._warm.start_at(offset)
        segment = start[0] if start else self.segment_holding(offset)
        found = None
        if segment.has_index:
            try:
                found = self._warm.read(
                    segment, self._end_of(segment), offset, end_offset, bytes_max, at_least_one
                )
            except TooManyOpenFiles:
                found = None  # a worker thread uses the descriptors reserved for readers
        if found is not None:
            return found
        return ColdRead(self.view(segment), offset, end_offset, bytes_max, at_least_one)

    def _end_of(self, segment: Segment) -> Offset:
        if segment is self.segments[-1]:
            return self.log_end_offset
        following = bisect_right(self.segments, segment.base_offset, key=lambda s: s.base_offset)
        return self.segments[following].base_offset

    def view(self, segment: Segment) -> SegmentView:
        return segment.view(self.settings.index_interval_bytes)

    def is_current(self, view: SegmentView) -> bool:
        """Check that a view's segment was not removed, truncated or compacted since the view was made.

        False while a worker truncates the files: their state is unknown then.
        """
        segment = self.segment_holding(view.base_offset)
        return (
            not self.is_truncating
            and segment.base_offset == view.base_offset
            and segment.generation == view.generation
            and segment.size_bytes >= view.size_bytes  # smaller: truncated and reopened
        )

    def keep_indexes(self, loaded: LoadedIndexes) -> None:
        """Keep indexes that a worker thread loaded, for the next reader of the same segment."""
        segment = self.segment_holding(loaded.segment.base_offset)
        if not self.is_current(loaded.segment):
            return
        if not segment.has_index:
            segment.install_indexes(loaded.indexes)
            if not segment.indexes_stored:
                self._rebuilt[segment] = None
        self._cache_indexes(segment)

    def _cache_indexes(self, segment: Segment) -> None:
        if segment is not self.active and self.shared is not None:
            self.shared.indexes.keep(segment)

    # Durability

    def begin_flush(self) -> Flush:
        """Return everything that is not on disk yet. The caller must end or fail the flush."""
        if self.is_truncating:  # the truncation itself syncs what stays
            return Flush((), (), self.flushed_end_offset, self.flushed_bytes, 0, self.truncation_count)
        files, folders = self.partition_folder.take_unsynced()
        new_partition_files = len(files)
        for segment in self._dirty:
            # Cleared now, not in `end_flush`: an append during the sync must mark the segment again.
            segment.dirty = False
            segment.file.retain()
            files.append(segment.file)
        self._dirty.clear()
        return Flush(
            files,
            folders,
            self.log_end_offset,
            self.appended_bytes,
            new_partition_files,
            self.truncation_count,
        )

    def end_flush(self, flush: Flush) -> None:
        """Record that the sync succeeded."""
        for file in flush.files:
            file.release()
        if self.shared is not None:
            self.shared.files.synced(flush.new_partition_files)
        if flush.truncation_count != self.truncation_count:
            return
        self.flushed_end_offset = max(self.flushed_end_offset, min(flush.end_offset, self.log_end_offset))
        self.flushed_bytes = max(self.flushed_bytes, flush.appended_bytes)

    def begin_checkpoint(self) -> Checkpoint:
        """Plan the writes that bring indexes and producer snapshot on disk to the current end of the log."""
        self.file_uses.begin(FileUse.CHECKPOINT)
        small_files = []
        aborted = self.transactions.aborted
        start = self.stored_start
        if self.is_start_unstored and self.log_start_offset > self.segments[0].base_offset:
            start = self.log_start_offset
            small_files.append(self.start_file(start))  # before the epochs, whose first entry starts there
        if not self.epochs.is_stored:
            small_files.append(SmallFile(f"{self.folder}/{epoch_file.FILE_NAME}", self.epochs.to_bytes()))
            self.epochs.is_stored = True
        if not aborted.has_stored_sums:
            sums_path = f"{self.folder}/{CHECKPOINT_NAME}"
            small_files.append(SmallFile(sums_path, aborted.sums_to_bytes()))
            aborted.has_stored_sums = True
        self.bytes_since_checkpoint = 0
        return Checkpoint(
            indexes=plan_indexes(self.segments, tuple(self._rebuilt), aborted, self.log_end_offset),
            small_files=small_files,
            producers=self.producers.snapshot(),
            snapshot_path=self.snapshot_path(self.log_end_offset),
            recovery_point=self.log_end_offset,
            log_start=start,
        )

    def end_checkpoint(self, checkpoint: Checkpoint, committed: Offset | None = None) -> list[str]:
        """Record that the checkpoint is on disk. Returns the snapshots that are no longer needed.

        `committed`: nothing below it is ever truncated. If all kept snapshots lie above it, one at or below
        it stays too; otherwise a truncation there would read the log from its start.
        """
        self.file_uses.end(FileUse.CHECKPOINT)
        assert self.flushed_end_offset >= checkpoint.recovery_point
        for write in (*checkpoint.indexes.writes, *checkpoint.indexes.rebuilt):
            write.stored()
        for segment in checkpoint.indexes.segments:
            self._rebuilt.pop(segment, None)
            self._cache_indexes(segment)
        self.recovery_point = checkpoint.recovery_point
        self.transactions.aborted.rows_stored(self.recovery_point)
        self.stored_start = max(self.stored_start, checkpoint.log_start)
        if self.recovery_point not in self.snapshots:
            self.snapshots.append(self.recovery_point)
        needless, kept = self.snapshots[:-SNAPSHOTS_KEPT], self.snapshots[-SNAPSHOTS_KEPT:]
        if needless and committed is not None and kept[0] > committed:
            below = max(bisect_right(needless, committed) - 1, 0)
            kept.insert(0, needless.pop(below))
        self.snapshots = kept
        return [self.snapshot_path(offset) for offset in needless]

    def abandon_checkpoint(self) -> None:
        """Drop a checkpoint that found no space. The next one covers its data, which is as safe as before."""
        self.file_uses.end(FileUse.CHECKPOINT)
        self.epochs.is_stored = False
        self.transactions.aborted.checkpoint_abandoned()

    @property
    def needs_checkpoint(self) -> bool:
        return not self.is_truncating and (
            self.recovery_point < self.log_end_offset
            or not self.epochs.is_stored
            or bool(self._rebuilt)
            or not self.transactions.aborted.is_stored
            or not all(segment.indexes_stored for segment in self.segments[-2:])
        )

    def snapshot_path(self, offset: Offset) -> str:
        return f"{self.folder}/{segment_name(offset)}{SNAPSHOT_SUFFIX}"

    # Deleting and replacing segments

    def segment_facts(self) -> list[SegmentFacts]:
        """Collect the facts of all segments that decide about retention. May wait for the device."""
        segments = tuple(self.segments)  # a copy: a worker thread may run this while the log rolls
        ends = [following.base_offset for following in segments[1:]] + [self.log_end_offset]
        return [
            SegmentFacts(segment.base_offset, end, segment.size_bytes, segment.newest_timestamp)
            for segment, end in zip(segments, ends, strict=True)
        ]

    def drop_segments(self, count: int) -> list[str]:
        """Remove the oldest segments from the list. Returns the files to remove."""
        assert count < len(self.segments), "the active segment stays"
        dropped, self.segments = self.segments[:count], self.segments[count:]
        for segment in dropped:
            self._forget(segment)
        self.transactions.aborted.drop_before(self.segments[0].base_offset)
        self.advance_start(max(self.log_start_offset, self.segments[0].base_offset))
        return [path for segment in dropped for path in segment.paths()]

    def replace_segments(self, old: Sequence[Segment], cleaned: Segment) -> None:
        """Replace neighbouring segments by the cleaned segment that covers the same offsets."""
        first = self.segments.index(old[0])
        assert self.segments[first : first + len(old)] == list(old), "they are neighbours"
        assert old[-1] is not self.active, "the active segment stays"
        for segment in old:
            self._forget(segment)
        self.segments = [*self.segments[:first], cleaned, *self.segments[first + len(old) :]]
        self._generation += 1
        cleaned.generation = self._generation

    def advance_start(self, offset: Offset) -> None:
        assert self.log_start_offset <= offset <= self.log_end_offset
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.epochs.truncate_start(offset)
            self.epochs.is_stored = False

    @property
    def is_start_unstored(self) -> bool:
        """Whether the log might begin earlier after a crash."""
        return self.log_start_offset > self.stored_start

    def start_stored(self, offset: Offset) -> None:
        """Record that the start file on disk holds `offset`, and move the log start there."""
        self.stored_start = max(self.stored_start, offset)
        self.advance_start(max(self.log_start_offset, offset))

    # Truncating (log/truncation.py drives this)

    @property
    def is_empty(self) -> bool:
        """Whether the log has no record since it was started at this offset."""
        return len(self.segments) == 1 and self.active.size_bytes == 0

    @property
    def is_closed(self) -> bool:
        return self.file_uses.is_closed

    @property
    def is_truncating(self) -> bool:
        return FileUse.TRUNCATION in self.file_uses

    @property
    def has_stable_segments(self) -> bool:
        """Whether segments may be replaced or removed: no worker does so now."""
        return self.file_uses.may_begin(FileUse.SWAP)

    @property
    def files_version(self) -> tuple[int, Offset]:
        """Value that changes when segments are replaced, truncated or removed, but not with an append."""
        return self._generation, self.segments[0].base_offset

    def is_unchanged_since(self, files_version: tuple[int, Offset]) -> bool:
        """Check that the segment files are still those of this version. False during a replacement."""
        return self.has_stable_segments and self.files_version == files_version

    @property
    def may_truncate(self) -> bool:
        """Whether no writer is using the files: it would bring truncated data back."""
        return self.file_uses.may_begin(FileUse.TRUNCATION)

    def end_truncation(self, truncated: "PartitionLog") -> None:
        """Continue with the reopened log that a truncation left on disk."""
        self.file_uses.end(FileUse.TRUNCATION)
        if self.is_closed:
            return  # its topic was deleted meanwhile
        for segment in self.segments:
            self._forget(segment)
        self.producers.share(None)
        self.segments, self.producers, self.epochs = truncated.segments, truncated.producers, truncated.epochs
        truncated.transactions.keep_ended(self.transactions, truncated.log_end_offset)
        self.transactions = truncated.transactions
        self.snapshots, self.recovery_point = truncated.snapshots, truncated.recovery_point
        self.clean_to = truncated.clean_to
        self.log_start_offset, self.log_end_offset = truncated.log_start_offset, truncated.log_end_offset
        self.stored_start = truncated.stored_start
        self.flushed_end_offset, self.flushed_bytes = truncated.log_end_offset, self.appended_bytes
        self.epochs.is_stored = False
        self.partition_folder.continue_as(truncated.partition_folder)
        self._generation += 1
        for segment in self.segments:
            segment.generation = self._generation
        # With the generation it outdates every view, flush and fetch from before the truncation.
        self.truncation_count += 1
        if self.shared is not None:
            self.share(self.shared)
        self.resync_folder()

    def rebase(self, base_offset: Offset) -> None:
        """Move the base of an empty log to `base_offset`, which may lie before its log start."""
        assert self.is_empty, "a batch in the middle would be out of its place"
        assert self.may_truncate, "a checkpoint would account for what is not there"
        # Snapshots claim to cover producers up to the start; the next batch is not among them yet.
        for path in (*map(self.snapshot_path, self.snapshots), *self.active.paths()):
            self.disk.remove(path)
        self.snapshots.clear()
        self.recovery_point = Offset(0)
        self._forget(self.active)
        segment = Segment(self.disk, self.folder, base_offset)
        segment.open_files = self.shared.files if self.shared is not None else None
        self.segments = [segment]
        self._generation += 1
        segment.generation = self._generation
        self.partition_folder.entries_changed()
        self.log_end_offset = base_offset

    def start_file(self, offset: Offset) -> SmallFile:
        """File that makes the log begin at `offset` after a restart, if not later."""
        return SmallFile(f"{self.folder}/{LOG_START_FILE}", render_rows([str(offset)]))

    def _forget(self, segment: Segment) -> None:
        if segment in self._dirty:
            self._dirty.remove(segment)
        self._rebuilt.pop(segment, None)
        segment.dirty = False
        segment.abandon_file()
        if self.shared is not None:
            self.shared.indexes.drop(segment)
        self._warm.clear()

    def close_files(self) -> None:
        """Close the descriptors; the next read or write opens a file again."""
        assert not self.is_dirty, "closing would forget what must be synced"
        for segment in self.segments:
            segment.close_file()

    def close(self) -> None:
        """Close for good. Nothing is synced: checkpoint first for a clean stop."""
        self.file_uses.close()
        self.release()

    def release(self) -> None:
        """Release the files and this log's part of the shared resources."""
        for segment in self.segments:
            self._forget(segment)
        self.partition_folder.release()
        self.producers.share(None)

    def __repr__(self) -> str:
        name = self.folder.rpartition("/")[2]
        return (
            f"<PartitionLog {name} start={self.log_start_offset} end={self.log_end_offset} "
            f"flushed={self.flushed_end_offset} recovery={self.recovery_point} segments={len(self.segments)}>"
        )
