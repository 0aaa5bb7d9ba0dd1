"""DeleteGroups: api key 42, versions 0 to 2, flexible from 2.

Deletes empty groups together with their offsets.
"""

from __future__ import annotations

from penstock.protocol.schema import Api, Int16, Int32, String, Struct


class DeleteGroupsRequest(Struct):
    groups_names: list[String] = []


class DeletableGroupResult(Struct):
    group_id: String = ""
    error_code: Int16 = 0


class DeleteGroupsResponse(Struct):
    throttle_time_ms: Int32 = 0
    results: list[DeletableGroupResult] = []


DELETE_GROUPS = Api(
    key=42,
    versions=(0, 2),
    flexible=2,
    request=DeleteGroupsRequest,
    response=DeleteGroupsResponse,
)
