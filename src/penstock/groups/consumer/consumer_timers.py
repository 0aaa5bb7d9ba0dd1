"""The timers of consumer group members.

session     without a heartbeat for this long, a member is removed
rebalance   time that a member has to revoke partitions
join, sync  time that a classic-protocol member has for each of these requests
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
"""Timer kinds that `consumer_leave.expire` handles."""


def timer_key(kind: str, group: ConsumerGroup, member_id: str) -> TimerKey:
    return TimerKey(kind, group.group_id, member_id)


def refresh_session(context: GroupContext, group: ConsumerGroup, member: ConsumerMember, now: Now) -> None:
    """Restart a member's session timer."""
    classic = member.metadata.classic
    session_ms = (classic or context.consumer_config(group.group_id)).session_ms
    context.set_timer(timer_key(SESSION, group, member.member_id), session_ms, now)


def update_rebalance_timer(
    context: GroupContext, group: ConsumerGroup, member: ConsumerMember, now: Now
) -> None:
    """Start or cancel the rebalance timer after an assignment change. Classic members have the join timer."""
    key = timer_key(REBALANCE, group, member.member_id)
    if member.current_assignment.state is MemberState.UNREVOKED and member.metadata.classic is None:
        context.set_timer(key, member.metadata.rebalance_ms, now)
    else:
        context.timers.cancel(key)


def cancel_timers(context: GroupContext, group: ConsumerGroup, member_id: str) -> None:
    for kind in CONSUMER_TIMERS:
        context.timers.cancel(timer_key(kind, group, member_id))


def on_loaded(context: GroupContext, group: ConsumerGroup, now: Now) -> None:
    """Start all session timers after the log was loaded; topics may have changed meanwhile."""
    for member in group.members.values():
        refresh_session(context, group, member, now)
        update_rebalance_timer(context, group, member, now)
    topics_changed(group)


def topics_changed(group: ConsumerGroup) -> None:
    """Mark the group to check its topics at the next heartbeat: topics were created, deleted or extended."""
    group.needs_topic_refresh = True
    group.stale_regexes = set(group.regexes)
    group.resolving.clear()  # resolutions in progress use the old topics; they restart


def end(context: GroupContext, group: ConsumerGroup) -> None:
    """Cancel all timers: the group is deleted or converted."""
    for member_id in group.members:
        cancel_timers(context, group, member_id)
