"""DescribeProducers: api key 61, version 0, flexible throughout.

Lists the producers whose state a partition leader keeps.
"""

from __future__ import annotations

from penstock.protocol.schema import Api, Int16, Int32, Int64, String, Struct


class TopicRequest(Struct):
    name: String = ""
    partition_indexes: list[Int32] = []


class DescribeProducersRequest(Struct):
    topics: list[TopicRequest] = []


class ProducerState(Struct):
    producer_id: Int64 = 0
    producer_epoch: Int32 = 0
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32 = 0
    current_txn_start_offset: Int64 = -1


class PartitionResponse(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    active_producers: list[ProducerState] = []


class TopicResponse(Struct):
    name: String = ""
    partitions: list[PartitionResponse] = []


class DescribeProducersResponse(Struct):
    throttle_time_ms: Int32 = 0
    topics: list[TopicResponse] = []


DESCRIBE_PRODUCERS = Api(
    key=61,
    versions=(0, 0),
    flexible=0,
    request=DescribeProducersRequest,
    response=DescribeProducersResponse,
)
