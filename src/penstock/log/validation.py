"""Validation of produced batches: Kafka's checks, in Kafka's order, with Kafka's error codes.

Nearly every batch is valid. `passes_fast_checks` confirms that with a few comparisons, against limits
computed when the topic was configured. `check_batch_header` handles every other batch and raises the error,
or accepts it.

All of these checks use the header only, so that a batch is not decompressed on arrival. Two kinds of topic
require more and pay for it: compacted ones (every record needs a key) and those that limit the age of a
record. See log/deep_validation.py for when and where that runs.
"""

from collections.abc import Callable
from struct import Struct

import msgspec
from crc32c import crc32c

from penstock.config.topic import CleanupPolicy, TimestampType, TopicConfig
from penstock.errors import ApiError, CorruptData, ErrorCode
from penstock.limits import DECOMPRESSED_BYTES_MAX, LONG_MAX, RECORDS_CHECKED_MAX
from penstock.protocol import records
from penstock.protocol.batches import (
    BATCH_LENGTH_AT,
    CHECKSUM_FROM,
    CODEC_MAX,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    MAGIC,
    BatchHeader,
    crc_matches,
    parse_header,
)
from penstock.types import NO_TIMESTAMP, Buffer

# Module constants, because looking an enum member up in its class costs as much as all the rest of a
# comparison.
LOG_APPEND_TIME, COMPACT = TimestampType.LOG_APPEND_TIME, CleanupPolicy.COMPACT

BATCH_LENGTH = Struct(">i")
BATCH_LENGTH_MIN = 14
"""A smaller length is invalid for a record batch of any format, as in Kafka."""
MAGIC_AT = 16
MAGIC_BYTES = MAGIC_AT + 1
OLD_MAGICS = (0, 1)
BATCH_LENGTH_FIELD = BatchHeader._fields.index("batch_length")
MAGIC_FIELD = BatchHeader._fields.index("magic")


class InvalidBatch(ApiError):
    """The payload of a producer is not one record batch. Raised before the log is involved."""


def read_batch(payload: memoryview | None) -> tuple[BatchHeader, memoryview]:
    """Read the one batch of a produce payload. An incomplete batch behind it is dropped, as Kafka does."""
    if payload is not None and len(payload) >= HEADER_BYTES:
        fields = HEADER.unpack_from(payload)
        if fields[MAGIC_FIELD] == MAGIC and fields[BATCH_LENGTH_FIELD] + LOG_OVERHEAD == len(payload):
            # As BatchHeader._make, with one call less: this runs for every produced batch.
            return tuple.__new__(BatchHeader, fields), payload
    return _read_odd_batch(payload)


def _read_odd_batch(payload: memoryview | None) -> tuple[BatchHeader, memoryview]:
    """Check a payload that is not exactly one whole batch, in Kafka's order."""
    if payload is None or len(payload) < MAGIC_BYTES:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "the request has no record batch for this partition")
    size = _size_at(payload, 0)
    magic = payload[MAGIC_AT]
    if magic != MAGIC:
        code = ErrorCode.INVALID_RECORD if magic in OLD_MAGICS else ErrorCode.CORRUPT_MESSAGE
        raise InvalidBatch(code, f"record format {magic} is not accepted; this broker stores format {MAGIC}")
    if size > len(payload):
        raise InvalidBatch(ErrorCode.INVALID_RECORD, f"the batch says {size} bytes and {len(payload)} came")
    if size < len(payload):
        _require_only_a_tail(payload, size)
        payload = payload[:size]
    try:
        return parse_header(payload), payload
    except CorruptData as error:
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, str(error)) from None


def _size_at(payload: memoryview, position: int) -> int:
    (length,) = BATCH_LENGTH.unpack_from(payload, position + BATCH_LENGTH_AT)
    if length < BATCH_LENGTH_MIN:
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"no record batch has a length of {length}")
    return LOG_OVERHEAD + int(length)


def _require_only_a_tail(payload: memoryview, end: int) -> None:
    """Check that only a part of another batch follows, never a whole one."""
    if len(payload) - end < MAGIC_BYTES:
        return
    if payload[end + MAGIC_AT] > MAGIC:
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, "what follows the batch is no part of another")
    if end + _size_at(payload, end) <= len(payload):
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "a partition takes exactly one record batch a request")


class FastCheckLimits(msgspec.Struct, frozen=True, gc=False):
    """Limits within which a batch is valid without further checks."""

    batch_bytes_max: int
    timestamp_after_max_ms: int

    @classmethod
    def of(cls, config: TopicConfig) -> "FastCheckLimits":
        return cls(config.batch_bytes_max, config.timestamp_after_max_ms)


def passes_fast_checks(batch: memoryview, header: BatchHeader, limits: FastCheckLimits, now_ms: int) -> bool:
    """Check a batch against the limits. True: valid. False: `check_batch_header` must decide."""
    # Unpacked at once: one access to a field of a named tuple costs as much as five local variables.
    base_offset, _, _, _, crc, attributes, delta, _, newest, producer_id, _, sequence, count = header
    return (
        len(batch) <= limits.batch_bytes_max
        and count == delta + 1 > 0
        and 0 <= attributes <= CODEC_MAX
        and base_offset == 0
        and (producer_id < 0 or sequence >= 0)
        and newest - now_ms <= limits.timestamp_after_max_ms
        and crc32c(batch[CHECKSUM_FROM:]) == crc
    )


def check_batch_header(
    batch: Buffer,
    header: BatchHeader,
    config: TopicConfig,
    now_ms: int,
    *,
    allows_transactions: bool = False,
) -> bool:
    """Check size, checksum and header without decompressing the batch.

    Raises the ApiError that Kafka would return; returns normally if the batch is valid.

    True: a timestamp is too far in the future, and `check_record_contents` finds the records and rejects the
    batch.
    """
    size = len(batch)
    if size > config.max_message_bytes:
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {size} bytes; max.message.bytes is {config.max_message_bytes}",
        )
    if size > config.segment_bytes:
        raise ApiError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"the batch has {size} bytes; segment.bytes is {config.segment_bytes}",
        )
    if not crc_matches(batch, header):
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, "the checksum of the batch does not match")
    _check_produced_shape(header, allows_transactions=allows_transactions)
    if header.attributes & LOG_APPEND_TIME_BIT:
        raise ApiError(ErrorCode.INVALID_TIMESTAMP, "only the broker may set the log append time")
    return _is_in_future(header, config, now_ms)


def check_record_contents(batch: Buffer, header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    """Run the checks that decompress the batch and read its records. Takes long for a large one."""
    if _is_in_future(header, config, now_ms):
        raise _future_timestamp_error(batch, header, config, now_ms)
    if config.timestamp_before_max_ms != LONG_MAX and config.timestamp_type is not LOG_APPEND_TIME:
        _limit_record_count(header)
        _check_oldest(batch, now_ms - config.timestamp_before_max_ms)
    if COMPACT in config.cleanup_policy:
        _limit_record_count(header)
        _check_keys(batch)


def _check_produced_shape(header: BatchHeader, *, allows_transactions: bool) -> None:
    """Raise the ApiError that Kafka would return for what a producer may not send.

    `batches.check_client_shape` is not used here: it accepts any base offset and transactions, and rejects a
    delete horizon, which is not looked at here. Codes and order of the checks are Kafka's.
    """
    if header.record_count <= 0 or header.last_offset_delta + 1 != header.record_count:
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"a batch of {header.record_count} records cannot end at offset delta {header.last_offset_delta}",
        )
    if header.codec > CODEC_MAX:
        raise ApiError(ErrorCode.INVALID_RECORD, f"compression type {header.codec} does not exist")
    if header.is_control:
        raise ApiError(ErrorCode.INVALID_RECORD, "clients may not write control batches")
    if header.base_offset != 0:
        raise ApiError(ErrorCode.INVALID_RECORD, "the base offset of a produced batch must be 0")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise ApiError(ErrorCode.INVALID_RECORD, "a batch with a producer id needs a sequence number")
    if header.is_transactional and not allows_transactions:
        raise ApiError(ErrorCode.INVALID_TXN_STATE, "this broker does not offer transactions")
    if header.is_transactional and header.producer_id < 0:
        raise ApiError(ErrorCode.INVALID_RECORD, "a transactional batch needs a producer id")


def _is_in_future(header: BatchHeader, config: TopicConfig, now_ms: int) -> bool:
    newest = header.max_timestamp
    return (
        newest - now_ms > config.timestamp_after_max_ms
        and newest != NO_TIMESTAMP
        and config.timestamp_type is not LOG_APPEND_TIME
    )


def _future_timestamp_error(batch: Buffer, header: BatchHeader, config: TopicConfig, now_ms: int) -> ApiError:
    """Build the error. It names the offending records, unless there are too many to check one by one."""
    latest = now_ms + config.timestamp_after_max_ms
    few = header.record_count <= RECORDS_CHECKED_MAX
    return ApiError(
        ErrorCode.INVALID_TIMESTAMP,
        f"a timestamp lies {header.max_timestamp - now_ms} ms ahead; "
        f"message.timestamp.after.max.ms is {config.timestamp_after_max_ms}",
        records=_offending_records(batch, lambda time: time > latest) if few else (),
    )


def _limit_record_count(header: BatchHeader) -> None:
    """Reject a batch with too many records to check: other batches wait meanwhile."""
    if header.record_count > RECORDS_CHECKED_MAX:
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {header.record_count} records is too many to check one by one here; "
            f"at most {RECORDS_CHECKED_MAX} are taken",
        )


def _check_oldest(batch: Buffer, oldest_allowed: int) -> None:
    too_old = _offending_records(batch, lambda time: NO_TIMESTAMP != time < oldest_allowed)
    if too_old:
        raise ApiError(
            ErrorCode.INVALID_TIMESTAMP,
            "a timestamp is older than message.timestamp.before.max.ms allows",
            records=too_old,
        )


def _offending_records(batch: Buffer, is_wrong: Callable[[int], bool]) -> tuple[int, ...]:
    """Numbers of the records with a wrong timestamp."""
    return tuple(number for number, record in enumerate(_read_records(batch)) if is_wrong(record.timestamp))


def _check_keys(batch: Buffer) -> None:
    try:
        missing = records.keys_missing(batch)
    except CorruptData as error:
        raise ApiError(ErrorCode.INVALID_RECORD, str(error)) from None
    if missing:
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            "a compacted topic takes only records with a key",
            records=tuple(missing),
        )


def _read_records(batch: Buffer) -> list[records.Record]:
    try:
        return list(records.iterate_records(batch, limit_bytes=DECOMPRESSED_BYTES_MAX))
    except CorruptData as error:
        raise ApiError(ErrorCode.INVALID_RECORD, str(error)) from None
