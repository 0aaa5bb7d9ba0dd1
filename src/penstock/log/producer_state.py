"""The last batches of each idempotent producer in one partition.

A producer numbers its batches. The last five batches of each producer distinguish a retry (reply with the
offset of the first attempt), the next batch (append) and anything else (reject), so that a record sent twice
is stored once.

Rule 1: `check` decides and changes nothing; `replay` applies a batch that is in the log. A start after a
        crash replays the same headers and arrives at the same state.
Rule 2: an unknown producer may begin at any sequence number: retention may have removed its earlier records.
Rule 3: a `Producer` never changes, except for `idle_since_ms`; its next batch makes a new one. So a list of
        them is a snapshot, which a worker thread may render while the log continues.

`ProducerState` in protocol/messages/describe_producers.py is another thing: Kafka's name of a row of that
reply.

The snapshot is Kafka's .snapshot file. Kafka writes one row for each producer; this broker writes a row for
each remembered batch, oldest first, so that Kafka's tools, in which later rows win, read the same state.
"""

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.errors import ApiError, CorruptData, ErrorCode
from penstock.limits import PRODUCER_WINDOW_BATCHES, PRODUCERS_MAX, PRODUCERS_PER_PARTITION_MAX
from penstock.protocol.batches import BatchHeader
from penstock.types import Offset, ProducerId

SEQUENCE_MAX = 2**31 - 1
SNAPSHOT_VERSION = 1
SNAPSHOT_HEAD = struct.Struct(">hI")
SNAPSHOT_ROW = struct.Struct(">qhiqiqiq")
NO_COORDINATOR = -1
NO_TRANSACTION = -1


class ProducerLimits(NamedTuple):
    """Maximum number of idempotent producers that are remembered."""

    total_max: int = PRODUCERS_MAX
    per_partition_max: int = PRODUCERS_PER_PARTITION_MAX


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


class Producer:
    """State of one producer id in one partition: its epoch and its last batches."""

    __slots__ = ("batches", "epoch", "id", "idle_since_ms")

    def __init__(self, producer_id: ProducerId, epoch: int, batches: tuple[WrittenBatch, ...]) -> None:
        self.id = producer_id
        self.epoch = epoch
        self.batches = batches
        """Oldest first, at most PRODUCER_WINDOW_BATCHES."""
        self.idle_since_ms: int | None = None
        """Time of the first `expire` call since the last batch. Not part of a snapshot."""

    @property
    def last(self) -> WrittenBatch:
        return self.batches[-1]


class ProducerRegistry:
    """The producers of all partitions together, in the order of their last batch.

    Beyond the maximum the producer idle for the longest time is evicted, in whichever partition it wrote, as
    it would be after `producer.id.expiration.ms`. Rejecting the newest instead would let one client with many
    producer ids block all other clients. A batch that an evicted producer repeats is stored twice, so
    evictions are counted and reported (`Storage`).
    """

    __slots__ = ("_owners", "_producers_max", "evicted", "last_evicted_from", "per_partition_max")

    def __init__(self, limits: ProducerLimits = PRODUCER_LIMITS) -> None:
        self._producers_max = limits.total_max
        self.per_partition_max = limits.per_partition_max
        self._owners: dict[Producer, Producers] = {}
        self.evicted = 0
        """Producers evicted so far because of a maximum, of one partition or of all."""
        self.last_evicted_from: Producers | None = None

    def __len__(self) -> int:
        return len(self._owners)

    def add(self, producer: Producer, owner: "Producers") -> None:
        self._owners[producer] = owner
        if len(self._owners) > self._producers_max:
            self.evict(next(iter(self._owners)))

    def evict(self, producer: Producer) -> None:
        """Forget a producer before it expires, because there are too many."""
        owner = self._owners[producer]
        self.evicted += 1
        self.last_evicted_from = owner
        owner.forget(producer)

    def remove(self, producer: Producer) -> None:
        del self._owners[producer]


class Producers:
    """The producers of one partition."""

    __slots__ = ("_by_id", "_producers_max", "_registry")

    def __init__(self, most: int = PRODUCERS_PER_PARTITION_MAX) -> None:
        self._producers_max = most
        # In order of last use: the first one is evicted when there are too many.
        self._by_id: dict[ProducerId, Producer] = {}
        self._registry: ProducerRegistry | None = None

    def share(self, registry: ProducerRegistry | None) -> None:
        """Count these producers in the registry of all partitions; None: remove them from it."""
        if self._registry is not None:
            for producer in self._by_id.values():
                self._registry.remove(producer)
        self._registry = registry
        if registry is not None:
            self._producers_max = registry.per_partition_max
            for producer in tuple(self._by_id.values()):
                registry.add(producer, self)

    def __len__(self) -> int:
        return len(self._by_id)

    def items(self) -> list[tuple[ProducerId, Producer]]:
        return list(self._by_id.items())

    def check(self, header: BatchHeader) -> WrittenBatch | None:
        """Return the batch that `header` repeats; None: append it. ApiError: neither a retry nor the next
        batch.
        """
        producer = self._by_id.get(ProducerId(header.producer_id))
        if producer is None:
            return None
        if header.producer_epoch == producer.epoch:
            return _duplicate_or_next(producer, header)
        # Fence: a newer instance of this producer has started.
        if header.producer_epoch < producer.epoch:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} is at epoch {producer.epoch}, not {header.producer_epoch}",
            )
        # A new epoch starts its sequence numbers at 0.
        if header.base_sequence != 0:
            raise _out_of_order(header, expected=0)
        return None

    def replay(self, header: BatchHeader, base_offset: Offset) -> None:
        """Apply a batch that is in the log."""
        delta = header.last_offset_delta
        batch = WrittenBatch(
            header.base_sequence,
            header.last_sequence,
            Offset(base_offset + delta),
            delta,
            header.max_timestamp,
        )
        self._add(ProducerId(header.producer_id), header.producer_epoch, batch)

    def _add(self, producer_id: ProducerId, epoch: int, batch: WrittenBatch) -> None:
        before = self._by_id.pop(producer_id, None)
        # A new producer epoch starts its sequence numbers again, so batches of the old one no longer count.
        if before is None or epoch > before.epoch:
            producer = Producer(producer_id, epoch, (batch,))
        else:
            known = before.batches[1 - PRODUCER_WINDOW_BATCHES :]
            producer = Producer(producer_id, before.epoch, (*known, batch))
        self._by_id[producer_id] = producer
        if self._registry is not None:
            if before is not None:
                self._registry.remove(before)
            self._registry.add(producer, self)
        while len(self._by_id) > self._producers_max:
            oldest = next(iter(self._by_id.values()))
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
            if producer.idle_since_ms is None:
                producer.idle_since_ms = now_ms
            elif now_ms - producer.idle_since_ms > idle_ms_max:
                expired.append(producer)
        for producer in expired:
            self.forget(producer)

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
        for producer_id, epoch, *batch in SNAPSHOT_ROW.iter_unpack(body[4:]):
            producers._add(ProducerId(producer_id), epoch, _restored(*batch))
        return producers


def render_snapshot(producers: Iterable[Producer]) -> bytes:
    rows = [
        SNAPSHOT_ROW.pack(
            producer.id,
            producer.epoch,
            batch.last_sequence,
            batch.last_offset,
            batch.offset_delta,
            batch.timestamp,
            NO_COORDINATOR,
            NO_TRANSACTION,
        )
        for producer in producers
        for batch in producer.batches
    ]
    body = struct.pack(">i", len(rows)) + b"".join(rows)
    return SNAPSHOT_HEAD.pack(SNAPSHOT_VERSION, crc32c(body)) + body


def _restored(
    last_sequence: int, last_offset: int, offset_delta: int, timestamp: int, *_: int
) -> WrittenBatch:
    first_sequence = sequence_plus(last_sequence, -offset_delta)
    return WrittenBatch(first_sequence, last_sequence, Offset(last_offset), offset_delta, timestamp)


def sequence_plus(sequence: int, steps: int) -> int:
    """Add to a sequence number, which wraps from 2^31 - 1 to 0."""
    return (sequence + steps) % (SEQUENCE_MAX + 1)


def _duplicate_or_next(producer: Producer, header: BatchHeader) -> WrittenBatch | None:
    first, last = header.base_sequence, header.last_sequence
    expected = sequence_plus(producer.last.last_sequence, 1)
    if first == expected:
        return None
    # A producer has at most five batches in flight, so a retry is among the last five.
    for batch in producer.batches:
        if batch.first_sequence == first and batch.last_sequence == last:
            return batch
    raise _out_of_order(header, expected)


def _out_of_order(header: BatchHeader, expected: int) -> ApiError:
    return ApiError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} sent sequence {header.base_sequence} where {expected} was expected",
    )
