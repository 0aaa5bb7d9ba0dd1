"""OffsetCommit: api key 8, versions 2 to 10, flexible from 8.

Commits a group's offsets.

Versions
    5   no retention time: the broker's configuration decides
    9   members of consumer groups (KIP-848), which send a member epoch as generation
"""

from __future__ import annotations

from typing import Annotated

from penstock.protocol.schema import Api, Int16, Int32, Int64, String, Struct, TopicUuid, versions
from penstock.types import NO_TOPIC_ID


class OffsetCommitRequestPartition(Struct):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, versions(6)] = -1
    committed_metadata: String | None = ""


class OffsetCommitRequestTopic(Struct):
    name: Annotated[String, versions(2, 9)] = ""
    topic_id: Annotated[TopicUuid, versions(10)] = NO_TOPIC_ID
    partitions: list[OffsetCommitRequestPartition] = []


class OffsetCommitRequest(Struct):
    group_id: String = ""
    generation_id_or_member_epoch: Int32 = -1
    member_id: String = ""
    group_instance_id: Annotated[String | None, versions(7)] = None
    retention_time_ms: Annotated[Int64, versions(2, 4)] = -1
    topics: list[OffsetCommitRequestTopic] = []


class OffsetCommitResponsePartition(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetCommitResponseTopic(Struct):
    name: Annotated[String, versions(2, 9)] = ""
    topic_id: Annotated[TopicUuid, versions(10)] = NO_TOPIC_ID
    partitions: list[OffsetCommitResponsePartition] = []


class OffsetCommitResponse(Struct):
    throttle_time_ms: Annotated[Int32, versions(3)] = 0
    topics: list[OffsetCommitResponseTopic] = []


OFFSET_COMMIT = Api(
    key=8,
    versions=(2, 10),
    flexible=8,
    request=OffsetCommitRequest,
    response=OffsetCommitResponse,
)
