"""The deadlines of members of a consumer group.

session     silent for longer, a member is gone
rebalance   so long a member may take to give up what it was told to give up
join, sync  of members that speak the classic protocol: so long they may take for each of these
"""

from typing import Final

from penstock.coordinator.outcome import Now
from penstock.groups.consumer.consumer_group import ConsumerGroup
from penstock.groups.consumer.consumer_member import ConsumerMember, MemberState
from penstock.groups.group_context import Surroundings, TimerKey

SESSION: Final = "consumer session"
REBALANCE: Final = "consumer rebalance"
JOIN: Final = "consumer join"
SYNC: Final = "consumer sync"
CONSUMER_TIMERS: Final = frozenset((SESSION, REBALANCE, JOIN, SYNC))
"""The kinds of timers that are to be handed to `consumer_leave.expire`."""


def timer_key(kind: str, group: ConsumerGroup, member_id: str) -> TimerKey:
    return TimerKey(kind, group.group_id, member_id)


def set_timer(surroundings: Surroundings, key: TimerKey, delay_ms: int, now: Now) -> None:
    surroundings.timers.set(key, now.monotonic + delay_ms / 1000)


def refresh_session(
    surroundings: Surroundings, group: ConsumerGroup, member: ConsumerMember, now: Now
) -> None:
    """The member showed that it lives."""
    classic = member.about.classic
    session_ms = (classic or surroundings.consumer_config(group.group_id)).session_ms
    set_timer(surroundings, timer_key(SESSION, group, member.member_id), session_ms, now)


def time_revocation(
    surroundings: Surroundings, group: ConsumerGroup, member: ConsumerMember, now: Now
) -> None:
    """Its position has changed. Those of the classic protocol are timed by joining."""
    key = timer_key(REBALANCE, group, member.member_id)
    if member.position.state is MemberState.UNREVOKED and member.about.classic is None:
        set_timer(surroundings, key, member.about.rebalance_ms, now)
    else:
        surroundings.timers.cancel(key)


def cancel_timers(surroundings: Surroundings, group: ConsumerGroup, member_id: str) -> None:
    for kind in CONSUMER_TIMERS:
        surroundings.timers.cancel(timer_key(kind, group, member_id))


def loaded(surroundings: Surroundings, group: ConsumerGroup, now: Now) -> None:
    """The log has been read: everybody's session begins, and topics may have changed meanwhile."""
    for member in group.members.values():
        refresh_session(surroundings, group, member, now)
        time_revocation(surroundings, group, member, now)
    topics_changed(group)


def topics_changed(group: ConsumerGroup) -> None:
    """Topics were created, deleted or have grown. The next heartbeat looks what that means here."""
    group.is_refresh_due = True
    group.stale_regexes = set(group.regexes)
    group.resolving.clear()  # those under way look at the topics that were; they begin anew


def end(surroundings: Surroundings, group: ConsumerGroup) -> None:
    """The group is deleted or becomes another kind: nothing of it may be left behind."""
    for member_id in group.members:
        cancel_timers(surroundings, group, member_id)
