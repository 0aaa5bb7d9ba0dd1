"""Where a time, the beginning or the end lies in a partition."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from penstock.errors import ErrorCode
from penstock.protocol.messages.list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.types import Offset, TopicPartition
from penstock.wire.blocking import Pending
from penstock.wire.brokers import ANSWER_S_MAX, Broker
from penstock.wire.retrying import Trouble, trouble_of

LATEST: Final = -1
EARLIEST: Final = -2

_CLIENT: Final = -1
"""In the place where a replica would give its number."""


class OffsetsQuestion(NamedTuple):
    """Asks for timestamps, or EARLIEST or LATEST; the answers are offsets with their timestamps."""

    read_committed: bool

    def send(self, broker: Broker, work: Mapping[TopicPartition, int]) -> Pending[ListOffsetsResponse]:
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for (topic, number), timestamp in work.items():
            topics.setdefault(topic, []).append(ListOffsetsPartition(number, timestamp=timestamp))
        request = ListOffsetsRequest(
            replica_id=_CLIENT,
            isolation_level=int(self.read_committed),
            topics=[ListOffsetsTopic(name, partitions) for name, partitions in topics.items()],
            timeout_ms=int(ANSWER_S_MAX * 1000),
        )
        return broker.send(LIST_OFFSETS, request)

    def outcomes(
        self, answer: ListOffsetsResponse
    ) -> Iterator[tuple[TopicPartition, Trouble | None, tuple[Offset, int]]]:
        for topic in answer.topics:
            for entry in topic.partitions:
                trouble = None if entry.error_code == ErrorCode.NONE else trouble_of(entry.error_code)
                found = (Offset(entry.offset), entry.timestamp)
                yield TopicPartition(topic.name, entry.partition_index), trouble, found
