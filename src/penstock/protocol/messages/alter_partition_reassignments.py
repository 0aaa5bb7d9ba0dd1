"""AlterPartitionReassignments: api key 45, versions 0 to 1, flexible throughout.

Starts or cancels moving replicas of partitions to other brokers.
"""

from __future__ import annotations

from typing import Annotated

from penstock.protocol.schema import Api, Bool, Int16, Int32, String, Struct, versions


class ReassignablePartition(Struct):
    partition_index: Int32 = 0
    replicas: list[Int32] | None = None


class ReassignableTopic(Struct):
    name: String = ""
    partitions: list[ReassignablePartition] = []


class AlterPartitionReassignmentsRequest(Struct):
    timeout_ms: Int32 = 60_000
    allow_replication_factor_change: Annotated[Bool, versions(1)] = True
    topics: list[ReassignableTopic] = []


class ReassignablePartitionResponse(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class ReassignableTopicResponse(Struct):
    name: String = ""
    partitions: list[ReassignablePartitionResponse] = []


class AlterPartitionReassignmentsResponse(Struct):
    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Annotated[Bool, versions(1)] = True
    error_code: Int16 = 0
    error_message: String | None = None
    responses: list[ReassignableTopicResponse] = []


ALTER_PARTITION_REASSIGNMENTS = Api(
    key=45,
    versions=(0, 1),
    flexible=0,
    request=AlterPartitionReassignmentsRequest,
    response=AlterPartitionReassignmentsResponse,
)
