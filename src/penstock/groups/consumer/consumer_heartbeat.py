"""ConsumerGroupHeartbeat: all that members of the consumer protocol say, and all they are told.

    epoch 0     join, or join again having lost track
    above       still here
    -1          leave
    -2          a static member stops for a moment

Rule 1: every refusal is raised before anything changes.
Rule 2: a member of a group that is not known is UNKNOWN_MEMBER_ID, upon which clients join again.
        Kafka's GROUP_ID_NOT_FOUND is the end of most of them; it is left to those who leave.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.coordinator.outcome import Now, Outcome, Pending, Reply
from penstock.errors import ApiError, ErrorCode
from penstock.groups.classic.classic_group import ClassicGroup
from penstock.groups.consumer.assignment import Assignment, in_order, read
from penstock.groups.consumer.consumer_group import ConsumerGroup
from penstock.groups.consumer.consumer_leave import go_away, remove
from penstock.groups.consumer.consumer_member import (
    AWAY_EPOCH,
    JOINING_EPOCH,
    About,
    ConsumerMember,
    Subscription,
)
from penstock.groups.consumer.consumer_timers import JOIN, SYNC, cancel_timers, refresh_session, timer_key
from penstock.groups.consumer.member_update import Change, Report, Step, initial_position, take_step
from penstock.groups.consumer.regex import compiled
from penstock.groups.consumer.request_validation import check_epoch, check_request, check_room, find_member
from penstock.groups.group_context import Client, Surroundings
from penstock.groups.migration import Group, Settled, begin_upgraded, upgraded
from penstock.limits import CONSUMER_HEARTBEAT_MS_MAX
from penstock.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
    HeartbeatTopicPartitions,
)

_HEARTBEAT_MS_PER_MEMBER: Final = 1
"""So that a group of any size sends about a thousand heartbeats a second at most."""


class Caller(NamedTuple):
    """What a request has besides its fields."""

    version: int
    client: Client
    pending: Pending
    may_see: Callable[[str], bool] = lambda topic: True
    """Whether the client may know of a topic: a regular expression matches no other."""


def heartbeat(
    surroundings: Surroundings,
    group: Group | None,
    request: ConsumerGroupHeartbeatRequest,
    caller: Caller,
    now: Now,
) -> Settled:
    check_request(request, caller.version, surroundings.config().consumer)
    if request.member_epoch < JOINING_EPOCH:
        return _leave(surroundings, _existing(group, request), request, caller, now)
    if request.member_epoch == JOINING_EPOCH and isinstance(group, ClassicGroup):
        return _join_classic(surroundings, group, request, caller, now)
    if request.member_epoch == JOINING_EPOCH and group is None:
        group = ConsumerGroup(request.group_id)
    found = _existing(group, request)
    said = _listen(surroundings, found, request, caller)
    return Settled(found, _answer(surroundings, found, said, now))


def _existing(group: Group | None, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroup:
    if isinstance(group, ConsumerGroup):
        return group
    is_leaving = request.member_epoch < JOINING_EPOCH
    code = ErrorCode.GROUP_ID_NOT_FOUND if is_leaving else ErrorCode.UNKNOWN_MEMBER_ID
    raise ApiError(code, f"there is no consumer group {request.group_id}")


def _join_classic(
    surroundings: Surroundings,
    classic: ClassicGroup,
    request: ConsumerGroupHeartbeatRequest,
    caller: Caller,
    now: Now,
) -> Settled:
    """The first member of this protocol in a group of the other."""
    group, records = upgraded(surroundings, classic, now)
    said = _listen(surroundings, group, request, caller)
    replies = begin_upgraded(surroundings, classic, group, now)
    return Settled(group, Outcome(records, replies) + _answer(surroundings, group, said, now))


# Leaving


def _leave(
    surroundings: Surroundings,
    group: ConsumerGroup,
    request: ConsumerGroupHeartbeatRequest,
    caller: Caller,
    now: Now,
) -> Settled:
    member = find_member(group, request.member_id, request.instance_id)
    response = ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.member_epoch)
    if request.member_epoch == AWAY_EPOCH:
        after, outcome = go_away(surroundings, group, member, now)
    else:
        after, outcome = remove(surroundings, group, [member], f"{member.member_id} left", now)
    return Settled(after, outcome + Outcome(replies=(Reply(caller.pending, response),)))


# Joining and staying


class _Said(NamedTuple):
    """What a member said, and that is acceptable."""

    request: ConsumerGroupHeartbeatRequest
    caller: Caller
    change: Change
    owned: Assignment | None


def _listen(
    surroundings: Surroundings, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, caller: Caller
) -> _Said:
    """Everything that can be refused is refused here."""
    owned = None if request.topic_partitions is None else read(request.topic_partitions)
    change = _change(surroundings, group, request, caller, owned)
    check_room(surroundings, group, change)
    return _Said(request, caller, change, owned)


def _answer(surroundings: Surroundings, group: ConsumerGroup, said: _Said, now: Now) -> Outcome:
    report = Report(said.owned, said.caller.may_see)
    step = take_step(surroundings, group, said.change, report, now)
    _time(surroundings, group, said.change, step, now)
    response = ConsumerGroupHeartbeatResponse(
        member_id=step.member.member_id,
        member_epoch=step.member.epoch,
        heartbeat_interval_ms=_interval_ms(surroundings, group, step),
    )
    if _is_to_be_told(said.request, said.change, step):
        response.assignment = told_assignment(step.member.position.assigned)
    return Outcome(step.records, (Reply(said.caller.pending, response),))


def _change(
    surroundings: Surroundings,
    group: ConsumerGroup,
    request: ConsumerGroupHeartbeatRequest,
    caller: Caller,
    owned: Assignment | None,
) -> Change:
    if request.member_epoch == JOINING_EPOCH:
        member_id = request.member_id or surroundings.draw_member_id()
        before, replaced = _joining(group, member_id, request.instance_id)
    else:
        member_id = request.member_id
        before, replaced = find_member(group, member_id, request.instance_id), None
        check_epoch(before, request.member_epoch, owned)
    known = before or ConsumerMember(member_id)
    return Change(before, known.with_about(_about(known.about, request, caller)), replaced)


def _joining(
    group: ConsumerGroup, member_id: str, instance_id: str | None
) -> tuple[ConsumerMember | None, ConsumerMember | None]:
    """The member as it is known already, and the one whose place it takes."""
    known = group.members.get(member_id)
    holder = None if instance_id is None else group.static_member(instance_id)
    if holder is not None and holder is not known:
        if holder.about.classic is None and not holder.is_away:
            detail = f"{instance_id} is the member {holder.member_id}, which has not left"
            raise ApiError(ErrorCode.UNRELEASED_INSTANCE_ID, detail)
        if known is not None:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{member_id} is not the instance {instance_id}")
        return ConsumerMember(member_id, holder.about, initial_position(holder.position)), holder
    if known is not None and known.is_away:
        return known.with_position(initial_position(known.position)), known
    return known, None


def _about(known: About, request: ConsumerGroupHeartbeatRequest, caller: Caller) -> About:
    """What is not said has not changed."""
    names, regex = known.subscription
    if request.subscribed_topic_names is not None:
        names = tuple(request.subscribed_topic_names)
    if request.subscribed_topic_regex is not None and request.subscribed_topic_regex != (regex or ""):
        regex = request.subscribed_topic_regex or None
        if regex is not None:
            compiled(regex)
    is_silent = request.subscribed_topic_names is None
    about = About(
        request.instance_id or known.instance_id,
        request.rack_id or known.rack_id,
        caller.client,
        Subscription(names, regex) if is_silent else Subscription.of(names, regex),
        known.rebalance_ms if request.rebalance_timeout_ms == -1 else max(request.rebalance_timeout_ms, 0),
        request.server_assignor or known.assignor,
        None,
    )
    return known if about == known else about


def _time(surroundings: Surroundings, group: ConsumerGroup, change: Change, step: Step, now: Now) -> None:
    """It lives. If it spoke the classic protocol until now, that is no longer waited for."""
    known = change.known
    if known is not None and known.member_id != step.member.member_id:
        cancel_timers(surroundings, group, known.member_id)
    elif known is not None and known.about.classic is not None:
        for kind in (JOIN, SYNC):
            surroundings.timers.cancel(timer_key(kind, group, known.member_id))
    refresh_session(surroundings, group, step.member, now)


def _interval_ms(surroundings: Surroundings, group: ConsumerGroup, step: Step) -> int:
    config = surroundings.consumer_config(group.group_id)
    base_ms = config.heartbeat_ms if step.is_settled else config.heartbeat_rebalancing_ms
    return max(base_ms, min(len(group.members) * _HEARTBEAT_MS_PER_MEMBER, CONSUMER_HEARTBEAT_MS_MAX))


def _is_to_be_told(request: ConsumerGroupHeartbeatRequest, change: Change, step: Step) -> bool:
    """Its assignment: if it asks for it, if it is another, or if it may not have got it."""
    is_subscribing = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    is_full = request.rebalance_timeout_ms != -1 and is_subscribing and request.topic_partitions is not None
    if is_full or change.before is None or request.member_epoch != change.before.epoch:
        return True
    return step.member.position.assigned != change.before.position.assigned


def told_assignment(assignment: Assignment) -> HeartbeatAssignment:
    return HeartbeatAssignment([HeartbeatTopicPartitions(*topic) for topic in in_order(assignment)])
