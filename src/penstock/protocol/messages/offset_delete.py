"""OffsetDelete: api key 47, version 0, never flexible.

Deletes a group's committed offsets of topics that it no longer subscribes to.
"""

from __future__ import annotations

from penstock.protocol.schema import Api, Int16, Int32, String, Struct


class OffsetDeleteRequestPartition(Struct):
    partition_index: Int32 = 0


class OffsetDeleteRequestTopic(Struct):
    name: String = ""
    partitions: list[OffsetDeleteRequestPartition] = []


class OffsetDeleteRequest(Struct):
    group_id: String = ""
    topics: list[OffsetDeleteRequestTopic] = []


class OffsetDeleteResponsePartition(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetDeleteResponseTopic(Struct):
    name: String = ""
    partitions: list[OffsetDeleteResponsePartition] = []


class OffsetDeleteResponse(Struct):
    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: list[OffsetDeleteResponseTopic] = []


OFFSET_DELETE = Api(
    key=47,
    versions=(0, 0),
    flexible=None,
    request=OffsetDeleteRequest,
    response=OffsetDeleteResponse,
)
