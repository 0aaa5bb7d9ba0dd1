"""Producer id, epoch and sequence numbers of an idempotent producer. Pure.

A broker that knows the producer id of a batch and the sequence of its first record recognises a batch that it
has already: a retry after a lost answer is then not written again. The rules are those of Kafka's producer:

Rule 1: the sequences of a partition begin with 0, count records without a gap, and wrap after SEQUENCE_MAX.
Rule 2: a batch keeps its sequence until it is acknowledged, however often it is sent. The next batch of the
        partition is sent after that: one is in flight, and Kafka allows five.
Rule 3: a producer that does not know what became of a batch never reuses its sequence for other records. So
        a producer whose write failed is thrown away (`reset`), and the next write begins with a new id.
"""

from struct import Struct
from typing import Final, NamedTuple

from penstock.protocol.batches import SEQUENCE_MAX, parse_only_header, seal_in_place
from penstock.types import Buffer, TopicPartition

_PRODUCER: Final = Struct(">qhi")
"""Producer id, epoch and base sequence, as they lie in the header of a batch."""
_PRODUCER_AT: Final = 43


class ProducerIdAndEpoch(NamedTuple):
    """What a broker gave this producer."""

    producer_id: int
    epoch: int


class _NextSequence(NamedTuple):
    producer: ProducerIdAndEpoch
    sequence: int


class SequenceNumbers:
    def __init__(self) -> None:
        self._producer: ProducerIdAndEpoch | None = None
        self._partitions: dict[TopicPartition, _NextSequence] = {}

    @property
    def needs_producer_id(self) -> bool:
        return self._producer is None

    def set_producer(self, producer: ProducerIdAndEpoch) -> None:
        """Number with this id from now on. Partitions that are numbered already stay as they are."""
        self._producer = producer

    def reset(self) -> None:
        """Forget everything (Rule 3)."""
        self._producer = None
        self._partitions.clear()

    def restart(self, partition: TopicPartition) -> None:
        """Number this partition with a new id: the broker does not know the old one any more."""
        self._producer = None
        self._partitions.pop(partition, None)

    def stamped(self, partition: TopicPartition, batch: Buffer) -> bytearray:
        """A copy of the batch with its number. The same number until it is acknowledged."""
        assert self._producer is not None, "an id is asked for first"
        next_sequence = self._partitions.setdefault(partition, _NextSequence(self._producer, 0))
        return stamp(batch, next_sequence.producer, next_sequence.sequence)

    def acknowledge(self, partition: TopicPartition, batch: Buffer) -> None:
        next_sequence = self._partitions[partition]
        count = parse_only_header(batch).last_offset_delta + 1
        self._partitions[partition] = next_sequence._replace(
            sequence=sequence_after(next_sequence.sequence, count)
        )


def stamp(batch: Buffer, producer: ProducerIdAndEpoch, sequence: int) -> bytearray:
    stamped = bytearray(batch)
    _PRODUCER.pack_into(stamped, _PRODUCER_AT, *producer, sequence)
    seal_in_place(stamped)
    return stamped


def sequence_after(sequence: int, count: int) -> int:
    """The number `count` behind this one: 0 follows SEQUENCE_MAX."""
    return (sequence + count) & SEQUENCE_MAX
