"""Produce: api key 0, versions 3 to 13, flexible from 9.

Writes record batches to partition leaders; the reply has a result per partition.

Versions
    3   record batch format 2
"""

from __future__ import annotations

from typing import Annotated

from penstock.protocol.schema import (
    RARE,
    Api,
    FrozenStruct,
    Int16,
    Int32,
    Int64,
    Records,
    String,
    Struct,
    TopicUuid,
    tagged,
    versions,
)
from penstock.types import NO_TOPIC_ID


class PartitionProduceData(Struct):
    index: Int32 = 0
    records: Records | None = None


class TopicProduceData(Struct):
    name: Annotated[String, versions(3, 12)] = ""
    topic_id: Annotated[TopicUuid, versions(13)] = NO_TOPIC_ID
    partition_data: list[PartitionProduceData] = []


class ProduceRequest(Struct):
    transactional_id: String | None = None
    acks: Int16 = 0
    timeout_ms: Int32 = 0
    topic_data: list[TopicProduceData] = []


class BatchIndexAndErrorMessage(Struct):
    batch_index: Int32 = 0
    batch_index_error_message: String | None = None


class LeaderIdAndEpoch(FrozenStruct, frozen=True):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class PartitionProduceResponse(Struct):
    index: Int32 = 0
    error_code: Int16 = 0
    base_offset: Int64 = 0
    log_append_time_ms: Int64 = -1
    log_start_offset: Annotated[Int64, versions(5)] = -1
    record_errors: Annotated[list[BatchIndexAndErrorMessage], versions(8), RARE] = []
    error_message: Annotated[String | None, versions(8), RARE] = None
    current_leader: Annotated[LeaderIdAndEpoch, versions(10), tagged(0)] = LeaderIdAndEpoch()


class TopicProduceResponse(Struct):
    name: Annotated[String, versions(3, 12)] = ""
    topic_id: Annotated[TopicUuid, versions(13)] = NO_TOPIC_ID
    partition_responses: list[PartitionProduceResponse] = []


class NodeEndpoint(Struct):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None


class ProduceResponse(Struct):
    responses: list[TopicProduceResponse] = []
    throttle_time_ms: Int32 = 0
    node_endpoints: Annotated[list[NodeEndpoint], versions(10), tagged(0)] = []


PRODUCE = Api(key=0, versions=(3, 13), flexible=9, request=ProduceRequest, response=ProduceResponse)
