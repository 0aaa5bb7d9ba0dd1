"""InitProducerId in every state: which identity a producer gets, and which producer is fenced by it."""

import pytest

from penstock.errors import ApiError, ErrorCode
from penstock.transactions.initialise import InitProducerRequest, initialise
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
from tests.unit.transactions.transactions_support import ORDERS_0, identity

EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT, *_ = TransactionStatus
AT_REST = [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT]
PREPARED = [PREPARE_COMMIT, PREPARE_ABORT]
NOW_MS = 5_000
NEW_ID = 99


def transaction(
    status: TransactionStatus, producer: ProducerIdentity, previous: ProducerIdentity = NO_IDENTITY
) -> Transaction:
    is_open = status is ONGOING or status in PREPARED
    return Transaction(
        "t",
        producer,
        60_000,
        status,
        previous,
        frozenset({ORDERS_0}) if is_open else frozenset(),
        started_ms=-1 if status is EMPTY else 1_000,
        updated_ms=2_000,
    )


def ask(
    before: Transaction | None, expected: ProducerIdentity | None = None
) -> tuple[Transaction | ErrorCode, bool]:
    """The new state or the code of the rejection, and whether a new producer id was used."""
    new_id = ReservedProducerId(ProducerId(NEW_ID))
    request = InitProducerRequest("t", 30_000, expected)
    try:
        return initialise(before, request, new_id, NOW_MS), new_id.is_taken
    except ApiError as rejection:
        detail, code = rejection.detail, rejection.code
    assert "'t'" in detail
    return code, new_id.is_taken


def given(found: tuple[Transaction | ErrorCode, bool]) -> ProducerIdentity | ErrorCode:
    state = found[0]
    return state if isinstance(state, ErrorCode) else state.producer


@pytest.mark.parametrize("expected", [None, identity(7, 5)])
def test_an_unknown_id_gets_a_new_producer_id(expected: ProducerIdentity | None) -> None:
    state, is_taken = ask(None, expected)
    assert is_taken
    assert state == Transaction("t", identity(NEW_ID, 0), 30_000, updated_ms=NOW_MS)


@pytest.mark.parametrize("status", AT_REST)
def test_a_new_producer_gets_the_next_epoch(status: TransactionStatus) -> None:
    state, is_taken = ask(transaction(status, identity(7, 5), identity(7, 4)))
    assert not is_taken
    assert state == Transaction("t", identity(7, 6), 30_000, updated_ms=NOW_MS)


@pytest.mark.parametrize("status", AT_REST)
@pytest.mark.parametrize(
    ("expected", "answer"),
    [
        pytest.param(identity(7, 5), identity(7, 6), id="its present identity"),
        pytest.param(identity(7, 4), identity(7, 5), id="the one before: the reply was lost"),
        pytest.param(identity(7, 3), ErrorCode.PRODUCER_FENCED, id="an older one"),
        pytest.param(identity(7, 6), ErrorCode.PRODUCER_FENCED, id="one that nothing has yet"),
        pytest.param(identity(8, 5), ErrorCode.PRODUCER_FENCED, id="another producer id"),
        pytest.param(identity(8, 4), ErrorCode.PRODUCER_FENCED, id="another id with the epoch before"),
    ],
)
def test_a_producer_goes_on_unless_it_was_replaced(
    status: TransactionStatus, expected: ProducerIdentity, answer: ProducerIdentity | ErrorCode
) -> None:
    assert given(ask(transaction(status, identity(7, 5), identity(7, 4)), expected)) == answer


def test_a_repeated_request_writes_nothing() -> None:
    before = transaction(COMPLETE_COMMIT, identity(7, 5), identity(7, 4))
    assert ask(before, identity(7, 4))[0] is before


@pytest.mark.parametrize("status", AT_REST)
def test_a_new_producer_makes_the_identity_before_invalid(status: TransactionStatus) -> None:
    after, _ = ask(transaction(status, identity(7, 5), identity(7, 4)))
    assert isinstance(after, Transaction)
    for replaced in (identity(7, 4), identity(7, 5)):
        assert given(ask(after, replaced)) is ErrorCode.PRODUCER_FENCED


# The end of epochs (KIP-360, KAFKA-8710)


@pytest.mark.parametrize("status", AT_REST)
@pytest.mark.parametrize("epoch", [CLIENT_EPOCH_MAX, EPOCH_MAX])
def test_after_the_last_epoch_comes_a_new_producer_id(status: TransactionStatus, epoch: int) -> None:
    found = ask(transaction(status, identity(7, epoch)))
    assert (given(found), found[1]) == (identity(NEW_ID, 0), True)


def test_the_epoch_before_the_last_has_one_more() -> None:
    found = ask(transaction(EMPTY, identity(7, CLIENT_EPOCH_MAX - 1)))
    assert (given(found), found[1]) == (identity(7, CLIENT_EPOCH_MAX), False)


def test_a_lost_reply_with_a_new_producer_id_can_be_repeated() -> None:
    own = identity(7, CLIENT_EPOCH_MAX)
    after, _ = ask(transaction(EMPTY, own), own)
    assert isinstance(after, Transaction)
    assert ask(after, own) == (after, False)


def test_a_repeated_request_in_the_last_epoch_needs_no_new_id() -> None:
    before = transaction(EMPTY, identity(7, CLIENT_EPOCH_MAX), identity(7, CLIENT_EPOCH_MAX - 1))
    assert ask(before, identity(7, CLIENT_EPOCH_MAX - 1)) == (before, False)


def test_a_producer_fenced_from_its_last_epoch_gets_a_new_id() -> None:
    """Its own request fenced it, and the epoch that this took may be given to no producer."""
    own = identity(7, CLIENT_EPOCH_MAX)
    fenced, _ = ask(transaction(ONGOING, own), own)
    assert isinstance(fenced, Transaction)
    assert fenced.producer == identity(7, EPOCH_MAX)
    found = ask(fenced._replace(status=COMPLETE_ABORT, partitions=frozenset()), own)
    assert (given(found), found[1]) == (identity(NEW_ID, 0), True)


@pytest.mark.parametrize("status", [*AT_REST, ONGOING, *PREPARED])
def test_a_producer_that_claims_the_reserved_epoch_is_fenced(status: TransactionStatus) -> None:
    before = transaction(status, identity(7, EPOCH_MAX))
    assert given(ask(before, identity(7, EPOCH_MAX))) is ErrorCode.PRODUCER_FENCED


# While a transaction is open


@pytest.mark.parametrize("status", PREPARED)
@pytest.mark.parametrize("expected", [None, identity(7, 5), identity(7, 4)])
def test_a_producer_waits_for_the_end_of_the_transaction(
    status: TransactionStatus, expected: ProducerIdentity | None
) -> None:
    before = transaction(status, identity(7, 5), identity(7, 4))
    assert given(ask(before, expected)) is ErrorCode.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize("status", PREPARED)
def test_a_replaced_producer_does_not_wait_but_is_fenced(status: TransactionStatus) -> None:
    before = transaction(status, identity(7, 5))
    assert given(ask(before, identity(7, 3))) is ErrorCode.PRODUCER_FENCED


def test_an_open_transaction_is_aborted_with_a_raised_epoch() -> None:
    before = transaction(ONGOING, identity(7, 5), identity(7, 4))
    after, is_taken = ask(before)
    assert not is_taken
    assert after == before._replace(
        producer=identity(7, 6), previous=NO_IDENTITY, status=PREPARE_ABORT, updated_ms=NOW_MS
    )


def test_a_producer_that_aborts_its_own_transaction_can_go_on() -> None:
    after, _ = ask(transaction(ONGOING, identity(7, 5)), identity(7, 5))
    assert isinstance(after, Transaction)
    assert after.status is PREPARE_ABORT
    ended = after._replace(status=COMPLETE_ABORT, partitions=frozenset())
    assert given(ask(ended, identity(7, 5))) == identity(7, 6)


@pytest.mark.parametrize("expected", [identity(7, 4), identity(7, 3), identity(8, 5)])
def test_a_replaced_producer_cannot_abort_the_transaction(expected: ProducerIdentity) -> None:
    before = transaction(ONGOING, identity(7, 5), identity(7, 4))
    assert given(ask(before, expected)) is ErrorCode.PRODUCER_FENCED
