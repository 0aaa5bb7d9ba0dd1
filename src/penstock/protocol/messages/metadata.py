"""Metadata: api key 3, versions 0 to 13, flexible from 9.

Returns the brokers, the topics and the leader of each partition.

Versions
    0   an empty list requests all topics
    1   null requests all topics
    11  cluster authorised operations moved to DescribeCluster
    12  topics may be requested by id
"""

from __future__ import annotations

from typing import Annotated

from penstock.protocol.schema import (
    OPERATIONS_NOT_REQUESTED,
    READY,
    Api,
    Bool,
    Int16,
    Int32,
    String,
    Struct,
    TopicUuid,
    nullable,
    versions,
)
from penstock.types import NO_TOPIC_ID


class MetadataRequestTopic(Struct):
    topic_id: Annotated[TopicUuid, versions(10)] = NO_TOPIC_ID
    name: Annotated[String | None, nullable(10)] = ""


class MetadataRequest(Struct):
    topics: Annotated[list[MetadataRequestTopic] | None, nullable(1)] = []
    allow_auto_topic_creation: Annotated[Bool, versions(4)] = True
    include_cluster_authorized_operations: Annotated[Bool, versions(8, 10)] = False
    include_topic_authorized_operations: Annotated[Bool, versions(8)] = False


class MetadataResponseBroker(Struct):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: Annotated[String | None, versions(1)] = None


class MetadataResponsePartition(Struct):
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Annotated[Int32, versions(7)] = -1
    replica_nodes: list[Int32] = []
    isr_nodes: list[Int32] = []
    offline_replicas: Annotated[list[Int32], versions(5)] = []


class MetadataResponseTopic(Struct):
    error_code: Int16 = 0
    name: Annotated[String | None, nullable(12)] = ""
    topic_id: Annotated[TopicUuid, versions(10)] = NO_TOPIC_ID
    is_internal: Annotated[Bool, versions(1)] = False
    partitions: list[MetadataResponsePartition] = []
    topic_authorized_operations: Annotated[Int32, versions(8)] = OPERATIONS_NOT_REQUESTED


class ReadyMetadataTopic(MetadataResponseTopic):
    """A topic with its pre-encoded bytes of one version, for topics that many replies contain."""

    encoded: bytes = b""


class MetadataResponse(Struct):
    throttle_time_ms: Annotated[Int32, versions(3)] = 0
    brokers: list[MetadataResponseBroker] = []
    cluster_id: Annotated[String | None, versions(2)] = None
    controller_id: Annotated[Int32, versions(1)] = -1
    topics: Annotated[list[MetadataResponseTopic], READY] = []
    cluster_authorized_operations: Annotated[Int32, versions(8, 10)] = OPERATIONS_NOT_REQUESTED
    error_code: Annotated[Int16, versions(13)] = 0


METADATA = Api(key=3, versions=(0, 13), flexible=9, request=MetadataRequest, response=MetadataResponse)
