"""LeaveGroup: api key 13, versions 0 to 5, flexible from 4.

Removes members from a classic group.
"""

from __future__ import annotations

from typing import Annotated

from penstock.protocol.schema import Api, Int16, Int32, String, Struct, versions


class MemberIdentity(Struct):
    member_id: String = ""
    group_instance_id: String | None = None
    reason: Annotated[String | None, versions(5)] = None


class LeaveGroupRequest(Struct):
    group_id: String = ""
    member_id: Annotated[String, versions(0, 2)] = ""
    members: Annotated[list[MemberIdentity], versions(3)] = []


class MemberResponse(Struct):
    member_id: String = ""
    group_instance_id: String | None = None
    error_code: Int16 = 0


class LeaveGroupResponse(Struct):
    throttle_time_ms: Annotated[Int32, versions(1)] = 0
    error_code: Int16 = 0
    members: Annotated[list[MemberResponse], versions(3)] = []


LEAVE_GROUP = Api(
    key=13,
    versions=(0, 5),
    flexible=4,
    request=LeaveGroupRequest,
    response=LeaveGroupResponse,
)
