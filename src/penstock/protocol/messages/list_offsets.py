"""ListOffsets: api key 2, versions 1 to 11, flexible from 6.

Looks up the offset for a timestamp, or for a special one such as earliest or latest.

Versions
    7   timestamp -3: offset of the largest timestamp
    8   timestamp -4: earliest local offset
    9   timestamp -5: last tiered offset
    11  timestamp -6: earliest offset pending upload
"""

from __future__ import annotations

from typing import Annotated

from penstock.protocol.schema import Api, Int8, Int16, Int32, Int64, String, Struct, versions


class ListOffsetsPartition(Struct):
    partition_index: Int32 = 0
    current_leader_epoch: Annotated[Int32, versions(4)] = -1
    timestamp: Int64 = 0


class ListOffsetsTopic(Struct):
    name: String = ""
    partitions: list[ListOffsetsPartition] = []


class ListOffsetsRequest(Struct):
    replica_id: Int32 = 0
    isolation_level: Annotated[Int8, versions(2)] = 0
    topics: list[ListOffsetsTopic] = []
    timeout_ms: Annotated[Int32, versions(10)] = 0


class ListOffsetsPartitionResponse(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, versions(4)] = -1


class ListOffsetsTopicResponse(Struct):
    name: String = ""
    partitions: list[ListOffsetsPartitionResponse] = []


class ListOffsetsResponse(Struct):
    throttle_time_ms: Annotated[Int32, versions(2)] = 0
    topics: list[ListOffsetsTopicResponse] = []


LIST_OFFSETS = Api(
    key=2,
    versions=(1, 11),
    flexible=6,
    request=ListOffsetsRequest,
    response=ListOffsetsResponse,
)
