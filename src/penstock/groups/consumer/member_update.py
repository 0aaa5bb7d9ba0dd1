"""The update of a member of a consumer group: from its report to records and its next assignment.

A report can change the group epoch, a new epoch requires a new target, and with a new target this member
and others must change their assignments. The other members get theirs at their next heartbeat.

Rule 1: the group's durable state is not changed here. The changes are in the records; until those are
        replayed, queries run on an overlay (`ProspectiveGroup`).
Rule 2: everything that can be rejected is rejected first.
"""

from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

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
from penstock.groups.consumer.consumer_timers import update_rebalance_timer
from penstock.groups.consumer.reconciliation import TargetAssignment, reconcile
from penstock.groups.consumer.regex import REGEXES_PER_GROUP_MAX, RegexResolver, ResolvedRegularExpression
from penstock.groups.consumer.target_assignment import ProspectiveGroup, compute_target, topics_hash
from penstock.groups.group_context import GroupContext, TopicsImage
from penstock.types import TopicId


class MemberChange(NamedTuple):
    """A member as the group has it, and as its request describes it."""

    before: ConsumerMember | None
    """None: a new member."""
    after: ConsumerMember
    replaced: ConsumerMember | None = None
    """The static member that this one replaces; `before` is that member under the new id."""

    @property
    def known(self) -> ConsumerMember | None:
        """The member that the group removes or updates."""
        return self.replaced or self.before

    @property
    def is_subscription_changed(self) -> bool:
        """Whether a new assignment must be computed: also for a new member, and for another assignor."""
        if self.before is None:
            return True
        before, after = self.before.metadata, self.after.metadata
        return before.subscription != after.subscription or before.assignor != after.assignor


class MemberReport(NamedTuple):
    owned: Assignment | None
    """Partitions that the member reports to own; None: not reported."""
    can_describe: Callable[[str], bool]
    """Whether the client may describe a topic."""


class MemberUpdate(NamedTuple):
    records: list[StateRecord]
    member: ConsumerMember
    is_stable: bool
    """True: every member that has not left temporarily reads its target."""


def update_member(
    context: GroupContext, group: ConsumerGroup, change: MemberChange, report: MemberReport, now: Now
) -> MemberUpdate:
    _check_regexes(group, change)
    topics = context.topics()
    # The order of the records is the order of their replay: member, expressions, epoch, target, assignment.
    records = _membership_records(group, change)
    regexes, resolved = _update_regexes(context, group, change, report, now)
    records += regexes
    # After the expressions: new matches are a reason for a new epoch.
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
        update_rebalance_timer(context, group, member, now)
    is_stable = _is_stable(group, change, member, target.epoch)
    _count_rebalance(group, change, is_bumped, is_stable, now)
    group.needs_topic_refresh = False
    return MemberUpdate(records, member, is_stable)


def _membership_records(group: ConsumerGroup, change: MemberChange) -> list[StateRecord]:
    """Build the records of the membership and its metadata."""
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
    """Raise ApiError for too many distinct expressions: each takes memory, and time at every new target."""
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
    """Build records of expressions whose matches changed, and return the new matches."""
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
    """Run a chunk of the resolution. Returns the matches once it completes; None if known or incomplete."""
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
            # member names; the matching topics follow with a later heartbeat, which the short interval
            # makes soon.
            return None
    if not resolving.run_chunk():
        return None
    del group.resolving[regex]
    return resolving.topics(report.can_describe)


# Epochs and targets


def _check_epoch_bump(
    group: ConsumerGroup, change: MemberChange, resolved: dict[str, frozenset[str]], topics: TopicsImage
) -> tuple[bool, int]:
    """Whether the group needs a new epoch, and the hash of its topics."""
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
    """Build records of the targets that changed, and last of the assignment epoch."""
    after_id = change.after.member_id
    known_id = change.known.member_id if change.known else after_id
    records = [
        target_record(group.group_id, member_id, assignment)
        for member_id, assignment in made.items()
        if assignment != group.target_of(known_id if member_id == after_id else member_id)
    ]
    return [*records, assignment_epoch_record(group.group_id, epoch, now.wall_ms)]


def _is_free(group: ConsumerGroup, change: MemberChange) -> Callable[[TopicId, int], bool]:
    """Whether a partition has no holder, or this member holds it: the member's report shows what it still
    owns."""
    own = {None, change.after.member_id, change.known.member_id if change.known else None}
    return lambda topic_id, partition: group.holder(topic_id, partition) in own


# Consequences


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
    """Assignment of a static member that rejoins: its partitions stay, and its epochs restart at 0."""
    return replace(current_assignment, epoch=0, previous_epoch=0)
