"""Heartbeat: api key 12, versions 0 to 4, flexible from 4.

Keeps the session of a classic group member alive; the reply signals a rebalance.
"""

from __future__ import annotations

from typing import Annotated

from penstock.protocol.schema import Api, Int16, Int32, String, Struct, versions


class HeartbeatRequest(Struct):
    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: Annotated[String | None, versions(3)] = None


class HeartbeatResponse(Struct):
    throttle_time_ms: Annotated[Int32, versions(1)] = 0
    error_code: Int16 = 0


HEARTBEAT = Api(
    key=12,
    versions=(0, 4),
    flexible=4,
    request=HeartbeatRequest,
    response=HeartbeatResponse,
)
