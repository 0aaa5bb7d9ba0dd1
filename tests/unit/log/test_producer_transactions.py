"""Which batches and markers of transactional producers a partition takes, and what it remembers of them."""

from typing import Any

import pytest

from penstock.errors import ApiError, ErrorCode
from penstock.log.producer_state import ProducerLimits, ProducerRegistry, Producers
from penstock.protocol.batches import BatchHeader, parse_header
from penstock.protocol.control_batches import EndTransactionMarker
from penstock.types import NO_OFFSET, Offset, ProducerId
from tests.unit.log.log_support import NOW_MS, batch_of

PRODUCER = 7


def header(
    sequence: int, *, epoch: int = 0, producer: int = PRODUCER, transactional: bool = True
) -> BatchHeader:
    options: dict[str, Any] = {
        "producer_id": producer,
        "producer_epoch": epoch,
        "base_sequence": sequence,
    }
    return parse_header(batch_of([b"x"], transactional=transactional, **options))


def marker(epoch: int = 0, *, coordinator: int = 0, producer: int = PRODUCER) -> EndTransactionMarker:
    return EndTransactionMarker(ProducerId(producer), epoch, True, coordinator)


def in_transaction(sequences: int = 1, *, epoch: int = 0) -> Producers:
    producers = Producers()
    for number in range(sequences):
        producers.replay_transactional(header(number, epoch=epoch), Offset(100 + number))
    return producers


def rejection(check: object, *arguments: object, **options: object) -> ErrorCode:
    with pytest.raises(ApiError) as raised:
        check(*arguments, **options)  # type: ignore[operator]
    return raised.value.code


def only(producers: Producers) -> tuple[int, int, int, int, int]:
    [(_, producer)] = producers.items()
    transaction = producer.transaction
    coordinator = transaction.coordinator_epoch
    return (
        producer.epoch,
        producer.last_sequence,
        producer.last_timestamp,
        coordinator,
        transaction.first_offset,
    )


# Markers


def test_the_first_batch_begins_the_transaction_and_a_marker_ends_it() -> None:
    producers = Producers()
    assert producers.replay_transactional(header(0), Offset(100))
    assert not producers.replay_transactional(header(1), Offset(101))
    assert only(producers) == (0, 1, NOW_MS, -1, 100)
    assert producers.replay_marker(marker(coordinator=4), NOW_MS + 1) == 100
    assert only(producers) == (0, 1, NOW_MS, 4, -1)


def test_a_marker_without_an_open_transaction_ends_none() -> None:
    producers = Producers()
    assert producers.replay_marker(marker(3), NOW_MS) == NO_OFFSET
    assert only(producers) == (3, -1, NOW_MS, 0, -1)


def test_after_a_marker_of_the_same_epoch_the_sequence_continues() -> None:
    producers = in_transaction(2)
    producers.replay_marker(marker(), NOW_MS)
    assert producers.check(header(2)) is None
    repeated = producers.check(header(1))
    assert repeated is not None
    assert repeated.base_offset == 101


def test_after_a_marker_of_a_newer_epoch_the_sequence_begins_at_zero() -> None:
    producers = in_transaction(2)
    producers.replay_marker(marker(1), NOW_MS)
    assert producers.check(header(0, epoch=1)) is None
    assert rejection(producers.check, header(2, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_late_batch_of_an_ended_transaction_is_rejected() -> None:
    producers = in_transaction()
    producers.replay_marker(marker(1), NOW_MS)
    assert rejection(producers.check, header(1)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_batch_outside_of_the_open_transaction_is_rejected() -> None:
    plain = header(1, transactional=False)
    producers = in_transaction()
    assert rejection(producers.check, plain) is ErrorCode.INVALID_TXN_STATE
    producers.replay_marker(marker(), NOW_MS)
    assert producers.check(plain) is None


def test_a_marker_of_an_older_epoch_is_rejected() -> None:
    producers = in_transaction(epoch=5)
    code = rejection(producers.check_marker, marker(4), must_be_newer=False)
    assert code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_only_a_newer_epoch_ends_a_transaction_of_version_2() -> None:
    producers = in_transaction(epoch=5)
    code = rejection(producers.check_marker, marker(5), must_be_newer=True)
    assert code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert producers.check_marker(marker(5), must_be_newer=False)
    assert producers.check_marker(marker(6), must_be_newer=True)


def test_a_replaced_coordinator_is_fenced() -> None:
    producers = in_transaction()
    producers.replay_marker(marker(coordinator=4), NOW_MS)
    code = rejection(producers.check_marker, marker(1, coordinator=3), must_be_newer=False)
    assert code is ErrorCode.TRANSACTION_COORDINATOR_FENCED


@pytest.mark.parametrize("must_be_newer", [True, False])
def test_a_repeated_marker_is_not_appended_again(must_be_newer: bool) -> None:
    producers = in_transaction()
    ended = marker(1, coordinator=4)
    assert producers.check_marker(ended, must_be_newer=must_be_newer)
    producers.replay_marker(ended, NOW_MS)
    assert not producers.check_marker(ended, must_be_newer=must_be_newer)


def test_a_newer_coordinator_repeats_a_marker_to_fence_the_older_one() -> None:
    producers = in_transaction()
    producers.replay_marker(marker(coordinator=4), NOW_MS)
    assert producers.check_marker(marker(coordinator=5), must_be_newer=False)


def test_a_marker_of_an_unknown_producer_is_appended() -> None:
    assert Producers().check_marker(marker(3), must_be_newer=True)


# The snapshot


def test_a_snapshot_keeps_open_transactions_and_markers() -> None:
    producers = in_transaction(3)
    producers.replay_marker(marker(2, coordinator=9, producer=8), NOW_MS + 5)
    producers.replay(header(4, producer=9, transactional=False), Offset(104))
    again = Producers.from_bytes(producers.to_bytes())
    assert again.to_bytes() == producers.to_bytes()
    assert again.transactions_open == 1
    known = {key: (each.epoch, each.batches, each.transaction) for key, each in again.items()}
    assert known == {key: (each.epoch, each.batches, each.transaction) for key, each in producers.items()}


# Many producers


def test_a_producer_with_an_open_transaction_is_not_evicted() -> None:
    registry = ProducerRegistry(ProducerLimits(total_max=3, per_partition_max=2))
    producers = Producers()
    producers.share(registry)
    producers.replay_transactional(header(0, producer=1), Offset(0))
    for producer in range(2, 9):
        producers.replay(header(0, producer=producer, transactional=False), Offset(producer))
    assert {key for key, _ in producers.items()} == {1, 7, 8}
    assert (len(registry), registry.transactions_open, registry.evicted) == (3, 1, 5)


def test_a_producer_with_an_open_transaction_does_not_expire() -> None:
    producers = in_transaction()
    producers.replay(header(0, producer=8, transactional=False), Offset(200))
    for now_ms in (0, 1_000):
        producers.expire(now_ms=now_ms, idle_ms_max=10)
    assert [key for key, _ in producers.items()] == [PRODUCER]
    producers.replay_marker(marker(), NOW_MS)
    for now_ms in (2_000, 2_009):
        producers.expire(now_ms=now_ms, idle_ms_max=10)
    assert len(producers) == 1, "the time counts from the marker"
    producers.expire(now_ms=2_011, idle_ms_max=10)
    assert len(producers) == 0


@pytest.mark.parametrize(
    "limits", [ProducerLimits(open_per_partition_max=2), ProducerLimits(open_total_max=2)]
)
def test_one_transaction_too_many_is_rejected(limits: ProducerLimits) -> None:
    registry = ProducerRegistry(limits)
    producers = Producers()
    producers.share(registry)
    for producer in (1, 2):
        assert producers.check(header(0, producer=producer)) is None
        producers.replay_transactional(header(0, producer=producer), Offset(producer))
    assert rejection(producers.check, header(0, producer=3)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert producers.check(header(1, producer=2)) is None, "open transactions go on"
    assert producers.check(header(0, producer=3, transactional=False)) is None
    producers.replay_marker(marker(producer=1), NOW_MS)
    assert producers.check(header(0, producer=3)) is None


def test_transactions_of_a_closed_log_no_longer_count() -> None:
    registry = ProducerRegistry()
    producers = in_transaction()
    producers.share(registry)
    assert registry.transactions_open == 1
    producers.share(None)
    assert (registry.transactions_open, len(registry)) == (0, 0)
