"""LeaveGroup: api key 13, versions 0 to 5.

Removes members from a classic group, so that the group need not wait for their sessions to end.

Behaviour
    A static member is removed by its instance id alone: that is for operators, through their tools.
Versions
    3  several members, each with its own error code       5  reason
Differs from Kafka
    nothing known
"""

from penstock.broker.context import RequestContext
from penstock.broker.groups.group_coordinator import GroupCoordinator
from penstock.broker.router import DeferredReply
from penstock.broker.served_api import GROUP, ServedApi, names_at
from penstock.errors import ErrorCode
from penstock.groups.group_state_machine import GroupStateMachine
from penstock.protocol.messages.leave_group import LEAVE_GROUP, LeaveGroupRequest, LeaveGroupResponse
from penstock.security.access import Operation


class LeaveGroup:
    api = ServedApi(LEAVE_GROUP, Operation.READ, GROUP, names_at("group_id"))

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    def __call__(
        self, request: LeaveGroupRequest, context: RequestContext
    ) -> LeaveGroupResponse | DeferredReply:
        return self._groups.execute_classic(request, context, GroupStateMachine.leave, _rejected)


def _rejected(code: ErrorCode, detail: str = "") -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=code)
