"""DescribeGroups: api key 15, versions 0 to 6.

Shows classic groups and their members.

Behaviour
    What members told each other is shown while the group is Stable, as bytes.
    A group that does not exist, or is of another type, is shown as Dead.
Versions
    3  authorised operations       4  static members
    6  a group that does not exist is GROUP_ID_NOT_FOUND
Differs from Kafka
    A group that is named twice is answered once.
"""

from penstock.broker.context import RequestContext
from penstock.broker.group_coordinator import GroupCoordinator, asking
from penstock.broker.router import Later
from penstock.errors import ErrorCode
from penstock.groups.groups import Groups
from penstock.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from penstock.security.access import GROUP_OPERATIONS, Resource, ResourceType

DEAD = "Dead"
NOT_FOUND_SINCE = 6


class DescribeGroups:
    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    def __call__(self, request: DescribeGroupsRequest, context: RequestContext) -> Later:
        def describe(group_id: str, state: Groups) -> DescribedGroup:
            if group_id in context.denied:
                return DescribedGroup(ErrorCode.GROUP_AUTHORIZATION_FAILED, group_id=group_id)
            described = state.describe_classic(group_id)
            if described is None:
                return _dead(group_id, context.version)
            if request.include_authorized_operations:
                resource = Resource(ResourceType.GROUP, group_id)
                described.authorized_operations = context.operations_bits(GROUP_OPERATIONS, resource)
            return described

        return self._groups.each(
            list(dict.fromkeys(request.groups)),
            lambda group_id: asking(lambda state, now: describe(group_id, state)),
            lambda group_id: lambda code, detail: DescribedGroup(code, group_id=group_id),
            lambda groups: DescribeGroupsResponse(groups=groups),
        )


def _dead(group_id: str, version: int) -> DescribedGroup:
    if version < NOT_FOUND_SINCE:
        return DescribedGroup(group_id=group_id, group_state=DEAD)
    return DescribedGroup(
        ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.", group_id, group_state=DEAD
    )
