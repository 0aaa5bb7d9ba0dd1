"""Members of a consumer group go: they say so, or they are silent or slow for too long.

Rule 1: what a member held is free as soon as the group forgets it. So nobody is forgotten who may
        still read, unless its time is up: then it was told before that it has to stop by itself.
"""

from collections.abc import Iterable, Sequence

from penstock.coordinator.outcome import NOTHING, Now, Outcome, StateRecord
from penstock.groups.classic.rebalance import prepare
from penstock.groups.consumer.assignment import EMPTY
from penstock.groups.consumer.consumer_group import ConsumerGroup
from penstock.groups.consumer.consumer_member import AWAY_EPOCH, ConsumerMember, MemberState, Position
from penstock.groups.consumer.consumer_records import (
    epoch_record,
    member_tombstones,
    position_record,
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
from penstock.groups.group_context import Surroundings, TimerKey
from penstock.groups.migration import Settled, can_downgrade, downgraded

_REASONS = {
    SESSION: "was silent for too long",
    REBALANCE: "did not give up its partitions in time",
    JOIN: "did not join in time",
    SYNC: "did not sync in time",
}


def remove(
    surroundings: Surroundings, group: ConsumerGroup, members: Sequence[ConsumerMember], reason: str, now: Now
) -> Settled:
    """Forget these members. If only those of the classic protocol remain, the group is theirs again."""
    leaving = {member.member_id for member in members}
    if can_downgrade(surroundings, group, leaving):
        remaining = [member for member_id, member in group.members.items() if member_id not in leaving]
        classic, records = downgraded(surroundings, group, remaining, now)
        return Settled(classic, Outcome(records) + prepare(surroundings, classic, reason, now))
    records = [record for member_id in leaving for record in member_tombstones(group.group_id, member_id)]
    records += _forget_regexes(group, members)
    subscribed = group.topics_of(group.subscriptions_without(members))
    metadata_hash = topics_hash(subscribed, surroundings.topics())
    records.append(epoch_record(group.group_id, group.epoch + 1, metadata_hash))
    for member_id in leaving:
        cancel_timers(surroundings, group, member_id)
    group.rebalances.begin(reason, now)
    if len(group.members) == len(leaving):
        group.rebalances.end(now)
    return Settled(group, Outcome(records))


def _forget_regexes(group: ConsumerGroup, members: Sequence[ConsumerMember]) -> list[StateRecord]:
    """Of those that nobody uses any more."""
    used = {subscription.regex for subscription in group.subscriptions_without(members)}
    unused = {member.about.subscription.regex for member in members} - used
    forgotten = [regex for regex in unused if regex is not None]
    for regex in forgotten:
        group.resolving.pop(regex, None)
    return [regex_tombstone(group.group_id, regex) for regex in forgotten]


def go_away(surroundings: Surroundings, group: ConsumerGroup, member: ConsumerMember, now: Now) -> Settled:
    """A static member stops and will be back: its partitions wait for it as long as a session lasts."""
    position = member.position
    gone = Position(AWAY_EPOCH, position.previous_epoch, MemberState.STABLE, position.assigned, EMPTY)
    cancel_timers(surroundings, group, member.member_id)
    refresh_session(surroundings, group, member, now)
    return Settled(group, Outcome(records=(position_record(group.group_id, member.with_position(gone)),)))


def expire(surroundings: Surroundings, group: ConsumerGroup, keys: Iterable[TimerKey], now: Now) -> Settled:
    """These timers of the group have come due. All of them at once: what one means for the group is not
    to be judged as if the others had not been."""
    late: dict[str, str] = {}
    for key in keys:
        member = group.members.get(key.member_id)
        is_reset = surroundings.timers.deadline(key) is not None
        if member is None or is_reset:
            continue
        if key.kind != REBALANCE or member.position.state is MemberState.UNREVOKED:
            late[key.member_id] = f"{key.member_id} {_REASONS[key.kind]}"
    if not late:
        return Settled(group, NOTHING)
    members = [group.members[member_id] for member_id in late]
    return remove(surroundings, group, members, "; ".join(late.values()), now)
