"""AddPartitionsToTxn and AddOffsetsToTxn: the partitions that get a marker when the transaction ends.

Clients of `transaction.version` 2 add nothing themselves: the leader of a partition adds it before it appends
the first batch. For all others a leader verifies before that append that the producer has added the
partition, so that no batch opens a transaction of which the coordinator knows nothing.

Rule 1: a partition is added durably before the producer may write to it: no transaction has records in a
        partition that gets no marker.
"""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.errors import ApiError, ErrorCode
from penstock.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from penstock.transactions.transaction import (
    ONGOING,
    PREPARED,
    SAME_EPOCH_VERSION,
    ProducerIdentity,
    Transaction,
    check_producer,
    shown,
    still_ending,
)
from penstock.types import TopicPartition


class PartitionsRequest(NamedTuple):
    transactional_id: str
    producer: ProducerIdentity
    partitions: Sequence[TopicPartition]
    client_version: int = SAME_EPOCH_VERSION


def add_partitions(
    before: Transaction, request: PartitionsRequest, now_ms: int, partitions_max: int
) -> Transaction:
    """Return the transaction with the partitions, or `before` itself if it has them already."""
    check_producer(before, request.producer)
    if before.status in PREPARED:
        raise still_ending(before)
    added = frozenset(request.partitions) - before.partitions
    if not added:
        return before
    partitions = before.partitions | added
    if len(partitions) > partitions_max:
        raise ApiError(
            ErrorCode.POLICY_VIOLATION,
            f"the transaction of {shown(before.transactional_id)} has {len(before.partitions)} partitions "
            f"and adds {len(added)}; {partitions_max} are allowed: commit more often, or write to fewer "
            "partitions",
        )
    return before._replace(
        status=ONGOING,
        partitions=partitions,
        started_ms=before.started_ms if before.status is ONGOING else now_ms,
        updated_ms=now_ms,
        client_version=request.client_version,
    )


def verify_partitions(transaction: Transaction, request: PartitionsRequest) -> AddPartitionsToTxnResult:
    """Reply of a verify-only request: TRANSACTION_ABORTABLE for each partition that was not added."""
    check_producer(transaction, request.producer)
    if transaction.status in PREPARED:
        raise still_ending(transaction)
    return partition_results(
        request,
        [
            ErrorCode.NONE if partition in transaction.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for partition in request.partitions
        ],
    )


def partition_results(request: PartitionsRequest, codes: Sequence[ErrorCode]) -> AddPartitionsToTxnResult:
    """The results of one transaction by topic, in the order of the request."""
    by_topic: dict[str, AddPartitionsToTxnTopicResult] = {}
    for (topic, index), code in zip(request.partitions, codes, strict=True):
        results = by_topic.setdefault(topic, AddPartitionsToTxnTopicResult(topic))
        results.results_by_partition.append(AddPartitionsToTxnPartitionResult(index, code))
    return AddPartitionsToTxnResult(request.transactional_id, list(by_topic.values()))
