"""Control batches: the markers that commit or abort a transaction.

A marker is a batch with one record, which clients read and do not pass to the application. It takes one
offset. The batch has the producer id and epoch of the transaction, no sequence number, and is not compressed.

    record key      version 0 and type, two bytes each: 0 ABORT, 1 COMMIT
    record value    version 0 in two bytes, epoch of the transaction coordinator in four

Types above 1 belong to Kafka's own metadata log. A partition that has such a batch treats it as no marker, as
Kafka does.
"""

from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from penstock.errors import CorruptData
from penstock.limits import BATCH_BYTES_MAX
from penstock.protocol.batches import BatchHeader
from penstock.protocol.records import Record, build_batch, iterate_records
from penstock.types import Buffer, Offset, ProducerId

ABORT, COMMIT = 0, 1
_VERSION = 0
_KEY = Struct(">hh")
_VALUE = Struct(">hi")


class EndTransactionMarker(NamedTuple):
    """Outcome of one producer's transaction in one partition."""

    producer_id: ProducerId
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int
    """Epoch of the transaction coordinator that decided the outcome."""


def marker_batch(marker: EndTransactionMarker, now_ms: int) -> bytearray:
    """Build the control batch of a marker."""
    key = _KEY.pack(_VERSION, COMMIT if marker.is_commit else ABORT)
    value = _VALUE.pack(_VERSION, marker.coordinator_epoch)
    return bytearray(
        build_batch(
            [Record(Offset(0), now_ms, key, value)],
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            transactional=True,
            control=True,
        )
    )


def read_marker(batch: Buffer, header: BatchHeader) -> EndTransactionMarker | None:
    """Read the marker of a control batch; None: the batch ends no transaction.

    CorruptData: no broker can have written this control batch.
    """
    if header.producer_id < 0 or header.record_count == 0:
        return None
    record = next(iterate_records(batch, limit_bytes=BATCH_BYTES_MAX))
    try:
        _, kind = _KEY.unpack_from(record.key or b"")
        if kind not in (ABORT, COMMIT):
            return None
        # A later version may have more fields behind these two.
        _, coordinator_epoch = _VALUE.unpack_from(record.value or b"")
    except StructError:
        raise CorruptData(f"the control record at offset {header.base_offset} is too short") from None
    return EndTransactionMarker(header.producer_id, header.producer_epoch, kind == COMMIT, coordinator_epoch)
