"""The last batches and the open transaction of each idempotent producer in one partition.

A producer numbers its batches. The last five batches of each producer distinguish a retry (reply with the
offset of the first attempt), the next batch (append) and anything else (reject), so that a record sent twice
is stored once.

The first transactional batch of a producer begins a transaction in this partition, and a marker of the
transaction coordinator ends it (protocol/control_batches.py). A marker with a newer producer epoch also
forgets the batches of the older one: the next batch has sequence number 0, and a late batch of the ended
transaction is rejected (KIP-890).

Rule 1: `check` and `check_marker` decide and change nothing; `replay`, `replay_transactional` and
        `replay_marker` apply a batch that is in the log. A start after a crash replays the same batches and
        arrives at the same state.
Rule 2: an unknown producer may begin at any sequence number: retention may have removed its earlier records.
Rule 3: a `Producer` never changes, except for `idle_since_ms`; its next batch makes a new one. So a list of
        them is a snapshot, which a worker thread may render while the log continues.
Rule 4: a producer with an open transaction is neither evicted nor expired: its marker would then end nothing,
        and its records would stay undecided for every reader. So the number of open transactions is limited,
        and a batch that would begin one more is rejected.
Rule 5: a coordinator whose epoch is older than that of the last marker was replaced and is fenced. A marker
        is appended again unless it comes from the same coordinator epoch: the epoch of a newer coordinator
        must be in the log before a delayed marker of the older one arrives.

`ProducerState` in protocol/messages/describe_producers.py is another thing: Kafka's name of a row of that
reply.

The snapshot is Kafka's .snapshot file. Kafka writes one row for each producer; this broker writes a row for
each remembered batch, oldest first, so that Kafka's tools, in which later rows win, read the same state. A
producer without remembered batches has one row, whose offset is -1.
"""

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.errors import ApiError, CorruptData, ErrorCode
from penstock.limits import (
    PRODUCER_WINDOW_BATCHES,
    PRODUCERS_MAX,
    PRODUCERS_PER_PARTITION_MAX,
    TRANSACTIONS_OPEN_MAX,
    TRANSACTIONS_OPEN_PER_PARTITION_MAX,
)
from penstock.protocol.batches import (
    CONTROL_BIT,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    BatchHeader,
)
from penstock.protocol.control_batches import EndTransactionMarker
from penstock.types import NO_OFFSET, NO_TIMESTAMP, Offset, ProducerId

SEQUENCE_MAX = 2**31 - 1
SNAPSHOT_VERSION = 1
SNAPSHOT_HEAD = struct.Struct(">hI")
SNAPSHOT_ROW = struct.Struct(">qhiqiqiq")
NO_COORDINATOR = -1
NO_TRANSACTION = -1
_TRANSACTIONAL_OR_CONTROL = TRANSACTIONAL_BIT | CONTROL_BIT


class ProducerLimits(NamedTuple):
    """Maximum number of idempotent producers that are remembered, and of their open transactions."""

    total_max: int = PRODUCERS_MAX
    per_partition_max: int = PRODUCERS_PER_PARTITION_MAX
    open_total_max: int = TRANSACTIONS_OPEN_MAX
    open_per_partition_max: int = TRANSACTIONS_OPEN_PER_PARTITION_MAX


PRODUCER_LIMITS: Final = ProducerLimits()


class WrittenBatch(NamedTuple):
    """One batch of a producer that is in the log."""

    first_sequence: int
    last_sequence: int
    last_offset: Offset
    offset_delta: int
    timestamp: int

    @property
    def base_offset(self) -> Offset:
        return Offset(self.last_offset - self.offset_delta)


class ProducerTransaction(NamedTuple):
    """What the transactions of a producer left in one partition."""

    coordinator_epoch: int = NO_COORDINATOR
    """Epoch of the coordinator that wrote the last marker."""
    first_offset: Offset = Offset(NO_TRANSACTION)
    """First offset of the open transaction; NO_TRANSACTION: none is open."""
    marker_timestamp: int = NO_TIMESTAMP


NOT_TRANSACTIONAL: Final = ProducerTransaction()


class Producer:
    """State of one producer id in one partition: its epoch, its last batches, and its transaction."""

    __slots__ = ("batches", "epoch", "id", "idle_since_ms", "transaction")

    def __init__(
        self,
        producer_id: ProducerId,
        epoch: int,
        batches: tuple[WrittenBatch, ...],
        transaction: ProducerTransaction = NOT_TRANSACTIONAL,
    ) -> None:
        self.id = producer_id
        self.epoch = epoch
        self.batches = batches
        """Oldest first, at most PRODUCER_WINDOW_BATCHES. Empty after a marker that began this epoch."""
        self.transaction = transaction
        self.idle_since_ms: int | None = None
        """Time of the first `expire` call since the last batch. Not part of a snapshot."""

    @property
    def last(self) -> WrittenBatch:
        return self.batches[-1]

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> Offset:
        """Offset of the last record; NO_OFFSET: no batch of this epoch is remembered."""
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    @property
    def last_timestamp(self) -> int:
        """Timestamp of the last batch, or of the marker that forgot it."""
        return self.batches[-1].timestamp if self.batches else self.transaction.marker_timestamp

    @property
    def is_in_transaction(self) -> bool:
        return self.transaction.first_offset >= 0


class ProducerRegistry:
    """The producers of all partitions together, in the order of their last batch.

    Beyond the maximum the producer idle for the longest time is evicted, in whichever partition it wrote, as
    it would be after `producer.id.expiration.ms`. Rejecting the newest instead would let one client with many
    producer ids block all other clients. A batch that an evicted producer repeats is stored twice, so
    evictions are counted and reported (`Storage`).

    Producers with an open transaction are only counted, because they are not evicted.
    """

    __slots__ = ("_owners", "evicted", "last_evicted_from", "limits", "transactions_open")

    def __init__(self, limits: ProducerLimits = PRODUCER_LIMITS) -> None:
        self.limits = limits
        self._owners: dict[Producer, Producers] = {}
        self.transactions_open = 0
        self.evicted = 0
        """Producers evicted so far because of a maximum, of one partition or of all."""
        self.last_evicted_from: Producers | None = None

    def __len__(self) -> int:
        return len(self._owners) + self.transactions_open

    def add(self, producer: Producer, owner: "Producers") -> None:
        if producer.transaction.first_offset >= 0:
            self.transactions_open += 1
            return
        self._owners[producer] = owner
        if len(self._owners) > self.limits.total_max:
            self.evict(next(iter(self._owners)))

    def evict(self, producer: Producer) -> None:
        """Forget a producer before it expires, because there are too many."""
        owner = self._owners[producer]
        self.evicted += 1
        self.last_evicted_from = owner
        owner.forget(producer)

    def remove(self, producer: Producer) -> None:
        if self._owners.pop(producer, None) is None:
            self.transactions_open -= 1


class Producers:
    """The producers of one partition."""

    __slots__ = ("_by_id", "_limits", "_producers_max", "_registry", "transactions_open")

    def __init__(self, limits: ProducerLimits = PRODUCER_LIMITS) -> None:
        self._limits = limits
        self._producers_max = limits.per_partition_max
        # In order of last use: the first one is evicted when there are too many.
        self._by_id: dict[ProducerId, Producer] = {}
        self._registry: ProducerRegistry | None = None
        self.transactions_open = 0

    def share(self, registry: ProducerRegistry | None) -> None:
        """Count these producers in the registry of all partitions; None: remove them from it."""
        if self._registry is not None:
            for producer in self._by_id.values():
                self._registry.remove(producer)
        self._registry = registry
        if registry is not None:
            self._limits, self._producers_max = registry.limits, registry.limits.per_partition_max
            for producer in tuple(self._by_id.values()):
                registry.add(producer, self)

    def __len__(self) -> int:
        return len(self._by_id)

    def items(self) -> list[tuple[ProducerId, Producer]]:
        return list(self._by_id.items())

    # Deciding

    def check(self, header: BatchHeader) -> WrittenBatch | None:
        """Return the batch that `header` repeats; None: append it. ApiError: neither a retry nor the next
        batch.
        """
        producer = self._by_id.get(ProducerId(header.producer_id))
        if header.attributes & _TRANSACTIONAL_OR_CONTROL:
            return self._check_transactional(producer, header)
        if producer is None:
            return None
        repeated = _duplicate_or_next(producer, header)
        if repeated is None and producer.transaction.first_offset >= 0:
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} sent a batch outside of its open transaction",
            )
        return repeated

    def _check_transactional(self, producer: Producer | None, header: BatchHeader) -> WrittenBatch | None:
        if header.is_control:
            return None  # `check_marker` has decided
        repeated = None if producer is None else _duplicate_or_next(producer, header)
        if repeated is None and (producer is None or not producer.is_in_transaction):
            self._require_room(header)
        return repeated

    def _require_room(self, header: BatchHeader) -> None:
        """Raise ApiError where one more transaction would be too many (rule 4)."""
        registry, limits = self._registry, self._limits
        in_all = registry.transactions_open if registry is not None else self.transactions_open
        if self.transactions_open >= limits.open_per_partition_max or in_all >= limits.open_total_max:
            raise ApiError(
                ErrorCode.CONCURRENT_TRANSACTIONS,
                f"producer {header.producer_id} cannot begin a transaction: {self.transactions_open} "
                f"transactions are open in this partition and {in_all} on this broker; end some of them",
            )

    def check_marker(self, marker: EndTransactionMarker, *, must_be_newer: bool) -> bool:
        """Whether to append a marker; False: the marker is in the log already. ApiError: it is rejected.

        `must_be_newer`: the coordinator raises the producer epoch with every transaction (TV2), so a marker
        of the producer's own epoch cannot end an open transaction.
        """
        producer = self._by_id.get(marker.producer_id)
        if producer is None:
            return True
        transaction = producer.transaction
        is_same_epoch = marker.producer_epoch == producer.epoch
        is_stale = marker.producer_epoch < producer.epoch
        if is_stale or (must_be_newer and is_same_epoch and producer.is_in_transaction):
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer.id} is at epoch {producer.epoch}, its marker at {marker.producer_epoch}",
            )
        if marker.coordinator_epoch < transaction.coordinator_epoch:
            raise ApiError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"a coordinator with epoch {transaction.coordinator_epoch} has ended a transaction of "
                f"producer {producer.id}; this marker has coordinator epoch {marker.coordinator_epoch}",
            )
        is_same_coordinator = marker.coordinator_epoch == transaction.coordinator_epoch
        return not (is_same_epoch and is_same_coordinator and not producer.is_in_transaction)

    # Applying what is in the log

    def replay(self, header: BatchHeader, base_offset: Offset) -> None:
        """Apply a batch that is in the log and belongs to no transaction."""
        before = self._by_id.pop(ProducerId(header.producer_id), None)
        transaction = NOT_TRANSACTIONAL if before is None else before.transaction
        self._apply(before, header, base_offset, transaction)

    def replay_transactional(self, header: BatchHeader, base_offset: Offset) -> bool:
        """Apply a batch of a transaction. Returns whether the transaction begins with it."""
        before = self._by_id.pop(ProducerId(header.producer_id), None)
        transaction = NOT_TRANSACTIONAL if before is None else before.transaction
        begins = transaction.first_offset == NO_TRANSACTION
        if begins:
            transaction = transaction._replace(first_offset=base_offset)
            self.transactions_open += 1
        self._apply(before, header, base_offset, transaction)
        return begins

    def _apply(
        self,
        before: Producer | None,
        header: BatchHeader,
        base_offset: Offset,
        transaction: ProducerTransaction,
    ) -> None:
        # Unpacked at once: this runs for every batch of an idempotent producer.
        _, _, _, _, _, _, delta, _, newest, producer_id, epoch, sequence, _ = header
        batch = WrittenBatch(sequence, header.last_sequence, Offset(base_offset + delta), delta, newest)
        # A new producer epoch starts its sequence numbers again, so batches of the old one no longer count.
        if before is None or epoch > before.epoch:
            producer = Producer(producer_id, epoch, (batch,), transaction)
        else:
            known = before.batches[1 - PRODUCER_WINDOW_BATCHES :]
            producer = Producer(producer_id, before.epoch, (*known, batch), transaction)
        self._put(before, producer)

    def replay_marker(self, marker: EndTransactionMarker, timestamp: int) -> Offset:
        """Apply a marker. Returns the first offset of the transaction that it ends; NO_OFFSET: none."""
        before = self._by_id.pop(marker.producer_id, None)
        epoch, coordinator_epoch, ended = marker.producer_epoch, marker.coordinator_epoch, NO_OFFSET
        batches: tuple[WrittenBatch, ...] = ()
        if before is not None:
            coordinator_epoch = max(coordinator_epoch, before.transaction.coordinator_epoch)
            if before.epoch >= epoch:
                epoch, batches = before.epoch, before.batches
            if before.is_in_transaction:
                ended = before.transaction.first_offset
                self.transactions_open -= 1
        transaction = ProducerTransaction(coordinator_epoch, marker_timestamp=timestamp)
        self._put(before, Producer(marker.producer_id, epoch, batches, transaction))
        return ended

    def _put(self, before: Producer | None, producer: Producer) -> None:
        """Remember a producer in place of its earlier state, and evict the oldest if there are too many."""
        self._by_id[producer.id] = producer
        if self._registry is not None:
            if before is not None:
                self._registry.remove(before)
            self._registry.add(producer, self)
        if len(self._by_id) > self._producers_max:
            self._evict_surplus()

    def _evict_surplus(self) -> None:
        while len(self._by_id) - self.transactions_open > self._producers_max:
            while (oldest := next(iter(self._by_id.values()))).is_in_transaction:
                self._by_id[oldest.id] = self._by_id.pop(oldest.id)  # rule 4: behind all that may be evicted
            if self._registry is None:  # not counted: recovery replays producers that were evicted before
                self.forget(oldest)
            else:
                self._registry.evict(oldest)

    def forget(self, producer: Producer) -> None:
        del self._by_id[producer.id]
        if self._registry is not None:
            self._registry.remove(producer)

    def expire(self, *, now_ms: int, idle_ms_max: int) -> None:
        """Forget producers without a batch for `idle_ms_max`. Called periodically.

        The time counts from the first call after a producer's last batch, not from the timestamps of its
        records: a client sets those, and they may be years old.
        """
        expired = []
        for producer in self._by_id.values():
            if producer.is_in_transaction:
                continue  # rule 4; its marker makes a new `Producer`, whose time counts from then
            if producer.idle_since_ms is None:
                producer.idle_since_ms = now_ms
            elif now_ms - producer.idle_since_ms > idle_ms_max:
                expired.append(producer)
        for producer in expired:
            self.forget(producer)

    # The snapshot

    def snapshot(self) -> tuple[Producer, ...]:
        """Return the current producers, to be rendered later."""
        return tuple(self._by_id.values())

    def to_bytes(self) -> bytes:
        return render_snapshot(self._by_id.values())

    @classmethod
    def from_bytes(cls, data: bytes) -> "Producers":
        body = memoryview(data)[SNAPSHOT_HEAD.size :]
        if len(body) < 4:
            raise CorruptData(f"a producer snapshot of {len(data)} bytes is too short")
        version, checksum = SNAPSHOT_HEAD.unpack_from(data)
        if version != SNAPSHOT_VERSION:
            raise CorruptData(f"a producer snapshot has version {version}, not {SNAPSHOT_VERSION}")
        (count,) = struct.unpack_from(">i", body)
        if crc32c(body) != checksum or len(body) != 4 + count * SNAPSHOT_ROW.size:
            raise CorruptData("a producer snapshot does not match its checksum")
        producers = cls()
        for row in SNAPSHOT_ROW.iter_unpack(body[4:]):
            producers._restore(*row)
        return producers

    def _restore(
        self,
        producer_id: int,
        epoch: int,
        last_sequence: int,
        last_offset: int,
        offset_delta: int,
        timestamp: int,
        coordinator_epoch: int,
        first_offset: int,
    ) -> None:
        """Apply a row of a snapshot. The rows of a producer agree in all that is not about a batch."""
        before = self._by_id.pop(ProducerId(producer_id), None)
        transaction = ProducerTransaction(coordinator_epoch, Offset(first_offset))
        if first_offset >= 0 and before is None:
            self.transactions_open += 1
        if last_offset < 0:
            transaction = transaction._replace(marker_timestamp=timestamp)
            self._put(before, Producer(ProducerId(producer_id), epoch, (), transaction))
            return
        first_sequence = sequence_plus(last_sequence, -offset_delta)
        batch = WrittenBatch(first_sequence, last_sequence, Offset(last_offset), offset_delta, timestamp)
        known = () if before is None else before.batches
        self._put(before, Producer(ProducerId(producer_id), epoch, (*known, batch), transaction))


def render_snapshot(producers: Iterable[Producer]) -> bytes:
    rows = [row for producer in producers for row in _rows(producer)]
    body = struct.pack(">i", len(rows)) + b"".join(rows)
    return SNAPSHOT_HEAD.pack(SNAPSHOT_VERSION, crc32c(body)) + body


def _rows(producer: Producer) -> Iterable[bytes]:
    coordinator_epoch, first_offset, marker_timestamp = producer.transaction
    head, tail = (producer.id, producer.epoch), (coordinator_epoch, first_offset)
    if not producer.batches:
        yield SNAPSHOT_ROW.pack(*head, NO_SEQUENCE, NO_OFFSET, 0, marker_timestamp, *tail)
    for batch in producer.batches:
        yield SNAPSHOT_ROW.pack(
            *head, batch.last_sequence, batch.last_offset, batch.offset_delta, batch.timestamp, *tail
        )


def sequence_plus(sequence: int, steps: int) -> int:
    """Add to a sequence number, which wraps from 2^31 - 1 to 0."""
    return (sequence + steps) % (SEQUENCE_MAX + 1)


def _duplicate_or_next(producer: Producer, header: BatchHeader) -> WrittenBatch | None:
    if header.producer_epoch != producer.epoch:
        _require_new_epoch(producer, header)
        return None
    first, last = header.base_sequence, header.last_sequence
    # No batch of this epoch is known after a marker that began it: the next batch is its first.
    expected = sequence_plus(producer.batches[-1].last_sequence, 1) if producer.batches else 0
    if first == expected:
        return None
    # A producer has at most five batches in flight, so a retry is among the last five.
    for batch in producer.batches:
        if batch.first_sequence == first and batch.last_sequence == last:
            return batch
    raise _out_of_order(header, expected)


def _require_new_epoch(producer: Producer, header: BatchHeader) -> None:
    # Fence: a newer instance of this producer has started, or its transaction was ended with a newer epoch.
    if header.producer_epoch < producer.epoch:
        raise ApiError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {header.producer_id} is at epoch {producer.epoch}, not {header.producer_epoch}",
        )
    # A new epoch starts its sequence numbers at 0.
    if header.base_sequence != 0:
        raise _out_of_order(header, expected=0)


def _out_of_order(header: BatchHeader, expected: int) -> ApiError:
    return ApiError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} sent sequence {header.base_sequence} where {expected} was expected",
    )
