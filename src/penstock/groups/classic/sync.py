"""SyncGroup on a classic group: the leader sends the assignments, and every member gets its own.

Rule 1: an assignment is in the log before any member receives it: the group's record and the replies are
        one outcome.
"""

from collections.abc import Mapping

from penstock.coordinator.outcome import CommandOutcome, Now, Reply, WaitingRequest
from penstock.errors import ApiError, ErrorCode
from penstock.groups.classic.classic_group import ClassicGroup, ClassicState
from penstock.groups.classic.classic_member import ClassicMember
from penstock.groups.classic.heartbeat import check_generation, require_group
from penstock.groups.classic.rebalance import park, refresh_session, sync_key
from penstock.groups.group_context import GroupContext
from penstock.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse


def sync(
    context: GroupContext,
    group: ClassicGroup | None,
    request: SyncGroupRequest,
    pending: WaitingRequest,
    now: Now,
) -> CommandOutcome:
    group = require_group(group, request.group_id)
    check_generation(group, request.member_id, request.group_instance_id, request.generation_id)
    _check_protocol(group, request)
    is_leading = group.state is ClassicState.COMPLETING and request.member_id == group.leader
    assignments = {each.member_id: bytes(each.assignment) for each in request.assignments if is_leading}
    # Before anything changes: a rejected assignment leaves the group as it is.
    _check_assignment_size(context, group, assignments)
    refresh_session(context, group, request.member_id, now)
    if group.state is ClassicState.PREPARING:
        return CommandOutcome(replies=(pending.rejection(ErrorCode.REBALANCE_IN_PROGRESS),))
    _note_sync(context, group, request.member_id)
    if group.state is ClassicState.STABLE:
        # Written before; the shard still holds this reply until that record is committed.
        return CommandOutcome(replies=(Reply(pending, _reply(group, group.members[request.member_id])),))
    told = CommandOutcome(replies=park(group.syncing, request.member_id, pending))
    return told + _assign(context, group, assignments, now) if is_leading else told


def _check_protocol(group: ClassicGroup, request: SyncGroupRequest) -> None:
    """Raise ApiError if the client assumes another protocol. Clients before version 5 send neither field."""
    if request.protocol_type not in (None, group.protocol_type):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the protocol type is {group.protocol_type}")
    if request.protocol_name not in (None, group.protocol_name):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the protocol is {group.protocol_name}")


def _check_assignment_size(
    context: GroupContext, group: ClassicGroup, assignments: Mapping[str, bytes]
) -> None:
    """Raise UNKNOWN_SERVER_ERROR for an assignment that is too large, as Kafka does when it fits no record.
    The leader may retry with a smaller one until it leaves or its session ends."""
    if not assignments:
        return
    told = sum(member.record_bytes(group.protocol_name) for member in group.members.values())
    given = sum(len(assignments.get(member_id, b"")) for member_id in group.members)
    if told + given > context.limits.metadata_bytes_max:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the assignment of {group.group_id} is too large")


def _note_sync(context: GroupContext, group: ClassicGroup, member_id: str) -> None:
    group.pending_syncs.discard(member_id)
    if not group.pending_syncs:
        context.timers.cancel(sync_key(group))


def _assign(
    context: GroupContext, group: ClassicGroup, assignments: Mapping[str, bytes], now: Now
) -> CommandOutcome:
    """Store the assignments and become Stable. A member that the leader left out gets an empty assignment."""
    for member in group.members.values():
        member.assign(assignments.get(member.member_id, b""))
    group.enter(ClassicState.STABLE, now)
    group.rebalances.end(now)
    syncing, group.syncing = group.syncing, {}
    replies = []
    for member_id, pending in syncing.items():
        refresh_session(context, group, member_id, now)
        replies.append(Reply(pending, _reply(group, group.members[member_id])))
    return CommandOutcome((group.record(),), replies)


def _reply(group: ClassicGroup, member: ClassicMember) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
    )
