"""ListGroups: api key 16, versions 0 to 5.

Lists the groups that this broker coordinates.

Behaviour
    Filters of states and types ignore case; a type that does not exist matches nothing.
    A client that may not describe the cluster gets only the groups that it may describe.
Versions
    4  states         5  types
Differs from Kafka
    A list that is too long for a reply ends early, with POLICY_VIOLATION.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from penstock.broker.context import RequestContext
from penstock.broker.groups.group_coordinator import GroupCoordinator
from penstock.broker.groups.reply_budget import ReplyBudget
from penstock.broker.served_api import ON_CLUSTER, ServedApi, no_names
from penstock.coordinator.outcome import Now
from penstock.errors import ErrorCode
from penstock.groups.group_state_machine import GroupStateMachine
from penstock.protocol.messages.list_groups import (
    LIST_GROUPS,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from penstock.security.access import CLUSTER, Operation, ResourceType

_GROUP_BYTES: Final = 200
"""Size of a group in the reply beside its name."""


class ListGroups:
    api = ServedApi(LIST_GROUPS, Operation.DESCRIBE, ON_CLUSTER, no_names)

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    async def __call__(self, request: ListGroupsRequest, context: RequestContext) -> ListGroupsResponse:
        states = {state.lower() for state in request.states_filter}
        types = {type_.lower() for type_ in request.types_filter}
        sees_all = context.may(Operation.DESCRIBE, CLUSTER.type, CLUSTER.name)

        def is_wanted(group: ListedGroup) -> bool:
            return (
                (not states or group.group_state.lower() in states)
                and (not types or group.group_type in types)
                and (sees_all or context.may(Operation.DESCRIBE, ResourceType.GROUP, group.group_id))
            )

        def listed(state: GroupStateMachine, now: Now) -> list[ListedGroup]:
            return list(self._within(budget, filter(is_wanted, state.list())))

        response = ListGroupsResponse()
        async with self._groups.long_replies:
            budget = ReplyBudget()
            async for shard in self._groups.query_shards(listed, lambda code, _: code):
                if isinstance(shard, ErrorCode):
                    response.error_code = shard
                else:
                    response.groups += shard
        return response

    def _within(self, budget: ReplyBudget, groups: Iterable[ListedGroup]) -> Iterator[ListedGroup]:
        for group in groups:
            budget.take(_GROUP_BYTES + len(group.group_id))
            yield group
