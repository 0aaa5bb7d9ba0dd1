"""How a classic group gathers its members and begins a generation.

    prepare         members learn that a rebalance is on (REBALANCE_IN_PROGRESS) and join again
    complete_join   all are there, or the time is up: the next generation begins, joiners are answered
    (sync)          the leader's assignment comes, see `sync.py`

Rule 1: whoever waits is answered. Each function here that takes a member out, or moves the group on,
        returns the replies for those whose wait is over by it.
Rule 2: a member has a session timer unless it waits for an answer; waiting is a sign of life. Only
        newcomers are timed while they wait: they may have given up, and nothing else would tell.
"""

from typing import Final

from penstock.coordinator.outcome import EMPTY_OUTCOME, CommandOutcome, Now, Reply
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
"""The kinds of timers that are to be handed to `classic_timers.expire`."""

NEW_MEMBER_MS_MAX: Final = 5 * MINUTE_MS
"""A newcomer waits no longer than this for the others; Kafka's figure."""
JOIN_RETRY_MS_MIN: Final = SECOND_MS
"""While nobody joins, the group looks again after the rebalance timeout, which may be nothing."""


def session_key(group: ClassicGroup, member_id: str) -> TimerKey:
    return TimerKey(SESSION, group.group_id, member_id)


def join_key(group: ClassicGroup) -> TimerKey:
    return TimerKey(JOIN, group.group_id)


def sync_key(group: ClassicGroup) -> TimerKey:
    return TimerKey(SYNC, group.group_id)


def set_timer(context: GroupContext, key: TimerKey, delay_ms: int, now: Now) -> None:
    context.timers.set(key, now.monotonic + delay_ms / 1000)


def refresh_session(context: GroupContext, group: ClassicGroup, member_id: str, now: Now) -> None:
    """The member showed that it lives. One that waits to join is timed as its wait demands."""
    member = group.members.get(member_id)
    if member is not None and member_id not in group.joining:
        set_timer(context, session_key(group, member_id), member.timeouts.session_ms, now)


def remove_member(
    context: GroupContext,
    group: ClassicGroup,
    member_id: str,
    code: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID,
) -> list[Reply]:
    """The member, or the pending one, is gone. What the group does about it, the caller decides."""
    context.timers.cancel(session_key(group, member_id))
    return [pending.rejection(code) for pending in group.remove(member_id)]


# Gathering


def prepare_rebalance(context: GroupContext, group: ClassicGroup, reason: str, now: Now) -> CommandOutcome:
    """Ask everybody to join again."""
    was_empty = group.is_empty
    interrupted = CommandOutcome(replies=_interrupt_syncs(context, group, now))
    group.enter(ClassicState.PREPARING, now)
    group.rebalances.begin(reason, now)
    group.has_newcomer = False
    if was_empty:
        delay_ms = context.config().classic.initial_delay_ms
        group.initial_ms_left = max(group.rebalance_ms() - delay_ms, 0)
        set_timer(context, join_key(group), delay_ms, now)
        return interrupted
    if group.has_all_joined:
        return interrupted + complete_join(context, group, now)
    set_timer(context, join_key(group), group.rebalance_ms(), now)
    return interrupted


def prepare_rebalance_or_complete(
    context: GroupContext, group: ClassicGroup, reason: str, now: Now
) -> CommandOutcome:
    """Somebody came, went or changed: gather, or end the gathering if nobody is missing now."""
    if group.state is ClassicState.PREPARING:
        return complete_if_all_joined(context, group, now)
    return prepare_rebalance(context, group, reason, now)


def complete_if_all_joined(context: GroupContext, group: ClassicGroup, now: Now) -> CommandOutcome:
    # Newcomers to an empty group are given their while even if all that are known have come.
    must_wait = group.is_initial and len(group.members) > 0
    if group.state is not ClassicState.PREPARING or must_wait or not group.has_all_joined:
        return EMPTY_OUTCOME
    return complete_join(context, group, now)


def extend_or_complete_join(context: GroupContext, group: ClassicGroup, now: Now) -> CommandOutcome:
    """The time to gather is up, or would be, had nobody come meanwhile."""
    if group.initial_ms_left and group.has_newcomer:
        delay_ms = min(context.config().classic.initial_delay_ms, group.initial_ms_left)
        group.initial_ms_left -= delay_ms
        group.has_newcomer = False
        set_timer(context, join_key(group), delay_ms, now)
        return EMPTY_OUTCOME
    return complete_join(context, group, now)


def complete_join(context: GroupContext, group: ClassicGroup, now: Now) -> CommandOutcome:
    """Go on with those who joined. Static members may be late; they stay, with what they said last."""
    context.timers.cancel(join_key(group))
    late = [member for member in group.members.values() if member.member_id not in group.joining]
    for member in late:
        if member.instance_id is None:
            parked = remove_member(context, group, member.member_id)
            assert not parked, "who did not join does not wait"
    if group.members and not group.elect_joined_leader():
        set_timer(context, join_key(group), max(group.rebalance_ms(), JOIN_RETRY_MS_MIN), now)
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
        group.pending_syncs.add(member.member_id)
    set_timer(context, sync_key(group), group.rebalance_ms(), now)
    return replies


def _interrupt_syncs(context: GroupContext, group: ClassicGroup, now: Now) -> list[Reply]:
    """There will be no assignment in this generation."""
    context.timers.cancel(sync_key(group))
    if group.state is ClassicState.COMPLETING:
        for member in group.members.values():
            # That of an earlier generation, which this one has ended. Members may read it still.
            member.assignment = b""
    group.pending_syncs.clear()
    syncing, group.syncing = group.syncing, {}
    for member_id in syncing:
        refresh_session(context, group, member_id, now)
    return [pending.rejection(ErrorCode.REBALANCE_IN_PROGRESS) for pending in syncing.values()]


def generation_reply(group: ClassicGroup, member: ClassicMember) -> JoinGroupResponse:
    """What a member is told of the present generation. Only the leader learns who else is in it."""
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
