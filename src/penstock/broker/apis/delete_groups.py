"""DeleteGroups: api key 42, versions 0 to 2.

Deletes groups without members, and their committed offsets. The reply is sent when the deletion is on disk.

Behaviour
    A group that does not exist is GROUP_ID_NOT_FOUND, one with members NON_EMPTY_GROUP.
    A group that is named twice is deleted once and gets one reply.
    A group with very many offsets is deleted in several batches, and other requests are processed between
    them; requests for the group itself wait until the group is gone. If the broker stops between two batches,
    the client gets no reply; the group still exists with its remaining offsets, and can be deleted.
Differs from Kafka
    nothing known
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from penstock.broker.context import RequestContext
from penstock.broker.groups.chunked_commands import CommandChunk, MakeChunk
from penstock.broker.groups.group_coordinator import Finish, GroupCoordinator, reply_of
from penstock.broker.router import DeferredReply
from penstock.broker.served_api import GROUP, ServedApi, names_at
from penstock.chunks import chunks
from penstock.coordinator.outcome import Now
from penstock.errors import ApiError, ErrorCode
from penstock.groups.group_state_machine import GroupStateMachine
from penstock.limits import GROUPS_REPORTED_PER_CHUNK
from penstock.protocol.messages.delete_groups import (
    DELETE_GROUPS,
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from penstock.security.access import Operation


class DeleteGroups:
    api = ServedApi(DELETE_GROUPS, Operation.DELETE, GROUP, names_at("groups_names"))

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    def __call__(
        self, request: DeleteGroupsRequest, context: RequestContext
    ) -> DeferredReply | Coroutine[Any, Any, DeleteGroupsResponse]:
        names = list(dict.fromkeys(request.groups_names))
        if len(names) > GROUPS_REPORTED_PER_CHUNK:
            return self._many(names, context)
        return self._delete(names, context, _response)

    async def _many(self, names: list[str], context: RequestContext) -> DeleteGroupsResponse:
        """Delete a few groups at a time, and let other requests run in between."""
        results: list[DeletableGroupResult] = []
        for some in chunks(names, GROUPS_REPORTED_PER_CHUNK):
            results += await reply_of(self._delete(some, context, list))
            await asyncio.sleep(0)
        return _response(results)

    def _delete(self, names: Sequence[str], context: RequestContext, finish: Finish) -> DeferredReply:
        return self._groups.execute_each_chunked(
            names,
            lambda group_id: _deletion(group_id, is_denied=group_id in context.denied),
            lambda group_id: lambda code, _: DeletableGroupResult(group_id, code),
            finish,
        )


def _deletion(group_id: str, *, is_denied: bool) -> MakeChunk:
    """The deletion of one group, chunk by chunk."""
    is_begun = False

    def delete_some(state: GroupStateMachine, now: Now) -> CommandChunk:
        nonlocal is_begun
        if is_denied:
            raise ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        try:
            records, is_done = state.delete_group(group_id, now)
        except ApiError as rejection:
            if is_begun and rejection.code is ErrorCode.GROUP_ID_NOT_FOUND:
                # The rest of the group expired between two chunks: the deletion is complete.
                return CommandChunk((), DeletableGroupResult(group_id))
            raise
        is_begun = True
        return CommandChunk(records, DeletableGroupResult(group_id)) if is_done else CommandChunk(records)

    return delete_some


def _response(results: list[DeletableGroupResult]) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(results=results)
