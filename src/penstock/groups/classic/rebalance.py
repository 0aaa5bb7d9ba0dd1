"""The rebalance of a classic group: members rejoin, then the next generation begins.

    prepare         members get REBALANCE_IN_PROGRESS and join again
    complete_join   all members joined or the time is up: the next generation begins, joiners get replies
    (sync)          the leader sends the assignment, see `sync.py`

Rule 1: every waiting request gets a reply. A function here that removes a member or changes the group's
        state returns the replies to the requests that stop waiting.
Rule 2: a member has a session timer unless one of its requests waits for a reply, which proves that it
        lives. Only new members are timed while they wait: they may have given up, and no other event would
        show it.
"""

from typing import Final

from penstock.coordinator.outcome import EMPTY_OUTCOME, CommandOutcome, Now, Reply, WaitingRequest
from penstock.errors import ErrorCode
from penstock.groups.classic.classic_group import ClassicGroup, ClassicState
from penstock.groups.classic.classic_member import ClassicMember
from penstock.groups.group_context import GroupContext, TimerKey
from penstock.limits import MINUTE_MS, SECOND_MS
from penstock.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember

SESSION: Final = "classic session"
JOIN: Final = "classic join"
SYNC: Final = "classic sync"
CLASSIC_TIMERS: Final = frozenset((SESSION, JOIN, SYNC))
"""Timer kinds that `classic_timers.expire` handles."""

NEW_MEMBER_MS_MAX: Final = 5 * MINUTE_MS
"""Limit on how long a new member waits for the others; Kafka's value."""
JOIN_RETRY_MS_MIN: Final = SECOND_MS
"""Minimum pause before the group checks again for joins: the rebalance timeout may be 0."""


def session_key(group: ClassicGroup, member_id: str) -> TimerKey:
    return TimerKey(SESSION, group.group_id, member_id)


def join_key(group: ClassicGroup) -> TimerKey:
    return TimerKey(JOIN, group.group_id)


def sync_key(group: ClassicGroup) -> TimerKey:
    return TimerKey(SYNC, group.group_id)


def refresh_session(context: GroupContext, group: ClassicGroup, member_id: str, now: Now) -> None:
    """Restart a member's session timer. A member that waits to join is timed by that wait instead."""
    member = group.members.get(member_id)
    if member is not None and member_id not in group.joining:
        context.set_timer(session_key(group, member_id), member.timeouts.session_ms, now)


def remove_member(
    context: GroupContext,
    group: ClassicGroup,
    member_id: str,
    code: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID,
) -> list[Reply]:
    """Remove a member or pending member. The caller decides whether the group rebalances."""
    context.timers.cancel(session_key(group, member_id))
    return [pending.rejection(code) for pending in group.remove(member_id)]


def park(waiting: dict[str, WaitingRequest], member_id: str, pending: WaitingRequest) -> list[Reply]:
    """Park a request. It replaces an earlier one of the member, whose connection is lost."""
    replaced = waiting.pop(member_id, None)
    waiting[member_id] = pending
    return [replaced.rejection(ErrorCode.REBALANCE_IN_PROGRESS)] if replaced else []


# Rejoining


def prepare_rebalance(context: GroupContext, group: ClassicGroup, reason: str, now: Now) -> CommandOutcome:
    """Start a rebalance: every member must join again."""
    was_empty = group.is_empty
    interrupted = CommandOutcome(replies=_interrupt_syncs(context, group, now))
    group.enter(ClassicState.PREPARING, now)
    group.rebalances.begin(reason, now)
    group.has_newcomer = False
    if was_empty:
        # Consumers mostly start together: a short delay saves one rebalance per member.
        delay_ms = context.config().classic.initial_delay_ms
        group.initial_ms_left = max(group.rebalance_ms() - delay_ms, 0)
        context.set_timer(join_key(group), delay_ms, now)
        return interrupted
    if group.has_all_joined:
        return interrupted + complete_join(context, group, now)
    context.set_timer(join_key(group), group.rebalance_ms(), now)
    return interrupted


def prepare_rebalance_or_complete(
    context: GroupContext, group: ClassicGroup, reason: str, now: Now
) -> CommandOutcome:
    """After a membership change: start a rebalance, or complete the one in progress if all have joined."""
    if group.state is ClassicState.PREPARING:
        return complete_if_all_joined(context, group, now)
    return prepare_rebalance(context, group, reason, now)


def complete_if_all_joined(context: GroupContext, group: ClassicGroup, now: Now) -> CommandOutcome:
    # The initial delay of an empty group is not shortened: more members may come.
    must_wait = group.is_initial and len(group.members) > 0
    if group.state is not ClassicState.PREPARING or must_wait or not group.has_all_joined:
        return EMPTY_OUTCOME
    return complete_join(context, group, now)


def extend_or_complete_join(context: GroupContext, group: ClassicGroup, now: Now) -> CommandOutcome:
    """The join timer expired: extend the initial delay if members joined during it, else complete."""
    if group.initial_ms_left and group.has_newcomer:
        delay_ms = min(context.config().classic.initial_delay_ms, group.initial_ms_left)
        group.initial_ms_left -= delay_ms
        group.has_newcomer = False
        context.set_timer(join_key(group), delay_ms, now)
        return EMPTY_OUTCOME
    return complete_join(context, group, now)


def complete_join(context: GroupContext, group: ClassicGroup, now: Now) -> CommandOutcome:
    """Begin the generation with the members that joined. Static members may be late; they stay, with their
    last metadata."""
    context.timers.cancel(join_key(group))
    late = [member for member in group.members.values() if member.member_id not in group.joining]
    for member in late:
        if member.instance_id is None:
            parked = remove_member(context, group, member.member_id)
            assert not parked, "a member that did not join does not wait"
    if group.members and not group.elect_joined_leader():
        # Only absent static members remain, and none of them can lead: wait another round.
        context.set_timer(join_key(group), max(group.rebalance_ms(), JOIN_RETRY_MS_MIN), now)
        return EMPTY_OUTCOME
    group.begin_generation(now)
    if group.is_empty:
        group.rebalances.end(now)
        return CommandOutcome(records=(group.record(),))
    return CommandOutcome(replies=_begin_syncing(context, group, now))


def _begin_syncing(context: GroupContext, group: ClassicGroup, now: Now) -> list[Reply]:
    replies = []
    for member in group.members.values():
        pending = group.joining.pop(member.member_id, None)
        if pending is not None:
            replies.append(Reply(pending, generation_reply(group, member)))
            member.is_new = False
            refresh_session(context, group, member.member_id, now)
        # Late static members too: a member that does not sync in time is removed.
        group.pending_syncs.add(member.member_id)
    context.set_timer(sync_key(group), group.rebalance_ms(), now)
    return replies


def _interrupt_syncs(context: GroupContext, group: ClassicGroup, now: Now) -> list[Reply]:
    """Reject the waiting SyncGroup requests: this generation gets no assignment."""
    context.timers.cancel(sync_key(group))
    if group.state is ClassicState.COMPLETING:
        for member in group.members.values():
            # It is from an earlier generation that has ended. `last_assigned` stays: members may still read
            # it.
            member.assignment = b""
    group.pending_syncs.clear()
    syncing, group.syncing = group.syncing, {}
    for member_id in syncing:
        refresh_session(context, group, member_id, now)
    return [pending.rejection(ErrorCode.REBALANCE_IN_PROGRESS) for pending in syncing.values()]


def generation_reply(group: ClassicGroup, member: ClassicMember) -> JoinGroupResponse:
    """JoinGroup reply for the current generation. Only the leader gets the list of members."""
    is_leader = member.member_id == group.leader
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader or "",
        member_id=member.member_id,
        members=_generation_members(group) if is_leader else [],
    )


def _generation_members(group: ClassicGroup) -> list[JoinGroupResponseMember]:
    return [
        JoinGroupResponseMember(member.member_id, member.instance_id, member.metadata(group.protocol_name))
        for member in group.members.values()
    ]
