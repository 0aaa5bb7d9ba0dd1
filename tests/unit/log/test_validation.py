"""Each reason to refuse a batch, with the code that clients know it by."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.broker import BrokerConfig
from penstock.config.topic import CleanupPolicy, TimestampType, TopicConfig
from penstock.errors import ApiError, ErrorCode
from penstock.log.deep_validation import requires_record_checks
from penstock.log.validation import (
    FastCheckLimits,
    check_batch_header,
    check_record_contents,
    passes_fast_checks,
    read_batch,
)
from penstock.protocol.batches import ATTRIBUTES_AT, CRC_AT, HEADER_BYTES, parse_header, seal_in_place
from tests.unit.log.log_support import DAY_MS, NOW_MS, batch_of

DEFAULTS = BrokerConfig.of().topic_defaults
COMPACTED = DEFAULTS._replace(cleanup_policy=frozenset({CleanupPolicy.COMPACT}))


def changed(at: int, value: bytes) -> bytes:
    """A sound batch with other bytes, and a checksum that fits them."""
    batch = bytearray(batch_of([b"value"]))
    batch[at : at + len(value)] = value
    seal_in_place(batch)
    return bytes(batch)


def judged(batch: bytes, config: TopicConfig = DEFAULTS) -> None:
    """By its header and, where that does not suffice, by its records."""
    header = parse_header(batch)
    if check_batch_header(batch, header, config, NOW_MS) or requires_record_checks(config):
        check_record_contents(batch, header, config, NOW_MS)


def refused(batch: bytes, config: TopicConfig = DEFAULTS) -> ErrorCode:
    with pytest.raises(ApiError) as raised:
        judged(batch, config)
    return raised.value.code


def plain(batch: bytes, config: TopicConfig = DEFAULTS) -> bool:
    return passes_fast_checks(memoryview(batch), parse_header(batch), FastCheckLimits.of(config), NOW_MS)


def test_an_ordinary_batch_is_taken() -> None:
    batch = batch_of([b"a", b"b"], producer_id=1, producer_epoch=0, base_sequence=0)
    header, whole = read_batch(memoryview(batch))
    judged(bytes(whole))
    assert (bytes(whole), header.record_count, header.producer_id) == (batch, 2, 1)
    assert plain(batch), "the common case takes the short way"


@given(
    at=st.integers(CRC_AT + 4, HEADER_BYTES - 1),
    value=st.binary(min_size=1, max_size=8),
    config=st.sampled_from((DEFAULTS, COMPACTED, DEFAULTS._replace(timestamp_before_max_ms=10))),
    bytes_max=st.sampled_from((70, 1_000_000)),
)
def test_no_batch_is_plain_that_would_be_refused(
    at: int, value: bytes, config: TopicConfig, bytes_max: int
) -> None:
    batch = changed(at, value[: HEADER_BYTES - at])
    config = config._replace(max_message_bytes=bytes_max)
    if plain(batch, config):
        assert not check_batch_header(batch, parse_header(batch), config, NOW_MS)


@pytest.mark.parametrize("attributes", [b"\x80\x20", b"\x80\x07"], ids=["control", "codec"])
def test_a_bit_that_nobody_defined_hides_no_other(attributes: bytes) -> None:
    batch = changed(ATTRIBUTES_AT, attributes)
    assert not plain(batch)
    assert refused(batch) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (None, ErrorCode.INVALID_RECORD),
        (b"", ErrorCode.INVALID_RECORD),
        (batch_of([b"x"])[:40], ErrorCode.INVALID_RECORD),
        (batch_of([b"x"])[:-1], ErrorCode.INVALID_RECORD),
        (batch_of([b"x"]) * 2, ErrorCode.INVALID_RECORD),
        (changed(16, b"\x01"), ErrorCode.INVALID_RECORD),
        (changed(16, b"\x07"), ErrorCode.CORRUPT_MESSAGE),
        (changed(8, bytes(4)), ErrorCode.CORRUPT_MESSAGE),
    ],
    ids=["null", "empty", "header cut", "body cut", "two", "old format", "no format", "no length"],
)
def test_a_payload_that_is_not_one_batch_is_refused(payload: bytes | None, code: ErrorCode) -> None:
    with pytest.raises(ApiError) as raised:
        read_batch(memoryview(payload) if payload is not None else None)
    assert raised.value.code is code


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (lambda: batch_of([b"x"])[:-1] + b"?", ErrorCode.CORRUPT_MESSAGE),
        (lambda: changed(57, (0).to_bytes(4, "big")), ErrorCode.INVALID_RECORD),
        (lambda: changed(57, (2).to_bytes(4, "big")), ErrorCode.INVALID_RECORD),
        (lambda: changed(21, (5).to_bytes(2, "big")), ErrorCode.INVALID_RECORD),
        (lambda: batch_of([b"x"], control=True), ErrorCode.INVALID_RECORD),
        (lambda: batch_of([b"x"], base_offset=3), ErrorCode.INVALID_RECORD),
        (lambda: batch_of([b"x"], producer_id=4, producer_epoch=0), ErrorCode.INVALID_RECORD),
        (
            lambda: batch_of([b"x"], producer_id=4, producer_epoch=0, base_sequence=0, transactional=True),
            ErrorCode.INVALID_TXN_STATE,
        ),
        (lambda: batch_of([b"x"], log_append_time_ms=NOW_MS), ErrorCode.INVALID_TIMESTAMP),
        (lambda: batch_of([b"x"], [NOW_MS + 2 * DAY_MS]), ErrorCode.INVALID_TIMESTAMP),
    ],
    ids=[
        "checksum",
        "no records",
        "count",
        "codec",
        "control",
        "base offset",
        "no sequence",
        "transaction",
        "append time",
        "future",
    ],
)
def test_a_batch_that_may_not_be_written_is_refused(batch: Callable[[], bytes], code: ErrorCode) -> None:
    assert not plain(batch())
    assert refused(batch()) is code


def test_sizes_are_checked_before_the_checksum() -> None:
    batch = batch_of([bytes(500)])[:-1] + b"?"
    assert refused(batch, DEFAULTS._replace(max_message_bytes=500)) is ErrorCode.MESSAGE_TOO_LARGE
    assert refused(batch, DEFAULTS._replace(segment_bytes=500)) is ErrorCode.RECORD_LIST_TOO_LARGE


def test_records_that_are_too_old_are_named() -> None:
    batch = batch_of([b"a", b"b", b"c"], [NOW_MS, NOW_MS - 11, NOW_MS - 10])
    with pytest.raises(ApiError) as raised:
        judged(batch, DEFAULTS._replace(timestamp_before_max_ms=10))
    assert (raised.value.code, raised.value.records) == (ErrorCode.INVALID_TIMESTAMP, (1,))


def test_a_compacted_topic_names_records_without_a_key() -> None:
    batch = batch_of([b"a", b"b"])
    with pytest.raises(ApiError) as raised:
        judged(batch, COMPACTED)
    assert (raised.value.code, raised.value.records) == (ErrorCode.INVALID_RECORD, (0, 1))


def test_the_times_of_records_do_not_matter_where_the_broker_sets_them() -> None:
    config = DEFAULTS._replace(timestamp_type=TimestampType.LOG_APPEND_TIME)
    batch = batch_of([b"x"], [NOW_MS + 900 * DAY_MS])
    judged(batch, config)
    assert refused(batch) == ErrorCode.INVALID_TIMESTAMP, "where the producer sets them they do"
