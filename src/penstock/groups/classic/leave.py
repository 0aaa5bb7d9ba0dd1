"""LeaveGroup on a classic group: members leave, or an administrator removes static members."""

from typing import Final

from penstock.coordinator.outcome import EMPTY_OUTCOME, CommandOutcome, Now, Reply
from penstock.errors import ApiError, ErrorCode
from penstock.groups.classic.classic_group import ClassicGroup
from penstock.groups.classic.heartbeat import check_not_dead
from penstock.groups.classic.join import ClassicCaller
from penstock.groups.classic.rebalance import (
    complete_if_all_joined,
    prepare_rebalance_or_complete,
    remove_member,
)
from penstock.groups.group_context import GroupContext
from penstock.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)

_MANY_MEMBERS_FROM: Final = 3


def leave(
    context: GroupContext,
    group: ClassicGroup | None,
    request: LeaveGroupRequest,
    caller: ClassicCaller,
    now: Now,
) -> CommandOutcome:
    if not request.group_id:
        raise ApiError(ErrorCode.INVALID_GROUP_ID, "a group needs a name")
    if group is not None:
        check_not_dead(group)
    leaving = leaving_members(request, caller)
    responses = [_member_response(identity, ErrorCode.UNKNOWN_MEMBER_ID) for identity in leaving]
    outcome = EMPTY_OUTCOME
    if group is not None:
        responses, outcome = _leave_group(context, group, leaving, now)
    return CommandOutcome(replies=(Reply(caller.pending, leave_response(responses, caller)),)) + outcome


def leaving_members(request: LeaveGroupRequest, caller: ClassicCaller) -> list[MemberIdentity]:
    """The members that the request names. Early versions name one, and have no list."""
    return [MemberIdentity(request.member_id)] if caller.version < _MANY_MEMBERS_FROM else request.members


def leave_response(responses: list[MemberResponse], caller: ClassicCaller) -> LeaveGroupResponse:
    if caller.version < _MANY_MEMBERS_FROM:
        return LeaveGroupResponse(error_code=responses[0].error_code)
    return LeaveGroupResponse(members=responses)


def _leave_group(
    context: GroupContext, group: ClassicGroup, leaving: list[MemberIdentity], now: Now
) -> tuple[list[MemberResponse], CommandOutcome]:
    responses: list[MemberResponse] = []
    replies: list[Reply] = []
    reasons: list[str] = []
    for identity in leaving:
        try:
            member_id = _member_id(group, identity)
        except ApiError as rejection:
            responses.append(_member_response(identity, rejection.code))
            continue
        if member_id in group.members:
            reasons.append(leave_reason(member_id, identity))
        replies += remove_member(context, group, member_id)
        responses.append(_member_response(identity, ErrorCode.NONE))
    if reasons:
        moved_on = prepare_rebalance_or_complete(context, group, "; ".join(reasons), now)
    else:
        # The rebalance may have been waiting only for a pending member id that left.
        moved_on = complete_if_all_joined(context, group, now)
    return responses, CommandOutcome(replies=replies) + moved_on


def _member_id(group: ClassicGroup, identity: MemberIdentity) -> str:
    """Resolve a member: an administrator names a static member by its instance id alone."""
    instance_id = identity.group_instance_id
    if not identity.member_id and instance_id in group.static_members:
        return group.static_members[instance_id]
    if identity.member_id not in group.pending_members:
        group.check_member(identity.member_id, instance_id)
    return identity.member_id


def leave_reason(member_id: str, identity: MemberIdentity) -> str:
    return f"{member_id} left: {identity.reason}" if identity.reason else f"{member_id} left"


def _member_response(identity: MemberIdentity, code: ErrorCode) -> MemberResponse:
    return MemberResponse(identity.member_id, identity.group_instance_id, code)
