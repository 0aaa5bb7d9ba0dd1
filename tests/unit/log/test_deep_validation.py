"""Which batches are validated deeply, which of them take long, and what comes out."""

import pytest

from penstock.config.broker import BrokerConfig
from penstock.config.topic import CleanupPolicy, CompressionType, TimestampType, TopicConfig
from penstock.errors import ApiError, ErrorCode
from penstock.limits import RECORDS_CHECKED_MAX, VALIDATION_BYTES_ON_LOOP_MAX, VALIDATION_RECORDS_ON_LOOP_MAX
from penstock.log.deep_validation import DeepValidation, needs_deep_validation, requires_record_checks
from penstock.log.validation import check_batch_header
from penstock.protocol.batches import parse_header
from penstock.protocol.compression import Codec
from tests.unit.log.log_support import DAY_MS, NOW_MS, batch_of

DEFAULTS = BrokerConfig.of().topic_defaults
COMPACTED = DEFAULTS._replace(cleanup_policy=frozenset({CleanupPolicy.COMPACT}))
AGED = DEFAULTS._replace(timestamp_before_max_ms=DAY_MS)
RECOMPRESSED = DEFAULTS._replace(compression_type=CompressionType.LZ4)
STAMPED = DEFAULTS._replace(timestamp_type=TimestampType.LOG_APPEND_TIME)


def validation(batch: bytes, config: TopicConfig, *, has_future_timestamp: bool = False) -> DeepValidation:
    view = memoryview(bytearray(batch))
    return DeepValidation(
        view, parse_header(view), config, NOW_MS, has_future_timestamp or requires_record_checks(config)
    )


@pytest.mark.parametrize(
    ("config", "expected"),
    [(DEFAULTS, False), (COMPACTED, True), (AGED, True), (RECOMPRESSED, True), (STAMPED, True)],
    ids=["ordinary", "compacted", "bounded age", "compression", "append time"],
)
def test_only_topics_that_ask_for_it_have_their_batches_looked_into(
    config: TopicConfig, expected: bool
) -> None:
    assert needs_deep_validation(config) is expected


@pytest.mark.parametrize("config", [COMPACTED, AGED, RECOMPRESSED], ids=["compacted", "aged", "compression"])
def test_a_batch_is_long_by_its_records_its_bytes_or_because_nobody_knows(config: TopicConfig) -> None:
    assert not validation(batch_of([b"x"]), config).is_long
    assert validation(batch_of([b"x"] * (VALIDATION_RECORDS_ON_LOOP_MAX + 1)), config).is_long
    assert validation(batch_of([bytes(VALIDATION_BYTES_ON_LOOP_MAX)]), config).is_long
    assert validation(batch_of([b"x"], codec=Codec.ZSTD), config).is_long


def test_what_need_not_be_opened_is_never_long() -> None:
    many = [b"x"] * (VALIDATION_RECORDS_ON_LOOP_MAX + 1)
    assert not validation(batch_of(many), STAMPED).is_long
    assert not validation(batch_of(many, codec=Codec.LZ4), RECOMPRESSED).is_long, "it has that form already"


def test_a_time_that_lies_ahead_is_named_after_a_look_that_may_be_long() -> None:
    times = [NOW_MS] * VALIDATION_RECORDS_ON_LOOP_MAX + [NOW_MS + 9 * DAY_MS]
    batch = batch_of([b"x"] * len(times), times)
    assert check_batch_header(batch, parse_header(batch), DEFAULTS, NOW_MS), "its header says so"
    late = validation(batch, DEFAULTS, has_future_timestamp=True)
    assert late.is_long
    with pytest.raises(ApiError) as raised:
        late.run()
    assert raised.value.code is ErrorCode.INVALID_TIMESTAMP
    assert raised.value.records == (VALIDATION_RECORDS_ON_LOOP_MAX,)


def test_more_records_than_are_looked_at_are_refused_without_naming_them() -> None:
    times = [NOW_MS + 9 * DAY_MS] * (RECORDS_CHECKED_MAX + 1)
    batch = batch_of([b""] * len(times), times)
    with pytest.raises(ApiError) as raised:
        validation(batch, DEFAULTS, has_future_timestamp=True).run()
    assert (raised.value.code, raised.value.records) == (ErrorCode.INVALID_TIMESTAMP, ())


def test_a_copy_does_not_change_with_the_request_it_came_in() -> None:
    request = bytearray(batch_of([b"value"]))
    view = memoryview(request)
    copied = DeepValidation(view, parse_header(view), DEFAULTS, NOW_MS, requires_record_checks=False).copied()
    expected = bytes(request)
    request[:] = bytes(len(request))
    assert bytes(copied.run().batch) == expected


def test_the_prescribed_codec_and_time_are_in_what_comes_out() -> None:
    config = RECOMPRESSED._replace(timestamp_type=TimestampType.LOG_APPEND_TIME)
    made = validation(batch_of([bytes(500)], [NOW_MS - 5]), config).run()
    assert (made.header.codec, made.header.max_timestamp, made.log_append_time_ms) == (
        Codec.LZ4,
        NOW_MS,
        NOW_MS,
    )
    assert made.header.size == len(made.batch) < 500
