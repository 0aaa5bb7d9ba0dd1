"""One step of a member of a consumer group: it said something, and perhaps it is told something new.

What a member says can change the group's epoch, a new epoch means a new target, and a new target
means that this member and others have to move. The others learn it when they report themselves.

Rule 1: the group is not changed here. What will be different is in the records, and is put over what
        is for the questions in between (`ProspectiveGroup`).
Rule 2: what is refused is refused before anything else.
"""

from collections.abc import Callable
from typing import NamedTuple

from penstock.coordinator.outcome import Now, StateRecord
from penstock.errors import ApiError, ErrorCode
from penstock.groups.consumer.assignment import Assignment
from penstock.groups.consumer.consumer_group import ConsumerGroup
from penstock.groups.consumer.consumer_member import ConsumerMember, MemberAssignment, Subscription
from penstock.groups.consumer.consumer_records import (
    assignment_epoch_record,
    current_assignment_record,
    epoch_record,
    member_metadata_record,
    member_tombstones,
    regex_record,
    regex_tombstone,
    target_record,
)
from penstock.groups.consumer.consumer_timers import set_rebalance_timer
from penstock.groups.consumer.reconciliation import TargetAssignment, reconcile
from penstock.groups.consumer.regex import REGEXES_PER_GROUP_MAX, RegexResolver, ResolvedRegularExpression
from penstock.groups.consumer.target_assignment import ProspectiveGroup, compute_target, topics_hash
from penstock.groups.group_context import GroupContext, TopicsImage
from penstock.types import TopicId


class MemberChange(NamedTuple):
    """A member as the group knows it, and as it presents itself now."""

    before: ConsumerMember | None
    """None: a newcomer."""
    after: ConsumerMember
    replaced: ConsumerMember | None = None
    """The static member whose place it takes; `before` is that one under the new id."""

    @property
    def known(self) -> ConsumerMember | None:
        """Whom the group will forget or know differently."""
        return self.replaced or self.before

    @property
    def is_subscription_changed(self) -> bool:
        if self.before is None:
            return True
        before, after = self.before.metadata, self.after.metadata
        return before.subscription != after.subscription or before.assignor != after.assignor


class MemberReport(NamedTuple):
    owned: Assignment | None
    """What the member says it reads; None: it did not say."""
    can_describe: Callable[[str], bool]
    """Whether its client may know of a topic."""


class MemberUpdate(NamedTuple):
    records: list[StateRecord]
    member: ConsumerMember
    assignment_epoch: int
    is_stable: bool
    """Everybody who is there reads what it shall read."""


def update_member(
    context: GroupContext, group: ConsumerGroup, change: MemberChange, report: MemberReport, now: Now
) -> MemberUpdate:
    _check_regexes(group, change)
    topics = context.topics()
    records = _membership_records(group, change)
    regexes, resolved = _update_regexes(context, group, change, report, now)
    records += regexes
    is_bumped, metadata_hash = _check_epoch_bump(group, change, resolved, topics)
    epoch = group.epoch + is_bumped
    if is_bumped:
        records.append(epoch_record(group.group_id, epoch, metadata_hash))
    target = TargetAssignment(
        group.assignment_epoch, group.target_of((change.known or change.after).member_id)
    )
    if epoch > group.assignment_epoch:
        made = _compute_target(context, group, change, resolved)
        records += _target_records(group, change, made, epoch, now)
        target = TargetAssignment(epoch, made[change.after.member_id])
    member = change.after.with_assignment(
        reconcile(change.after.current_assignment, target, report.owned, _is_free(group, change))
    )
    if member.current_assignment != (change.before.current_assignment if change.before else None):
        records.append(current_assignment_record(group.group_id, member))
        set_rebalance_timer(context, group, member, now)
    is_stable = _is_stable(group, change, member, target.epoch)
    _count_rebalance(group, change, is_bumped, is_stable, now)
    group.needs_topic_refresh = False
    return MemberUpdate(records, member, target.epoch, is_stable)


def _membership_records(group: ConsumerGroup, change: MemberChange) -> list[StateRecord]:
    """That it is a member, and what it said."""
    group_id, after = group.group_id, change.after
    if change.replaced is not None:
        old_id = change.replaced.member_id
        return [
            *member_tombstones(group_id, old_id),
            member_metadata_record(group_id, after),
            target_record(group_id, after.member_id, group.target_of(old_id)),
            current_assignment_record(group_id, after),
        ]
    if change.before is None or change.before.metadata != after.metadata:
        return [member_metadata_record(group_id, after)]
    return []


# Regular expressions


def _check_regexes(group: ConsumerGroup, change: MemberChange) -> None:
    """Each takes memory, and time whenever topics are divided anew."""
    regex, users = change.after.metadata.subscription.regex, group.subscribed.regex_users
    if regex is None or regex in users:
        return
    old = change.known.metadata.subscription.regex if change.known else None
    if len(users) - (old is not None and users[old] == 1) >= REGEXES_PER_GROUP_MAX:
        detail = f"{group.group_id} has {REGEXES_PER_GROUP_MAX} different regular expressions already"
        raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, detail)


def _update_regexes(
    context: GroupContext, group: ConsumerGroup, change: MemberChange, report: MemberReport, now: Now
) -> tuple[list[StateRecord], dict[str, frozenset[str]]]:
    """Records of expressions whose meaning changed, and what they mean now."""
    records: list[StateRecord] = []
    regex = change.after.metadata.subscription.regex
    known = change.known
    old = known.metadata.subscription.regex if known else None
    if old is not None and old != regex and group.subscribed.regex_users[old] == 1:
        records.append(regex_tombstone(group.group_id, old))
        group.resolving.pop(old, None)
    if regex is None:
        return records, {}
    found = _resolve(context, group, regex, report)
    resolution = group.regexes.get(regex)
    if found is None or (resolution is not None and resolution.topics == found):
        return records, {}
    version = resolution.version + 1 if resolution else 1
    records.append(
        regex_record(group.group_id, regex, ResolvedRegularExpression(found, version, now.wall_ms))
    )
    return records, {regex: found}


def _resolve(
    context: GroupContext, group: ConsumerGroup, regex: str, report: MemberReport
) -> frozenset[str] | None:
    """What it means, if that had to be found out and is known now."""
    resolving = group.resolving.get(regex)
    if resolving is None:
        is_known = regex in group.regexes
        if is_known and regex not in group.stale_regexes:
            return None
        names, chunk_work_max = context.topics().by_name, context.limits.regex_chunk_work_max
        resolving = RegexResolver(regex, names, chunk_work_max)
        group.stale_regexes.discard(regex)
        group.resolving[regex] = resolving
        if not is_known:
            # As in Kafka, the reply to the heartbeat that brings an expression assigns the topics that the
            # member names; those that match follow with a later one, which it is told to send soon.
            return None
    if not resolving.run_chunk():
        return None
    del group.resolving[regex]
    return resolving.topics(report.can_describe)


# Epochs and targets


def _check_epoch_bump(
    group: ConsumerGroup, change: MemberChange, resolved: dict[str, frozenset[str]], topics: TopicsImage
) -> tuple[bool, int]:
    """Whether there is reason for a new epoch, and the hash of the topics that it is for."""
    is_changed = change.is_subscription_changed or bool(resolved)
    if not is_changed and not group.needs_topic_refresh:
        return False, group.metadata_hash
    subscriptions = group.subscriptions_without([change.known] if change.known else [])
    subscriptions.add(change.after.metadata.subscription)
    metadata_hash = topics_hash(group.topics_of(subscriptions, resolved), topics)
    return is_changed or metadata_hash != group.metadata_hash, metadata_hash


def _compute_target(
    context: GroupContext, group: ConsumerGroup, change: MemberChange, resolved: dict[str, frozenset[str]]
) -> dict[str, Assignment]:
    members = dict(group.members)
    target = dict(group.target)
    if change.replaced is not None:
        members.pop(change.replaced.member_id)
        had = target.pop(change.replaced.member_id, None)
        if had is not None:
            target[change.after.member_id] = had
    members[change.after.member_id] = change.after

    def topics_of(subscription: Subscription) -> frozenset[str]:
        return group.subscribed.topics_of_subscription(subscription, resolved)

    assignors = context.config().consumer.assignors
    return compute_target(ProspectiveGroup(members, target, topics_of), context.topics(), assignors)


def _target_records(
    group: ConsumerGroup, change: MemberChange, made: dict[str, Assignment], epoch: int, now: Now
) -> list[StateRecord]:
    """Of those whose target is another, and at last of the epoch that it is for."""
    after_id = change.after.member_id
    known_id = change.known.member_id if change.known else after_id
    records = [
        target_record(group.group_id, member_id, assignment)
        for member_id, assignment in made.items()
        if assignment != group.target_of(known_id if member_id == after_id else member_id)
    ]
    return [*records, assignment_epoch_record(group.group_id, epoch, now.wall_ms)]


def _is_free(group: ConsumerGroup, change: MemberChange) -> Callable[[TopicId, int], bool]:
    """Held by nobody, or by this very member: it has just said that it stopped reading it."""
    own = {None, change.after.member_id, change.known.member_id if change.known else None}
    return lambda topic_id, partition: group.holder(topic_id, partition) in own


# What follows from it


def _is_stable(
    group: ConsumerGroup, change: MemberChange, member: ConsumerMember, assignment_epoch: int
) -> bool:
    if not member.is_reconciled(assignment_epoch) or group.resolving:
        return False
    ids = {member.member_id, change.known.member_id if change.known else member.member_id}
    if assignment_epoch != group.assignment_epoch:
        return not (group.members.keys() - group.left_temporarily - ids)
    return not (group.unreconciled - group.left_temporarily - ids)


def _count_rebalance(
    group: ConsumerGroup, change: MemberChange, is_bumped: bool, is_stable: bool, now: Now
) -> None:
    if is_bumped:
        group.rebalances.begin(_reason(change), now)
    if is_stable:
        group.rebalances.end(now)


def _reason(change: MemberChange) -> str:
    if change.before is None:
        return f"{change.after.member_id} joined"
    if change.is_subscription_changed:
        return f"{change.after.member_id} changed its subscription"
    return "the subscribed topics changed"


def rejoin_assignment(current_assignment: MemberAssignment) -> MemberAssignment:
    """Of a static member that comes back: it has what it had, and begins anew."""
    return MemberAssignment(
        0, 0, current_assignment.state, current_assignment.assigned, current_assignment.revoking
    )
