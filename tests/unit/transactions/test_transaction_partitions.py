"""Adding partitions to a transaction, and what a partition leader learns before it appends."""

import pytest

from penstock.errors import ErrorCode
from penstock.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from penstock.transactions.partitions import PartitionsRequest
from penstock.transactions.transaction import TransactionStatus
from penstock.types import TopicPartition
from tests.unit.transactions.transactions_support import (
    OFFSETS_7,
    ORDERS_0,
    ORDERS_1,
    START,
    TV1,
    TV2,
    TransactionsHarness,
    identity,
)

NONE, ABORTABLE = ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE


def test_the_first_partition_begins_a_transaction() -> None:
    harness = TransactionsHarness()
    producer = harness.new_producer()
    assert harness.add(producer, ORDERS_0, OFFSETS_7) is NONE
    state = harness.state()
    assert state.status is TransactionStatus.ONGOING
    assert state.partitions == {ORDERS_0, OFFSETS_7}
    assert state.started_ms == START.wall_ms


def test_further_partitions_keep_the_start_and_a_known_one_writes_nothing() -> None:
    harness = TransactionsHarness()
    producer = harness.new_producer()
    harness.add(producer, ORDERS_0)
    harness.advance(1_000)
    assert harness.add(producer, ORDERS_0, ORDERS_1) is NONE
    assert harness.state().started_ms == START.wall_ms
    written = len(harness.log)
    assert harness.add(producer, ORDERS_1) is NONE
    assert len(harness.log) == written


@pytest.mark.parametrize("version", [TV1, TV2])
def test_only_the_producer_of_the_id_adds_partitions(version: int) -> None:
    harness = TransactionsHarness()
    assert harness.add(identity(5, 0)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    old = harness.new_producer()
    new = harness.new_producer()
    assert harness.add(old, version=version) is ErrorCode.PRODUCER_FENCED
    assert harness.add(identity(5, 0), version=version) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert harness.add(new._replace(epoch=new.epoch + 1)) is ErrorCode.PRODUCER_FENCED
    assert harness.add(new, version=version) is NONE


@pytest.mark.parametrize("version", [TV1, TV2])
def test_while_markers_are_missing_a_producer_must_wait(version: int) -> None:
    harness = TransactionsHarness()
    producer = harness.new_producer()
    harness.add(producer, version=version)
    after = harness.end(producer, True, version)
    assert harness.add(after, version=version) is ErrorCode.CONCURRENT_TRANSACTIONS  # type: ignore[arg-type]
    harness.acknowledge(harness.sent[-1])
    assert harness.add(after, version=version) is NONE  # type: ignore[arg-type]


def test_the_offsets_of_a_group_are_one_more_partition() -> None:
    harness = TransactionsHarness()
    producer = harness.new_producer()
    request = PartitionsRequest("t", producer, [OFFSETS_7])
    reply = harness.ask(lambda machine, pending, now: machine.add_offsets(request, pending, now))
    assert reply == AddOffsetsToTxnResponse()
    assert harness.state().partitions == {OFFSETS_7}
    unknown = request._replace(producer=identity(5, 0))
    reply = harness.ask(lambda machine, pending, now: machine.add_offsets(unknown, pending, now))
    assert reply is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_leader_verifies_each_partition() -> None:
    harness = TransactionsHarness()
    producer = harness.new_producer()
    assert harness.verify(producer, ORDERS_0) == {ORDERS_0: ABORTABLE}
    harness.add(producer, ORDERS_0)
    assert harness.verify(producer, ORDERS_0, ORDERS_1) == {ORDERS_0: NONE, ORDERS_1: ABORTABLE}
    assert harness.verify(identity(5, 0), ORDERS_0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert harness.verify(producer._replace(epoch=9), ORDERS_0) is ErrorCode.PRODUCER_FENCED
    harness.end(producer)
    assert harness.verify(producer, ORDERS_0) is ErrorCode.CONCURRENT_TRANSACTIONS
    harness.acknowledge(harness.sent[-1])
    assert harness.verify(producer, ORDERS_0) == {ORDERS_0: ABORTABLE}


def test_a_transaction_of_a_thousand_partitions_is_kept_and_marked() -> None:
    harness = TransactionsHarness()
    producer = harness.new_producer()
    partitions = [TopicPartition(f"topic-{number % 10}", number // 10) for number in range(1_000)]
    assert harness.add(producer, *partitions) is NONE
    harness.end(producer)
    assert set(harness.sent[-1].partitions) == set(partitions)
    harness.load()
    assert harness.sent[-1].partitions == tuple(sorted(partitions))
    for start in range(0, 1_000, 100):
        assert harness.status() is TransactionStatus.PREPARE_COMMIT
        harness.acknowledge(harness.sent[-1], partitions[start : start + 100])
    assert harness.status() is TransactionStatus.COMPLETE_COMMIT
