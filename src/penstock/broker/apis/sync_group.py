"""SyncGroup: api key 14, versions 0 to 5.

Returns its assignment to every member of a classic group. The leader's request contains all assignments;
requests that arrive before it wait. The reply is sent when the assignment is on disk.

Versions
    3  static members       5  protocol type and name, which must be the group's
Differs from Kafka
    nothing known
"""

from penstock.broker.context import RequestContext
from penstock.broker.groups.group_coordinator import GroupCoordinator
from penstock.broker.router import DeferredReply
from penstock.broker.served_api import GROUP, ServedApi, names_at, weigh_parked
from penstock.errors import ErrorCode
from penstock.groups.group_state_machine import GroupStateMachine
from penstock.protocol.messages.sync_group import SYNC_GROUP, SyncGroupRequest, SyncGroupResponse
from penstock.security.access import Operation

PROTOCOL_SINCE = 5
"""From this version on a member sends the protocol that it expects the group to have."""


class SyncGroup:
    api = ServedApi(SYNC_GROUP, Operation.READ, GROUP, names_at("group_id"), weigh=weigh_parked)

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    def __call__(
        self, request: SyncGroupRequest, context: RequestContext
    ) -> SyncGroupResponse | DeferredReply:
        if context.version >= PROTOCOL_SINCE and None in (request.protocol_type, request.protocol_name):
            return _rejected(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        return self._groups.execute_classic(request, context, GroupStateMachine.sync, _rejected)


def _rejected(code: ErrorCode, detail: str = "") -> SyncGroupResponse:
    return SyncGroupResponse(error_code=code)
