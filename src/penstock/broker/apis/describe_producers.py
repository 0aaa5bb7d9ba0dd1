"""DescribeProducers: api key 61, version 0.

Lists the idempotent producers that a partition remembers, with the last batch and the transaction of each.

Behaviour
    The coordinator epoch is that of the last marker, and the start that of the open transaction; -1: none.
    After a marker that began a producer epoch, and until the first batch of this epoch, the last sequence is
    -1 and the last timestamp is that of the marker.
Differs from Kafka
    A partition that is named twice is listed once, so that a small request cannot cause a huge reply.
"""

from penstock.broker.context import RequestContext
from penstock.broker.served_api import TOPIC, ServedApi, names_at, never_waits
from penstock.controller.topics import require_legal_name
from penstock.errors import ApiError, ErrorCode
from penstock.protocol.messages.describe_producers import (
    DESCRIBE_PRODUCERS,
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from penstock.replication.partition import Partition
from penstock.replication.replica_manager import ReplicaManager
from penstock.security.access import Operation
from penstock.types import NO_TOPIC_ID, TopicPartition


class DescribeProducers:
    api = ServedApi(DESCRIBE_PRODUCERS, Operation.READ, TOPIC, names_at("topics", "name"), weigh=never_waits)

    def __init__(self, partitions: ReplicaManager) -> None:
        self._partitions = partitions

    def __call__(
        self, request: DescribeProducersRequest, context: RequestContext
    ) -> DescribeProducersResponse:
        names = {
            TopicPartition(topic.name, index): None
            for topic in request.topics
            for index in topic.partition_indexes
        }
        topics = {topic.name: TopicResponse(topic.name) for topic in request.topics}
        for name in names:
            entry = PartitionResponse(name.partition)
            topics[name.topic].partitions.append(entry)
            try:
                entry.active_producers = _producers(self._found(name, context))
            except ApiError as rejection:
                entry.error_code, entry.error_message = rejection.code, rejection.detail
        return DescribeProducersResponse(topics=list(topics.values()))

    def _found(self, name: TopicPartition, context: RequestContext) -> Partition:
        if name.topic in context.denied:
            detail = f"{context.principal} may not read the topic."
            raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, detail)
        require_legal_name(name.topic)
        partition = self._partitions.find(*name)
        if partition is None:
            code = self._partitions.missing_partition_error(name.topic, NO_TOPIC_ID, name.partition).code
            is_elsewhere = code is ErrorCode.NOT_LEADER_OR_FOLLOWER
            detail = "Another broker leads it." if is_elsewhere else f"There is no partition {name}."
            raise ApiError(code, detail)
        partition.require_online()
        partition.require_leader()
        return partition


def _producers(partition: Partition) -> list[ProducerState]:
    return [
        ProducerState(
            producer_id=producer_id,
            producer_epoch=producer.epoch,
            last_sequence=producer.last_sequence,
            last_timestamp=producer.last_timestamp,
            coordinator_epoch=producer.transaction.coordinator_epoch,
            current_txn_start_offset=producer.transaction.first_offset,
        )
        for producer_id, producer in partition.log.producers.items()
    ]
