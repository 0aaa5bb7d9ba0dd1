"""Heartbeat on a classic group, and the membership check before an offset commit.

A member that was removed, replaced or left behind by a newer generation gets its error here, before it acts
for the group.
"""

from penstock.coordinator.outcome import CommandOutcome, Now, Reply, WaitingRequest
from penstock.errors import ApiError, ErrorCode
from penstock.groups.classic.classic_group import ClassicGroup, ClassicState
from penstock.groups.classic.rebalance import refresh_session
from penstock.groups.group_context import GroupContext
from penstock.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


def heartbeat(
    context: GroupContext,
    group: ClassicGroup | None,
    request: HeartbeatRequest,
    pending: WaitingRequest,
    now: Now,
) -> CommandOutcome:
    group = require_group(group, request.group_id)
    check_generation(group, request.member_id, request.group_instance_id, request.generation_id)
    # Before the rebalance check: a member that must rejoin is alive too.
    refresh_session(context, group, request.member_id, now)
    if group.state is ClassicState.PREPARING:
        return CommandOutcome(replies=(pending.rejection(ErrorCode.REBALANCE_IN_PROGRESS),))
    return CommandOutcome(replies=(Reply(pending, HeartbeatResponse()),))


def validate_commit(group: ClassicGroup, member_id: str, instance_id: str | None, generation: int) -> None:
    """Raise ApiError unless the commit is from a member of this generation, or the group has no members.

    A commit counts as a heartbeat: call `refresh_session` when it is accepted.
    """
    check_not_dead(group)
    if generation < 0 and group.is_empty:
        return  # a commit without membership, as administration tools send it
    if generation < 0 and not member_id and instance_id is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"{group.group_id} has members; only they may commit")
    # A member of an older generation must not overwrite offsets of the partition's new owner.
    check_generation(group, member_id, instance_id, generation)
    if group.state is ClassicState.COMPLETING:
        raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS, "the assignment is not known yet")


def require_group(group: ClassicGroup | None, group_id: str) -> ClassicGroup:
    """Return the group, or raise: in a group that does not exist the client is not a member."""
    if not group_id:
        raise ApiError(ErrorCode.INVALID_GROUP_ID, "a group needs a name")
    if group is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {group_id}")
    return group


def check_generation(group: ClassicGroup, member_id: str, instance_id: str | None, generation: int) -> None:
    check_not_dead(group)
    group.check_member(member_id, instance_id)
    if generation != group.generation:
        raise ApiError(ErrorCode.ILLEGAL_GENERATION, f"the generation is {group.generation}")


def check_not_dead(group: ClassicGroup) -> None:
    if group.state is ClassicState.DEAD:
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{group.group_id} was deleted")
