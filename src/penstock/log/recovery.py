"""Recovery: opening a log from disk, in whatever state the last process left it.

The newest producer snapshot is the recovery point: everything below it was synced, indexed and accounted for
before the snapshot got its name. So

    below it   a missing or damaged batch is corruption. Recovery fails and truncates nothing.
    above it   batches are read one after another. The first one that is torn or invalid ends the log, and is
               truncated with all that follows.

A batch that was appended and never synced may be torn, and so may all behind it. Up to the flushed end of the
last process all batches were synced, and some were acknowledged: a disk that keeps what it confirmed returns
them whole, so nothing of them is truncated. The flushed end itself is not stored. So a batch between recovery
point and flushed end that the disk has damaged looks like a torn one: it ends the log, and records that were
acknowledged are truncated with it. Checkpoints keep that range short (broker/storage/checkpoints.py).

Opening is repeatable: a crash during it leaves a state that opens the same way.

Rule 1: a batch is valid if its checksum matches AND it continues the offsets. The checksum does not cover the
        base offset, so only the position proves it.
"""

from contextlib import suppress
from typing import NamedTuple

from penstock.errors import CorruptData, StorageFull
from penstock.host.disk import Disk, File, opened
from penstock.limits import RECOVERY_READ_BYTES
from penstock.log import leader_epochs as epoch_file
from penstock.log.checkpoint_file import parse_rows
from penstock.log.compaction.cleaner_offsets import load_clean_to
from penstock.log.compaction.swap import finish_swaps
from penstock.log.index.offset_index import OffsetIndex
from penstock.log.index.time_index import TimeIndex
from penstock.log.leader_epochs import LeaderEpochs
from penstock.log.partition_log import LOG_START_FILE, SNAPSHOT_SUFFIX, LogSettings, PartitionLog
from penstock.log.producer_state import Producers
from penstock.log.reading.cold_reading import Indexes
from penstock.log.reading.stored_batches import stored_batches
from penstock.log.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, Segment, segment_name
from penstock.log.transactions.aborted_files import load_aborted
from penstock.log.transactions.log_transactions import LogTransactions
from penstock.protocol.batches import HEADER_BYTES, parse_header
from penstock.protocol.control_batches import read_marker
from penstock.types import Buffer, Offset


class Recovered(NamedTuple):
    """A log that was opened, and what its recovery did."""

    log: PartitionLog
    scanned_bytes: int
    truncated_bytes: int
    """Size of the torn tail that was truncated."""


def open_log(
    disk: Disk, folder: str, settings: LogSettings, *, written_by_this_process: bool = False
) -> Recovered:
    """Open a log. Blocks. Raises CorruptData if records that were safe are missing.

    `written_by_this_process`: this process wrote the files, and no sync has failed since, so the page cache
    reaches the disk.
    """
    log = PartitionLog(disk, folder, settings)
    if not disk.exists(folder):
        return Recovered(log, 0, 0)
    log.partition_folder.use_existing()
    # First: until then segment names may be old, new or missing.
    finish_swaps(disk, folder)
    names = disk.list_folder(folder)
    for name in names:
        if name.endswith(".tmp"):
            disk.remove(f"{folder}/{name}")
    scan_from = _load_small_files(log, names)
    log.segments = [
        Segment(disk, folder, base, disk.size_of(f"{folder}/{segment_name(base)}{LOG_SUFFIX}"))
        for base in offsets_named(names, LOG_SUFFIX)
    ]
    if log.segments and log.segments[0].base_offset > scan_from:
        # Retention has removed batches that came after the snapshot, which a truncation may have left as the
        # newest. It would reject the next batches of their producers; unknown producers are accepted. And a
        # transaction whose marker was removed would stay open for ever.
        log.producers, log.transactions = Producers(), LogTransactions()
    load_aborted(log, names, scan_from)
    log.resync_folder()
    scanned, truncated_bytes = _scan(
        log, scan_from, rewrite_from=None if written_by_this_process else log.recovery_point
    )
    if truncated_bytes:
        # Durable before the next append: truncated bytes must not reappear behind it.
        files = [segment.file for segment in log.segments[-1:]]
        disk.sync(files, [folder])
    _reconcile_log_start(log)
    log.clean_to = load_clean_to(disk, folder, log.log_end_offset)
    return Recovered(log, scanned, truncated_bytes)


def _load_small_files(log: PartitionLog, names: list[str]) -> Offset:
    """Load start, epochs and snapshot. Returns the offset from which producers are replayed."""
    disk, folder = log.disk, log.folder
    if LOG_START_FILE in names:
        rows = list(parse_rows(disk.read_file(f"{folder}/{LOG_START_FILE}"), LOG_START_FILE, columns=1))
        if len(rows) != 1 or rows[0][0] < 0:
            raise CorruptData(f"{folder}/{LOG_START_FILE} holds one offset, not {rows}")
        log.log_start_offset = log.stored_start = Offset(rows[0][0])
    if epoch_file.FILE_NAME in names:
        log.epochs = LeaderEpochs.from_bytes(disk.read_file(f"{folder}/{epoch_file.FILE_NAME}"))
    log.snapshots = offsets_named(names, SNAPSHOT_SUFFIX)
    log.recovery_point = log.snapshots[-1] if log.snapshots else Offset(0)
    # Epochs above the recovery point come from the batches there.
    log.epochs.truncate_end(log.recovery_point)
    for offset in reversed(log.snapshots):
        try:
            log.producers = Producers.from_bytes(disk.read_file(log.snapshot_path(offset)))
            log.transactions.restore(log.producers)
            return offset
        except CorruptData:
            continue  # replay rebuilds its state, from an older snapshot
    return Offset(0)


def _scan(log: PartitionLog, scan_from: Offset, rewrite_from: Offset | None) -> tuple[int, int]:
    """Read what may be damaged and truncate what is. Returns the bytes scanned and the bytes truncated."""
    if not log.segments or log.segments[0].base_offset > log.recovery_point:
        if log.recovery_point > log.log_start_offset:
            raise CorruptData(
                f"{log.folder}: records below offset {log.recovery_point} were safe and are gone"
            )
        scan_from = log.segments[0].base_offset if log.segments else scan_from
    scanned = truncated_bytes = 0
    # Start one batch earlier: if the next batch began a segment, the last time index entry of the segment
    # before was made after the checkpoint.
    before = Offset(max(scan_from - 1, 0))
    first = log.segments.index(log.segment_holding(before)) if log.segments else 0
    for number in range(first, len(log.segments)):
        segment = log.segments[number]
        if number > first and segment.base_offset != log.log_end_offset:
            if log.log_end_offset < _required_end(log):
                raise _missing_records(log, log.segments[number - 1].path())
            truncated_bytes += sum(_remove_segment(log.disk, removed) for removed in log.segments[number:])
            del log.segments[number:]
            break
        log.log_end_offset = segment.base_offset
        size_found = segment.size_bytes
        scanned += _scan_segment(log, segment, scan_from, rewrite_from)
        if segment.size_bytes < size_found:
            truncated_bytes += size_found - segment.size_bytes
            segment.truncate(segment.size_bytes)
        if number + 1 < len(log.segments):
            segment.seal()
    return scanned, truncated_bytes


def _scan_segment(log: PartitionLog, segment: Segment, scan_from: Offset, rewrite_from: Offset | None) -> int:
    """Account for every valid batch; leave `segment.size_bytes` at the first invalid one."""
    file_bytes, path = segment.size_bytes, segment.path()
    start = position = _resume(log, segment, scan_from)
    expected = segment.base_offset if start == 0 else None
    batches = stored_batches(segment.file, start, file_bytes, expected, chunk_bytes=RECOVERY_READ_BYTES)
    try:
        for header, batch in batches:
            marker = read_marker(batch, header) if header.is_control else None
            # No sync of these batches is known to have succeeded.
            if rewrite_from is not None and header.base_offset >= rewrite_from:
                _rewrite(segment.file, position, batch)
            segment.note(header, header.base_offset, header.size, log.settings.index_interval_bytes)
            log.apply_recovered(header, marker, segment, replay=header.base_offset >= scan_from)
            position += header.size
    except CorruptData:
        if log.log_end_offset < _required_end(log):
            raise
    if log.log_end_offset < _required_end(log) and segment is log.segments[-1]:
        raise _missing_records(log, path)
    if position > start:
        log.mark_dirty(segment, is_new=True)
    return position - start


def _required_end(log: PartitionLog) -> Offset:
    """Offset below which every record must be present. None is required if the log starts at its recovery
    point: a follower may have started it inside a batch that was not on disk yet.
    """
    return log.recovery_point if log.recovery_point > log.log_start_offset else Offset(0)


def _missing_records(log: PartitionLog, path: str) -> CorruptData:
    return CorruptData(
        f"{path} ends at offset {log.log_end_offset}; "
        f"records below {log.recovery_point} were safe and are missing"
    )


def _rewrite(file: File, position: int, batch: Buffer) -> None:
    """Write the same bytes again, so that the page cache has to write them to disk.

    After a failed sync the kernel reports such pages as clean. A process that finds them after a restart and
    syncs would get a success that means nothing.
    """
    # a copy-on-write file system needs space even for this; the bytes stay as they are
    with suppress(StorageFull):
        file.write(position, batch)


def _resume(log: PartitionLog, segment: Segment, scan_from: Offset) -> int:
    """Load the stored indexes as far as they can be trusted; scanning begins at their last entry."""
    stored = log.view(segment).stored_indexes() if segment.base_offset < scan_from else None
    if stored is None:
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            log.disk.remove(segment.path(suffix))
        stored = Indexes(OffsetIndex(segment.base_offset), TimeIndex(segment.base_offset))
    else:
        stored.by_offset.truncate(scan_from)
        stored.by_time.truncate(scan_from)
        _truncate_file(log.disk, segment.path(INDEX_SUFFIX), stored.by_offset.size_bytes)
        _truncate_file(log.disk, segment.path(TIME_INDEX_SUFFIX), stored.by_time.size_bytes)
    size_found = segment.size_bytes
    position = segment.resume(stored)
    if position > 0 and size_found >= HEADER_BYTES:
        # Rolling by age needs the first timestamp, and the scan does not read the first batch again.
        segment.first_timestamp = parse_header(segment.file.read(0, HEADER_BYTES)).max_timestamp
    return position


def _truncate_file(disk: Disk, path: str, size_bytes: int) -> None:
    """Remove untrusted entries: new entries would otherwise follow them."""
    if disk.size_of(path) > size_bytes:
        with opened(disk, path) as file:
            file.truncate(size_bytes)


def _reconcile_log_start(log: PartitionLog) -> None:
    if not log.segments or log.log_start_offset > log.log_end_offset:
        # The start was moved past records that were never synced and are lost. A lower start would make
        # offsets visible again that were reported as deleted.
        log.release()
        for segment in log.segments:
            _remove_segment(log.disk, segment)
        start = max(log.log_start_offset, log.recovery_point)
        log.segments = [Segment(log.disk, log.folder, start)]
        log.log_end_offset = start
    log.log_start_offset = max(log.log_start_offset, log.segments[0].base_offset)
    log.transactions.aborted.drop_before(log.segments[0].base_offset)
    # Batches above the recovery point are marked dirty: the first flush makes them durable.
    log.flushed_end_offset = min(log.recovery_point, log.log_end_offset)
    log.epochs.truncate_end(log.log_end_offset)
    log.epochs.truncate_start(log.log_start_offset)


def offsets_named(names: list[str], suffix: str) -> list[Offset]:
    stems = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
    return sorted(Offset(int(stem)) for stem in stems if stem.isdigit())


def _remove_segment(disk: Disk, segment: Segment) -> int:
    segment.dirty = False
    segment.abandon_file()
    for path in segment.paths():
        disk.remove(path)
    return segment.size_bytes
