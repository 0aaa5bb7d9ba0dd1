"""SyncGroup: api key 14, versions 0 to 5, flexible from 4.

The leader of a classic group sends the assignments; every member gets its own in the reply.
"""

from __future__ import annotations

from typing import Annotated

from penstock.protocol.schema import Api, Bytes, Int16, Int32, String, Struct, versions


class SyncGroupRequestAssignment(Struct):
    member_id: String = ""
    assignment: Bytes = b""


class SyncGroupRequest(Struct):
    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: Annotated[String | None, versions(3)] = None
    protocol_type: Annotated[String | None, versions(5)] = None
    protocol_name: Annotated[String | None, versions(5)] = None
    assignments: list[SyncGroupRequestAssignment] = []


class SyncGroupResponse(Struct):
    throttle_time_ms: Annotated[Int32, versions(1)] = 0
    error_code: Int16 = 0
    protocol_type: Annotated[String | None, versions(5)] = None
    protocol_name: Annotated[String | None, versions(5)] = None
    assignment: Bytes = b""


SYNC_GROUP = Api(
    key=14,
    versions=(0, 5),
    flexible=4,
    request=SyncGroupRequest,
    response=SyncGroupResponse,
)
