"""Looking into a batch: the checks that need its records, and the forms that its topic prescribes.

Most batches are judged by their header. Where a topic asks for more, an `DeepValidation` says what must
be done; one that takes long is run by a worker thread, on a copy that is its own.
"""

from typing import Final, NamedTuple

from penstock.config.topic import CleanupPolicy, CompressionType, TimestampType, TopicConfig
from penstock.errors import ApiError, CorruptData, ErrorCode
from penstock.limits import INSPECTED_BYTES_ON_LOOP_MAX, INSPECTED_RECORDS_ON_LOOP_MAX, LONG_MAX
from penstock.log.validation import check_records
from penstock.protocol import records
from penstock.protocol.batches import BatchHeader, parse_header, with_log_append_time
from penstock.protocol.compression import Codec, codec_named
from penstock.types import NO_TIMESTAMP

COMPACT: Final = CleanupPolicy.COMPACT


class ValidatedBatch(NamedTuple):
    """A batch as it may be appended."""

    batch: bytearray | memoryview
    header: BatchHeader
    log_append_time_ms: int


class DeepValidation(NamedTuple):
    """A batch whose header is sound."""

    batch: memoryview
    header: BatchHeader
    config: TopicConfig
    now_ms: int
    requires_record_checks: bool
    """Whether its records are looked at one by one."""

    @property
    def is_long(self) -> bool:
        """Whether everybody else would have to wait noticeably for it.

        Two kilobytes of zstd may hold 64 MiB, so that no compressed batch is known to be short.
        """
        header = self.header
        if not (self.requires_record_checks or _must_recompress(header, self.config)):
            return False
        return (
            header.codec != Codec.NONE
            or header.record_count > INSPECTED_RECORDS_ON_LOOP_MAX
            or len(self.batch) > INSPECTED_BYTES_ON_LOOP_MAX
        )

    def copied(self) -> "DeepValidation":
        """For whoever runs it when the request is no longer there."""
        return self._replace(batch=memoryview(bytearray(self.batch)))

    def run(self) -> ValidatedBatch:
        """ApiError: the batch is refused. May take long."""
        config, header = self.config, self.header
        if self.requires_record_checks:
            check_records(self.batch, header, config, self.now_ms)
        batch: bytearray | memoryview = self.batch
        if _must_recompress(header, config):
            batch = _recompressed(self.batch, config)
        append_time = NO_TIMESTAMP
        if config.timestamp_type is TimestampType.LOG_APPEND_TIME:
            batch, append_time = with_log_append_time(bytearray(batch), self.now_ms), self.now_ms
        return ValidatedBatch(batch, header if batch is self.batch else parse_header(batch), append_time)


def needs_deep_validation(config: TopicConfig) -> bool:
    """Whether every batch of a topic is looked into."""
    return (
        requires_record_checks(config)
        or config.timestamp_type is TimestampType.LOG_APPEND_TIME
        or config.compression_type is not CompressionType.PRODUCER
    )


def requires_record_checks(config: TopicConfig) -> bool:
    """Whether the records of every batch of a topic are looked at one by one."""
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
