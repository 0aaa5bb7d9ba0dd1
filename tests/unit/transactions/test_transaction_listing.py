"""ListTransactions and DescribeTransactions."""

import pytest

from penstock.errors import ApiError, ErrorCode
from penstock.protocol.messages.list_transactions import ListTransactionsRequest
from penstock.transactions.listing import TransactionFilters, unknown_states
from penstock.transactions.transaction import TransactionStatus
from tests.unit.transactions.transactions_support import (
    OFFSETS_7,
    ORDERS_0,
    ORDERS_1,
    START,
    TIMEOUT_MS,
    TransactionsHarness,
)


def filled() -> TransactionsHarness:
    """Three ids: `orders-open` since 2 s, `orders-done` and `mail-new`."""
    harness = TransactionsHarness()
    producer = harness.new_producer("orders-open")
    harness.add(producer, ORDERS_1, OFFSETS_7, ORDERS_0, transactional_id="orders-open")
    done = harness.new_producer("orders-done")
    harness.add(done, transactional_id="orders-done")
    harness.end(done, transactional_id="orders-done")
    harness.acknowledge(harness.sent[-1])
    harness.new_producer("mail-new")
    harness.advance(2_000)
    return harness


def names(harness: TransactionsHarness, **conditions: object) -> list[str]:
    filters = TransactionFilters.of(ListTransactionsRequest(**conditions))  # type: ignore[arg-type]
    machine = harness.machine
    return [each.transactional_id for each in machine.list(filters, machine.transactional_ids(), harness.now)]


EVERY = ["orders-open", "orders-done", "mail-new"]


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({}, EVERY),
        ({"state_filters": ["Ongoing"]}, ["orders-open"]),
        ({"state_filters": ["CompleteCommit", "Empty"]}, ["orders-done", "mail-new"]),
        ({"state_filters": ["Ongoing", "nonsense"]}, ["orders-open"]),
        ({"state_filters": ["nonsense"]}, []),
        ({"state_filters": ["Dead", "PrepareEpochFence"]}, []),
        ({"producer_id_filters": [1_000, 1_002]}, ["orders-open"]),
        ({"producer_id_filters": [7]}, []),
        ({"duration_filter": -1}, EVERY),
        ({"duration_filter": 0}, ["orders-open"]),
        ({"duration_filter": 1_999}, ["orders-open"]),
        ({"duration_filter": 2_000}, []),
        ({"transactional_id_pattern": ""}, EVERY),
        ({"transactional_id_pattern": "orders-.*"}, ["orders-open", "orders-done"]),
        ({"transactional_id_pattern": "orders"}, []),
        ({"transactional_id_pattern": "orders-.*", "state_filters": ["Ongoing"]}, ["orders-open"]),
    ],
)
def test_ids_are_listed_by_condition(conditions: dict[str, object], expected: list[str]) -> None:
    assert names(filled(), **conditions) == expected


def test_a_listed_id_has_its_producer_and_state() -> None:
    harness = filled()
    (found,) = harness.machine.list(TransactionFilters(), ["orders-open", "gone"], harness.now)
    assert (found.transactional_id, found.producer_id, found.transaction_state) == (
        "orders-open",
        1_000,
        "Ongoing",
    )


def test_states_that_do_not_exist_are_named() -> None:
    request = ListTransactionsRequest(["Ongoing", "nonsense", "EMPTY", "PrepareEpochFence"])
    assert unknown_states(request) == ["nonsense", "EMPTY"]


@pytest.mark.parametrize("pattern", ["(", "a" * 5_000, "(?=x)"])
def test_a_pattern_that_is_none_is_rejected(pattern: str) -> None:
    with pytest.raises(ApiError) as rejected:
        TransactionFilters.of(ListTransactionsRequest(transactional_id_pattern=pattern))
    assert rejected.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_an_open_transaction_is_described_with_its_partitions() -> None:
    found = filled().machine.describe("orders-open")
    assert (found.error_code, found.transaction_state) == (0, "Ongoing")
    assert (found.transaction_timeout_ms, found.transaction_start_time_ms) == (TIMEOUT_MS, START.wall_ms)
    assert (found.producer_id, found.producer_epoch) == (1_000, 0)
    assert [(each.topic, each.partitions) for each in found.topics] == [
        ("__consumer_offsets", [7]),
        ("orders", [0, 1]),
    ]


def test_an_id_without_a_transaction_is_described_without_partitions() -> None:
    found = filled().machine.describe("mail-new")
    assert (found.transaction_state, found.transaction_start_time_ms, found.topics) == ("Empty", -1, [])


@pytest.mark.parametrize(
    ("name", "code"), [("gone", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND), ("", ErrorCode.INVALID_REQUEST)]
)
def test_an_unknown_id_is_not_described(name: str, code: ErrorCode) -> None:
    found = filled().machine.describe(name)
    assert (found.error_code, found.transactional_id) == (code, name)


def test_states_have_kafkas_names() -> None:
    assert [status.kafka_name for status in TransactionStatus] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]
