"""OffsetForLeaderEpoch: looks up where leader epochs ended, to find out whether a log was truncated."""

from collections.abc import Iterator, Mapping
from typing import Final

from penstock.errors import ErrorCode
from penstock.protocol.messages.offset_for_leader_epoch import (
    OFFSET_FOR_LEADER_EPOCH,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from penstock.types import Offset, TopicPartition
from penstock.wire.blocking_client import PendingResponse
from penstock.wire.connection_pool import BrokerConnection
from penstock.wire.retry_policy import RequestFailure, failure_of

_CLIENT: Final = -1
"""Replica id of a request that is not from a replica."""


class EpochEndsOperation:
    """Returns the end of each partition's given epoch, or -1 if the leader does not know the epoch."""

    def send(
        self, broker: BrokerConnection, work: Mapping[TopicPartition, int]
    ) -> PendingResponse[OffsetForLeaderEpochResponse]:
        topics: dict[str, list[OffsetForLeaderPartition]] = {}
        for (topic, number), epoch in work.items():
            topics.setdefault(topic, []).append(OffsetForLeaderPartition(number, leader_epoch=epoch))
        request = OffsetForLeaderEpochRequest(
            replica_id=_CLIENT,
            topics=[OffsetForLeaderTopic(name, partitions) for name, partitions in topics.items()],
        )
        return broker.send(OFFSET_FOR_LEADER_EPOCH, request)

    def outcomes(
        self, answer: OffsetForLeaderEpochResponse
    ) -> Iterator[tuple[TopicPartition, RequestFailure | None, Offset]]:
        for topic in answer.topics:
            for entry in topic.partitions:
                failure = None if entry.error_code == ErrorCode.NONE else failure_of(entry.error_code)
                yield TopicPartition(topic.topic, entry.partition), failure, Offset(entry.end_offset)
