"""FindCoordinator: api key 10, versions 0 to 6, flexible from 3.

Returns the coordinator of a group, a transaction or a share group.

Versions
    6   share groups
"""

from __future__ import annotations

from typing import Annotated

from penstock.protocol.schema import Api, Int8, Int16, Int32, String, Struct, versions


class FindCoordinatorRequest(Struct):
    key: Annotated[String, versions(0, 3)] = ""
    key_type: Annotated[Int8, versions(1)] = 0
    coordinator_keys: Annotated[list[String], versions(4)] = []


class Coordinator(Struct):
    key: String = ""
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class FindCoordinatorResponse(Struct):
    throttle_time_ms: Annotated[Int32, versions(1)] = 0
    error_code: Annotated[Int16, versions(0, 3)] = 0
    error_message: Annotated[String | None, versions(1, 3)] = None
    node_id: Annotated[Int32, versions(0, 3)] = 0
    host: Annotated[String, versions(0, 3)] = ""
    port: Annotated[Int32, versions(0, 3)] = 0
    coordinators: Annotated[list[Coordinator], versions(4)] = []


FIND_COORDINATOR = Api(
    key=10,
    versions=(0, 6),
    flexible=3,
    request=FindCoordinatorRequest,
    response=FindCoordinatorResponse,
)
