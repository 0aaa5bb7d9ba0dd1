"""ConsumerGroupHeartbeat: the only membership request of the consumer protocol. By member epoch:

    epoch 0     join, or rejoin after being fenced
    above 0     heartbeat
    -1          leave
    -2          temporary leave of a static member

Rule 1: every rejection is raised before any state changes.
Rule 2: a heartbeat to an unknown group gets UNKNOWN_MEMBER_ID, on which clients join again. Kafka's
        GROUP_ID_NOT_FOUND is fatal to most clients; only a leaving member gets it.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.coordinator.outcome import CommandOutcome, Now, Reply, WaitingRequest
from penstock.errors import ApiError, ErrorCode
from penstock.groups.classic.classic_group import ClassicGroup
from penstock.groups.consumer.assignment import Assignment, parse_assignment, sorted_topics
from penstock.groups.consumer.consumer_group import ConsumerGroup
from penstock.groups.consumer.consumer_leave import leave_temporarily, remove
from penstock.groups.consumer.consumer_member import (
    JOIN_GROUP_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    ConsumerMemberMetadata,
    Subscription,
)
from penstock.groups.consumer.consumer_timers import JOIN, SYNC, cancel_timers, refresh_session, timer_key
from penstock.groups.consumer.member_update import (
    MemberChange,
    MemberReport,
    MemberUpdate,
    rejoin_assignment,
    update_member,
)
from penstock.groups.consumer.regex import compile_regex
from penstock.groups.consumer.request_validation import (
    check_group_size,
    find_member,
    validate_heartbeat,
    validate_member_epoch,
)
from penstock.groups.group_context import ClientInfo, GroupContext
from penstock.groups.migration import Group, GroupTransition, apply_upgrade, plan_upgrade
from penstock.limits import CONSUMER_HEARTBEAT_MS_MAX
from penstock.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
    HeartbeatTopicPartitions,
)

_HEARTBEAT_MS_PER_MEMBER: Final = 1
"""Heartbeat interval per member: a group of any size sends at most about a thousand heartbeats a second."""


class ConsumerCaller(NamedTuple):
    """Caller of a request: API version, client, the request that waits for the reply, and authorization."""

    version: int
    client: ClientInfo
    pending: WaitingRequest
    can_describe: Callable[[str], bool] = lambda topic: True
    """Whether the client may describe a topic: a regular expression matches only such topics."""


def heartbeat(
    context: GroupContext,
    group: Group | None,
    request: ConsumerGroupHeartbeatRequest,
    caller: ConsumerCaller,
    now: Now,
) -> GroupTransition:
    validate_heartbeat(request, caller.version, context.config().consumer)
    if request.member_epoch < JOIN_GROUP_EPOCH:
        return _leave(context, _require_consumer_group(group, request), request, caller, now)
    if request.member_epoch == JOIN_GROUP_EPOCH and isinstance(group, ClassicGroup):
        return _join_classic(context, group, request, caller, now)
    if request.member_epoch == JOIN_GROUP_EPOCH and group is None:
        group = ConsumerGroup(request.group_id)
    found = _require_consumer_group(group, request)
    accepted = _validate(context, found, request, caller)
    return GroupTransition(found, _apply(context, found, accepted, now))


def _require_consumer_group(group: Group | None, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroup:
    if isinstance(group, ConsumerGroup):
        return group
    is_leaving = request.member_epoch < JOIN_GROUP_EPOCH
    code = ErrorCode.GROUP_ID_NOT_FOUND if is_leaving else ErrorCode.UNKNOWN_MEMBER_ID
    raise ApiError(code, f"there is no consumer group {request.group_id}")


def _join_classic(
    context: GroupContext,
    classic: ClassicGroup,
    request: ConsumerGroupHeartbeatRequest,
    caller: ConsumerCaller,
    now: Now,
) -> GroupTransition:
    """Upgrade a classic group: its first member of the consumer protocol joins."""
    group, records = plan_upgrade(context, classic, now)
    # The request is validated against the planned group; the classic group changes only after that.
    accepted = _validate(context, group, request, caller)
    replies = apply_upgrade(context, classic, group, now)
    return GroupTransition(group, CommandOutcome(records, replies) + _apply(context, group, accepted, now))


# Leaving


def _leave(
    context: GroupContext,
    group: ConsumerGroup,
    request: ConsumerGroupHeartbeatRequest,
    caller: ConsumerCaller,
    now: Now,
) -> GroupTransition:
    member = find_member(group, request.member_id, request.instance_id)
    response = ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.member_epoch)
    if request.member_epoch == STATIC_LEAVE_EPOCH:
        after, outcome = leave_temporarily(context, group, member, now)
    else:
        after, outcome = remove(context, group, [member], f"{member.member_id} left", now)
    return GroupTransition(after, outcome + CommandOutcome(replies=(Reply(caller.pending, response),)))


# Joining and staying


class _AcceptedHeartbeat(NamedTuple):
    """A validated heartbeat."""

    request: ConsumerGroupHeartbeatRequest
    caller: ConsumerCaller
    change: MemberChange
    owned: Assignment | None


def _validate(
    context: GroupContext,
    group: ConsumerGroup,
    request: ConsumerGroupHeartbeatRequest,
    caller: ConsumerCaller,
) -> _AcceptedHeartbeat:
    """Raise every rejection, before any state changes."""
    owned = None if request.topic_partitions is None else parse_assignment(request.topic_partitions)
    change = _change(context, group, request, caller, owned)
    check_group_size(context, group, change)
    return _AcceptedHeartbeat(request, caller, change, owned)


def _apply(
    context: GroupContext, group: ConsumerGroup, accepted: _AcceptedHeartbeat, now: Now
) -> CommandOutcome:
    report = MemberReport(accepted.owned, accepted.caller.can_describe)
    update = update_member(context, group, accepted.change, report, now)
    _update_timers(context, group, accepted.change, update, now)
    response = ConsumerGroupHeartbeatResponse(
        member_id=update.member.member_id,
        member_epoch=update.member.epoch,
        heartbeat_interval_ms=_interval_ms(context, group, update),
    )
    if _needs_assignment(accepted.request, accepted.change, update):
        response.assignment = heartbeat_assignment(update.member.current_assignment.assigned)
    return CommandOutcome(update.records, (Reply(accepted.caller.pending, response),))


def _change(
    context: GroupContext,
    group: ConsumerGroup,
    request: ConsumerGroupHeartbeatRequest,
    caller: ConsumerCaller,
    owned: Assignment | None,
) -> MemberChange:
    if request.member_epoch == JOIN_GROUP_EPOCH:
        member_id = request.member_id or context.generate_member_id()
        before, replaced = _find_joining(group, member_id, request.instance_id)
    else:
        member_id = request.member_id
        before, replaced = find_member(group, member_id, request.instance_id), None
        # A member with an old epoch may still read partitions that are no longer its own: fence it.
        validate_member_epoch(before, request.member_epoch, owned)
    known = before or ConsumerMember(member_id)
    return MemberChange(
        before, known.with_metadata(_updated_metadata(known.metadata, request, caller)), replaced
    )


def _find_joining(
    group: ConsumerGroup, member_id: str, instance_id: str | None
) -> tuple[ConsumerMember | None, ConsumerMember | None]:
    """Find the known member, and the static member that it replaces."""
    known = group.members.get(member_id)
    holder = None if instance_id is None else group.static_member(instance_id)
    if holder is not None and holder is not known:
        # Without a temporary leave another process may still run with this instance id.
        if holder.metadata.classic is None and not holder.has_left_temporarily:
            detail = f"{instance_id} is the member {holder.member_id}, which has not left"
            raise ApiError(ErrorCode.UNRELEASED_INSTANCE_ID, detail)
        if known is not None:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{member_id} is not the instance {instance_id}")
        return ConsumerMember(
            member_id, holder.metadata, rejoin_assignment(holder.current_assignment)
        ), holder
    if known is not None and known.has_left_temporarily:
        return known.with_assignment(rejoin_assignment(known.current_assignment)), known
    return known, None


def _updated_metadata(
    known: ConsumerMemberMetadata, request: ConsumerGroupHeartbeatRequest, caller: ConsumerCaller
) -> ConsumerMemberMetadata:
    """Merge the request into the metadata: fields that are missing have not changed."""
    names, regex = known.subscription
    if request.subscribed_topic_names is not None:
        names = tuple(request.subscribed_topic_names)
    if request.subscribed_topic_regex is not None and request.subscribed_topic_regex != (regex or ""):
        regex = request.subscribed_topic_regex or None
        if regex is not None:
            compile_regex(regex)
    # Known names are sorted already; most heartbeats must not sort them again.
    is_silent = request.subscribed_topic_names is None
    metadata = ConsumerMemberMetadata(
        request.instance_id or known.instance_id,
        request.rack_id or known.rack_id,
        caller.client,
        Subscription(names, regex) if is_silent else Subscription.of(names, regex),
        known.rebalance_ms if request.rebalance_timeout_ms == -1 else max(request.rebalance_timeout_ms, 0),
        request.server_assignor or known.assignor,
        None,
    )
    return known if metadata == known else metadata


def _update_timers(
    context: GroupContext, group: ConsumerGroup, change: MemberChange, update: MemberUpdate, now: Now
) -> None:
    """Restart the session timer, and cancel the timers of the classic protocol if the member used it
    before."""
    known = change.known
    if known is not None and known.member_id != update.member.member_id:
        cancel_timers(context, group, known.member_id)
    elif known is not None and known.metadata.classic is not None:
        for kind in (JOIN, SYNC):
            context.timers.cancel(timer_key(kind, group, known.member_id))
    refresh_session(context, group, update.member, now)


def _interval_ms(context: GroupContext, group: ConsumerGroup, update: MemberUpdate) -> int:
    config = context.consumer_config(group.group_id)
    base_ms = config.heartbeat_ms if update.is_stable else config.heartbeat_rebalancing_ms
    return max(base_ms, min(len(group.members) * _HEARTBEAT_MS_PER_MEMBER, CONSUMER_HEARTBEAT_MS_MAX))


def _needs_assignment(
    request: ConsumerGroupHeartbeatRequest, change: MemberChange, update: MemberUpdate
) -> bool:
    """Whether to send the assignment: on a full request, on a change, or if the last reply may be lost."""
    is_subscribing = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    # Clients send all fields after an error: their copy of the assignment may be stale.
    is_full = request.rebalance_timeout_ms != -1 and is_subscribing and request.topic_partitions is not None
    if is_full or change.before is None or request.member_epoch != change.before.epoch:
        return True
    return update.member.current_assignment.assigned != change.before.current_assignment.assigned


def heartbeat_assignment(assignment: Assignment) -> HeartbeatAssignment:
    return HeartbeatAssignment([HeartbeatTopicPartitions(*topic) for topic in sorted_topics(assignment)])
