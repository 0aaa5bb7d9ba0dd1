"""DescribeGroups: api key 15, versions 0 to 6.

Describes classic groups and their members.

Behaviour
    Subscriptions and assignments of members are returned as bytes while the group is Stable.
    A group that does not exist, or is of another type, is described as Dead.
Versions
    3  authorised operations, also of a group that does not exist
    4  static members
    6  a group that does not exist is GROUP_ID_NOT_FOUND
Differs from Kafka
    A group that is named twice is described once.
    Groups that would make the reply too large are POLICY_VIOLATION.
"""

from collections.abc import Coroutine
from typing import Any, Final

from penstock.broker.context import RequestContext
from penstock.broker.groups.group_coordinator import GroupCoordinator
from penstock.broker.groups.group_descriptions import Description, describe_groups
from penstock.broker.router import DeferredReply
from penstock.broker.served_api import GROUP, ServedApi, names_at
from penstock.errors import ErrorCode
from penstock.groups.group_state_machine import GroupStateMachine
from penstock.protocol.messages.describe_groups import (
    DESCRIBE_GROUPS,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from penstock.security.access import Operation

DEAD = "Dead"
_ENTRY_BYTES: Final = 500
"""Size of a member beside its metadata and assignment; its ids and client are short."""
NOT_FOUND_SINCE = 6


class DescribeGroups:
    api = ServedApi(DESCRIBE_GROUPS, Operation.DESCRIBE, GROUP, names_at("groups"))

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    def __call__(
        self, request: DescribeGroupsRequest, context: RequestContext
    ) -> DeferredReply | Coroutine[Any, Any, DescribeGroupsResponse]:
        with_operations = request.include_authorized_operations
        return describe_groups(
            self._groups, request.groups, DESCRIPTION, context, with_operations=with_operations
        )


def _describe(group_id: str, state: GroupStateMachine, context: RequestContext) -> DescribedGroup:
    if group_id in context.denied:
        return _rejected(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    return state.describe_classic(group_id) or _dead(group_id, context.version)


def _size_bytes(described: DescribedGroup) -> int:
    members = described.members
    said = sum(len(member.member_metadata) + len(member.member_assignment) for member in members)
    return _ENTRY_BYTES * (1 + len(members)) + len(described.group_id) + said


def _rejected(group_id: str, code: ErrorCode, detail: str = "") -> DescribedGroup:
    return DescribedGroup(code, detail or None, group_id)


def _response(groups: list[DescribedGroup]) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(groups=groups)


def _dead(group_id: str, version: int) -> DescribedGroup:
    if version < NOT_FOUND_SINCE:
        return DescribedGroup(group_id=group_id, group_state=DEAD)
    return DescribedGroup(
        ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.", group_id, group_state=DEAD
    )


DESCRIPTION: Final = Description(_describe, _size_bytes, _rejected, _response)
