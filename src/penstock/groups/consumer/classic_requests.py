"""Requests of classic-protocol members in a consumer group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

The coordinator assigns the partitions, so there is no leader and no request waits for other members. A
JoinGroup is processed like a heartbeat of the consumer protocol, and gets its reply at once; the generation
is the member epoch. The member fetches its assignment with SyncGroup, and the reply to Heartbeat requests a
rejoin.

Rule 1: such a member reports its partitions only in JoinGroup. So the coordinator requests a rejoin
        whenever the member must revoke a partition or can be assigned one.
"""

from collections.abc import Collection
from typing import Final

from penstock.coordinator.outcome import EMPTY_OUTCOME, CommandOutcome, Now, Reply
from penstock.errors import ApiError, ErrorCode
from penstock.groups.classic import join as classic_join
from penstock.groups.classic.join import ClassicCaller, validate_group_id
from penstock.groups.classic.leave import leave_reason, leave_response, leaving_members
from penstock.groups.consumer.assignment import difference
from penstock.groups.consumer.consumer_group import ConsumerGroup
from penstock.groups.consumer.consumer_leave import remove
from penstock.groups.consumer.consumer_member import (
    ClassicMembership,
    ConsumerMember,
    ConsumerMemberMetadata,
    MemberState,
    Subscription,
)
from penstock.groups.consumer.consumer_timers import (
    JOIN,
    SYNC,
    cancel_timers,
    refresh_session,
    timer_key,
)
from penstock.groups.consumer.member_update import (
    MemberChange,
    MemberReport,
    rejoin_assignment,
    update_member,
)
from penstock.groups.consumer.request_validation import check_group_size, find_member
from penstock.groups.embedded_protocol import (
    PROTOCOL_TYPE,
    ConsumerProtocolSubscription,
    decode_subscription,
)
from penstock.groups.group_context import GroupContext
from penstock.groups.migration import (
    GroupTransition,
    by_id,
    classic_assignment,
    convert_empty_group,
    downgrade,
)
from penstock.limits import SHORT_MAX
from penstock.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from penstock.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from penstock.protocol.messages.leave_group import (
    LeaveGroupRequest,
    MemberIdentity,
    MemberResponse,
)
from penstock.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

_MEMBER_ID_REQUIRED_FROM: Final = 4


def _replied(group: ConsumerGroup, reply: Reply) -> GroupTransition:
    """A reply at once, and no change."""
    return GroupTransition(group, CommandOutcome(replies=(reply,)))


# JoinGroup


def join(
    context: GroupContext, group: ConsumerGroup, request: JoinGroupRequest, caller: ClassicCaller, now: Now
) -> GroupTransition:
    if group.is_empty:
        return _join_empty(context, group, request, caller, now)
    _check_join(context, group, request)
    if caller.version >= _MEMBER_ID_REQUIRED_FROM and not request.member_id and not request.group_instance_id:
        required = JoinGroupResponse(
            error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=context.generate_member_id()
        )
        return _replied(group, Reply(caller.pending, required))
    subscription = _subscription(request)
    change = _change(context, group, request, caller, subscription)
    check_group_size(context, group, change)
    # Checked before `update_member`: a downgrade replaces the whole group instead.
    if change.replaced is not None and _is_last_consumer_member(context, group, change.replaced):
        return _downgrade(context, group, change, request, caller, now)
    owned = by_id(subscription.owned_partitions, context.topics())
    update = update_member(context, group, change, MemberReport(owned, lambda topic: True), now)
    if change.replaced is not None:
        cancel_timers(context, group, change.replaced.member_id)
    member_id = update.member.member_id
    context.timers.cancel(timer_key(JOIN, group, member_id))
    context.set_timer(timer_key(SYNC, group, member_id), update.member.metadata.rebalance_ms, now)
    refresh_session(context, group, update.member, now)
    return GroupTransition(
        group, CommandOutcome(update.records, (Reply(caller.pending, _join_response(update.member)),))
    )


def _join_empty(
    context: GroupContext, group: ConsumerGroup, request: JoinGroupRequest, caller: ClassicCaller, now: Now
) -> GroupTransition:
    classic, records = convert_empty_group(group, now)
    return GroupTransition(
        classic, CommandOutcome(records) + classic_join.join(context, classic, request, caller, now)
    )


def _check_join(context: GroupContext, group: ConsumerGroup, request: JoinGroupRequest) -> None:
    config = context.config()
    classic_join.check_request(request, config.classic)
    if len(request.member_id.encode()) > SHORT_MAX:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, "the member id is too long")
    if not (config.consumer.upgrade_allowed or config.consumer.downgrade_allowed):
        detail = f"{group.group_id} is a consumer group; the migration policy allows no other members"
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, detail)
    names = {protocol.name for protocol in request.protocols}
    if request.protocol_type != PROTOCOL_TYPE or not group.supports_classic(names):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"{group.group_id} has no protocol in common")


def _subscription(request: JoinGroupRequest) -> ConsumerProtocolSubscription:
    subscription = decode_subscription(request.protocols[0].metadata)
    if subscription is None:
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the subscription cannot be read")
    return subscription


def _change(
    context: GroupContext,
    group: ConsumerGroup,
    request: JoinGroupRequest,
    caller: ClassicCaller,
    subscription: ConsumerProtocolSubscription,
) -> MemberChange:
    timeouts = classic_join.timeouts_of(request, caller.version)
    metadata = ConsumerMemberMetadata(
        request.group_instance_id,
        subscription.rack_id,
        caller.client,
        Subscription.of(subscription.topics, None),
        timeouts.rebalance_ms,
        None,
        ClassicMembership(timeouts.session_ms, classic_join.protocols_of(request)),
    )
    member_id = request.member_id or context.generate_member_id()
    before, replaced = _known(group, request, member_id)
    return MemberChange(before, (before or ConsumerMember(member_id)).with_metadata(metadata), replaced)


def _known(
    group: ConsumerGroup, request: JoinGroupRequest, member_id: str
) -> tuple[ConsumerMember | None, ConsumerMember | None]:
    instance_id = request.group_instance_id
    if instance_id is None:
        return group.members.get(member_id), None
    if request.member_id:
        return find_member(group, member_id, instance_id), None
    holder = group.static_member(instance_id)
    if holder is None:
        return None, None
    return ConsumerMember(member_id, holder.metadata, rejoin_assignment(holder.current_assignment)), holder


def _is_last_consumer_member(context: GroupContext, group: ConsumerGroup, replaced: ConsumerMember) -> bool:
    """Whether the returning static member was the last member of the consumer protocol."""
    if replaced.metadata.classic is not None or group.classic_count != len(group.members) - 1:
        return False
    config = context.config()
    return config.consumer.downgrade_allowed and len(group.members) <= config.classic.members_max


def _downgrade(
    context: GroupContext,
    group: ConsumerGroup,
    change: MemberChange,
    request: JoinGroupRequest,
    caller: ClassicCaller,
    now: Now,
) -> GroupTransition:
    """Convert to a classic group, in which the static member takes its old place and gets its reply."""
    replaced = change.replaced
    assert replaced is not None
    members = [
        member.with_metadata(change.after.metadata) if member is replaced else member
        for member in group.members.values()
    ]
    classic, records = downgrade(context, group, members, now)
    joined = classic_join.join(context, classic, request, caller, now)
    return GroupTransition(classic, CommandOutcome(records) + joined)


def _join_response(member: ConsumerMember) -> JoinGroupResponse:
    assert member.metadata.classic is not None
    return JoinGroupResponse(
        generation_id=member.epoch,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=member.metadata.classic.protocol.name,
        member_id=member.member_id,
    )


# SyncGroup and Heartbeat


def sync(
    context: GroupContext, group: ConsumerGroup, request: SyncGroupRequest, caller: ClassicCaller, now: Now
) -> GroupTransition:
    member = _classic_member(group, request.member_id, request.group_instance_id, request.generation_id)
    protocol = _classic_membership(member).protocol
    if request.protocol_type not in (None, PROTOCOL_TYPE) or request.protocol_name not in (
        None,
        protocol.name,
    ):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the protocol is {protocol.name}")
    refresh_session(context, group, member, now)
    context.timers.cancel(timer_key(SYNC, group, member.member_id))
    # A newer epoch exists. A member that must revoke first takes this assignment, then rejoins.
    if group.epoch > member.epoch and member.current_assignment.state is not MemberState.UNREVOKED:
        return _request_rejoin(context, group, member, caller, now)
    response = SyncGroupResponse(
        protocol_type=PROTOCOL_TYPE,
        protocol_name=protocol.name,
        assignment=classic_assignment(
            member.current_assignment.assigned, protocol.metadata, context.topics()
        ),
    )
    return _replied(group, Reply(caller.pending, response))


def heartbeat(
    context: GroupContext, group: ConsumerGroup, request: HeartbeatRequest, caller: ClassicCaller, now: Now
) -> GroupTransition:
    member = _classic_member(group, request.member_id, request.group_instance_id, request.generation_id)
    refresh_session(context, group, member, now)
    if _must_rejoin(group, member):
        return _request_rejoin(context, group, member, caller, now)
    return _replied(group, Reply(caller.pending, HeartbeatResponse()))


def _classic_membership(member: ConsumerMember) -> ClassicMembership:
    if member.metadata.classic is None:
        detail = f"{member.member_id} does not speak the classic protocol"
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, detail)
    return member.metadata.classic


def _classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> ConsumerMember:
    member = find_member(group, member_id, instance_id)
    _classic_membership(member)
    # A stale generation may still read partitions that are no longer its own.
    if generation != member.epoch:
        raise ApiError(ErrorCode.ILLEGAL_GENERATION, f"the generation of {member_id} is {member.epoch}")
    return member


def _must_rejoin(group: ConsumerGroup, member: ConsumerMember) -> bool:
    state = member.current_assignment.state
    if member.epoch < group.epoch or state is MemberState.UNREVOKED:
        return True
    return state is MemberState.UNRELEASED and not _waits_for_others(group, member)


def _waits_for_others(group: ConsumerGroup, member: ConsumerMember) -> bool:
    missing = difference(group.target_of(member.member_id), member.current_assignment.assigned)
    return any(
        group.holder(topic_id, partition) is not None
        for topic_id, partitions in missing.items()
        for partition in partitions
    )


def _request_rejoin(
    context: GroupContext, group: ConsumerGroup, member: ConsumerMember, caller: ClassicCaller, now: Now
) -> GroupTransition:
    """Reply REBALANCE_IN_PROGRESS. The rejoin timer runs from the first such reply."""
    key = timer_key(JOIN, group, member.member_id)
    if context.timers.deadline(key) is None:
        context.set_timer(key, member.metadata.rebalance_ms, now)
    return _replied(group, caller.pending.rejection(ErrorCode.REBALANCE_IN_PROGRESS))


# LeaveGroup


def leave(
    context: GroupContext, group: ConsumerGroup, request: LeaveGroupRequest, caller: ClassicCaller, now: Now
) -> GroupTransition:
    validate_group_id(request.group_id)
    identities = leaving_members(request, caller)
    leaving: dict[str, ConsumerMember] = {}
    responses = [_leave_one(group, identity, leaving) for identity in identities]
    transition = GroupTransition(group, EMPTY_OUTCOME)
    if leaving:
        reasons = "; ".join(_reasons(identities, responses))
        transition = remove(context, group, list(leaving.values()), reasons, now)
    reply = Reply(caller.pending, leave_response(responses, caller))
    return GroupTransition(transition.group, transition.outcome + CommandOutcome(replies=(reply,)))


def _leave_one(
    group: ConsumerGroup, identity: MemberIdentity, leaving: dict[str, ConsumerMember]
) -> MemberResponse:
    """Resolve one leaving member, of either protocol: administrators remove members this way too."""
    instance_id = identity.group_instance_id
    member_id = identity.member_id
    if not member_id and instance_id is not None:
        # An administrator names a static member by its instance id alone.
        member_id = group.static_members.get(instance_id, "")
    try:
        member = find_member(group, member_id, instance_id)
    except ApiError as rejection:
        return MemberResponse(identity.member_id, instance_id, rejection.code)
    if member_id in leaving:
        return MemberResponse(identity.member_id, instance_id, ErrorCode.UNKNOWN_MEMBER_ID)
    leaving[member_id] = member
    return MemberResponse(member_id, instance_id, ErrorCode.NONE)


def _reasons(identities: Collection[MemberIdentity], responses: Collection[MemberResponse]) -> list[str]:
    return [
        leave_reason(answer.member_id, identity)
        for identity, answer in zip(identities, responses, strict=True)
        if not answer.error_code
    ]
