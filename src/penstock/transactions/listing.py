"""ListTransactions and DescribeTransactions: views of the state, which change nothing."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from penstock.coordinator.outcome import Now
from penstock.errors import ErrorCode
from penstock.groups.consumer.regex import compile_regex
from penstock.protocol.messages import describe_transactions, list_transactions
from penstock.protocol.messages.list_transactions import ListTransactionsRequest
from penstock.transactions.transaction import (
    NO_PRODUCER_EPOCH,
    OPEN,
    Transaction,
    TransactionStatus,
)
from penstock.types import NO_PRODUCER, NO_TIMESTAMP

_STATUSES = {status.kafka_name: status for status in TransactionStatus}


class TransactionFilters(NamedTuple):
    """Conditions of a ListTransactions request. None: no condition of this kind."""

    statuses: frozenset[TransactionStatus] | None = None
    producer_ids: frozenset[int] | None = None
    duration_ms: int | None = None
    pattern: Any = None
    """Compiled expression, which the whole transactional id must match."""

    @classmethod
    def of(cls, request: ListTransactionsRequest) -> "TransactionFilters":
        """Raise ApiError if the pattern is not a valid expression."""
        names = request.state_filters
        pattern = request.transactional_id_pattern
        return cls(
            frozenset(_STATUSES[name] for name in names if name in _STATUSES) if names else None,
            frozenset(request.producer_id_filters) or None,
            request.duration_filter if request.duration_filter >= 0 else None,
            compile_regex(pattern) if pattern else None,
        )

    def matches(self, transaction: Transaction, now: Now) -> bool:
        if self.statuses is not None and transaction.status not in self.statuses:
            return False
        if self.producer_ids is not None and transaction.producer.producer_id not in self.producer_ids:
            return False
        if self.duration_ms is not None and not self._lasts_longer(transaction, self.duration_ms, now):
            return False
        return self.pattern is None or self.pattern.fullmatch(transaction.transactional_id) is not None

    def _lasts_longer(self, transaction: Transaction, duration_ms: int, now: Now) -> bool:
        return transaction.status in OPEN and now.wall_ms - transaction.started_ms > duration_ms


def unknown_states(request: ListTransactionsRequest) -> list[str]:
    """Names of states in the request that do not exist."""
    return [name for name in request.state_filters if name not in _STATUSES]


def listed(
    transactions: Iterable[Transaction], filters: TransactionFilters, now: Now
) -> Sequence[list_transactions.TransactionState]:
    return [
        list_transactions.TransactionState(
            each.transactional_id, each.producer.producer_id, each.status.kafka_name
        )
        for each in transactions
        if filters.matches(each, now)
    ]


def described(transaction: Transaction) -> describe_transactions.TransactionState:
    by_topic: dict[str, describe_transactions.TopicData] = {}
    for topic, index in sorted(transaction.partitions):
        by_topic.setdefault(topic, describe_transactions.TopicData(topic)).partitions.append(index)
    return describe_transactions.TransactionState(
        transactional_id=transaction.transactional_id,
        transaction_state=transaction.status.kafka_name,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.started_ms,
        producer_id=transaction.producer.producer_id,
        producer_epoch=transaction.producer.epoch,
        topics=list(by_topic.values()),
    )


def not_described(transactional_id: str, code: ErrorCode) -> describe_transactions.TransactionState:
    return describe_transactions.TransactionState(
        error_code=code,
        transactional_id=transactional_id,
        transaction_start_time_ms=NO_TIMESTAMP,
        producer_id=NO_PRODUCER,
        producer_epoch=NO_PRODUCER_EPOCH,
    )
