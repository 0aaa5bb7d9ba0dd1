"""DeleteRecords: api key 21, versions 0 to 2.

Moves the start of a partition forward. What lies before it is gone at once for readers, and from
disk when its whole segment is.

Behaviour
    Answered when the new start is on disk, with the start as low watermark.
    Offset -1 stands for the high watermark. An offset below the start changes nothing and is fine.
    Topics that are only compacted are refused with POLICY_VIOLATION, internal ones with
    INVALID_TOPIC_EXCEPTION.
    A partition that is named twice is answered once; its last offset counts.
Versions
    2  flexible encoding
Differs from Kafka
    nothing known; timeout_ms has nothing to wait for while there are no followers
"""

from typing import Protocol

from penstock.broker.cluster import Cluster
from penstock.broker.context import RequestContext
from penstock.config.topic import CleanupPolicy
from penstock.errors import ApiError, ErrorCode, StorageFailed, StorageFull
from penstock.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from penstock.replication.manager import Partitions
from penstock.replication.partition import Partition
from penstock.types import NO_OFFSET, Offset, TopicPartition

UP_TO_HIGH_WATERMARK = -1


class RecordDeleter(Protocol):
    async def delete_before(self, partition: Partition, offset: Offset) -> None:
        """Return once the log begins at `offset`, if not later, and will after a crash.

        ApiError, StorageFull or StorageFailed: it begins where it did.
        """
        ...


class DeleteRecords:
    def __init__(self, cluster: Cluster, partitions: Partitions, deleter: RecordDeleter) -> None:
        self._cluster = cluster
        self._partitions = partitions
        self._deleter = deleter

    async def __call__(self, request: DeleteRecordsRequest, context: RequestContext) -> DeleteRecordsResponse:
        offsets = {
            TopicPartition(topic.name, partition.partition_index): partition.offset
            for topic in request.topics
            for partition in topic.partitions
        }
        topics: dict[str, DeleteRecordsTopicResult] = {}
        for name, offset in offsets.items():
            result = await self._result(name, offset, context)
            topics.setdefault(name.topic, DeleteRecordsTopicResult(name.topic)).partitions.append(result)
        return DeleteRecordsResponse(topics=list(topics.values()))

    async def _result(
        self, name: TopicPartition, offset: int, context: RequestContext
    ) -> DeleteRecordsPartitionResult:
        try:
            partition = self._found(name, context)
            wanted = partition.high_watermark if offset == UP_TO_HIGH_WATERMARK else Offset(offset)
            await self._deleter.delete_before(partition, wanted)
            start = partition.log.log_start_offset
        except ApiError as refusal:
            return DeleteRecordsPartitionResult(name.partition, NO_OFFSET, refusal.code)
        except (StorageFull, StorageFailed):
            return DeleteRecordsPartitionResult(name.partition, NO_OFFSET, ErrorCode.KAFKA_STORAGE_ERROR)
        return DeleteRecordsPartitionResult(name.partition, start, ErrorCode.NONE)

    def _found(self, name: TopicPartition, context: RequestContext) -> Partition:
        if name.topic in context.denied:
            raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        topic = self._cluster.image.topics.get(name.topic)
        partition = self._partitions.find(*name)
        if topic is None or partition is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if topic.internal:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name.topic} is internal")
        partition.require_online()
        if partition.read_only is not None:
            raise ApiError(partition.read_only.code, partition.read_only.detail)
        if partition.config.cleanup_policy == {CleanupPolicy.COMPACT}:
            raise ApiError(ErrorCode.POLICY_VIOLATION, f"{name.topic} is only compacted")
        return partition
