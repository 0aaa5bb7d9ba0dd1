"""DeleteGroups: api key 42, versions 0 to 2.

Deletes groups without members, and the places they have kept. Answered when that is on disk.

Behaviour
    A group that does not exist is GROUP_ID_NOT_FOUND, one with members NON_EMPTY_GROUP.
    A group that is named twice is deleted once and answered once.
Differs from Kafka
    nothing known
"""

from penstock.broker.context import RequestContext
from penstock.broker.group_coordinator import Command, GroupCoordinator
from penstock.broker.router import Later
from penstock.coordinator.outcome import Now, Outcome, Pending, Reply
from penstock.errors import ApiError, ErrorCode
from penstock.groups.groups import Groups
from penstock.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)


class DeleteGroups:
    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    def __call__(self, request: DeleteGroupsRequest, context: RequestContext) -> Later:
        def command(group_id: str) -> Command:
            def delete(state: Groups, pending: Pending, now: Now) -> Outcome:
                if group_id in context.denied:
                    raise ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
                records = state.delete_group(group_id, now)
                return Outcome(records, (Reply(pending, DeletableGroupResult(group_id)),))

            return delete

        return self._groups.each(
            list(dict.fromkeys(request.groups_names)),
            command,
            lambda group_id: lambda code, _: DeletableGroupResult(group_id, code),
            lambda results: DeleteGroupsResponse(results=results),
        )
