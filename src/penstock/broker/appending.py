"""From a produce request to a partition's log, and from the disk's troubles to Kafka's error codes."""

from collections.abc import Callable
from typing import Final

from penstock.broker.context import RequestContext
from penstock.errors import ApiError, ErrorCode, StorageFailed, StorageFull
from penstock.protocol.batches import ATTRIBUTES_AT, CODEC_MASK, HEADER_BYTES
from penstock.protocol.compression import Codec
from penstock.protocol.messages.produce import ProduceRequest
from penstock.replication.partition import Appended, Partition
from penstock.types import Buffer

ZSTD_SINCE: Final = 7


class Appending:
    def __init__(
        self, on_full: Callable[[StorageFull], None], on_failed: Callable[[StorageFailed], None]
    ) -> None:
        self._on_full = on_full
        self._on_failed = on_failed

    def append(
        self,
        partition: Partition,
        records: Buffer | None,
        request: ProduceRequest,
        context: RequestContext,
        now_ms: int,
    ) -> Appended:
        """Append one batch, or raise the ApiError that answers for its partition."""
        if context.version < ZSTD_SINCE and _codec(records) == Codec.ZSTD:
            raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        assert records is None or isinstance(records, memoryview), "records are decoded to views"
        try:
            return partition.append(records, now_ms)
        except StorageFull as full:
            self._on_full(full)
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(full)) from full
        except StorageFailed as failure:
            self._on_failed(failure)
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(failure)) from failure
        except ApiError as refusal:
            if refusal.code is ErrorCode.INVALID_TXN_STATE and request.transactional_id is None:
                raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED) from None
            raise


def _codec(records: Buffer | None) -> int:
    """Of a batch that has not been checked yet."""
    return records[ATTRIBUTES_AT + 1] & CODEC_MASK if records and len(records) >= HEADER_BYTES else Codec.NONE
