"""DescribeGroups: api key 15, versions 0 to 6, flexible from 5.

Describes classic groups: their state and their members.

Versions
    6   a group that does not exist is an error, with a message
"""

from __future__ import annotations

from typing import Annotated

from penstock.protocol.schema import (
    OPERATIONS_NOT_REQUESTED,
    Api,
    Bool,
    Bytes,
    Int16,
    Int32,
    String,
    Struct,
    versions,
)


class DescribeGroupsRequest(Struct):
    groups: list[String] = []
    include_authorized_operations: Annotated[Bool, versions(3)] = False


class DescribedGroupMember(Struct):
    member_id: String = ""
    group_instance_id: Annotated[String | None, versions(4)] = None
    client_id: String = ""
    client_host: String = ""
    member_metadata: Bytes = b""
    member_assignment: Bytes = b""


class DescribedGroup(Struct):
    error_code: Int16 = 0
    error_message: Annotated[String | None, versions(6)] = None
    group_id: String = ""
    group_state: String = ""
    protocol_type: String = ""
    protocol_data: String = ""
    members: list[DescribedGroupMember] = []
    authorized_operations: Annotated[Int32, versions(3)] = OPERATIONS_NOT_REQUESTED


class DescribeGroupsResponse(Struct):
    throttle_time_ms: Annotated[Int32, versions(1)] = 0
    groups: list[DescribedGroup] = []


DESCRIBE_GROUPS = Api(
    key=15,
    versions=(0, 6),
    flexible=5,
    request=DescribeGroupsRequest,
    response=DescribeGroupsResponse,
)
