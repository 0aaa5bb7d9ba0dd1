"""Histories that went wrong elsewhere: bugs of other brokers, each with what must happen instead.

Where a write has to fail or to wait, the test uses a shard on a simulated disk.
"""

import pytest

from penstock.errors import ErrorCode
from penstock.transactions.ending import EndTransactionRequest
from penstock.transactions.initialise import InitProducerRequest
from penstock.transactions.partitions import PartitionsRequest
from penstock.transactions.records import record_of
from penstock.transactions.transaction import (
    CLIENT_EPOCH_MAX,
    ProducerIdentity,
    Transaction,
    TransactionStatus,
)
from penstock.types import TopicPartition
from tests.unit.transactions.transaction_shard import Request, ShardOfTransactions
from tests.unit.transactions.transactions_support import (
    ORDERS_0,
    ORDERS_1,
    START,
    TIMEOUT_MS,
    TV1,
    TV2,
    TransactionsHarness,
    answered,
    identity,
)

INIT = InitProducerRequest("t", TIMEOUT_MS)
EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT, *_ = TransactionStatus
NONE, FENCED = ErrorCode.NONE, ErrorCode.PRODUCER_FENCED
RETRY = ErrorCode.CONCURRENT_TRANSACTIONS


def replies_to(shards: ShardOfTransactions, request: Request) -> list[object]:
    """The list to which the reply is added."""
    replies: list[object] = []
    shards.ask(request, replies.append)
    return replies


def synced(shards: ShardOfTransactions, request: Request) -> ProducerIdentity | ErrorCode:
    replies = replies_to(shards, request)
    shards.sync()
    (reply,) = replies
    return answered(reply)


def with_open_transaction() -> tuple[ShardOfTransactions, ProducerIdentity]:
    shards = ShardOfTransactions()
    own = synced(shards, INIT)
    assert isinstance(own, ProducerIdentity)
    replies_to(shards, PartitionsRequest("t", own, [ORDERS_0]))
    shards.sync()
    return shards, own


# KIP-360, KAFKA-8710, KAFKA-8805, KAFKA-5283: epochs are raised and end


def test_a_producer_whose_id_expired_starts_anew() -> None:
    harness = TransactionsHarness()
    producer = harness.new_producer()
    harness.advance(harness.config.id_expiration_ms)
    again = harness.init(expected=producer)
    assert again == identity(producer.producer_id + 1, 0)


def with_epoch(epoch: int) -> tuple[TransactionsHarness, ProducerIdentity]:
    """A coordinator that finds a producer with this epoch in its log."""
    harness = TransactionsHarness()
    own = identity(7, epoch)
    harness.log.append(record_of(Transaction("t", own, TIMEOUT_MS, updated_ms=START.wall_ms)))
    harness.load()
    return harness, own


def test_epochs_end_with_a_new_producer_id_and_the_old_one_is_fenced() -> None:
    harness, own = with_epoch(CLIENT_EPOCH_MAX - 2)
    assert harness.new_producer() == own._replace(epoch=CLIENT_EPOCH_MAX - 1)
    last = harness.new_producer()
    assert last == own._replace(epoch=CLIENT_EPOCH_MAX)
    assert harness.new_producer() == identity(harness.next_id - 1, 0)
    assert harness.add(last) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert harness.init(expected=last) is FENCED


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_new_epoch_each_time_ends_with_a_new_producer_id(is_lost: bool) -> None:
    """The new id is in the Prepare record, so a new coordinator gives the same one."""
    harness, before = with_epoch(CLIENT_EPOCH_MAX - 1)
    own = harness.end(before, False, TV2)
    assert own == before._replace(epoch=CLIENT_EPOCH_MAX)
    assert isinstance(own, ProducerIdentity)
    harness.add(own, version=TV2)
    after = harness.end(own, True, TV2)
    assert isinstance(after, ProducerIdentity)
    assert (after.producer_id > own.producer_id, after.epoch) == (True, 0)
    if is_lost:
        harness.load()
        assert harness.end(own, True, TV2) is RETRY
    harness.acknowledge(harness.sent[-1])
    assert harness.end(own, True, TV2) == after
    assert harness.add(after, version=TV2) is NONE


# KAFKA-9666: the write of a raised epoch fails


@pytest.mark.parametrize("is_open", [False, True])
def test_an_epoch_whose_write_failed_is_not_raised(is_open: bool) -> None:
    if is_open:
        shards, own = with_open_transaction()
    else:
        shards = ShardOfTransactions()
        own = synced(shards, INIT)  # type: ignore[assignment]
    for _ in range(3):
        shards.break_writes()
        assert replies_to(shards, INIT) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert shards.sent == []
        shards.repair()
    state = shards.shard.state.store.transactions["t"]
    assert (state.producer, state.status) == (own, ONGOING if is_open else EMPTY)
    raised = own._replace(epoch=own.epoch + 1)
    assert synced(shards, INIT) == (RETRY if is_open else raised)
    assert [markers.producer for markers in shards.sent] == ([raised] if is_open else [])


def test_markers_leave_only_when_the_decision_is_on_disk() -> None:
    shards, own = with_open_transaction()
    replies = replies_to(shards, EndTransactionRequest("t", own, True))
    assert (replies, shards.sent) == ([], [])
    shards.sync()
    assert len(replies) == len(shards.sent) == 1


@pytest.mark.parametrize("keeps_all", [False, True])
def test_a_decision_that_no_client_knows_stays_if_a_follower_has_it(keeps_all: bool) -> None:
    shards, own = with_open_transaction()
    replies = replies_to(shards, EndTransactionRequest("t", own, True))
    shards.fail_over(keeps_all)
    assert replies == [ErrorCode.NOT_COORDINATOR]
    assert [markers.is_commit for markers in shards.sent] == ([True] if keeps_all else [])
    aborted = synced(shards, EndTransactionRequest("t", own, False))
    assert aborted == (ErrorCode.INVALID_TXN_STATE if keeps_all else identity(-1, -1))


def test_a_decision_that_was_not_written_may_still_be_another() -> None:
    shards, own = with_open_transaction()
    shards.break_writes()
    replies = replies_to(shards, EndTransactionRequest("t", own, True))
    assert replies == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    shards.repair()
    assert shards.sent == []
    synced(shards, EndTransactionRequest("t", own, False))
    (markers,) = shards.sent
    assert not markers.is_commit


# KIP-890, KAFKA-14402: messages of an ended transaction arrive late


def test_an_append_after_the_abort_marker_is_rejected() -> None:
    """The leader asks before it appends: implicitly adding (TV2) fails, and so does verifying (TV1)."""
    harness = TransactionsHarness()
    own = harness.new_producer()
    harness.transact(own, is_commit=False, version=TV2)
    assert harness.add(own, version=TV2) is FENCED
    assert harness.status() is COMPLETE_ABORT
    other = TransactionsHarness()
    own = other.new_producer()
    other.transact(own, is_commit=False)
    assert other.verify(own, ORDERS_0) == {ORDERS_0: ErrorCode.TRANSACTION_ABORTABLE}


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_late_end_does_not_end_the_next_transaction(is_commit: bool) -> None:
    harness = TransactionsHarness()
    own = harness.new_producer()
    after = harness.transact(own, version=TV2)
    assert harness.add(after, ORDERS_1, version=TV2) is NONE
    assert harness.end(own, is_commit, TV2) is FENCED
    assert harness.status() is ONGOING


def test_adding_partitions_late_opens_no_transaction() -> None:
    harness = TransactionsHarness()
    own = harness.new_producer()
    harness.add(own, ORDERS_0, version=TV2)
    harness.end(own, True, TV2)
    assert harness.add(own, ORDERS_1, version=TV2) is FENCED
    harness.acknowledge(harness.sent[-1])
    assert harness.add(own, ORDERS_1, version=TV2) is FENCED
    assert harness.status() is COMPLETE_COMMIT


@pytest.mark.parametrize("version", [TV1, TV2])
def test_a_silent_producer_holds_its_transaction_no_longer_than_its_timeout(version: int) -> None:
    harness = TransactionsHarness()
    harness.add(harness.new_producer(), version=version)
    for _ in range(TIMEOUT_MS // 1_000):
        assert harness.status() is ONGOING
        harness.advance(1_000)
        harness.load()
    harness.advance(0)
    assert harness.status() is PREPARE_ABORT


# KAFKA-9777: several ends at once


def test_an_end_during_the_completion_is_repeated() -> None:
    harness = TransactionsHarness()
    own = harness.new_producer()
    harness.add(own, ORDERS_0, ORDERS_1)
    harness.end(own)
    (markers,) = harness.sent
    harness.acknowledge(markers, [ORDERS_0])
    assert harness.end(own) is RETRY
    assert harness.end(own, is_commit=False) is ErrorCode.INVALID_TXN_STATE
    assert harness.sent == [markers], "the markers are under way"
    harness.acknowledge(markers, [ORDERS_1])
    assert harness.end(own) == own


def test_two_new_producers_at_once_get_different_epochs() -> None:
    harness = TransactionsHarness()
    own = harness.new_producer()
    harness.add(own)
    assert harness.init() is RETRY
    assert harness.init() is RETRY
    assert len(harness.sent) == 1, "the second one aborts nothing again"
    harness.acknowledge(harness.sent[-1])
    second, third = harness.new_producer(), harness.new_producer()
    assert second.epoch < third.epoch
    assert harness.add(second) is FENCED
    assert harness.add(third) is NONE


# KAFKA-15468, KAFKA-16030: the coordinator dies after PrepareCommit


@pytest.mark.parametrize("version", [TV1, TV2])
@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("acknowledged", [[], [ORDERS_0], [ORDERS_1]])
def test_what_was_prepared_is_finished_by_the_next_coordinator(
    version: int, is_commit: bool, acknowledged: list[TopicPartition]
) -> None:
    harness = TransactionsHarness()
    own = harness.new_producer()
    harness.add(own, ORDERS_0, ORDERS_1, version=version)
    after = harness.end(own, is_commit, version)
    harness.acknowledge(harness.sent[-1], acknowledged)
    for _ in range(3):
        harness.load()
        harness.advance(10 * TIMEOUT_MS)
        assert harness.status() is (PREPARE_COMMIT if is_commit else PREPARE_ABORT), "whatever time it takes"
        assert harness.end(own, not is_commit, version) is ErrorCode.INVALID_TXN_STATE
        assert harness.init() is RETRY
    assert {markers.is_commit for markers in harness.sent} == {is_commit}
    assert {markers.producer for markers in harness.sent} == {after}
    harness.acknowledge(harness.sent[-1])
    assert harness.status() is (COMPLETE_COMMIT if is_commit else COMPLETE_ABORT)
    assert harness.end(own, is_commit, version) == after


def test_no_request_is_served_before_the_log_is_read() -> None:
    shards = ShardOfTransactions()
    shards.shard.begin_loading()
    assert replies_to(shards, INIT) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]


@pytest.mark.parametrize("version", [TV1, TV2])
def test_a_lost_reply_is_repeated_by_the_next_coordinator(version: int) -> None:
    harness = TransactionsHarness()
    own = harness.new_producer()
    raised = harness.init(expected=own)
    harness.load()
    assert harness.init(expected=own) == raised
    assert isinstance(raised, ProducerIdentity)
    after = harness.transact(raised, version=version)
    harness.load()
    assert harness.end(raised, True, version) == after


def test_everything_is_as_before_after_each_record() -> None:
    """A coordinator that dies anywhere leaves a state that the next one can go on with."""
    harness = TransactionsHarness()
    own = harness.new_producer()
    for version in (TV1, TV2):
        own = harness.transact(own, version=version)
    harness.add(own, ORDERS_0, ORDERS_1)
    harness.init()
    harness.acknowledge(harness.sent[-1])
    whole = list(harness.log)
    for count in range(1, len(whole) + 1):
        harness.log = whole[:count]
        harness.load()
        state = harness.state()
        harness.load()
        assert harness.state() == state
        found = harness.init()
        if found is RETRY:
            harness.acknowledge(harness.sent[-1])
            found = harness.init()
        assert isinstance(found, ProducerIdentity)
        assert found > state.producer
        assert START.wall_ms == harness.now.wall_ms
