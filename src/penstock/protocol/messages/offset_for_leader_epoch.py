"""OffsetForLeaderEpoch: api key 23, versions 2 to 4, flexible from 4.

Returns the end offset of a leader epoch, so that a consumer notices that records it has read were truncated.
Followers do not use it: as in Kafka since 2.7, they learn of a divergence from the reply to a fetch.
"""

from __future__ import annotations

from typing import Annotated

from penstock.protocol.schema import Api, Int16, Int32, Int64, String, Struct, versions


class OffsetForLeaderPartition(Struct):
    partition: Int32 = 0
    current_leader_epoch: Int32 = -1
    leader_epoch: Int32 = 0


class OffsetForLeaderTopic(Struct):
    topic: String = ""
    partitions: list[OffsetForLeaderPartition] = []


class OffsetForLeaderEpochRequest(Struct):
    replica_id: Annotated[Int32, versions(3)] = -2
    topics: list[OffsetForLeaderTopic] = []


class EpochEndOffset(Struct):
    error_code: Int16 = 0
    partition: Int32 = 0
    leader_epoch: Int32 = -1
    end_offset: Int64 = -1


class OffsetForLeaderTopicResult(Struct):
    topic: String = ""
    partitions: list[EpochEndOffset] = []


class OffsetForLeaderEpochResponse(Struct):
    throttle_time_ms: Int32 = 0
    topics: list[OffsetForLeaderTopicResult] = []


OFFSET_FOR_LEADER_EPOCH = Api(
    key=23,
    versions=(2, 4),
    flexible=4,
    request=OffsetForLeaderEpochRequest,
    response=OffsetForLeaderEpochResponse,
)
