"""ListGroups: api key 16, versions 0 to 5, flexible from 3.

Lists the groups of every type that this broker coordinates.
"""

from __future__ import annotations

from typing import Annotated

from penstock.protocol.schema import Api, Int16, Int32, String, Struct, versions


class ListGroupsRequest(Struct):
    states_filter: Annotated[list[String], versions(4)] = []
    types_filter: Annotated[list[String], versions(5)] = []


class ListedGroup(Struct):
    group_id: String = ""
    protocol_type: String = ""
    group_state: Annotated[String, versions(4)] = ""
    group_type: Annotated[String, versions(5)] = ""


class ListGroupsResponse(Struct):
    throttle_time_ms: Annotated[Int32, versions(1)] = 0
    error_code: Int16 = 0
    groups: list[ListedGroup] = []


LIST_GROUPS = Api(
    key=16,
    versions=(0, 5),
    flexible=3,
    request=ListGroupsRequest,
    response=ListGroupsResponse,
)
