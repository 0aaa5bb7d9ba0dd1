"""CreateTopics: api key 19, versions 2 to 7, flexible from 5.

Creates topics, each with a count of partitions or an explicit assignment.

Versions
    4   counts of -1 mean the broker's defaults
"""

from __future__ import annotations

from typing import Annotated

from penstock.protocol.schema import (
    Api,
    Bool,
    Int8,
    Int16,
    Int32,
    String,
    Struct,
    TopicUuid,
    tagged,
    versions,
)
from penstock.types import NO_TOPIC_ID


class CreatableReplicaAssignment(Struct):
    partition_index: Int32 = 0
    broker_ids: list[Int32] = []


class CreatableTopicConfig(Struct):
    name: String = ""
    value: String | None = None


class CreatableTopic(Struct):
    name: String = ""
    num_partitions: Int32 = 0
    replication_factor: Int16 = 0
    assignments: list[CreatableReplicaAssignment] = []
    configs: list[CreatableTopicConfig] = []


class CreateTopicsRequest(Struct):
    topics: list[CreatableTopic] = []
    timeout_ms: Int32 = 60000
    validate_only: Bool = False


class CreatableTopicConfigs(Struct):
    name: String = ""
    value: String | None = None
    read_only: Bool = False
    config_source: Int8 = -1
    is_sensitive: Bool = False


class CreatableTopicResult(Struct):
    name: String = ""
    topic_id: Annotated[TopicUuid, versions(7)] = NO_TOPIC_ID
    error_code: Int16 = 0
    error_message: String | None = None
    topic_config_error_code: Annotated[Int16, versions(5), tagged(0)] = 0
    num_partitions: Annotated[Int32, versions(5)] = -1
    replication_factor: Annotated[Int16, versions(5)] = -1
    configs: Annotated[list[CreatableTopicConfigs] | None, versions(5)] = []


class CreateTopicsResponse(Struct):
    throttle_time_ms: Int32 = 0
    topics: list[CreatableTopicResult] = []


CREATE_TOPICS = Api(
    key=19,
    versions=(2, 7),
    flexible=5,
    request=CreateTopicsRequest,
    response=CreateTopicsResponse,
)
