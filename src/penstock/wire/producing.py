"""Writing batches to their leaders, at least once.

A request carries the next batch of every partition it is about, because a broker takes no more than
one for each. The next ones follow when these are acknowledged: if several of one partition were under
way at once and the first was refused, those after it would stand before it.

Rule 1: an attempt whose answer never came is made again, and may then have been written twice.
Rule 2: what was acknowledged is not sent again.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.errors import ErrorCode
from penstock.limits import MIB
from penstock.protocol.messages.produce import (
    PRODUCE,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.types import Buffer, Offset, TopicPartition
from penstock.wire.blocking import Pending
from penstock.wire.brokers import ANSWER_S_MAX, Broker
from penstock.wire.retrying import Trouble, trouble_of
from penstock.wire.session import Patience, Session

_NAMED_UP_TO: Final = 12
"""Later versions have ids instead of names; what is written goes to the topic that has the name now."""
_ROUND_BYTES_MAX: Final = 16 * MIB


class ProduceQuestion(NamedTuple):
    acks: int

    def send(self, broker: Broker, work: Mapping[TopicPartition, Buffer]) -> Pending[ProduceResponse]:
        topics: dict[str, list[PartitionProduceData]] = {}
        for (topic, number), batch in work.items():
            topics.setdefault(topic, []).append(PartitionProduceData(number, batch))
        request = ProduceRequest(
            acks=self.acks,
            timeout_ms=int(ANSWER_S_MAX * 1000),
            topic_data=[TopicProduceData(name=name, partition_data=data) for name, data in topics.items()],
        )
        return broker.send(PRODUCE, request, version=broker.version_of(PRODUCE, newest=_NAMED_UP_TO))

    def outcomes(self, answer: ProduceResponse) -> Iterator[tuple[TopicPartition, Trouble | None, Offset]]:
        for topic in answer.responses:
            for entry in topic.partition_responses:
                partition = TopicPartition(topic.name, entry.index)
                yield partition, _trouble(entry), Offset(entry.base_offset)


def _trouble(entry: PartitionProduceResponse) -> Trouble | None:
    if entry.error_code == ErrorCode.NONE:
        return None
    reasons = [entry.error_message, *(each.batch_index_error_message for each in entry.record_errors[:1])]
    return trouble_of(entry.error_code, next(filter(None, reasons), None))


def produce_all(
    session: Session, batches: Mapping[TopicPartition, Sequence[Buffer]], acks: int
) -> dict[TopicPartition, Offset]:
    """The offset of the first batch of each partition."""
    patience = session.patience("producing")
    first: dict[TopicPartition, Offset] = {}
    position = 0
    while some := {each: row[position] for each, row in batches.items() if position < len(row)}:
        for part in in_rounds(some):
            for partition, offset in _produce_round(session, patience, part, acks).items():
                first.setdefault(partition, offset)
        position += 1
    return first


def _produce_round(
    session: Session, patience: Patience, part: Mapping[TopicPartition, Buffer], acks: int
) -> dict[TopicPartition, Offset]:
    written = session.ask_leaders(patience, ProduceQuestion(acks), part)
    patience.restart()
    return written


def in_rounds(
    batches: Mapping[TopicPartition, Buffer], bytes_max: int = _ROUND_BYTES_MAX
) -> Iterator[dict[TopicPartition, Buffer]]:
    """The same, in pieces that a request can carry; one batch at least in each."""
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
