"""Produce: writes batches to their leaders, exactly once each if the producer is idempotent.

A request has one batch per partition, because a broker accepts no more. The next batch of a partition
follows when this one is acknowledged: with several in flight, a rejected first batch would be written after
the later ones.

Rule 1: an attempt without a reply is retried with the same sequence number (`sequence_numbers.py`), and a
        broker that has the batch does not write it again. Without idempotence the batch may be written
        twice.
Rule 2: an acknowledged batch is not sent again.
Rule 3: after a failed call it is unknown which of its batches were written. The producer state is reset,
        and the next call requests a new producer id.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from penstock.errors import ErrorCode
from penstock.limits import MIB
from penstock.protocol.messages.init_producer_id import INIT_PRODUCER_ID, InitProducerIdRequest
from penstock.protocol.messages.produce import (
    PRODUCE,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.types import Buffer, Offset, TopicPartition
from penstock.wire.blocking_client import PendingResponse
from penstock.wire.cluster_session import CallDeadline, ClusterSession
from penstock.wire.connection_pool import ANSWER_S_MAX, AttemptFailed, BrokerConnection
from penstock.wire.retry_policy import RequestFailure, failure_of
from penstock.wire.sequence_numbers import ProducerIdAndEpoch, SequenceNumbers

_LAST_VERSION_WITH_NAMES: Final = 12
"""Last version with topic names. Later versions have topic ids; by name, a batch goes to the current topic
of that name."""
_ROUND_BYTES_MAX: Final = 16 * MIB


class ProduceOperation:
    def __init__(self, acks: int, sequences: SequenceNumbers | None) -> None:
        """`sequences` is None for a producer without idempotence."""
        self.acks = acks
        self._sequences = sequences

    def send(
        self, broker: BrokerConnection, work: Mapping[TopicPartition, Buffer]
    ) -> PendingResponse[ProduceResponse]:
        if self._sequences is not None and self._sequences.needs_producer_id:
            self._sequences.set_producer(_init_producer_id(broker))
        topics: dict[str, list[PartitionProduceData]] = {}
        for partition, batch in work.items():
            stamped = batch if self._sequences is None else self._sequences.stamped(partition, batch)
            data = PartitionProduceData(partition.partition, stamped)
            topics.setdefault(partition.topic, []).append(data)
        request = ProduceRequest(
            acks=self.acks,
            timeout_ms=int(ANSWER_S_MAX * 1000),
            topic_data=[TopicProduceData(name=name, partition_data=data) for name, data in topics.items()],
        )
        return broker.send(PRODUCE, request, newest=_LAST_VERSION_WITH_NAMES)

    def outcomes(
        self, answer: ProduceResponse
    ) -> Iterator[tuple[TopicPartition, RequestFailure | None, Offset]]:
        for topic in answer.responses:
            for entry in topic.partition_responses:
                partition = TopicPartition(topic.name, entry.index)
                if self._sequences is not None and entry.error_code == ErrorCode.UNKNOWN_PRODUCER_ID:
                    # The broker has no state of this producer id and wrote nothing; a new id starts at
                    # sequence 0.
                    self._sequences.restart(partition)
                yield partition, _failure(entry), Offset(entry.base_offset)


def _init_producer_id(broker: BrokerConnection) -> ProducerIdAndEpoch:
    """Request a producer id, from any broker."""
    answer = broker.ask(INIT_PRODUCER_ID, InitProducerIdRequest())
    if answer.error_code != ErrorCode.NONE:
        failure = failure_of(answer.error_code)
        raise AttemptFailed(failure._replace(what=f"asking for a producer id: {failure.what}"))
    return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)


def _failure(entry: PartitionProduceResponse) -> RequestFailure | None:
    # A duplicate is a success: an earlier attempt was written and its reply was lost. The offset is
    # unknown.
    if entry.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
        return None
    reasons = [entry.error_message, *(each.batch_index_error_message for each in entry.record_errors[:1])]
    return failure_of(entry.error_code, next(filter(None, reasons), None))


def produce_all(
    session: ClusterSession,
    batches: Mapping[TopicPartition, Sequence[Buffer]],
    acks: int,
    sequences: SequenceNumbers | None,
) -> dict[TopicPartition, Offset]:
    """Write all batches. Returns the offset of each partition's first batch, or -1 if the broker only
    reports a duplicate. With `sequences` the producer is idempotent; they belong to this session alone."""
    deadline = session.deadline("producing")
    operation = ProduceOperation(acks, sequences)
    first: dict[TopicPartition, Offset] = {}
    position = 0
    try:
        while some := {each: row[position] for each, row in batches.items() if position < len(row)}:
            for part in by_request_size(some):
                for partition, offset in _produce_round(session, deadline, operation, part).items():
                    first.setdefault(partition, offset)
                    if sequences is not None:
                        # Only now may the next batch take the following sequence.
                        sequences.acknowledge(partition, part[partition])
            position += 1
    except BaseException:
        if sequences is not None:
            sequences.reset()
        raise
    return first


def _produce_round(
    session: ClusterSession,
    deadline: CallDeadline,
    operation: ProduceOperation,
    part: Mapping[TopicPartition, Buffer],
) -> dict[TopicPartition, Offset]:
    written = session.run_on_leaders(deadline, operation, part)
    deadline.restart()
    return written


def by_request_size(
    batches: Mapping[TopicPartition, Buffer], bytes_max: int = _ROUND_BYTES_MAX
) -> Iterator[dict[TopicPartition, Buffer]]:
    """Split batches into chunks that fit a request, at least one batch in each."""
    part: dict[TopicPartition, Buffer] = {}
    size = 0
    for partition, batch in batches.items():
        if part and size + len(batch) > bytes_max:
            yield part
            part, size = {}, 0
        part[partition] = batch
        size += len(batch)
    if part:
        yield part
