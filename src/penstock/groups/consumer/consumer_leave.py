"""Removal of consumer group members: they leave, their session expires, or they revoke too slowly.

Rule 1: a removed member's partitions are free at once. So a member that may still read is not removed
        before its time is up; by then the client itself must have stopped reading.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from penstock.coordinator.outcome import EMPTY_OUTCOME, CommandOutcome, Now, StateRecord
from penstock.groups.classic.rebalance import prepare_rebalance
from penstock.groups.consumer.assignment import EMPTY
from penstock.groups.consumer.consumer_group import ConsumerGroup
from penstock.groups.consumer.consumer_member import (
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    MemberState,
)
from penstock.groups.consumer.consumer_records import (
    current_assignment_record,
    epoch_record,
    member_tombstones,
    regex_tombstone,
)
from penstock.groups.consumer.consumer_timers import (
    JOIN,
    REBALANCE,
    SESSION,
    SYNC,
    cancel_timers,
    refresh_session,
)
from penstock.groups.consumer.target_assignment import topics_hash
from penstock.groups.group_context import GroupContext, TimerKey
from penstock.groups.migration import GroupTransition, can_downgrade, downgrade

_REASONS = {
    SESSION: "was silent for too long",
    REBALANCE: "did not give up its partitions in time",
    JOIN: "did not join in time",
    SYNC: "did not sync in time",
}


def remove(
    context: GroupContext, group: ConsumerGroup, members: Sequence[ConsumerMember], reason: str, now: Now
) -> GroupTransition:
    """Remove these members. If only classic members remain, convert the group to a classic group."""
    leaving = {member.member_id for member in members}
    if can_downgrade(context, group, leaving):
        remaining = [member for member_id, member in group.members.items() if member_id not in leaving]
        classic, records = downgrade(context, group, remaining, now)
        return GroupTransition(
            classic, CommandOutcome(records) + prepare_rebalance(context, classic, reason, now)
        )
    records = [record for member_id in leaving for record in member_tombstones(group.group_id, member_id)]
    records += _remove_unused_regexes(group, members)
    subscribed = group.topics_of(group.subscriptions_without(members))
    metadata_hash = topics_hash(subscribed, context.topics())
    # A new epoch makes the remaining members compute a target with the freed partitions.
    records.append(epoch_record(group.group_id, group.epoch + 1, metadata_hash))
    for member_id in leaving:
        cancel_timers(context, group, member_id)
    group.rebalances.begin(reason, now)
    if len(group.members) == len(leaving):
        group.rebalances.end(now)
    return GroupTransition(group, CommandOutcome(records))


def _remove_unused_regexes(group: ConsumerGroup, members: Sequence[ConsumerMember]) -> list[StateRecord]:
    """Build tombstones of the expressions that no remaining member uses."""
    used = {subscription.regex for subscription in group.subscriptions_without(members)}
    unused = {member.metadata.subscription.regex for member in members} - used
    forgotten = [regex for regex in unused if regex is not None]
    for regex in forgotten:
        group.resolving.pop(regex, None)
    return [regex_tombstone(group.group_id, regex) for regex in forgotten]


def leave_temporarily(
    context: GroupContext, group: ConsumerGroup, member: ConsumerMember, now: Now
) -> GroupTransition:
    """Mark a static member that will return: its partitions stay assigned for one session timeout."""
    gone = replace(
        member.current_assignment, epoch=STATIC_LEAVE_EPOCH, state=MemberState.STABLE, revoking=EMPTY
    )
    cancel_timers(context, group, member.member_id)
    refresh_session(context, group, member, now)
    record = current_assignment_record(group.group_id, member.with_assignment(gone))
    return GroupTransition(group, CommandOutcome(records=(record,)))


def expire(
    context: GroupContext, group: ConsumerGroup, keys: Iterable[TimerKey], now: Now
) -> GroupTransition:
    """Handle expired timers of the group, all in one step, so that whether to convert the group is decided
    with every expired member removed."""
    late: dict[str, str] = {}
    for key in keys:
        member = group.members.get(key.member_id)
        is_reset = context.timers.deadline(key) is not None
        # A request restarted the timer after it expired, so the member lives.
        if member is None or is_reset:
            continue
        if key.kind != REBALANCE or member.current_assignment.state is MemberState.UNREVOKED:
            late[key.member_id] = f"{key.member_id} {_REASONS[key.kind]}"
    if not late:
        return GroupTransition(group, EMPTY_OUTCOME)
    members = [group.members[member_id] for member_id in late]
    return remove(context, group, members, "; ".join(late.values()), now)
