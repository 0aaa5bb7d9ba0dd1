"""ListOffsets: looks up offsets by timestamp, or the start and end of a log."""

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
from penstock.wire.blocking_client import PendingResponse
from penstock.wire.connection_pool import ANSWER_S_MAX, BrokerConnection
from penstock.wire.retry_policy import RequestFailure, failure_of

LATEST: Final = -1
EARLIEST: Final = -2

_CLIENT: Final = -1
"""Replica id of a request that is not from a replica."""


class LogEnd(NamedTuple):
    """Where the records of a partition end for a reader."""

    offset: Offset
    leader_epoch: int
    """Epoch of the leader that replied, or -1: older brokers do not report it."""


class ListOffsetsOperation(NamedTuple):
    """ListOffsets for timestamps, EARLIEST or LATEST; returns offsets with their timestamps."""

    read_committed: bool

    def send(
        self, broker: BrokerConnection, work: Mapping[TopicPartition, int]
    ) -> PendingResponse[ListOffsetsResponse]:
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
    ) -> Iterator[tuple[TopicPartition, RequestFailure | None, tuple[Offset, int]]]:
        for topic in answer.topics:
            for entry in topic.partitions:
                failure = None if entry.error_code == ErrorCode.NONE else failure_of(entry.error_code)
                found = (Offset(entry.offset), entry.timestamp)
                yield TopicPartition(topic.name, entry.partition_index), failure, found


class LogEndsOperation(NamedTuple):
    """ListOffsets for LATEST; returns each end with the epoch of the leader that reported it."""

    read_committed: bool

    def send(
        self, broker: BrokerConnection, work: Mapping[TopicPartition, int]
    ) -> PendingResponse[ListOffsetsResponse]:
        return ListOffsetsOperation(self.read_committed).send(broker, work)

    def outcomes(
        self, answer: ListOffsetsResponse
    ) -> Iterator[tuple[TopicPartition, RequestFailure | None, LogEnd]]:
        for topic in answer.topics:
            for entry in topic.partitions:
                failure = None if entry.error_code == ErrorCode.NONE else failure_of(entry.error_code)
                found = LogEnd(Offset(entry.offset), entry.leader_epoch)
                yield TopicPartition(topic.name, entry.partition_index), failure, found
