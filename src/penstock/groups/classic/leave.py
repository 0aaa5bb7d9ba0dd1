"""LeaveGroup on a classic group: members go, or an administrator takes static ones out."""

from typing import Final

from penstock.coordinator.outcome import NOTHING, Now, Outcome, Reply
from penstock.errors import ApiError, ErrorCode
from penstock.groups.classic.classic_group import ClassicGroup, ClassicState
from penstock.groups.classic.join import Asking
from penstock.groups.classic.rebalance import complete_if_all_joined, prepare_or_complete, take_out
from penstock.groups.group_context import Surroundings
from penstock.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)

_MANY_MEMBERS_FROM: Final = 3


def leave(
    surroundings: Surroundings,
    group: ClassicGroup | None,
    request: LeaveGroupRequest,
    asking: Asking,
    now: Now,
) -> Outcome:
    if not request.group_id:
        raise ApiError(ErrorCode.INVALID_GROUP_ID, "a group needs a name")
    if group is not None and group.state is ClassicState.DEAD:
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{group.group_id} was deleted")
    is_single = asking.version < _MANY_MEMBERS_FROM
    leaving = [MemberIdentity(request.member_id)] if is_single else request.members
    told = [_refused(identity, ErrorCode.UNKNOWN_MEMBER_ID) for identity in leaving]
    outcome = NOTHING
    if group is not None:
        told, outcome = _leave_group(surroundings, group, leaving, now)
    reply = (
        LeaveGroupResponse(error_code=told[0].error_code) if is_single else LeaveGroupResponse(members=told)
    )
    return Outcome(replies=(Reply(asking.pending, reply),)) + outcome


def _leave_group(
    surroundings: Surroundings, group: ClassicGroup, leaving: list[MemberIdentity], now: Now
) -> tuple[list[MemberResponse], Outcome]:
    told: list[MemberResponse] = []
    replies: list[Reply] = []
    reasons: list[str] = []
    for identity in leaving:
        try:
            member_id = _member_id(group, identity)
        except ApiError as refusal:
            told.append(_refused(identity, refusal.code))
            continue
        if member_id in group.members:
            reasons.append(_reason(member_id, identity))
        replies += take_out(surroundings, group, member_id)
        told.append(_refused(identity, ErrorCode.NONE))
    if reasons:
        moved_on = prepare_or_complete(surroundings, group, "; ".join(reasons), now)
    else:
        # One that was only told its id may have been what the others waited for.
        moved_on = complete_if_all_joined(surroundings, group, now)
    return told, Outcome(replies=replies) + moved_on


def _member_id(group: ClassicGroup, identity: MemberIdentity) -> str:
    """Whom it means: an instance id alone is how an administrator names a member."""
    instance_id = identity.group_instance_id
    if not identity.member_id and instance_id in group.static_members:
        return group.static_members[instance_id]
    if identity.member_id not in group.pending_members:
        group.check_member(identity.member_id, instance_id)
    return identity.member_id


def _reason(member_id: str, identity: MemberIdentity) -> str:
    return f"{member_id} left: {identity.reason}" if identity.reason else f"{member_id} left"


def _refused(identity: MemberIdentity, code: ErrorCode) -> MemberResponse:
    return MemberResponse(identity.member_id, identity.group_instance_id, code)
