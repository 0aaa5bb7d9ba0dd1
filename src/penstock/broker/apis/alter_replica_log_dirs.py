"""AlterReplicaLogDirs: api key 34, versions 1 to 2.

Moves replicas to another log directory of this broker, which has only one.

Behaviour
    A request to move a replica to the directory where it already is: no error. kafka-reassign-partitions
    sends it when it is given the file that it wrote for rolling back.
    Another directory is LOG_DIR_NOT_FOUND, whatever the partition. A partition that does not exist is
    UNKNOWN_TOPIC_OR_PARTITION; one without a replica here REPLICA_NOT_AVAILABLE, which the tool retries;
    a replica that is offline is KAFKA_STORAGE_ERROR, and after a failure of the disk all are.
    Of several directories for one partition the last counts. A client that may not alter the cluster gets
    CLUSTER_AUTHORIZATION_FAILED for each partition.
Differs from Kafka
    nothing known
"""

from collections.abc import Callable

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.context import RequestContext
from penstock.broker.served_api import ON_CLUSTER, ServedApi, cluster_name, never_waits
from penstock.errors import ErrorCode
from penstock.protocol.messages.alter_replica_log_dirs import (
    ALTER_REPLICA_LOG_DIRS,
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from penstock.replication.replica_manager import ReplicaManager
from penstock.security.access import Operation
from penstock.types import TopicPartition


class AlterReplicaLogDirs:
    api = ServedApi(ALTER_REPLICA_LOG_DIRS, Operation.ALTER, ON_CLUSTER, cluster_name, weigh=never_waits)

    def __init__(
        self,
        cluster: MetadataService,
        partitions: ReplicaManager,
        path: str,
        failure: Callable[[], str | None],
    ) -> None:
        """`path` is the directory as DescribeLogDirs returns it; `failure` returns why the disk cannot be
        used.
        """
        self._cluster = cluster
        self._partitions = partitions
        self._path = path
        self._failure = failure

    def __call__(
        self, request: AlterReplicaLogDirsRequest, context: RequestContext
    ) -> AlterReplicaLogDirsResponse:
        paths = {
            TopicPartition(topic.name, index): wanted.path
            for wanted in request.dirs
            for topic in wanted.topics
            for index in topic.partitions
        }
        results: dict[str, AlterReplicaLogDirTopicResult] = {}
        for name, path in paths.items():
            denied = context.cluster_denied
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED if denied else self._code(name, path)
            topic = results.setdefault(name.topic, AlterReplicaLogDirTopicResult(name.topic))
            topic.partitions.append(AlterReplicaLogDirPartitionResult(name.partition, code))
        return AlterReplicaLogDirsResponse(results=list(results.values()))

    def _code(self, name: TopicPartition, path: str) -> ErrorCode:
        if path != self._path:
            return ErrorCode.LOG_DIR_NOT_FOUND
        if self._failure() is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        partition = self._partitions.find(*name)
        if partition is not None:
            return ErrorCode.NONE if partition.offline_error is None else ErrorCode.KAFKA_STORAGE_ERROR
        topic = self._cluster.image.topics.get(name.topic)
        exists = topic is not None and 0 <= name.partition < len(topic.partitions)
        return ErrorCode.REPLICA_NOT_AVAILABLE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
