"""The state of one transactional id, as an immutable value, and the checks that several requests share.

    Empty ──────► Ongoing ──► PrepareCommit ──► CompleteCommit ─┐
      ▲             ▲   └───► PrepareAbort ───► CompleteAbort ──┤
      └─────────────┴───────────────────────────────────────────┘

A transaction is decided when its Prepare state is durable. From then on it can only be completed with that
result: by writing its marker to each of its partitions, and then the Complete state.

Rule 1: a producer is identified by its producer id and its epoch. The coordinator gives each pair to one
        producer only, and never a smaller one than before.
Rule 2: no producer gets the last epoch, `EPOCH_MAX`. So the coordinator can always fence a producer by
        raising its epoch.
Rule 3: a change of state is a new value. It counts when its record is durable.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from penstock.errors import ApiError, ErrorCode
from penstock.limits import SHORT_MAX
from penstock.types import NO_PRODUCER, NO_TIMESTAMP, ProducerId, TopicPartition

NO_PRODUCER_EPOCH: Final = -1
FIRST_PRODUCER_EPOCH: Final = 0
EPOCH_MAX: Final = SHORT_MAX
CLIENT_EPOCH_MAX: Final = EPOCH_MAX - 1
"""The last epoch that a producer may have. After it the transactional id gets a new producer id."""

SAME_EPOCH_VERSION: Final = 0
"""Value of `Transaction.client_version` for clients whose transactions share one epoch."""
NEW_EPOCH_VERSION: Final = 2
"""The same for clients that get a new epoch for each transaction (KIP-890, `transaction.version` 2)."""

_NAME_CHARACTERS_SHOWN: Final = 60


class ProducerIdentity(NamedTuple):
    producer_id: ProducerId
    epoch: int

    def __str__(self) -> str:
        return f"producer {self.producer_id} with epoch {self.epoch}"


NO_IDENTITY: Final = ProducerIdentity(NO_PRODUCER, NO_PRODUCER_EPOCH)


class TransactionStatus(IntEnum):
    """Kafka's states, with their numbers in records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    """An id that was deleted. It is never in a record: a tombstone deletes it."""
    PREPARE_EPOCH_FENCE = 7
    """Never in a record either: fencing and PrepareAbort are one change."""

    @property
    def kafka_name(self) -> str:
        return "".join(word.capitalize() for word in self.name.split("_"))


EMPTY = TransactionStatus.EMPTY
ONGOING = TransactionStatus.ONGOING
PREPARE_COMMIT = TransactionStatus.PREPARE_COMMIT
PREPARE_ABORT = TransactionStatus.PREPARE_ABORT
COMPLETE_COMMIT = TransactionStatus.COMPLETE_COMMIT
COMPLETE_ABORT = TransactionStatus.COMPLETE_ABORT

PREPARED: Final = frozenset({PREPARE_COMMIT, PREPARE_ABORT})
OPEN: Final = PREPARED | {ONGOING}
AT_REST: Final = frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT})
COMMITTING: Final = frozenset({PREPARE_COMMIT, COMPLETE_COMMIT})

PREDECESSORS: Final[Mapping[TransactionStatus, frozenset[TransactionStatus]]] = {
    EMPTY: AT_REST,
    ONGOING: AT_REST | {ONGOING},
    PREPARE_COMMIT: frozenset({ONGOING}),
    # A client with a new epoch for each transaction may abort one to which it has added nothing.
    PREPARE_ABORT: AT_REST | {ONGOING},
    COMPLETE_COMMIT: frozenset({PREPARE_COMMIT}),
    COMPLETE_ABORT: frozenset({PREPARE_ABORT}),
}


class Transaction(NamedTuple):
    transactional_id: str
    producer: ProducerIdentity
    """In a Prepare state: the identity that the markers have."""
    timeout_ms: int
    status: TransactionStatus = EMPTY
    previous: ProducerIdentity = NO_IDENTITY
    """Identity from which the producer itself came to its present one. It recognises a repeated request,
    whose reply the producer did not get. None if another producer took the id over."""
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIMESTAMP
    """Wall time at which the first partition was added."""
    updated_ms: int = NO_TIMESTAMP
    client_version: int = SAME_EPOCH_VERSION
    next_producer_id: ProducerId = NO_PRODUCER
    """Producer id after a Prepare state that used up the epochs of the present one."""

    @property
    def next_producer(self) -> ProducerIdentity:
        """Identity of the producer for its next transaction."""
        if self.next_producer_id == NO_PRODUCER:
            return self.producer
        return ProducerIdentity(self.next_producer_id, FIRST_PRODUCER_EPOCH)

    @property
    def is_committing(self) -> bool:
        """Whether the transaction was decided to be committed; False if it was decided to be aborted."""
        return self.status in COMMITTING


class ReservedProducerId:
    """A producer id that no producer has got yet, for the case that a decision needs one.

    `is_taken` says afterwards whether a decision took it. The caller may offer it again otherwise.
    """

    __slots__ = ("_producer_id", "is_taken")

    def __init__(self, producer_id: ProducerId) -> None:
        self._producer_id = producer_id
        self.is_taken = False

    def take(self) -> ProducerId:
        assert not self.is_taken, "a producer id is given to one producer"
        self.is_taken = True
        return self._producer_id


def check_producer(transaction: Transaction, producer: ProducerIdentity) -> None:
    """Raise ApiError unless this producer may use the transactional id."""
    own = transaction.next_producer
    if producer.producer_id not in (own.producer_id, transaction.producer.producer_id):
        raise unknown_producer(transaction.transactional_id, producer)
    # A producer with the reserved epoch made it up: the coordinator gives it to none.
    if producer != own or producer.epoch > CLIENT_EPOCH_MAX:
        raise fenced(transaction, producer)


# Rejections


def shown(transactional_id: str) -> str:
    """The id for an error message. A long one is shortened."""
    if len(transactional_id) <= _NAME_CHARACTERS_SHOWN:
        return repr(transactional_id)
    return f"{transactional_id[:_NAME_CHARACTERS_SHOWN]!r}... ({len(transactional_id)} characters)"


def unknown_producer(transactional_id: str, producer: ProducerIdentity) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        f"transactional id {shown(transactional_id)} does not belong to {producer}; it may have expired: "
        "initialise the producer again",
    )


def fenced(transaction: Transaction, producer: ProducerIdentity) -> ApiError:
    return ApiError(
        ErrorCode.PRODUCER_FENCED,
        f"{producer} was fenced: transactional id {shown(transaction.transactional_id)} belongs to "
        f"{transaction.next_producer}, because another producer has the same id or a transaction took longer "
        "than its timeout",
    )


def still_ending(transaction: Transaction) -> ApiError:
    return ApiError(
        ErrorCode.CONCURRENT_TRANSACTIONS,
        f"the last transaction of {shown(transaction.transactional_id)} is in state "
        f"{transaction.status.kafka_name}: retry when its markers are written",
    )
