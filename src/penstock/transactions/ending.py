"""The end of a transaction: EndTxn, the abort by the coordinator, and the completion after the markers.

Two kinds of clients end transactions. Those of `transaction.version` 2 (EndTxn version 5) get a new epoch
with each end, so a late or repeated request is recognised by its old epoch. All others keep one epoch for all
their transactions; for them only the state tells a repeated request from a new one.

Rule 1: the Prepare state decides. A request for the other result is rejected from then on.
Rule 2: with a new epoch, the Prepare state and the markers have that epoch already: records of the ended
        transaction that arrive later have a smaller one, and partition leaders reject them.
Rule 3: fencing raises the epoch for every client, in the same record as PrepareAbort. If that record is not
        written, the epoch is not raised either (KAFKA-9666).
"""

from typing import NamedTuple

from penstock.errors import ApiError, ErrorCode
from penstock.transactions.transaction import (
    AT_REST,
    CLIENT_EPOCH_MAX,
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    EPOCH_MAX,
    NEW_EPOCH_VERSION,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARED,
    SAME_EPOCH_VERSION,
    ProducerIdentity,
    ReservedProducerId,
    Transaction,
    TransactionStatus,
    check_producer,
    shown,
    still_ending,
)
from penstock.types import NO_PRODUCER


class EndTransactionRequest(NamedTuple):
    transactional_id: str
    producer: ProducerIdentity
    is_commit: bool
    client_version: int = SAME_EPOCH_VERSION


def end(
    before: Transaction, request: EndTransactionRequest, new_id: ReservedProducerId, now_ms: int
) -> Transaction:
    """Return the Prepare state, or `before` itself if the transaction has ended like this already."""
    if request.client_version >= NEW_EPOCH_VERSION:
        return _end_with_new_epoch(before, request, new_id, now_ms)
    return _end_with_same_epoch(before, request, now_ms)


def _end_with_same_epoch(before: Transaction, request: EndTransactionRequest, now_ms: int) -> Transaction:
    check_producer(before, request.producer)
    if before.status is not ONGOING:
        return _repeated_end(before, request)
    return before._replace(status=_prepared(request), updated_ms=now_ms, client_version=SAME_EPOCH_VERSION)


def _end_with_new_epoch(
    before: Transaction, request: EndTransactionRequest, new_id: ReservedProducerId, now_ms: int
) -> Transaction:
    if _is_repeated(before, request.producer):
        return _repeated_end(before, request)
    check_producer(before, request.producer)
    if before.status in PREPARED:
        # The producer has the identity for its next transaction, to which nothing was added yet.
        raise still_ending(before)
    if before.status in AT_REST and request.is_commit:
        raise _wrong_state(before, request)
    needs_new_id = before.producer.epoch == CLIENT_EPOCH_MAX
    return before._replace(
        producer=ProducerIdentity(before.producer.producer_id, before.producer.epoch + 1),
        previous=before.producer,
        status=_prepared(request),
        # Kafka expects a start time in a Complete state, also after an abort of nothing.
        started_ms=before.started_ms if before.status is ONGOING else now_ms,
        updated_ms=now_ms,
        client_version=request.client_version,
        next_producer_id=new_id.take() if needs_new_id else NO_PRODUCER,
    )


def _is_repeated(before: Transaction, producer: ProducerIdentity) -> bool:
    """Whether the producer has the identity that the last transaction had before its end."""
    has_ended = before.status in PREPARED or before.status in (COMPLETE_COMMIT, COMPLETE_ABORT)
    return has_ended and before.client_version >= NEW_EPOCH_VERSION and producer == before.previous


def _repeated_end(before: Transaction, request: EndTransactionRequest) -> Transaction:
    if before.status is EMPTY or before.is_committing != request.is_commit:
        raise _wrong_state(before, request)
    if before.status in PREPARED:
        raise still_ending(before)
    return before


def _prepared(request: EndTransactionRequest) -> TransactionStatus:
    return PREPARE_COMMIT if request.is_commit else PREPARE_ABORT


def _wrong_state(before: Transaction, request: EndTransactionRequest) -> ApiError:
    wanted = "commit" if request.is_commit else "abort"
    return ApiError(
        ErrorCode.INVALID_TXN_STATE,
        f"{request.producer} cannot {wanted}: transactional id {shown(before.transactional_id)} is in state "
        f"{before.status.kafka_name}; close the producer and start a new one",
    )


def fence(before: Transaction, previous: ProducerIdentity, now_ms: int) -> Transaction:
    """Abort an open transaction whose producer may use its identity no more.

    `previous` is that identity if the producer itself requests this; it then gets the raised epoch.
    """
    assert before.status is ONGOING, f"{before.status.kafka_name} has nothing to fence"
    producer_id, epoch = before.producer
    return before._replace(
        producer=ProducerIdentity(producer_id, min(epoch + 1, EPOCH_MAX)),
        previous=previous,
        status=PREPARE_ABORT,
        updated_ms=now_ms,
    )


def complete(before: Transaction, now_ms: int) -> Transaction:
    """The state after all partitions have their marker."""
    assert before.status in PREPARED, f"{before.status.kafka_name} cannot be completed"
    return before._replace(
        producer=before.next_producer,
        status=COMPLETE_COMMIT if before.is_committing else COMPLETE_ABORT,
        partitions=frozenset(),
        updated_ms=now_ms,
        next_producer_id=NO_PRODUCER,
    )
