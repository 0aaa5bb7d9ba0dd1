"""OffsetFetch: api key 9, versions 1 to 10, flexible from 6.

Returns committed offsets of groups. Without a list of topics: all offsets of the group.

Versions
    2   all topics, error code of the group
    7   offsets of open transactions may be rejected as not yet stable
    9   members of consumer groups (KIP-848) may send their member epoch, which is then checked

A topic has the same layout at the top level (versions 1 to 7) and within a group.
"""

from __future__ import annotations

from typing import Annotated

from penstock.protocol.schema import (
    READY,
    Api,
    Bool,
    Int16,
    Int32,
    Int64,
    String,
    Struct,
    TopicUuid,
    nullable,
    versions,
)
from penstock.types import NO_TOPIC_ID


class OffsetFetchRequestTopic(Struct):
    name: Annotated[String, versions(1, 9)] = ""
    topic_id: Annotated[TopicUuid, versions(10)] = NO_TOPIC_ID
    partition_indexes: list[Int32] = []


class OffsetFetchRequestGroup(Struct):
    group_id: String = ""
    member_id: Annotated[String | None, versions(9)] = None
    member_epoch: Annotated[Int32, versions(9)] = -1
    topics: list[OffsetFetchRequestTopic] | None = []


class OffsetFetchRequest(Struct):
    group_id: Annotated[String, versions(1, 7)] = ""
    topics: Annotated[list[OffsetFetchRequestTopic] | None, versions(1, 7), nullable(2)] = []
    groups: Annotated[list[OffsetFetchRequestGroup], versions(8)] = []
    require_stable: Annotated[Bool, versions(7)] = False


class OffsetFetchResponsePartition(Struct):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, versions(5)] = -1
    metadata: String | None = ""
    error_code: Int16 = 0


class EncodedPartition(OffsetFetchResponsePartition):
    """A partition as pre-encoded bytes only, in the version of its reply."""

    encoded: bytes = b""


class OffsetFetchResponseTopic(Struct):
    name: Annotated[String, versions(1, 9)] = ""
    topic_id: Annotated[TopicUuid, versions(10)] = NO_TOPIC_ID
    partitions: Annotated[list[OffsetFetchResponsePartition], READY] = []


class OffsetFetchResponseGroup(Struct):
    group_id: String = ""
    topics: list[OffsetFetchResponseTopic] = []
    error_code: Int16 = 0


class OffsetFetchResponse(Struct):
    throttle_time_ms: Annotated[Int32, versions(3)] = 0
    topics: Annotated[list[OffsetFetchResponseTopic], versions(1, 7)] = []
    error_code: Annotated[Int16, versions(2, 7)] = 0
    groups: Annotated[list[OffsetFetchResponseGroup], versions(8)] = []


OFFSET_FETCH = Api(
    key=9,
    versions=(1, 10),
    flexible=6,
    request=OffsetFetchRequest,
    response=OffsetFetchResponse,
)
