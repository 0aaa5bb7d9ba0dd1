"""Filter of one batch: the records that a cleaning keeps, and the batch that results.

A record stays if it is the last of its key. A tombstone, the last record of a deleted key, stays until its
delete horizon, so that every consumer that keeps up reads the deletion. The first cleaning that keeps a
tombstone writes the horizon into the batch: attribute bit 6, and the horizon in place of the base timestamp
(KIP-534). The timestamps of the records do not change.

    copied       nothing is removed or changed: the same bytes
    rewritten    some records are removed: same offsets, same codec, same producer and sequence
    emptied      all records are removed, but the batch has the last sequence of a producer that may write
                 again (KAFKA-8335): its header stays
    dropped      all records are removed

Rule 1: offsets never change. A dropped batch leaves a gap, which log/compaction/cleaner.py covers with a
        batch header of its own, so that each batch still begins where the one before ends.
Rule 2: batches of aborted transactions are dropped, and a marker is kept as long as its transaction has
        batches (log/compaction/cleaned_transactions.py). Other control batches are kept.
Rule 3: CorruptData means that a batch is invalid although its checksum matches: its producer wrote it so. The
        caller keeps it unchanged.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.limits import DECOMPRESSED_BYTES_MAX, LONG_MAX
from penstock.log.compaction.record_spans import (
    RecordSpan,
    spans,
    timestamp_delta,
    with_timestamp_delta,
)
from penstock.protocol.batches import (
    CODEC_MASK,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    NO_SEQUENCE,
    BatchHeader,
    seal_in_place,
)
from penstock.protocol.compression import Codec, compress, decompress
from penstock.types import NO_PRODUCER, Buffer, LeaderEpoch, Offset

LONG_MIN: Final = -LONG_MAX - 1


class DeleteHorizons(NamedTuple):
    """Times from which the delete horizons of a cleaning are computed and judged."""

    now_ms: int
    trusted_ms: int
    """Time at which tombstones expire (log/trusted_time.py)."""
    delete_retention_ms: int

    def of(self, header: BatchHeader) -> int:
        """Compute the horizon of a batch that has none yet.

        A clock that is behind the timestamps of the records was wrong: its horizon would be past as soon as
        the clock is corrected. A retention that ends beyond the largest timestamp never ends.
        """
        return min(max(self.now_ms, header.max_timestamp) + self.delete_retention_ms, LONG_MAX)


class Gap(NamedTuple):
    """Offsets without records, and what is remembered of the records that had them."""

    base_offset: Offset
    last_offset: Offset
    leader_epoch: LeaderEpoch
    newest_timestamp: int

    def merged(self, after: "Gap") -> "Gap":
        return Gap(
            self.base_offset,
            after.last_offset,
            after.leader_epoch,
            max(self.newest_timestamp, after.newest_timestamp),
        )


def is_gap(header: BatchHeader) -> bool:
    return header.record_count == 0 and header.producer_id == NO_PRODUCER and not header.is_control


def gap_of(header: BatchHeader) -> Gap:
    return Gap(header.base_offset, header.last_offset, header.leader_epoch, header.max_timestamp)


def gap_batch(gap: Gap) -> bytes:
    """Build a batch without records that covers the gap."""
    header = BatchHeader(
        base_offset=gap.base_offset,
        batch_length=HEADER_BYTES - LOG_OVERHEAD,
        leader_epoch=gap.leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=0,
        last_offset_delta=gap.last_offset - gap.base_offset,
        base_timestamp=gap.newest_timestamp,
        max_timestamp=gap.newest_timestamp,
        producer_id=NO_PRODUCER,
        producer_epoch=-1,
        base_sequence=NO_SEQUENCE,
        record_count=0,
    )
    return _sealed(header, b"")


def emptied(header: BatchHeader) -> bytes:
    """Remove the records of a batch. Only the producer and its sequence remain."""
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON_BIT)
    return _sealed(
        header._replace(
            batch_length=HEADER_BYTES - LOG_OVERHEAD,
            attributes=attributes,
            base_timestamp=header.max_timestamp,
            record_count=0,
        ),
        b"",
    )


def payload_of(batch: Buffer, header: BatchHeader) -> bytes:
    """Decompress the records of a batch whose checksum was validated."""
    blob = memoryview(batch)[HEADER_BYTES:]
    if header.record_count == 0 and not blob:
        return b""
    return decompress(Codec(header.codec), blob, limit_bytes=DECOMPRESSED_BYTES_MAX)


def spans_of(payload: bytes, header: BatchHeader) -> list[RecordSpan]:
    return list(spans(payload, header.record_count, header.last_offset_delta))


def horizon_of(header: BatchHeader) -> int | None:
    return header.base_timestamp if header.attributes & DELETE_HORIZON_BIT else None


def keeps_tombstones(header: BatchHeader, horizons: DeleteHorizons) -> bool:
    horizon = horizon_of(header)
    return horizon is None or horizons.trusted_ms < horizon


def rewritten(
    header: BatchHeader, payload: bytes, kept: Sequence[RecordSpan], horizons: DeleteHorizons
) -> bytes:
    """Build the batch with only these records. Sets the delete horizon if one of them needs it."""
    assert kept, "a batch without records is emptied or dropped"
    new_base, chunks = header.base_timestamp, None
    if horizon_of(header) is None and any(span[4] for span in kept):
        new_base = horizons.of(header)
        chunks = _rebased_records(new_base, header, payload, kept)
    gets_horizon = chunks is not None
    body = compress(Codec(header.codec), b"".join(runs(payload, kept) if chunks is None else chunks))
    return _sealed(
        header._replace(
            batch_length=HEADER_BYTES - LOG_OVERHEAD + len(body),
            attributes=header.attributes | (DELETE_HORIZON_BIT if gets_horizon else 0),
            base_timestamp=new_base if gets_horizon else header.base_timestamp,
            max_timestamp=_newest(header, payload, kept),
            record_count=len(kept),
        ),
        body,
    )


def marker_with_horizon(header: BatchHeader, payload: bytes, horizons: DeleteHorizons) -> bytes | None:
    """Build a transaction's marker with a delete horizon. None: its timestamps leave no room for one."""
    new_base = horizons.of(header)
    chunks = _rebased_records(new_base, header, payload, spans_of(payload, header))
    if chunks is None:
        return None
    body = b"".join(chunks)
    return _sealed(
        header._replace(
            batch_length=HEADER_BYTES - LOG_OVERHEAD + len(body),
            attributes=header.attributes | DELETE_HORIZON_BIT,
            base_timestamp=new_base,
        ),
        body,
    )


def runs(payload: bytes, kept: Sequence[RecordSpan]) -> list[bytes]:
    """Bytes of these records, neighbours joined."""
    chunks = []
    run_start, run_end = kept[0][0], kept[0][5]
    for span in kept:
        if span[0] > run_end:
            chunks.append(payload[run_start:run_end])
            run_start = span[0]
        run_end = span[5]
    chunks.append(payload[run_start:run_end])
    return chunks


def _rebased_records(
    new_base: int, header: BatchHeader, payload: bytes, kept: Sequence[RecordSpan]
) -> list[bytes] | None:
    """Convert the records to another base timestamp, with their own timestamps unchanged.

    None if a delta would not fit. Its producer made up that timestamp: a tombstone in the same batch stays
    without a horizon.
    """
    if header.has_log_append_time:
        return runs(payload, kept)  # with log append time, the timestamps of the records are not used
    shift = header.base_timestamp - new_base
    deltas = [timestamp_delta(payload, span[0])[0] + shift for span in kept]
    if min(deltas) < LONG_MIN or max(deltas) > LONG_MAX:
        return None
    return [
        with_timestamp_delta(payload, span[0], span[5], delta)
        for span, delta in zip(kept, deltas, strict=True)
    ]


def _newest(header: BatchHeader, payload: bytes, kept: Sequence[RecordSpan]) -> int:
    if header.has_log_append_time or len(kept) == header.record_count:
        return header.max_timestamp
    newest = header.base_timestamp + max(timestamp_delta(payload, span[0])[0] for span in kept)
    return min(max(newest, LONG_MIN), LONG_MAX)


def _sealed(header: BatchHeader, body: bytes) -> bytes:
    batch = bytearray(HEADER.pack(*header))
    batch += body
    seal_in_place(batch)
    return bytes(batch)
