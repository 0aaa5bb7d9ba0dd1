"""The producer id, epoch and sequence numbers of an idempotent producer. Pure.

A broker that knows the producer id and base sequence of a batch detects a duplicate: a retry after a lost
reply is not written again. The rules are those of Kafka's producer:

Rule 1: the sequences of a partition begin with 0, count records without a gap, and wrap after SEQUENCE_MAX.
Rule 2: a batch keeps its sequence until it is acknowledged, however often it is sent. The next batch of the
        partition is sent after that: one batch is in flight, where Kafka allows five.
Rule 3: a producer that does not know whether a batch was written never reuses its sequence for other
        records. So a producer whose write failed is discarded (`reset`), and the next write uses a new id.
"""

from struct import Struct
from typing import Final, NamedTuple

from penstock.protocol.batches import SEQUENCE_MAX, parse_only_header, seal_in_place
from penstock.types import Buffer, TopicPartition

_PRODUCER: Final = Struct(">qhi")
"""Producer id, epoch and base sequence, as laid out in the batch header."""
_PRODUCER_AT: Final = 43


class ProducerIdAndEpoch(NamedTuple):
    """Producer id and epoch, assigned by a broker."""

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
        """Use this producer id for new partitions. Partitions with a sequence keep their id until
        `restart`."""
        self._producer = producer

    def reset(self) -> None:
        """Drop the producer id and all sequences (rule 3)."""
        self._producer = None
        self._partitions.clear()

    def restart(self, partition: TopicPartition) -> None:
        """Start this partition with a new id: the broker has no state of the old one."""
        self._producer = None
        self._partitions.pop(partition, None)

    def stamped(self, partition: TopicPartition, batch: Buffer) -> bytearray:
        """Copy the batch with its producer id and sequence, which stay the same until it is acknowledged."""
        assert self._producer is not None, "an id is asked for first"
        # A retry finds the entry of the first attempt, so the batch keeps its id and sequence.
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
    # The producer fields are covered by the checksum, so the batch is sealed again.
    _PRODUCER.pack_into(stamped, _PRODUCER_AT, *producer, sequence)
    seal_in_place(stamped)
    return stamped


def sequence_after(sequence: int, count: int) -> int:
    """The sequence `count` after this one: 0 follows SEQUENCE_MAX."""
    return (sequence + count) & SEQUENCE_MAX
