"""ListGroups: api key 16, versions 0 to 5.

The groups that this broker coordinates.

Behaviour
    Filters of states and types take any case; a type that does not exist matches nothing.
    Whoever may not describe the cluster sees the groups that it may describe.
Versions
    4  states         5  types
Differs from Kafka
    nothing known
"""

from penstock.broker.context import RequestContext
from penstock.broker.group_coordinator import GroupCoordinator
from penstock.broker.router import Later
from penstock.errors import ErrorCode
from penstock.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from penstock.security.access import CLUSTER, Operation, ResourceType


class ListGroups:
    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    def __call__(self, request: ListGroupsRequest, context: RequestContext) -> Later:
        states = {state.lower() for state in request.states_filter}
        types = {type_.lower() for type_ in request.types_filter}
        sees_all = context.may(Operation.DESCRIBE, CLUSTER.type, CLUSTER.name)

        def is_wanted(group: ListedGroup) -> bool:
            return (
                (not states or group.group_state.lower() in states)
                and (not types or group.group_type in types)
                and (sees_all or context.may(Operation.DESCRIBE, ResourceType.GROUP, group.group_id))
            )

        def finish(shards: list[list[ListedGroup] | ErrorCode]) -> ListGroupsResponse:
            groups: list[ListedGroup] = []
            code = ErrorCode.NONE
            for shard in shards:
                if isinstance(shard, ErrorCode):
                    code = shard
                else:
                    groups += shard
            return ListGroupsResponse(error_code=code, groups=groups)

        return self._groups.all_shards(
            lambda state, now: [group for group in state.list() if is_wanted(group)],
            lambda code, _: code,
            finish,
        )
