"""The timers of a classic group: start after loading, expiry, and end.

Rule 1: timers that expire together are removed together and handled one by one. Handling one timer can
        settle or reset another; then the other has no effect.
"""

from penstock.coordinator.outcome import EMPTY_OUTCOME, CommandOutcome, Now, Reply
from penstock.errors import ErrorCode
from penstock.groups.classic.classic_group import ClassicGroup, ClassicState
from penstock.groups.classic.rebalance import (
    JOIN,
    SESSION,
    SYNC,
    complete_if_all_joined,
    extend_or_complete_join,
    join_key,
    prepare_rebalance,
    prepare_rebalance_or_complete,
    refresh_session,
    remove_member,
    session_key,
    sync_key,
)
from penstock.groups.group_context import GroupContext, TimerKey


def on_loaded(context: GroupContext, group: ClassicGroup, now: Now) -> CommandOutcome:
    """Start session timers after the log was loaded. From here on the group writes its own records."""
    group.is_active = True
    for member_id in group.members:
        refresh_session(context, group, member_id, now)
    if len(group.members) > context.config().classic.members_max:
        # When members rejoin, the ones beyond the limit are rejected; until then every member can commit.
        return prepare_rebalance(context, group, "the group is larger than is allowed now", now)
    if group.needs_rebalance:
        return prepare_rebalance(context, group, "the group has changed its protocol", now)
    return EMPTY_OUTCOME


def end(
    context: GroupContext,
    group: ClassicGroup,
    now: Now,
    code: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE,
) -> list[Reply]:
    """Cancel all timers and reject all waiting requests: the group is deleted or converted."""
    for member_id in (*group.members, *group.pending_members):
        context.timers.cancel(session_key(group, member_id))
    context.timers.cancel(join_key(group))
    context.timers.cancel(sync_key(group))
    parked = list(group.parked())
    group.joining.clear()
    group.syncing.clear()
    group.enter(ClassicState.DEAD, now)
    return [pending.rejection(code) for pending in parked]


def expire(context: GroupContext, group: ClassicGroup, key: TimerKey, now: Now) -> CommandOutcome:
    """Handle one expired timer of the group."""
    # An earlier timer of the same batch has set this one again.
    if context.timers.deadline(key) is not None:
        return EMPTY_OUTCOME
    if key.kind == SESSION:
        return _expire_session(context, group, key.member_id, now)
    if key.kind == JOIN and group.state is ClassicState.PREPARING:
        return extend_or_complete_join(context, group, now)
    if key.kind == SYNC and group.state in (ClassicState.COMPLETING, ClassicState.STABLE):
        return _expire_syncs(context, group, now)
    return EMPTY_OUTCOME


def _expire_session(context: GroupContext, group: ClassicGroup, member_id: str, now: Now) -> CommandOutcome:
    if member_id in group.pending_members:
        remove_member(context, group, member_id)
        return complete_if_all_joined(context, group, now)
    member = group.members.get(member_id)
    if member is None:
        return EMPTY_OUTCOME
    # A waiting request proves that a known member lives. A new member may have given up, so it is removed.
    is_waiting = member_id in group.joining or member_id in group.syncing
    if is_waiting and not member.is_new:
        return EMPTY_OUTCOME
    removed = CommandOutcome(replies=remove_member(context, group, member_id))
    return removed + prepare_rebalance_or_complete(context, group, f"the session of {member_id} expired", now)


def _expire_syncs(context: GroupContext, group: ClassicGroup, now: Now) -> CommandOutcome:
    """Remove members that did not send SyncGroup in time, and rebalance without them."""
    late = [member_id for member_id in group.members if member_id in group.pending_syncs]
    if not late:
        return EMPTY_OUTCOME
    for member_id in late:
        parked = remove_member(context, group, member_id)
        assert not parked, "a member that did not sync does not wait"
    return prepare_rebalance(context, group, f"{', '.join(late)} did not sync in time", now)
