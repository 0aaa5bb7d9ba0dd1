"""Markers, timeouts, expiry, limits, and what a new coordinator makes of the log."""

import pytest

from penstock.coordinator.outcome import Now, StateRecord, WaitingRequest
from penstock.errors import ApiError, ErrorCode
from penstock.limits import DAY_MS, HOUR_MS, TIMERS_PER_CHUNK, TRANSACTIONAL_ID_BYTES_MAX
from penstock.transactions.ending import EndTransactionRequest
from penstock.transactions.initialise import InitProducerRequest
from penstock.transactions.markers import TransactionMarkers
from penstock.transactions.records import encode_key
from penstock.transactions.transaction import ProducerIdentity, ReservedProducerId, TransactionStatus
from penstock.transactions.transaction_context import TransactionConfig, TransactionLimits
from penstock.types import ProducerId, TopicPartition
from tests.unit.transactions.transactions_support import (
    OFFSETS_7,
    ORDERS_0,
    ORDERS_1,
    START,
    TIMEOUT_MS,
    TV1,
    TV2,
    TransactionsHarness,
    identity,
)

EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT, *_ = TransactionStatus
NONE = ErrorCode.NONE
WEEK_MS = 7 * DAY_MS


# Markers


@pytest.mark.parametrize("version", [TV1, TV2])
@pytest.mark.parametrize("is_commit", [True, False])
def test_the_markers_say_what_was_decided(version: int, is_commit: bool) -> None:
    harness = TransactionsHarness()
    producer = harness.new_producer()
    harness.add(producer, ORDERS_1, OFFSETS_7, ORDERS_0, version=version)
    after = harness.end(producer, is_commit, version)
    assert isinstance(after, ProducerIdentity)
    assert harness.sent == [
        TransactionMarkers("t", after, is_commit, (OFFSETS_7, ORDERS_0, ORDERS_1), 1, version)
    ]


def test_the_transaction_is_complete_with_the_last_acknowledgement() -> None:
    harness = TransactionsHarness()
    producer = harness.new_producer()
    harness.add(producer, ORDERS_0, ORDERS_1)
    harness.end(producer)
    (markers,) = harness.sent
    harness.acknowledge(markers, [ORDERS_1])
    harness.acknowledge(markers, [ORDERS_1])
    assert harness.status() is PREPARE_COMMIT
    harness.acknowledge(markers, [ORDERS_0])
    assert harness.status() is COMPLETE_COMMIT
    assert harness.state().partitions == frozenset()
    harness.acknowledge(markers)
    assert harness.status() is COMPLETE_COMMIT


def test_a_late_acknowledgement_does_not_complete_the_next_transaction() -> None:
    """With one epoch the markers of two transactions are equal; those of the second are not yet written."""
    harness = TransactionsHarness()
    producer = harness.new_producer()
    harness.transact(producer)
    harness.add(producer, ORDERS_0)
    harness.end(producer)
    first, second = harness.sent
    assert first == second
    harness.acknowledge(first)
    assert harness.status() is PREPARE_COMMIT
    harness.acknowledge(second)
    assert harness.status() is COMPLETE_COMMIT


def test_no_marker_is_sent_before_its_decision_is_written() -> None:
    harness = TransactionsHarness()
    producer = harness.new_producer()
    harness.add(producer)
    assert harness.end(producer, is_writable=False) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.sent == []
    assert harness.status() is ONGOING


def test_an_abort_of_nothing_is_complete_at_once() -> None:
    harness = TransactionsHarness()
    producer = harness.new_producer()
    after = harness.end(producer, False, TV2)
    assert after == producer._replace(epoch=producer.epoch + 1)
    assert harness.status() is COMPLETE_ABORT
    assert harness.sent == []
    assert harness.end(producer, False, TV2) == after, "a repeated request has the same reply"


@pytest.mark.parametrize("version", [TV1, TV2])
def test_a_producer_id_that_no_decision_took_may_be_offered_again(version: int) -> None:
    harness = TransactionsHarness()
    producer = harness.new_producer()
    harness.add(producer, version=version)
    new_id = harness.new_id()
    request = EndTransactionRequest("t", producer, True, version)
    harness.ask(lambda machine, pending, now: machine.end_transaction(request, new_id, pending, now))
    assert harness.status() is PREPARE_COMMIT
    assert not new_id.is_taken


# Timeouts


@pytest.mark.parametrize("version", [TV1, TV2])
def test_an_open_transaction_is_aborted_at_its_timeout(version: int) -> None:
    harness = TransactionsHarness()
    producer = harness.new_producer(timeout_ms=5_000)
    harness.add(producer, version=version)
    harness.advance(4_999)
    assert harness.status() is ONGOING
    harness.advance(1)
    assert harness.status() is PREPARE_ABORT
    (markers,) = harness.sent
    assert (markers.producer, markers.is_commit) == (identity(producer.producer_id, 1), False)
    for is_commit in (True, False):
        assert harness.end(producer, is_commit, version) is ErrorCode.PRODUCER_FENCED
    harness.acknowledge(markers)
    assert harness.add(producer, version=version) is ErrorCode.PRODUCER_FENCED
    assert harness.new_producer() == identity(producer.producer_id, 2)


def test_further_partitions_do_not_extend_the_timeout() -> None:
    harness = TransactionsHarness()
    producer = harness.new_producer(timeout_ms=5_000)
    harness.add(producer, ORDERS_0)
    harness.advance(4_000)
    harness.add(producer, ORDERS_1)
    harness.advance(1_000)
    assert harness.status() is PREPARE_ABORT


def test_each_transaction_has_the_whole_timeout() -> None:
    harness = TransactionsHarness()
    producer = harness.new_producer(timeout_ms=5_000)
    for _ in range(5):
        harness.advance(4_000)
        harness.transact(producer)
    harness.add(producer)
    harness.advance(4_999)
    assert harness.status() is ONGOING


@pytest.mark.parametrize("jump_ms", [-DAY_MS, DAY_MS])
def test_a_jump_of_the_wall_clock_leaves_the_timeout_as_it_is(jump_ms: int) -> None:
    harness = TransactionsHarness()
    harness.add(harness.new_producer(timeout_ms=5_000))
    harness.advance(4_999, wall_jump_ms=jump_ms)
    assert harness.status() is ONGOING
    harness.advance(1)
    assert harness.status() is PREPARE_ABORT


@pytest.mark.parametrize("jump_ms", [-DAY_MS, 0, DAY_MS])
def test_a_new_coordinator_grants_no_more_than_the_timeout(jump_ms: int) -> None:
    harness = TransactionsHarness()
    harness.add(harness.new_producer(timeout_ms=5_000))
    harness.advance(1_000, wall_jump_ms=jump_ms)
    harness.load()
    harness.advance(5_000)
    assert harness.status() is PREPARE_ABORT


def test_a_new_coordinator_counts_the_time_that_has_passed() -> None:
    harness = TransactionsHarness()
    harness.add(harness.new_producer(timeout_ms=5_000))
    harness.advance(3_000)
    harness.load()
    harness.advance(1_999)
    assert harness.status() is ONGOING
    harness.advance(1)
    assert harness.status() is PREPARE_ABORT


def test_ten_thousand_open_transactions_all_end() -> None:
    harness = TransactionsHarness()
    for number in range(10_000):
        name = f"t{number}"
        harness.add(harness.new_producer(name), transactional_id=name)
    harness.now = Now(harness.now.wall_ms + TIMEOUT_MS, harness.now.monotonic + TIMEOUT_MS / 1000)
    for turn in range(1, 10_000 // TIMERS_PER_CHUNK + 1):
        harness.advance(0)
        assert len(harness.sent) == turn * TIMERS_PER_CHUNK
    harness.load()
    assert len(harness.sent) == 2 * 10_000


def test_the_next_deadline_is_that_of_the_transaction() -> None:
    harness = TransactionsHarness()
    assert harness.machine.next_deadline() is None
    producer = harness.new_producer(timeout_ms=5_000)
    assert harness.machine.next_deadline() == START.monotonic + WEEK_MS / 1000
    harness.add(producer)
    assert harness.machine.next_deadline() == START.monotonic + 5


# Expiry


def test_an_id_expires_after_it_was_not_used_for_long() -> None:
    harness = TransactionsHarness()
    producer = harness.new_producer()
    harness.advance(WEEK_MS - 1)
    harness.transact(producer)
    harness.advance(WEEK_MS - 1)
    assert harness.status() is COMPLETE_COMMIT
    harness.advance(1)
    assert harness.machine.transactional_ids() == ()
    assert harness.log[-1] == StateRecord(encode_key("t"), None)
    assert harness.add(producer) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert harness.new_producer().producer_id > producer.producer_id
    harness.load()
    assert harness.machine.transactional_ids() == ("t",)


def test_an_id_with_an_open_transaction_does_not_expire() -> None:
    harness = TransactionsHarness(config=TransactionConfig(id_expiration_ms=1_000))
    harness.add(harness.new_producer(timeout_ms=5_000))
    harness.advance(4_000)
    assert harness.status() is ONGOING
    harness.advance(1_000)
    harness.advance(DAY_MS)
    assert harness.status() is PREPARE_ABORT


def test_a_wall_clock_that_is_ahead_deletes_no_id_at_once() -> None:
    harness = TransactionsHarness()
    harness.new_producer()
    harness.advance(1_000, wall_jump_ms=365 * DAY_MS)
    harness.load()
    harness.advance(HOUR_MS - 1)
    assert harness.status() is EMPTY
    harness.advance(1)
    assert harness.machine.transactional_ids() == ()


def test_a_wall_clock_that_was_set_back_keeps_an_id_for_longer() -> None:
    harness = TransactionsHarness()
    harness.new_producer()
    harness.advance(WEEK_MS, wall_jump_ms=-365 * DAY_MS)
    assert harness.status() is EMPTY
    harness.advance(WEEK_MS - 1, wall_jump_ms=365 * DAY_MS)
    assert harness.status() is EMPTY
    harness.advance(2)
    assert harness.machine.transactional_ids() == ()


# A new coordinator


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_new_coordinator_sends_all_markers_again(is_commit: bool) -> None:
    harness = TransactionsHarness()
    producer = harness.new_producer()
    harness.add(producer, ORDERS_0, ORDERS_1)
    harness.end(producer, is_commit)
    (first,) = harness.sent
    harness.acknowledge(first, [ORDERS_0])
    harness.load()
    again = harness.sent[-1]
    assert again == first._replace(coordinator_epoch=2)
    harness.acknowledge(first)
    assert harness.state().partitions, "the old coordinator's acknowledgements do not count"
    harness.acknowledge(again)
    assert harness.status() is (COMPLETE_COMMIT if is_commit else COMPLETE_ABORT)


def test_a_new_coordinator_sends_no_markers_of_other_states() -> None:
    harness = TransactionsHarness()
    harness.new_producer("empty")
    harness.add(harness.new_producer("open"), transactional_id="open")
    harness.transact(harness.new_producer())
    harness.sent.clear()
    harness.load()
    assert harness.sent == []


def test_a_prepared_transaction_without_partitions_is_completed() -> None:
    """Kafka writes the two states of such an abort one after the other, and may die in between."""
    harness = TransactionsHarness()
    producer = harness.new_producer()
    harness.end(producer, False, TV2)
    harness.load(records=len(harness.log) - 1)
    assert harness.status() is PREPARE_ABORT
    harness.advance(0)
    assert harness.status() is COMPLETE_ABORT


# While the log is not writable


def test_while_nothing_can_be_written_what_changes_nothing_is_served() -> None:
    harness = TransactionsHarness()
    producer = harness.new_producer()
    harness.add(producer)
    unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.add(producer, ORDERS_0, is_writable=False) is NONE
    assert harness.add(producer, ORDERS_1, is_writable=False) is unavailable
    assert harness.end(producer, is_writable=False) is unavailable
    assert harness.init(is_writable=False) is unavailable
    assert harness.init("other", is_writable=False) is unavailable
    assert harness.init(expected=producer._replace(epoch=9), is_writable=False) is ErrorCode.PRODUCER_FENCED
    harness.end(producer)
    harness.acknowledge(harness.sent[-1])
    assert harness.end(producer, is_writable=False) == producer


def test_markers_acknowledged_meanwhile_complete_the_transaction_later() -> None:
    harness = TransactionsHarness()
    producer = harness.new_producer()
    harness.add(producer, ORDERS_0, ORDERS_1)
    harness.end(producer)
    (markers,) = harness.sent
    harness.acknowledge(markers, [ORDERS_0], is_writable=False)
    harness.acknowledge(markers, [ORDERS_1], is_writable=False)
    assert harness.status() is PREPARE_COMMIT
    assert harness.machine.next_deadline() == harness.now.monotonic
    harness.advance(0)
    assert harness.status() is COMPLETE_COMMIT


# Limits


@pytest.mark.parametrize("name", ["", "x" * (TRANSACTIONAL_ID_BYTES_MAX + 1), "ü" * 100_000])
def test_an_id_of_the_wrong_length_is_rejected(name: str) -> None:
    assert TransactionsHarness().init(name) is ErrorCode.INVALID_REQUEST


def test_the_rejection_of_a_long_id_shows_its_beginning_and_what_to_do() -> None:
    machine = TransactionsHarness().machine
    request = InitProducerRequest("orders-" + "x" * 100_000, TIMEOUT_MS)
    pending = WaitingRequest(lambda reply: None, lambda code, detail: code)
    with pytest.raises(ApiError) as rejected:
        machine.init_producer(request, ReservedProducerId(ProducerId(1)), pending, START)
    detail = rejected.value.detail
    assert detail.startswith("transactional id 'orders-xxx")
    assert "100007 bytes" in detail
    assert "choose another transactional.id" in detail
    assert len(detail) < 300


def test_the_longest_id_is_accepted() -> None:
    name = "ü" * (TRANSACTIONAL_ID_BYTES_MAX // 2)
    harness = TransactionsHarness()
    harness.new_producer(name)
    harness.load()
    assert harness.machine.transactional_ids() == (name,)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001, 2**31 - 1])
def test_a_timeout_out_of_bounds_is_rejected(timeout_ms: int) -> None:
    harness = TransactionsHarness()
    assert harness.init(timeout_ms=timeout_ms) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert harness.new_producer(timeout_ms=900_000) is not None


@pytest.mark.parametrize("expected", [identity(-1, 0), identity(7, -1), identity(-2, -2)])
def test_a_producer_sends_both_its_id_and_its_epoch(expected: ProducerIdentity) -> None:
    assert TransactionsHarness().init(expected=expected) is ErrorCode.INVALID_REQUEST


def test_a_shard_keeps_a_limited_number_of_ids() -> None:
    harness = TransactionsHarness(TransactionLimits(ids_max=2))
    first = harness.new_producer("a")
    harness.new_producer("b")
    assert harness.init("c") is ErrorCode.POLICY_VIOLATION
    assert harness.init("a") == first._replace(epoch=1), "known ids are served"
    harness.advance(WEEK_MS)
    assert harness.new_producer("c") is not None


def test_a_transaction_has_a_limited_number_of_partitions() -> None:
    harness = TransactionsHarness(TransactionLimits(partitions_max=2))
    producer = harness.new_producer()
    assert harness.add(producer, ORDERS_0, ORDERS_1) is NONE
    assert harness.add(producer, OFFSETS_7) is ErrorCode.POLICY_VIOLATION
    assert harness.add(producer, ORDERS_1) is NONE
    assert harness.end(producer) == producer


def test_the_open_transactions_of_a_shard_have_a_limited_number_of_partitions() -> None:
    harness = TransactionsHarness(TransactionLimits(shard_partitions_max=3))
    producers = {name: harness.new_producer(name) for name in "ab"}
    assert harness.add(producers["a"], ORDERS_0, ORDERS_1, transactional_id="a") is NONE
    two = [TopicPartition("t", 0), TopicPartition("t", 1)]
    assert harness.add(producers["b"], *two, transactional_id="b") is ErrorCode.POLICY_VIOLATION
    harness.end(producers["a"], transactional_id="a")
    assert harness.add(producers["b"], *two, transactional_id="b") is ErrorCode.POLICY_VIOLATION
    harness.acknowledge(harness.sent[-1])
    assert harness.add(producers["b"], *two, transactional_id="b") is NONE


# Records that cannot be read


@pytest.mark.parametrize("damaged", [b"\x00\x02" + bytes(30), b"\x00\x01\xff", b""])
def test_an_id_whose_state_cannot_be_read_is_rejected(damaged: bytes) -> None:
    harness = TransactionsHarness()
    producer = harness.new_producer()
    harness.log.append(StateRecord(encode_key("t"), damaged))
    harness.load()
    (what,) = harness.machine.unreadable()
    assert "'t'" in what
    unknown = ErrorCode.UNKNOWN_SERVER_ERROR
    assert harness.init() is unknown
    assert harness.add(producer) is unknown
    assert harness.end(producer) is unknown
    assert harness.machine.describe("t").error_code == unknown
    assert harness.new_producer("other") is not None


def test_a_later_record_of_the_id_can_be_read_again() -> None:
    harness = TransactionsHarness()
    producer = harness.new_producer()
    harness.log.insert(0, StateRecord(encode_key("t"), b"\x00\x02"))
    harness.load()
    assert harness.machine.unreadable() == ()
    assert harness.add(producer) is NONE


def test_a_key_that_cannot_be_read_is_reported_and_one_of_a_new_type_is_not() -> None:
    harness = TransactionsHarness()
    harness.log += [StateRecord(b"\x00\x00\xff", b""), StateRecord(b"\x00\x09abc", b"")]
    harness.load()
    (what,) = harness.machine.unreadable()
    assert "0000ff" in what
