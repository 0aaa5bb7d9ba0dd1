"""OffsetForLeaderEpoch: api key 23, versions 2 to 4.

Returns where a leader epoch ended, so that a client detects that records it read were lost.

Behaviour
    The reply is the requested epoch, or the last one before it that has records, and its end offset.
    The current epoch ends at the log end offset.
    An epoch before the first known one ends at the log start offset.
    -1, and an epoch that has not begun yet: epoch -1, offset -1, no error.
Versions
    3  replica id (ignored)
Differs from Kafka
    nothing known
"""

from penstock.broker.context import RequestContext
from penstock.broker.served_api import TOPIC, ServedApi, names_at, never_waits
from penstock.errors import ApiError, ErrorCode
from penstock.protocol.messages.offset_for_leader_epoch import (
    OFFSET_FOR_LEADER_EPOCH,
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    OffsetForLeaderTopicResult,
)
from penstock.replication.partition import Partition
from penstock.replication.replica_manager import ReplicaManager
from penstock.security.access import Operation
from penstock.types import NO_EPOCH, NO_OFFSET, NO_TOPIC_ID, LeaderEpoch, Offset


class OffsetForLeaderEpoch:
    api = ServedApi(
        OFFSET_FOR_LEADER_EPOCH, Operation.DESCRIBE, TOPIC, names_at("topics", "topic"), weigh=never_waits
    )

    def __init__(self, partitions: ReplicaManager) -> None:
        self._partitions = partitions

    def __call__(
        self, request: OffsetForLeaderEpochRequest, context: RequestContext
    ) -> OffsetForLeaderEpochResponse:
        return OffsetForLeaderEpochResponse(
            topics=[self._topic(topic, denied=topic.topic in context.denied) for topic in request.topics]
        )

    def _topic(self, topic: OffsetForLeaderTopic, *, denied: bool) -> OffsetForLeaderTopicResult:
        result = OffsetForLeaderTopicResult(topic.topic)
        for asked in topic.partitions:
            entry = EpochEndOffset(partition=asked.partition)
            result.partitions.append(entry)
            if denied:
                entry.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                continue
            try:
                partition = self._found(topic.topic, asked)
            except ApiError as rejection:
                entry.error_code = rejection.code
            else:
                entry.leader_epoch, entry.end_offset = _end_of(partition, LeaderEpoch(asked.leader_epoch))
        return result

    def _found(self, topic: str, asked: OffsetForLeaderPartition) -> Partition:
        partition = self._partitions.find(topic, asked.partition)
        if partition is None:
            raise self._partitions.missing_partition_error(topic, NO_TOPIC_ID, asked.partition)
        if asked.current_leader_epoch < NO_EPOCH:  # only -1 skips the check
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH, f"no leader has epoch {asked.current_leader_epoch}")
        partition.check_epoch(asked.current_leader_epoch)
        partition.require_online()
        partition.require_leader()
        return partition


def _end_of(partition: Partition, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
    if epoch == NO_EPOCH or epoch > partition.leader_epoch:
        return NO_EPOCH, NO_OFFSET
    found, end = partition.end_of_epoch(epoch)
    return (found, end) if found != NO_EPOCH else (epoch, partition.log.log_start_offset)
