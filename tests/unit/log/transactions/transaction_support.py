"""Transactional batches and markers in a log, and what a reader of committed records makes of them."""

from penstock.limits import DECOMPRESSED_BYTES_MAX
from penstock.log.partition_log import PartitionLog
from penstock.protocol.batches import parse_header, split_batches
from penstock.protocol.control_batches import EndTransactionMarker, marker_batch, read_marker
from penstock.protocol.records import Record, iterate_records
from penstock.types import LeaderEpoch, Offset, ProducerId
from tests.unit.log.log_support import NOW_MS, append, read


def write(log: PartitionLog, producer: int, sequence: int, *values: bytes, epoch: int = 0) -> Offset:
    """One batch of a transaction."""
    return append(
        log,
        values or (b"x",),
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )


def end(
    log: PartitionLog, producer: int, *, commit: bool, epoch: int = 0, coordinator_epoch: int = 0
) -> Offset:
    """The marker that ends the transaction. Returns its offset."""
    marker = EndTransactionMarker(ProducerId(producer), epoch, commit, coordinator_epoch)
    batch = marker_batch(marker, NOW_MS)
    return log.append(batch, parse_header(batch), LeaderEpoch(1))


def aborted(log: PartitionLog) -> list[tuple[int, int, int]]:
    """Producer, first offset and marker of each aborted transaction."""
    return [
        (entry.producer_id, entry.first_offset, entry.last_offset)
        for entry in log.transactions.aborted.entries()
    ]


def stable_end(log: PartitionLog, high_watermark: int | None = None) -> int:
    """The last stable offset with this high watermark."""
    end = log.log_end_offset if high_watermark is None else Offset(high_watermark)
    log.transactions.settle(end)
    first = log.transactions.first_unstable_offset
    return end if first is None else min(max(first, log.log_start_offset), end)


def committed_records(
    log: PartitionLog, offset: int, end_offset: int, bytes_max: int = 2**30
) -> list[Record]:
    """What a consumer delivers that reads committed records, fetch by fetch."""
    found: list[Record] = []
    while offset < end_offset:
        part = read(log, offset, end_offset, bytes_max)
        entries = log.transactions.aborted.overlapping(Offset(offset), part.next_offset)
        found += delivered(bytes(part.data), [(each.producer_id, each.first_offset) for each in entries])
        found = [record for record in found if record.offset >= log.log_start_offset]
        assert part.next_offset > offset, "a reader must get on"
        offset = part.next_offset
    return found


def delivered(data: bytes, aborted: list[tuple[int, int]]) -> list[Record]:
    """As clients do: a producer is ignored from the first offset of its aborted transaction to the marker."""
    pending = sorted(aborted, key=lambda entry: entry[1])
    ignored: set[int] = set()
    records: list[Record] = []
    for position, header in split_batches(data):
        batch = data[position : position + header.size]
        while pending and pending[0][1] <= header.last_offset:
            ignored.add(pending.pop(0)[0])
        marker = read_marker(batch, header) if header.is_control else None
        if marker is not None and not marker.is_commit:
            ignored.discard(marker.producer_id)
        is_hidden = header.is_transactional and header.producer_id in ignored
        if not header.is_control and not is_hidden:
            records += iterate_records(batch, limit_bytes=DECOMPRESSED_BYTES_MAX)
    return records
