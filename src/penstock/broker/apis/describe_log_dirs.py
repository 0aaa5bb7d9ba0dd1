"""DescribeLogDirs: api key 35, versions 1 to 4.

Returns the disk space that each partition uses on this broker, and the space that is left.

Behaviour
    There is one directory, always listed. A size is that of the partition's .log files.
    Null requests every partition, an empty list none; partitions that do not exist are left out.
    The lag of a replica is the number of visible records that it lacked at its leader's last reply, -1 before
    the first reply; that of a leader is 0.
    A directory that failed is listed with KAFKA_STORAGE_ERROR and no partitions.
Versions
    3  top-level error: CLUSTER_AUTHORIZATION_FAILED (an empty reply in earlier versions)
    4  total and usable bytes of the file system
Differs from Kafka
    Kafka compares with the replica's own high watermark, and so reports 0 for most replicas that lag.
"""

from collections.abc import Callable, Iterable

from penstock.broker.context import RequestContext
from penstock.broker.served_api import ON_CLUSTER, ServedApi, cluster_name
from penstock.errors import ErrorCode, StorageFailed
from penstock.host.disk import Space
from penstock.host.worker import WorkerPool
from penstock.log.data_directory import DataDirectory
from penstock.protocol.messages.describe_log_dirs import (
    DESCRIBE_LOG_DIRS,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from penstock.replication.partition import Partition
from penstock.replication.replica_manager import ReplicaManager
from penstock.security.access import Operation
from penstock.types import TopicPartition

LAG_UNKNOWN = -1
"""Kafka's number for an unknown lag."""


class DescribeLogDirs:
    api = ServedApi(DESCRIBE_LOG_DIRS, Operation.DESCRIBE, ON_CLUSTER, cluster_name)

    def __init__(
        self,
        directory: DataDirectory,
        partitions: ReplicaManager,
        pool: WorkerPool,
        path: str,
        failure: Callable[[], str | None],
    ) -> None:
        """`path` is the absolute path of the logs; `failure` returns why the disk cannot be used, or None."""
        self._directory = directory
        self._partitions = partitions
        self._pool = pool
        self._path = path
        self._failure = failure

    async def __call__(
        self, request: DescribeLogDirsRequest, context: RequestContext
    ) -> DescribeLogDirsResponse:
        if context.cluster_denied:
            return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return DescribeLogDirsResponse(results=[await self._result(request)])

    async def _result(self, request: DescribeLogDirsRequest) -> DescribeLogDirsResult:
        failed = DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=self._path)
        if self._failure() is not None:
            return failed
        try:
            space = await self._pool.run(self._space)
        except StorageFailed:
            return failed
        return DescribeLogDirsResult(
            log_dir=self._path,
            topics=_by_topic(self._asked_for(request)),
            total_bytes=space.total_bytes,
            usable_bytes=space.usable_bytes,
        )

    def _space(self) -> Space:
        return self._directory.disk.space(self._directory.logs_path)

    def _asked_for(self, request: DescribeLogDirsRequest) -> Iterable[Partition]:
        if request.topics is None:
            return self._partitions
        names = {
            TopicPartition(topic.topic, index): None for topic in request.topics for index in topic.partitions
        }
        found = (self._partitions.find(*name) for name in names)
        return (partition for partition in found if partition is not None)


def _by_topic(partitions: Iterable[Partition]) -> list[DescribeLogDirsTopic]:
    topics: dict[str, DescribeLogDirsTopic] = {}
    for partition in partitions:
        topic, index = partition.name
        entry = DescribeLogDirsPartition(index, partition.log.size_bytes, _lag(partition))
        topics.setdefault(topic, DescribeLogDirsTopic(topic)).partitions.append(entry)
    return list(topics.values())


def _lag(partition: Partition) -> int:
    if partition.following is None:
        return 0
    lag = partition.following.lag(partition.log.log_end_offset)
    return LAG_UNKNOWN if lag is None else lag
