"""DescribeTopicPartitions: api key 75, version 0, flexible throughout.

Describes topics page by page; a cursor marks where the next page begins.
"""

from __future__ import annotations

from penstock.protocol.schema import (
    OPERATIONS_NOT_REQUESTED,
    Api,
    Bool,
    Int16,
    Int32,
    String,
    Struct,
    TopicUuid,
)
from penstock.types import NO_TOPIC_ID


class TopicRequest(Struct):
    name: String = ""


class Cursor(Struct):
    topic_name: String = ""
    partition_index: Int32 = 0


class DescribeTopicPartitionsRequest(Struct):
    topics: list[TopicRequest] = []
    response_partition_limit: Int32 = 2000
    cursor: Cursor | None = None


class DescribeTopicPartitionsResponsePartition(Struct):
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = -1
    replica_nodes: list[Int32] = []
    isr_nodes: list[Int32] = []
    eligible_leader_replicas: list[Int32] | None = None
    last_known_elr: list[Int32] | None = None
    offline_replicas: list[Int32] = []


class DescribeTopicPartitionsResponseTopic(Struct):
    error_code: Int16 = 0
    name: String | None = None
    topic_id: TopicUuid = NO_TOPIC_ID
    is_internal: Bool = False
    partitions: list[DescribeTopicPartitionsResponsePartition] = []
    topic_authorized_operations: Int32 = OPERATIONS_NOT_REQUESTED


class DescribeTopicPartitionsResponse(Struct):
    throttle_time_ms: Int32 = 0
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    next_cursor: Cursor | None = None


DESCRIBE_TOPIC_PARTITIONS = Api(
    key=75,
    versions=(0, 0),
    flexible=0,
    request=DescribeTopicPartitionsRequest,
    response=DescribeTopicPartitionsResponse,
)
