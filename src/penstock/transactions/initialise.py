"""InitProducerId with a transactional id: a new epoch, which fences every producer that had the id before.

Rule 1: while a transaction is open it is aborted first. The producer retries until that is complete.
Rule 2: a producer that sends its present identity (KIP-360) wants to go on after an error. It is fenced like
        any other if a newer producer has taken the id over meanwhile.
Rule 3: a repeated request gets the same reply. The producer sends the identity that it had before, and
        `Transaction.previous` has it.
"""

from typing import NamedTuple

from penstock.errors import ApiError, ErrorCode
from penstock.transactions.ending import fence
from penstock.transactions.transaction import (
    CLIENT_EPOCH_MAX,
    EMPTY,
    FIRST_PRODUCER_EPOCH,
    NO_IDENTITY,
    ONGOING,
    PREPARED,
    ProducerIdentity,
    ReservedProducerId,
    Transaction,
    fenced,
    shown,
    still_ending,
)
from penstock.types import NO_PRODUCER, NO_TIMESTAMP


class InitProducerRequest(NamedTuple):
    transactional_id: str
    timeout_ms: int
    expected: ProducerIdentity | None = None
    """Identity that the producer has. None if it has just been started."""


def check_timeout(request: InitProducerRequest, timeout_ms_max: int) -> None:
    if not 0 < request.timeout_ms <= timeout_ms_max:
        raise ApiError(
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
            f"transactional id {shown(request.transactional_id)} asks for a timeout of {request.timeout_ms} "
            f"ms; 1 to {timeout_ms_max} are allowed: change transaction.timeout.ms of the producer or "
            "transaction.max.timeout.ms of the brokers",
        )


def initialise(
    before: Transaction | None, request: InitProducerRequest, new_id: ReservedProducerId, now_ms: int
) -> Transaction:
    """Return the new state: PrepareAbort if a transaction has to be aborted first, Empty otherwise.

    A repeated request returns `before` itself: nothing is written for it.
    """
    expected = request.expected
    if before is None:
        # Also for a producer that sends its identity: the id has expired, and the producer starts anew.
        producer = ProducerIdentity(new_id.take(), FIRST_PRODUCER_EPOCH)
        return Transaction(request.transactional_id, producer, request.timeout_ms, updated_ms=now_ms)
    if expected is not None:
        _check_expected(before, expected)
    if before.status in PREPARED:
        raise still_ending(before)
    if before.status is ONGOING:
        return fence(before, expected or NO_IDENTITY, now_ms)
    if expected == before.previous and before.producer.epoch <= CLIENT_EPOCH_MAX:
        return before
    return _with_new_identity(before, expected or NO_IDENTITY, new_id)._replace(
        timeout_ms=request.timeout_ms,
        status=EMPTY,
        partitions=frozenset(),
        started_ms=NO_TIMESTAMP,
        updated_ms=now_ms,
        next_producer_id=NO_PRODUCER,
    )


def _check_expected(before: Transaction, expected: ProducerIdentity) -> None:
    valid = {before.producer}
    if before.status is not ONGOING:
        # A producer that has begun a transaction got the reply to its last request. While the transaction is
        # open, a request with the identity before it is late and must not abort it, as it would in Kafka.
        valid = {before.next_producer, before.previous}
    if expected not in valid or expected.epoch > CLIENT_EPOCH_MAX:
        raise fenced(before, expected)


def _with_new_identity(
    before: Transaction, previous: ProducerIdentity, new_id: ReservedProducerId
) -> Transaction:
    """Raise the epoch, or take a new producer id if no epoch is left."""
    producer_id, epoch = before.producer
    if epoch >= CLIENT_EPOCH_MAX:
        producer = ProducerIdentity(new_id.take(), FIRST_PRODUCER_EPOCH)
    else:
        producer = ProducerIdentity(producer_id, epoch + 1)
    return before._replace(producer=producer, previous=previous)
