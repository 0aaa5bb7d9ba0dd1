"""EndTxn in every state, for clients with one epoch (TV1) and with a new epoch each time (TV2)."""

import pytest

from penstock.errors import ApiError, ErrorCode
from penstock.transactions.ending import EndTransactionRequest, complete, end, fence
from penstock.transactions.transaction import (
    CLIENT_EPOCH_MAX,
    EPOCH_MAX,
    NO_IDENTITY,
    ProducerIdentity,
    ReservedProducerId,
    Transaction,
    TransactionStatus,
)
from penstock.types import ProducerId
from tests.unit.transactions.transactions_support import ORDERS_0, TV1, TV2, identity

EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT, *_ = TransactionStatus
NOW_MS = 5_000
NEW_ID = ProducerId(99)
COMMIT, ABORT = True, False
SAME = "nothing is written"
UNKNOWN = ErrorCode.INVALID_PRODUCER_ID_MAPPING
FENCED = ErrorCode.PRODUCER_FENCED
RETRY = ErrorCode.CONCURRENT_TRANSACTIONS
INVALID = ErrorCode.INVALID_TXN_STATE
CURRENT, BEFORE, OLDER, OTHER = identity(7, 5), identity(7, 4), identity(7, 3), identity(8, 5)


def transaction(status: TransactionStatus, version: int) -> Transaction:
    is_open = status in (ONGOING, PREPARE_COMMIT, PREPARE_ABORT)
    return Transaction(
        "t",
        CURRENT,
        60_000,
        status,
        BEFORE,
        frozenset({ORDERS_0}) if is_open else frozenset(),
        started_ms=1_000,
        updated_ms=2_000,
        client_version=version,
    )


def ask(
    before: Transaction, producer: ProducerIdentity, is_commit: bool, version: int
) -> Transaction | ErrorCode:
    request = EndTransactionRequest("t", producer, is_commit, version)
    try:
        return end(before, request, ReservedProducerId(NEW_ID), NOW_MS)
    except ApiError as rejection:
        detail, code = rejection.detail, rejection.code
    assert "'t'" in detail
    return code


def outcome(before: Transaction, producer: ProducerIdentity, is_commit: bool, version: int) -> object:
    after = ask(before, producer, is_commit, version)
    if isinstance(after, ErrorCode):
        return after
    return SAME if after is before else after.status


TV1_CASES = [
    (EMPTY, COMMIT, INVALID),
    (EMPTY, ABORT, INVALID),
    (ONGOING, COMMIT, PREPARE_COMMIT),
    (ONGOING, ABORT, PREPARE_ABORT),
    (PREPARE_COMMIT, COMMIT, RETRY),
    (PREPARE_COMMIT, ABORT, INVALID),
    (PREPARE_ABORT, COMMIT, INVALID),
    (PREPARE_ABORT, ABORT, RETRY),
    (COMPLETE_COMMIT, COMMIT, SAME),
    (COMPLETE_COMMIT, ABORT, INVALID),
    (COMPLETE_ABORT, COMMIT, INVALID),
    (COMPLETE_ABORT, ABORT, SAME),
]


@pytest.mark.parametrize(("status", "is_commit", "expected"), TV1_CASES)
def test_an_end_with_one_epoch_depends_on_the_state(
    status: TransactionStatus, is_commit: bool, expected: object
) -> None:
    assert outcome(transaction(status, TV1), CURRENT, is_commit, TV1) == expected


@pytest.mark.parametrize(
    ("producer", "code"), [(BEFORE, FENCED), (OLDER, FENCED), (identity(7, 6), FENCED), (OTHER, UNKNOWN)]
)
@pytest.mark.parametrize("status", list(TransactionStatus)[:6])
def test_an_end_with_one_epoch_is_that_producers_only(
    producer: ProducerIdentity, code: ErrorCode, status: TransactionStatus
) -> None:
    for is_commit in (COMMIT, ABORT):
        assert outcome(transaction(status, TV1), producer, is_commit, TV1) is code


TV2_CASES = [
    # state, result, with the present epoch, with the one before
    (EMPTY, COMMIT, INVALID, FENCED),
    (EMPTY, ABORT, PREPARE_ABORT, FENCED),
    (ONGOING, COMMIT, PREPARE_COMMIT, FENCED),
    (ONGOING, ABORT, PREPARE_ABORT, FENCED),
    (PREPARE_COMMIT, COMMIT, RETRY, RETRY),
    (PREPARE_COMMIT, ABORT, RETRY, INVALID),
    (PREPARE_ABORT, COMMIT, RETRY, INVALID),
    (PREPARE_ABORT, ABORT, RETRY, RETRY),
    (COMPLETE_COMMIT, COMMIT, INVALID, SAME),
    (COMPLETE_COMMIT, ABORT, PREPARE_ABORT, INVALID),
    (COMPLETE_ABORT, COMMIT, INVALID, INVALID),
    (COMPLETE_ABORT, ABORT, PREPARE_ABORT, SAME),
]


@pytest.mark.parametrize(("status", "is_commit", "present", "repeated"), TV2_CASES)
def test_an_end_with_a_new_epoch_depends_on_state_and_epoch(
    status: TransactionStatus, is_commit: bool, present: object, repeated: object
) -> None:
    before = transaction(status, TV2)
    assert outcome(before, CURRENT, is_commit, TV2) == present
    assert outcome(before, BEFORE, is_commit, TV2) == repeated
    assert outcome(before, OLDER, is_commit, TV2) is FENCED
    assert outcome(before, identity(7, 6), is_commit, TV2) is FENCED
    assert outcome(before, OTHER, is_commit, TV2) is UNKNOWN


@pytest.mark.parametrize("status", [COMPLETE_COMMIT, COMPLETE_ABORT, PREPARE_COMMIT, PREPARE_ABORT])
def test_an_epoch_before_the_last_start_is_no_repeated_end(status: TransactionStatus) -> None:
    """The transaction kept its epoch; the one before it is from InitProducerId."""
    assert outcome(transaction(status, TV1), BEFORE, COMMIT, TV2) is FENCED


@pytest.mark.parametrize("is_commit", [COMMIT, ABORT])
def test_with_one_epoch_the_markers_have_the_producers_epoch(is_commit: bool) -> None:
    after = ask(transaction(ONGOING, TV1), CURRENT, is_commit, TV1)
    assert isinstance(after, Transaction)
    assert (after.producer, after.next_producer, after.started_ms) == (CURRENT, CURRENT, 1_000)
    assert complete(after, 6_000) == after._replace(
        status=COMPLETE_COMMIT if is_commit else COMPLETE_ABORT, partitions=frozenset(), updated_ms=6_000
    )


@pytest.mark.parametrize("is_commit", [COMMIT, ABORT])
def test_with_a_new_epoch_the_markers_have_it_already(is_commit: bool) -> None:
    after = ask(transaction(ONGOING, TV2), CURRENT, is_commit, TV2)
    assert isinstance(after, Transaction)
    assert (after.producer, after.previous, after.next_producer) == (identity(7, 6), CURRENT, identity(7, 6))
    completed = complete(after, 6_000)
    assert (completed.producer, completed.previous) == (identity(7, 6), CURRENT)


def test_a_client_that_keeps_its_epoch_may_end_what_a_leader_began() -> None:
    after = ask(transaction(ONGOING, TV2), CURRENT, COMMIT, TV1)
    assert isinstance(after, Transaction)
    assert (after.producer, after.client_version) == (CURRENT, TV1)


def test_an_abort_of_nothing_has_a_start_time() -> None:
    """Kafka cannot load a Complete state without one."""
    after = ask(transaction(EMPTY, TV2)._replace(started_ms=-1), CURRENT, ABORT, TV2)
    assert isinstance(after, Transaction)
    assert (after.started_ms, after.partitions) == (NOW_MS, frozenset())


# The end of epochs


def test_the_last_epoch_ends_with_a_new_producer_id() -> None:
    own = identity(7, CLIENT_EPOCH_MAX)
    before = transaction(ONGOING, TV2)._replace(producer=own, previous=identity(7, CLIENT_EPOCH_MAX - 1))
    prepared = ask(before, own, COMMIT, TV2)
    assert isinstance(prepared, Transaction)
    assert prepared.producer == identity(7, EPOCH_MAX), "the epoch of the markers"
    assert prepared.next_producer == identity(NEW_ID, 0)
    assert outcome(prepared, own, COMMIT, TV2) is RETRY
    assert outcome(prepared, own, ABORT, TV2) is INVALID
    assert outcome(prepared, identity(NEW_ID, 0), ABORT, TV2) is RETRY
    completed = complete(prepared, 6_000)
    assert completed.producer == completed.next_producer == identity(NEW_ID, 0)
    assert outcome(completed, own, COMMIT, TV2) == SAME
    assert outcome(completed, own, ABORT, TV2) is INVALID
    assert outcome(completed, identity(7, CLIENT_EPOCH_MAX - 1), COMMIT, TV2) is UNKNOWN


@pytest.mark.parametrize("version", [TV1, TV2])
@pytest.mark.parametrize("status", [EMPTY, ONGOING, COMPLETE_ABORT])
def test_the_reserved_epoch_ends_nothing(version: int, status: TransactionStatus) -> None:
    own = identity(7, EPOCH_MAX)
    before = transaction(status, version)._replace(producer=own)
    assert outcome(before, own, ABORT, version) is FENCED


# Fencing


@pytest.mark.parametrize("version", [TV1, TV2])
def test_fencing_raises_the_epoch_once_and_aborts(version: int) -> None:
    before = transaction(ONGOING, version)
    fenced = fence(before, NO_IDENTITY, NOW_MS)
    assert fenced == before._replace(
        producer=identity(7, 6), previous=NO_IDENTITY, status=PREPARE_ABORT, updated_ms=NOW_MS
    )
    for is_commit in (COMMIT, ABORT):
        assert outcome(fenced, CURRENT, is_commit, version) is FENCED
        assert outcome(complete(fenced, 6_000), CURRENT, is_commit, version) is FENCED
