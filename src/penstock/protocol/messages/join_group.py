"""JoinGroup: api key 11, versions 0 to 9, flexible from 6.

Makes a client a member of a classic group; the reply comes when the other members have joined too.

Versions
    4   a new member first gets its id (MEMBER_ID_REQUIRED), and joins with it
"""

from __future__ import annotations

from typing import Annotated

from penstock.protocol.schema import Api, Bool, Bytes, Int16, Int32, String, Struct, nullable, versions


class JoinGroupRequestProtocol(Struct):
    name: String = ""
    metadata: Bytes = b""


class JoinGroupRequest(Struct):
    group_id: String = ""
    session_timeout_ms: Int32 = 0
    rebalance_timeout_ms: Annotated[Int32, versions(1)] = -1
    member_id: String = ""
    group_instance_id: Annotated[String | None, versions(5)] = None
    protocol_type: String = ""
    protocols: list[JoinGroupRequestProtocol] = []
    reason: Annotated[String | None, versions(8)] = None


class JoinGroupResponseMember(Struct):
    member_id: String = ""
    group_instance_id: Annotated[String | None, versions(5)] = None
    metadata: Bytes = b""


class JoinGroupResponse(Struct):
    throttle_time_ms: Annotated[Int32, versions(2)] = 0
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: Annotated[String | None, versions(7)] = None
    protocol_name: Annotated[String | None, nullable(7)] = ""
    leader: String = ""
    skip_assignment: Annotated[Bool, versions(9)] = False
    member_id: String = ""
    members: list[JoinGroupResponseMember] = []


JOIN_GROUP = Api(
    key=11,
    versions=(0, 9),
    flexible=6,
    request=JoinGroupRequest,
    response=JoinGroupResponse,
)
