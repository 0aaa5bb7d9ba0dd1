"""ElectLeaders: api key 43, versions 0 to 2, flexible from 2.

Elects leaders of partitions. The request chooses: the preferred replica, or an unclean election where no
in-sync replica is available.
"""

from __future__ import annotations

from typing import Annotated

from penstock.protocol.schema import Api, Int8, Int16, Int32, String, Struct, versions


class TopicPartitions(Struct):
    topic: String = ""
    partitions: list[Int32] = []


class ElectLeadersRequest(Struct):
    election_type: Annotated[Int8, versions(1)] = 0
    topic_partitions: list[TopicPartitions] | None = []
    timeout_ms: Int32 = 60_000


class PartitionResult(Struct):
    partition_id: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class ReplicaElectionResult(Struct):
    topic: String = ""
    partition_result: list[PartitionResult] = []


class ElectLeadersResponse(Struct):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, versions(1)] = 0
    replica_election_results: list[ReplicaElectionResult] = []


ELECT_LEADERS = Api(
    key=43,
    versions=(0, 2),
    flexible=2,
    request=ElectLeadersRequest,
    response=ElectLeadersResponse,
)
