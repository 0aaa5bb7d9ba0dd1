"""Files of the aborted-transaction index of a log that is being opened: reading, checking, rebuilding.

Rows of markers below the offset from which recovery replays the log come from the files; all others come from
the replayed batches. The files are checked against `aborted-index-checkpoint`. They are not used, and the
rows are rebuilt from the headers of the log, where

    a file is missing, shorter than the checkpoint file says, or does not have its checksum
    the checkpoint file lists a segment that is no longer one: a cleaning merged it, and the process ended
    before the next checkpoint
    the checkpoint file is damaged, or missing beside files with rows

A file that the checkpoint file does not list has rows of markers above the recovery point, or none.

Rule 1: damage of these files is no damage of the log. The rows are in the log, as markers, and the files are
        replaced by the next checkpoint.
Rule 2: rebuilding reads every header of the log below the recovery point. That takes long for a large log,
        and happens only after damage.
"""

from crc32c import crc32c

from penstock.errors import CorruptData
from penstock.host.disk import Disk, opened
from penstock.log.checkpoint_file import parse_rows
from penstock.log.partition_log import PartitionLog
from penstock.log.producer_state import Producers
from penstock.log.reading.cold_reading import header_at
from penstock.log.segment import TXN_INDEX_SUFFIX, Segment, segment_name
from penstock.log.transactions.aborted_index import (
    CHECKPOINT_NAME,
    ROW_BYTES,
    AbortedEntry,
    RowsSum,
    parse_rows_of,
)
from penstock.log.transactions.log_transactions import LogTransactions
from penstock.protocol.control_batches import read_marker
from penstock.types import Offset


def load_aborted(log: PartitionLog, names: list[str], trusted_end: Offset) -> None:
    """Load the rows of markers below `trusted_end`, at the start of a recovery. Blocks.

    CorruptData: the rows had to be rebuilt, and a header of the log is damaged.
    """
    aborted = log.transactions.aborted
    aborted.stored_end = trusted_end
    has_files = any(name.endswith(TXN_INDEX_SUFFIX) for name in names)
    if not has_files and CHECKPOINT_NAME not in names:
        return
    sums: dict[Offset, RowsSum] | None
    try:
        sums = _stored_sums(log, names, trusted_end)
        found = _checked_entries(log, sums, trusted_end)
    except CorruptData:
        sums, found = None, _rebuilt_entries(log, trusted_end)
        aborted.unusable_files = frozenset(
            segment.base_offset
            for segment, entries in found
            if entries or f"{segment_name(segment.base_offset)}{TXN_INDEX_SUFFIX}" in names
        )
    for segment, entries in found:
        for entry in entries:
            if entry.last_offset < trusted_end:
                aborted.add(entry, segment.base_offset)
    # Otherwise rows that a truncation removed would count again when the recovery point has passed them.
    aborted.has_stored_sums = sums == aborted.sums


def _stored_sums(log: PartitionLog, names: list[str], trusted_end: Offset) -> dict[Offset, RowsSum]:
    """Content of the checkpoint file, without the segments that retention removed."""
    if CHECKPOINT_NAME not in names:
        raise CorruptData(f"{log.folder} has indexes of aborted transactions and no {CHECKPOINT_NAME}")
    content = log.disk.read_file(f"{log.folder}/{CHECKPOINT_NAME}")
    start = log.segments[0].base_offset if log.segments else trusted_end
    return {
        Offset(base): RowsSum(count, checksum)
        for base, count, checksum in parse_rows(content, CHECKPOINT_NAME, columns=3)
        if base >= start
    }


def _checked_entries(
    log: PartitionLog, sums: dict[Offset, RowsSum], trusted_end: Offset
) -> list[tuple[Segment, list[AbortedEntry]]]:
    """Rows of each segment that the checkpoint file lists. CorruptData: they must be rebuilt."""
    by_base = {segment.base_offset: segment for segment in log.segments}
    found = []
    for base, rows in sorted(sums.items()):
        if base >= trusted_end:
            continue  # its rows are above the recovery point, and are replayed
        if base not in by_base:
            raise CorruptData(f"{log.folder} has no segment that begins at {base}")
        found.append((by_base[base], _read_rows(log, by_base[base], rows)))
    return found


def _read_rows(log: PartitionLog, segment: Segment, expected: RowsSum) -> list[AbortedEntry]:
    path = segment.path(TXN_INDEX_SUFFIX)
    if not log.disk.exists(path):
        raise CorruptData(f"{path} is missing")
    # Rows behind these were written by a checkpoint that did not end.
    data = log.disk.read_file(path)[: expected.row_count * ROW_BYTES]
    if len(data) != expected.row_count * ROW_BYTES or crc32c(data) != expected.checksum:
        raise CorruptData(f"{path} does not match its checksum")
    return parse_rows_of(data)


def _rebuilt_entries(log: PartitionLog, end: Offset) -> list[tuple[Segment, list[AbortedEntry]]]:
    """Find the aborted transactions below `end` in the headers of the log."""
    producers, found = Producers(), LogTransactions()
    for segment in log.segments:
        if segment.base_offset >= end:
            break
        _replay_headers(log.disk, segment, end, producers, found)
    ends = [following.base_offset for following in log.segments[1:]] + [end]
    return [
        (segment, found.aborted.between(segment.base_offset, segment_end))
        for segment, segment_end in zip(log.segments, ends, strict=True)
        if segment.base_offset < end
    ]


def _replay_headers(
    disk: Disk, segment: Segment, end: Offset, producers: Producers, found: LogTransactions
) -> None:
    position = 0
    with opened(disk, segment.path()) as file:
        while position < segment.size_bytes:
            header = header_at(file, position)
            if header.base_offset >= end:
                return
            if header.producer_id >= 0 and (header.is_transactional or header.is_control):
                batch = file.read(position, header.size) if header.is_control else b""
                marker = read_marker(batch, header) if header.is_control else None
                found.replay(producers, header, header.base_offset, marker, segment.base_offset)
            position += header.size
