"""Heartbeat: api key 12, versions 0 to 4.

Extends the session of a member of a classic group, and returns whether the member must rejoin.

Versions
    3  static members
Differs from Kafka
    nothing known
"""

from penstock.broker.context import RequestContext
from penstock.broker.groups.group_coordinator import GroupCoordinator
from penstock.broker.router import DeferredReply
from penstock.broker.served_api import GROUP, ServedApi, names_at
from penstock.errors import ErrorCode
from penstock.groups.group_state_machine import GroupStateMachine
from penstock.protocol.messages.heartbeat import HEARTBEAT, HeartbeatRequest, HeartbeatResponse
from penstock.security.access import Operation


class Heartbeat:
    api = ServedApi(HEARTBEAT, Operation.READ, GROUP, names_at("group_id"))

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    def __call__(
        self, request: HeartbeatRequest, context: RequestContext
    ) -> HeartbeatResponse | DeferredReply:
        return self._groups.execute_classic(request, context, GroupStateMachine.heartbeat, _rejected)


def _rejected(code: ErrorCode, detail: str = "") -> HeartbeatResponse:
    return HeartbeatResponse(error_code=code)
