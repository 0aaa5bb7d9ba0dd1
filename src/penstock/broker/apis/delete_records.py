"""DeleteRecords: api key 21, versions 0 to 2.

Advances the log start offset of partitions. Readers no longer get records before it at once; a segment is
removed from disk when all its records are before it.

Behaviour
    The new log start offsets are stored in groups of partitions, those of a group together. After timeout_ms
    no further group is begun: its partitions get REQUEST_TIMED_OUT, and none of their records are deleted.
    The first group is always begun.
    The reply for a partition is sent when every replica that may be elected has the new start on disk: this
    leader, all in-sync replicas, and all eligible leaders (ELR). It has the start as low watermark. If that
    takes longer than timeout_ms, the reply is REQUEST_TIMED_OUT as well: the leader has deleted the records,
    and a replica that is elected may still have them. So this code leaves open whether records were deleted:
    the client retries. An eligible leader that is down counts with the start it reported last: until it has
    stored the new start, every DeleteRecords times out, unless min.insync.replicas are in sync again.
    A leader that loses its leadership while it stores the new start keeps that start as a follower. Its log
    may then start later than its successor's until the deletion is retried: the client gets
    NOT_LEADER_OR_FOLLOWER or REQUEST_TIMED_OUT, and retries.
    An unclean election may bring deleted records back, as it may lose others.
    Offset -1 stands for the high watermark. An offset below the start changes nothing and is no error.
    Topics that are only compacted get POLICY_VIOLATION, internal ones INVALID_TOPIC_EXCEPTION.
    A partition that is named twice gets one reply; its last offset counts.
Differs from Kafka
    It waits until all replicas that may be elected have the new start on disk. Kafka waits until all live
    replicas have it in memory.
"""

import asyncio
from collections.abc import Mapping
from typing import Protocol

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.context import RequestContext
from penstock.broker.served_api import TOPIC, ServedApi, names_at
from penstock.chunks import chunks
from penstock.config.topic import CleanupPolicy
from penstock.errors import ApiError, ErrorCode, StorageFailed, StorageFull
from penstock.limits import DELETE_RECORDS_PARTITIONS_AT_ONCE
from penstock.protocol.messages.delete_records import (
    DELETE_RECORDS,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from penstock.replication.partition import Partition
from penstock.replication.replica_manager import ReplicaManager
from penstock.security.access import Operation
from penstock.types import NO_OFFSET, NO_TOPIC_ID, Offset, TopicPartition

UP_TO_HIGH_WATERMARK = -1


class DeletionStorage(Protocol):
    async def delete_before(self, starts: Mapping[Partition, Offset]) -> Mapping[Partition, ApiError]:
        """Return once each log starts no earlier than its offset, and will after a crash.

        Returns errors for rejected partitions, whose start is unchanged. StorageFull, StorageFailed: no log
        is known to have the new start.
        """
        ...


class DeleteRecords:
    api = ServedApi(DELETE_RECORDS, Operation.DELETE, TOPIC, names_at("topics", "name"))

    def __init__(
        self, cluster: MetadataService, partitions: ReplicaManager, deleter: DeletionStorage
    ) -> None:
        self._cluster = cluster
        self._partitions = partitions
        self._deleter = deleter

    async def __call__(self, request: DeleteRecordsRequest, context: RequestContext) -> DeleteRecordsResponse:
        offsets = {
            TopicPartition(topic.name, partition.partition_index): partition.offset
            for topic in request.topics
            for partition in topic.partitions
        }
        ends_at = asyncio.get_running_loop().time() + request.timeout_ms / 1000
        deleted: dict[TopicPartition, Partition | ErrorCode] = {}
        for some in chunks(list(offsets.items()), DELETE_RECORDS_PARTITIONS_AT_ONCE):
            is_late = bool(deleted) and asyncio.get_running_loop().time() >= ends_at
            deleted |= await self._deleted(dict(some), context, is_late=is_late)
        topics: dict[str, DeleteRecordsTopicResult] = {}
        for name, outcome in deleted.items():
            result = await _result(name, outcome, ends_at)
            topics.setdefault(name.topic, DeleteRecordsTopicResult(name.topic)).partitions.append(result)
        return DeleteRecordsResponse(topics=list(topics.values()))

    async def _deleted(
        self, offsets: dict[TopicPartition, int], context: RequestContext, *, is_late: bool
    ) -> dict[TopicPartition, Partition | ErrorCode]:
        """Delete on this broker alone. `is_late`: delete nothing, reply without the disk."""
        outcomes: dict[TopicPartition, Partition | ErrorCode] = {}
        starts: dict[Partition, Offset] = {}
        for name, offset in offsets.items():
            try:
                partition = self._found(name, context)
            except ApiError as rejection:
                outcomes[name] = rejection.code
                continue
            wanted = partition.high_watermark if offset == UP_TO_HIGH_WATERMARK else Offset(offset)
            starts[partition] = wanted
            outcomes[name] = ErrorCode.REQUEST_TIMED_OUT if is_late else partition
        if is_late:
            return outcomes
        try:
            refused = await self._deleter.delete_before(starts)
        except (StorageFull, StorageFailed):
            return outcomes | {partition.name: ErrorCode.KAFKA_STORAGE_ERROR for partition in starts}
        return outcomes | {partition.name: rejection.code for partition, rejection in refused.items()}

    def _found(self, name: TopicPartition, context: RequestContext) -> Partition:
        if name.topic in context.denied:
            raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        topic = self._cluster.image.topics.get(name.topic)
        partition = self._partitions.find(*name)
        if topic is None or partition is None:
            raise self._partitions.missing_partition_error(name.topic, NO_TOPIC_ID, name.partition)
        if topic.internal:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name.topic} is internal")
        partition.require_online()
        if partition.read_only_error is not None:
            raise ApiError(partition.read_only_error.code, partition.read_only_error.detail)
        if partition.config.cleanup_policy == {CleanupPolicy.COMPACT}:
            raise ApiError(ErrorCode.POLICY_VIOLATION, f"{name.topic} is only compacted")
        return partition


async def _result(
    name: TopicPartition, deleted: Partition | ErrorCode, ends_at: float
) -> DeleteRecordsPartitionResult:
    if isinstance(deleted, ErrorCode):
        return DeleteRecordsPartitionResult(name.partition, NO_OFFSET, deleted)
    start = deleted.log.stored_start
    try:
        await _until_deleted(deleted, start, ends_at)
    except ApiError as rejection:
        return DeleteRecordsPartitionResult(name.partition, NO_OFFSET, rejection.code)
    except TimeoutError:
        return DeleteRecordsPartitionResult(name.partition, NO_OFFSET, ErrorCode.REQUEST_TIMED_OUT)
    return DeleteRecordsPartitionResult(name.partition, start, ErrorCode.NONE)


async def _until_deleted(partition: Partition, start: Offset, ends_at: float) -> None:
    """Wait until every replica that may be elected has the new start on disk."""
    if partition.is_deleted(start):
        return
    news = asyncio.Event()
    partition.replica_waits[news.set] = None
    try:
        async with asyncio.timeout_at(ends_at):
            while not partition.is_deleted(start):
                # No other task runs between the check and the wait, so no change is missed.
                news.clear()
                await news.wait()
    finally:
        del partition.replica_waits[news.set]
