"""JoinGroup: api key 11, versions 0 to 9.

Joins a classic group, or rejoins it for the next generation. The reply is sent when all members have joined.

Behaviour
    The first reply to a new member may be MEMBER_ID_REQUIRED, with the id to rejoin with.
    The group's leader receives all members and their subscriptions, and assigns partitions (SyncGroup).
    A static member that returns takes over its former membership without a rebalance.
    Members of the classic protocol can join a group of the consumer protocol if the migration policy allows
    it.
Versions
    1  rebalance timeout       4  MEMBER_ID_REQUIRED       5  static members
    7  protocol type           8  reason                   9  the leader may skip the assignment
Differs from Kafka
    All metadata that the members of a group send is limited to 2 MiB: GROUP_MAX_SIZE_REACHED.
"""

from penstock.broker.context import RequestContext
from penstock.broker.groups.group_coordinator import GroupCoordinator
from penstock.broker.router import DeferredReply
from penstock.broker.served_api import GROUP, ServedApi, names_at, weigh_parked
from penstock.errors import ErrorCode
from penstock.groups.group_state_machine import GroupStateMachine
from penstock.protocol.messages.join_group import JOIN_GROUP, JoinGroupRequest, JoinGroupResponse
from penstock.security.access import Operation

NO_PROTOCOL_SINCE = 7
"""In earlier versions, a missing protocol name is sent as an empty one."""


class JoinGroup:
    api = ServedApi(JOIN_GROUP, Operation.READ, GROUP, names_at("group_id"), weigh=weigh_parked)

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    def __call__(
        self, request: JoinGroupRequest, context: RequestContext
    ) -> JoinGroupResponse | DeferredReply:
        version, member_id = context.version, request.member_id

        def rejected(code: ErrorCode, detail: str = "") -> JoinGroupResponse:
            name = None if version >= NO_PROTOCOL_SINCE else ""
            return JoinGroupResponse(error_code=code, protocol_name=name, member_id=member_id)

        return self._groups.execute_classic(request, context, GroupStateMachine.join, rejected)
