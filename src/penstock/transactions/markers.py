"""The markers that end a transaction in its partitions, and which of them are still missing.

Rule 1: markers are sent only when the Prepare state is durable: they are a reply of the command that writes
        it, and the shard releases replies when their records are committed.
Rule 2: an acknowledgement has the `TransactionMarkers` that was sent, and counts only for that very object.
        The markers of the next transaction may be equal to it, and a late acknowledgement must not complete
        that one (KAFKA-9777).
Rule 3: acknowledgements are not stored. A new coordinator sends all markers of a transaction again, and a
        partition that has its marker accepts it again.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple

from penstock.coordinator.outcome import Reply, WaitingRequest
from penstock.transactions.transaction import ProducerIdentity, Transaction
from penstock.types import TopicPartition


class TransactionMarkers(NamedTuple):
    """What WriteTxnMarkers says to the leaders of the partitions of one transaction."""

    transactional_id: str
    producer: ProducerIdentity
    is_commit: bool
    partitions: tuple[TopicPartition, ...]
    coordinator_epoch: int
    """Leader epoch of the coordinator. Partition leaders reject markers of an older coordinator."""
    transaction_version: int

    @classmethod
    def of(cls, prepared: Transaction, coordinator_epoch: int) -> "TransactionMarkers":
        return cls(
            prepared.transactional_id,
            prepared.producer,
            prepared.is_committing,
            tuple(sorted(prepared.partitions)),
            coordinator_epoch,
            prepared.client_version,
        )


class MissingMarkers:
    """The partitions of one prepared transaction that have not acknowledged their marker."""

    __slots__ = ("_markers", "partitions")

    def __init__(self, markers: TransactionMarkers) -> None:
        self._markers = markers
        self.partitions = set(markers.partitions)

    def acknowledge(self, markers: TransactionMarkers, partitions: Collection[TopicPartition]) -> None:
        if markers is self._markers:
            self.partitions.difference_update(partitions)


def markers_reply(send: Callable[[TransactionMarkers], None], markers: TransactionMarkers) -> Reply:
    """The markers as a reply. `send` is not called if the Prepare state cannot be written."""

    def finish(content: TransactionMarkers | None) -> None:
        if content is not None:
            send(content)

    return Reply(WaitingRequest(finish, lambda code, detail: None), markers)
