"""The deadlines of members of a consumer group.

session     silent for longer, a member is gone
rebalance   so long a member may take to give up what it was told to give up
join, sync  of members that speak the classic protocol: so long they may take for each of these
"""

from typing import Final

from penstock.coordinator.outcome import Now
from penstock.groups.consumer.consumer_group import ConsumerGroup
from penstock.groups.consumer.consumer_member import ConsumerMember, MemberState
from penstock.groups.group_context import GroupContext, TimerKey

SESSION: Final = "consumer session"
REBALANCE: Final = "consumer rebalance"
JOIN: Final = "consumer join"
SYNC: Final = "consumer sync"
CONSUMER_TIMERS: Final = frozenset((SESSION, REBALANCE, JOIN, SYNC))
"""The kinds of timers that are to be handed to `consumer_leave.expire`."""


def timer_key(kind: str, group: ConsumerGroup, member_id: str) -> TimerKey:
    return TimerKey(kind, group.group_id, member_id)


def set_timer(context: GroupContext, key: TimerKey, delay_ms: int, now: Now) -> None:
    context.timers.set(key, now.monotonic + delay_ms / 1000)


def refresh_session(context: GroupContext, group: ConsumerGroup, member: ConsumerMember, now: Now) -> None:
    """The member showed that it lives."""
    classic = member.metadata.classic
    session_ms = (classic or context.consumer_config(group.group_id)).session_ms
    set_timer(context, timer_key(SESSION, group, member.member_id), session_ms, now)


def set_rebalance_timer(
    context: GroupContext, group: ConsumerGroup, member: ConsumerMember, now: Now
) -> None:
    """Its position has changed. Those of the classic protocol are timed by joining."""
    key = timer_key(REBALANCE, group, member.member_id)
    if member.current_assignment.state is MemberState.UNREVOKED and member.metadata.classic is None:
        set_timer(context, key, member.metadata.rebalance_ms, now)
    else:
        context.timers.cancel(key)


def cancel_timers(context: GroupContext, group: ConsumerGroup, member_id: str) -> None:
    for kind in CONSUMER_TIMERS:
        context.timers.cancel(timer_key(kind, group, member_id))


def on_loaded(context: GroupContext, group: ConsumerGroup, now: Now) -> None:
    """The log has been read: everybody's session begins, and topics may have changed meanwhile."""
    for member in group.members.values():
        refresh_session(context, group, member, now)
        set_rebalance_timer(context, group, member, now)
    topics_changed(group)


def topics_changed(group: ConsumerGroup) -> None:
    """Topics were created, deleted or have grown. The next heartbeat looks what that means here."""
    group.needs_topic_refresh = True
    group.stale_regexes = set(group.regexes)
    group.resolving.clear()  # those under way look at the topics that were; they begin anew


def end(context: GroupContext, group: ConsumerGroup) -> None:
    """The group is deleted or becomes another kind: nothing of it may be left behind."""
    for member_id in group.members:
        cancel_timers(context, group, member_id)
