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

from penstock.coordinator.outcome import NOTHING, Now, Outcome, Reply
from penstock.errors import ErrorCode
from penstock.groups.classic.classic_group import ClassicGroup, ClassicState
from penstock.groups.classic.classic_member import ClassicMember
from penstock.groups.group_context import Surroundings, TimerKey
from penstock.limits import MINUTE_MS, SECOND_MS
from penstock.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember

SESSION: Final = "classic session"
JOIN: Final = "classic join"
SYNC: Final = "classic sync"
CLASSIC_TIMERS: Final = frozenset((SESSION, JOIN, SYNC))
"""The kinds of timers that are to be handed to `classic_timers.expire`."""

NEW_MEMBER_MS_MAX: Final = 5 * MINUTE_MS
"""A newcomer waits no longer than this for the others; Kafka's figure."""
WAIT_AGAIN_MS_MIN: Final = SECOND_MS
"""While nobody joins, the group looks again after the rebalance timeout, which may be nothing."""


def session_key(group: ClassicGroup, member_id: str) -> TimerKey:
    return TimerKey(SESSION, group.group_id, member_id)


def join_key(group: ClassicGroup) -> TimerKey:
    return TimerKey(JOIN, group.group_id)


def sync_key(group: ClassicGroup) -> TimerKey:
    return TimerKey(SYNC, group.group_id)


def set_timer(surroundings: Surroundings, key: TimerKey, delay_ms: int, now: Now) -> None:
    surroundings.timers.set(key, now.monotonic + delay_ms / 1000)


def refresh_session(surroundings: Surroundings, group: ClassicGroup, member_id: str, now: Now) -> None:
    """The member showed that it lives. One that waits to join is timed as its wait demands."""
    member = group.members.get(member_id)
    if member is not None and member_id not in group.joining:
        set_timer(surroundings, session_key(group, member_id), member.timeouts.session_ms, now)


def take_out(
    surroundings: Surroundings,
    group: ClassicGroup,
    member_id: str,
    code: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID,
) -> list[Reply]:
    """The member, or the pending one, is gone. What the group does about it, the caller decides."""
    surroundings.timers.cancel(session_key(group, member_id))
    return [pending.refusal(code) for pending in group.remove(member_id)]


# Gathering


def prepare(surroundings: Surroundings, group: ClassicGroup, reason: str, now: Now) -> Outcome:
    """Ask everybody to join again."""
    was_empty = group.is_empty
    interrupted = Outcome(replies=_interrupt_syncs(surroundings, group, now))
    group.enter(ClassicState.PREPARING, now)
    group.rebalances.begin(reason, now)
    group.has_newcomer = False
    if was_empty:
        delay_ms = surroundings.config().classic.initial_delay_ms
        group.initial_ms_left = max(group.rebalance_ms() - delay_ms, 0)
        set_timer(surroundings, join_key(group), delay_ms, now)
        return interrupted
    if group.has_all_joined:
        return interrupted + complete_join(surroundings, group, now)
    set_timer(surroundings, join_key(group), group.rebalance_ms(), now)
    return interrupted


def prepare_or_complete(surroundings: Surroundings, group: ClassicGroup, reason: str, now: Now) -> Outcome:
    """Somebody came, went or changed: gather, or end the gathering if nobody is missing now."""
    if group.state is ClassicState.PREPARING:
        return complete_if_all_joined(surroundings, group, now)
    return prepare(surroundings, group, reason, now)


def complete_if_all_joined(surroundings: Surroundings, group: ClassicGroup, now: Now) -> Outcome:
    # Newcomers to an empty group are given their while even if all that are known have come.
    must_wait = group.is_initial and len(group.members) > 0
    if group.state is not ClassicState.PREPARING or must_wait or not group.has_all_joined:
        return NOTHING
    return complete_join(surroundings, group, now)


def extend_or_complete(surroundings: Surroundings, group: ClassicGroup, now: Now) -> Outcome:
    """The time to gather is up, or would be, had nobody come meanwhile."""
    if group.initial_ms_left and group.has_newcomer:
        delay_ms = min(surroundings.config().classic.initial_delay_ms, group.initial_ms_left)
        group.initial_ms_left -= delay_ms
        group.has_newcomer = False
        set_timer(surroundings, join_key(group), delay_ms, now)
        return NOTHING
    return complete_join(surroundings, group, now)


def complete_join(surroundings: Surroundings, group: ClassicGroup, now: Now) -> Outcome:
    """Go on with those who joined. Static members may be late; they stay, with what they said last."""
    surroundings.timers.cancel(join_key(group))
    late = [member for member in group.members.values() if member.member_id not in group.joining]
    for member in late:
        if member.instance_id is None:
            parked = take_out(surroundings, group, member.member_id)
            assert not parked, "who did not join does not wait"
    if group.members and not group.elect_joined_leader():
        set_timer(surroundings, join_key(group), max(group.rebalance_ms(), WAIT_AGAIN_MS_MIN), now)
        return NOTHING
    group.begin_generation(now)
    if group.is_empty:
        group.rebalances.end(now)
        return Outcome(records=(group.record(),))
    return Outcome(replies=_begin_syncing(surroundings, group, now))


def _begin_syncing(surroundings: Surroundings, group: ClassicGroup, now: Now) -> list[Reply]:
    replies = []
    for member in group.members.values():
        pending = group.joining.pop(member.member_id, None)
        if pending is not None:
            replies.append(Reply(pending, generation_reply(group, member)))
            member.is_new = False
            refresh_session(surroundings, group, member.member_id, now)
        group.pending_syncs.add(member.member_id)
    set_timer(surroundings, sync_key(group), group.rebalance_ms(), now)
    return replies


def _interrupt_syncs(surroundings: Surroundings, group: ClassicGroup, now: Now) -> list[Reply]:
    """There will be no assignment in this generation."""
    surroundings.timers.cancel(sync_key(group))
    if group.state is ClassicState.COMPLETING:
        for member in group.members.values():
            # That of an earlier generation, which this one has ended. Members may read it still.
            member.assignment = b""
    group.pending_syncs.clear()
    syncing, group.syncing = group.syncing, {}
    for member_id in syncing:
        refresh_session(surroundings, group, member_id, now)
    return [pending.refusal(ErrorCode.REBALANCE_IN_PROGRESS) for pending in syncing.values()]


def generation_reply(group: ClassicGroup, member: ClassicMember) -> JoinGroupResponse:
    """What a member is told of the present generation. Only the leader learns who else is in it."""
    is_leader = member.member_id == group.leader
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader or "",
        member_id=member.member_id,
        members=_members_told(group) if is_leader else [],
    )


def _members_told(group: ClassicGroup) -> list[JoinGroupResponseMember]:
    return [
        JoinGroupResponseMember(member.member_id, member.instance_id, member.metadata(group.protocol_name))
        for member in group.members.values()
    ]
