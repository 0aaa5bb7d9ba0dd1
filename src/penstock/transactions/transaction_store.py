"""The transactional ids of one shard, as replayed from the log.

Rule 1: where the newest record of an id cannot be read, the state of that id is unknown. Every request for it
        is rejected: a new producer id for it could leave a transaction open that has no coordinator.
"""

from collections.abc import Iterator

from penstock.coordinator.outcome import StateRecord
from penstock.errors import ApiError, CorruptData, ErrorCode
from penstock.transactions.records import decode_key, decode_value, transaction_of
from penstock.transactions.transaction import ProducerIdentity, Transaction, shown, unknown_producer


class TransactionStore:
    def __init__(self) -> None:
        self.transactions: dict[str, Transaction] = {}
        self.open_partitions = 0
        """Partitions of all open transactions together."""
        self._unreadable: dict[str, str] = {}
        """Reasons, by transactional id."""
        self._unreadable_keys: list[str] = []

    def __len__(self) -> int:
        return len(self.transactions) + len(self._unreadable)

    def unreadable(self) -> Iterator[str]:
        """Descriptions of all unreadable records, for the operator."""
        for transactional_id, reason in self._unreadable.items():
            yield f"transactional id {shown(transactional_id)}: {reason}"
        yield from self._unreadable_keys

    def find(self, transactional_id: str) -> Transaction | None:
        reason = self._unreadable.get(transactional_id)
        if reason is not None:
            raise ApiError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"the state of transactional id {shown(transactional_id)} cannot be read ({reason}): start "
                "brokers of the newer release that wrote it, or use another id",
            )
        return self.transactions.get(transactional_id)

    def find_of(self, transactional_id: str, producer: ProducerIdentity) -> Transaction:
        """Find the state of an id for a producer that must have initialised it before."""
        found = self.find(transactional_id)
        if found is None:
            raise unknown_producer(transactional_id, producer)
        return found

    def replay(self, record: StateRecord) -> None:
        try:
            transactional_id = decode_key(record.key)
        except CorruptData as problem:
            self._unreadable_keys.append(f"the record with the key {record.key[:100].hex()}: {problem}")
            return
        if transactional_id is None:
            return
        self._unreadable.pop(transactional_id, None)
        before = self.transactions.pop(transactional_id, None)
        if before is not None:
            self.open_partitions -= len(before.partitions)
        if record.value is None:
            return
        try:
            after = transaction_of(transactional_id, decode_value(record.value))
        except CorruptData as problem:
            self._unreadable[transactional_id] = str(problem)
            return
        self.transactions[transactional_id] = after
        self.open_partitions += len(after.partitions)
