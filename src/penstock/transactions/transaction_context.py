"""The inputs of the transaction coordinator from outside of its shard, as plain values and callables."""

from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.coordinator.timers import Timers
from penstock.limits import (
    TRANSACTION_PARTITIONS_MAX,
    TRANSACTION_PARTITIONS_PER_SHARD_MAX,
    TRANSACTION_TIMEOUT_MS_MAX,
    TRANSACTIONAL_ID_BYTES_MAX,
    TRANSACTIONAL_ID_EXPIRATION_MS,
    TRANSACTIONAL_ID_EXPIRY_PAUSE_MS,
    TRANSACTIONAL_IDS_PER_SHARD_MAX,
)
from penstock.transactions.markers import TransactionMarkers


class TransactionConfig(NamedTuple):
    """Settings of the operator: `transaction.max.timeout.ms` and `transactional.id.expiration.ms`."""

    timeout_ms_max: int = TRANSACTION_TIMEOUT_MS_MAX
    id_expiration_ms: int = TRANSACTIONAL_ID_EXPIRATION_MS


class TransactionLimits(NamedTuple):
    id_bytes_max: int = TRANSACTIONAL_ID_BYTES_MAX
    ids_max: int = TRANSACTIONAL_IDS_PER_SHARD_MAX
    partitions_max: int = TRANSACTION_PARTITIONS_MAX
    """Partitions of one transaction."""
    shard_partitions_max: int = TRANSACTION_PARTITIONS_PER_SHARD_MAX
    """Partitions of all open transactions of the shard."""
    expiry_pause_ms: int = TRANSACTIONAL_ID_EXPIRY_PAUSE_MS


TRANSACTION_LIMITS: Final = TransactionLimits()


class TransactionContext:
    def __init__(
        self,
        config: Callable[[], TransactionConfig],
        coordinator_epoch: int,
        send_markers: Callable[[TransactionMarkers], None],
        limits: TransactionLimits = TRANSACTION_LIMITS,
    ) -> None:
        self.config = config
        """Returns the current configuration, which can change while transactions are open."""
        self.coordinator_epoch = coordinator_epoch
        """Leader epoch of the shard's partition."""
        self.send_markers = send_markers
        """Takes the markers of a transaction whose Prepare state is durable."""
        self.limits = limits
        self.timers: Timers[str] = Timers()
        """One timer for each transactional id: the timeout of its transaction, or the expiry of the id."""
