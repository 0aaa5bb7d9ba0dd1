"""Deep validation of a batch: checks that need its records, and conversions that its topic requires.

Most batches are validated by their header alone. Where a topic requires more, a `DeepValidation` describes
the work; a long one runs in a worker thread, on its own copy of the batch.
"""

from typing import Final, NamedTuple

from penstock.config.topic import CleanupPolicy, CompressionType, TimestampType, TopicConfig
from penstock.errors import ApiError, CorruptData, ErrorCode
from penstock.limits import LONG_MAX, VALIDATION_BYTES_ON_LOOP_MAX, VALIDATION_RECORDS_ON_LOOP_MAX
from penstock.log.validation import check_record_contents
from penstock.protocol import records
from penstock.protocol.batches import BatchHeader, parse_header, with_log_append_time
from penstock.protocol.compression import Codec, codec_named
from penstock.types import NO_TIMESTAMP

COMPACT: Final = CleanupPolicy.COMPACT


class ValidatedBatch(NamedTuple):
    """A batch in the form in which it is appended."""

    batch: bytearray | memoryview
    header: BatchHeader
    log_append_time_ms: int


class DeepValidation(NamedTuple):
    """Pending validation of a batch whose header is valid."""

    batch: memoryview
    header: BatchHeader
    config: TopicConfig
    now_ms: int
    requires_record_checks: bool
    """Whether each record is checked."""

    @property
    def is_long(self) -> bool:
        """Whether the validation would block the event loop noticeably.

        Two kilobytes of zstd may hold 64 MiB, so every compressed batch counts as long.
        """
        header = self.header
        if not (self.requires_record_checks or _must_recompress(header, self.config)):
            return False
        return (
            header.codec != Codec.NONE
            or header.record_count > VALIDATION_RECORDS_ON_LOOP_MAX
            or len(self.batch) > VALIDATION_BYTES_ON_LOOP_MAX
        )

    def copied(self) -> "DeepValidation":
        """Copy the batch, to run when the buffer of the request is no longer valid."""
        return self._replace(batch=memoryview(bytearray(self.batch)))

    def run(self) -> ValidatedBatch:
        """Validate and convert the batch. ApiError: the batch is rejected. May take long."""
        config, header = self.config, self.header
        if self.requires_record_checks:
            check_record_contents(self.batch, header, config, self.now_ms)
        batch: bytearray | memoryview = self.batch
        if _must_recompress(header, config):
            batch = _recompressed(self.batch, config)
        append_time = NO_TIMESTAMP
        if config.timestamp_type is TimestampType.LOG_APPEND_TIME:
            batch, append_time = with_log_append_time(bytearray(batch), self.now_ms), self.now_ms
        return ValidatedBatch(batch, header if batch is self.batch else parse_header(batch), append_time)


def needs_deep_validation(config: TopicConfig) -> bool:
    """Check whether every batch of a topic needs a deep validation."""
    return (
        requires_record_checks(config)
        or config.timestamp_type is TimestampType.LOG_APPEND_TIME
        or config.compression_type is not CompressionType.PRODUCER
    )


def requires_record_checks(config: TopicConfig) -> bool:
    """Check whether each record of every batch of a topic must be validated."""
    bounds_age = (
        config.timestamp_before_max_ms != LONG_MAX
        and config.timestamp_type is not TimestampType.LOG_APPEND_TIME
    )
    return bounds_age or COMPACT in config.cleanup_policy


def _must_recompress(header: BatchHeader, config: TopicConfig) -> bool:
    prescribed = config.compression_type
    return prescribed is not CompressionType.PRODUCER and header.codec != _codec_of(prescribed)


def _recompressed(batch: memoryview, config: TopicConfig) -> bytearray:
    codec = _codec_of(config.compression_type)
    try:
        made = bytearray(records.recompress(batch, codec, config.compression_level))
    except CorruptData as error:
        raise ApiError(ErrorCode.INVALID_RECORD, str(error)) from None
    if len(made) > config.batch_bytes_max:
        raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, f"recompressed, the batch has {len(made)} bytes")
    return made


def _codec_of(compression: CompressionType) -> Codec:
    if compression is CompressionType.UNCOMPRESSED:
        return Codec.NONE
    codec = codec_named(compression.value)
    assert codec is not None, f"no codec is called {compression}"
    return codec
