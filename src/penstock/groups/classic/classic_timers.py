"""What time does to a classic group: its beginning after a load, expiries, and its end.

Rule 1: timers that expire together are taken together and handled one by one. So each may find
        that an earlier one has settled its matter, or has set it anew: then it does nothing.
"""

from penstock.coordinator.outcome import NOTHING, Now, Outcome
from penstock.errors import ErrorCode
from penstock.groups.classic.classic_group import ClassicGroup, ClassicState
from penstock.groups.classic.rebalance import (
    JOIN,
    SESSION,
    SYNC,
    complete_if_all_joined,
    extend_or_complete,
    join_key,
    prepare,
    prepare_or_complete,
    refresh_session,
    session_key,
    sync_key,
    take_out,
)
from penstock.groups.group_context import Surroundings, TimerKey


def loaded(surroundings: Surroundings, group: ClassicGroup, now: Now) -> Outcome:
    """The log has been read: sessions begin, and from here on the group writes its own records."""
    group.is_living = True
    for member_id in group.members:
        refresh_session(surroundings, group, member_id, now)
    if len(group.members) > surroundings.config().classic.members_max:
        # Joining again, the last ones are refused; until then everybody may still commit.
        return prepare(surroundings, group, "the group is larger than is allowed now", now)
    if group.is_unsettled:
        return prepare(surroundings, group, "the group has changed its protocol", now)
    return NOTHING


def end(surroundings: Surroundings, group: ClassicGroup, now: Now) -> Outcome:
    """The group is deleted or becomes another kind: nothing of it may be left behind."""
    for member_id in (*group.members, *group.pending_members):
        surroundings.timers.cancel(session_key(group, member_id))
    surroundings.timers.cancel(join_key(group))
    surroundings.timers.cancel(sync_key(group))
    parked = list(group.parked())
    group.joining.clear()
    group.syncing.clear()
    group.enter(ClassicState.DEAD, now)
    return Outcome(replies=[pending.refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE) for pending in parked])


def expire(surroundings: Surroundings, group: ClassicGroup, key: TimerKey, now: Now) -> Outcome:
    """One of the group's timers has come due."""
    if surroundings.timers.deadline(key) is not None:
        return NOTHING
    if key.kind == SESSION:
        return _expire_session(surroundings, group, key.member_id, now)
    if key.kind == JOIN and group.state is ClassicState.PREPARING:
        return extend_or_complete(surroundings, group, now)
    if key.kind == SYNC and group.state in (ClassicState.COMPLETING, ClassicState.STABLE):
        return _expire_syncs(surroundings, group, now)
    return NOTHING


def _expire_session(surroundings: Surroundings, group: ClassicGroup, member_id: str, now: Now) -> Outcome:
    if member_id in group.pending_members:
        take_out(surroundings, group, member_id)
        return complete_if_all_joined(surroundings, group, now)
    member = group.members.get(member_id)
    if member is None:
        return NOTHING
    is_waiting = member_id in group.joining or member_id in group.syncing
    if is_waiting and not member.is_new:
        return NOTHING
    told = Outcome(replies=take_out(surroundings, group, member_id))
    return told + prepare_or_complete(surroundings, group, f"the session of {member_id} expired", now)


def _expire_syncs(surroundings: Surroundings, group: ClassicGroup, now: Now) -> Outcome:
    """Those who did not fetch their assignment in time hold the others up no longer."""
    late = [member_id for member_id in group.members if member_id in group.pending_syncs]
    if not late:
        return NOTHING
    for member_id in late:
        parked = take_out(surroundings, group, member_id)
        assert not parked, "who did not sync does not wait"
    return prepare(surroundings, group, f"{', '.join(late)} did not sync in time", now)
