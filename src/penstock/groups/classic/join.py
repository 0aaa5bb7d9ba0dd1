"""JoinGroup on a classic group: adds members, and decides which requests wait for the rebalance.

A new member first gets its member id and then joins with it (from version 4). Otherwise a client that never
received the reply would leave a member behind that no client uses. A static member needs no such step: its
instance id identifies it.

Rule 1: every rejection is raised before any state changes. The exception is a full group, whose error is
        returned: like Kafka, the group removes a member that it rejects this way.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.config.groups import ClassicConfig
from penstock.coordinator.outcome import CommandOutcome, Now, Reply, WaitingRequest
from penstock.errors import ApiError, ErrorCode
from penstock.groups.classic.classic_group import ClassicGroup, ClassicState
from penstock.groups.classic.classic_member import (
    ClassicMember,
    ClassicProtocol,
    ClassicTimeouts,
    protocols_metadata_bytes,
)
from penstock.groups.classic.heartbeat import check_not_dead
from penstock.groups.classic.rebalance import (
    NEW_MEMBER_MS_MAX,
    complete_if_all_joined,
    generation_reply,
    park,
    prepare_rebalance_or_complete,
    refresh_session,
    remove_member,
    session_key,
)
from penstock.groups.group_context import ClientInfo, GroupContext
from penstock.limits import GROUP_ID_BYTES_MAX, SHORT_MAX
from penstock.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse

_REBALANCE_TIMEOUT_FROM: Final = 1
_MEMBER_ID_REQUIRED_FROM: Final = 4
_PROTOCOL_NULL_FROM: Final = 7
_SKIP_ASSIGNMENT_FROM: Final = 9
_CLIENT_ID_CHARACTERS_IN_MEMBER_ID: Final = 255
_INSTANCE_ID_CHARACTERS_MAX: Final = 249
"""Limit of Kafka's own clients."""


class ClassicCaller(NamedTuple):
    """Caller of a request: API version, client, and the request that waits for the reply."""

    version: int
    client: ClientInfo
    pending: WaitingRequest


class _Joiner(NamedTuple):
    """A validated join request, with the fields in the form of a member."""

    request: JoinGroupRequest
    caller: ClassicCaller
    protocols: Sequence[ClassicProtocol]
    timeouts: ClassicTimeouts

    @classmethod
    def of(cls, request: JoinGroupRequest, caller: ClassicCaller) -> "_Joiner":
        return cls(request, caller, protocols_of(request), timeouts_of(request, caller.version))

    @property
    def pending(self) -> WaitingRequest:
        return self.caller.pending

    def with_reason(self, text: str) -> str:
        return f"{text}: {self.request.reason}" if self.request.reason else text


def protocols_of(request: JoinGroupRequest) -> tuple[ClassicProtocol, ...]:
    return tuple(ClassicProtocol(each.name, bytes(each.metadata)) for each in request.protocols)


def timeouts_of(request: JoinGroupRequest, version: int) -> ClassicTimeouts:
    has_own = version >= _REBALANCE_TIMEOUT_FROM
    rebalance_ms = request.rebalance_timeout_ms if has_own else request.session_timeout_ms
    return ClassicTimeouts(request.session_timeout_ms, max(rebalance_ms, 0))


def join(
    context: GroupContext, group: ClassicGroup, request: JoinGroupRequest, caller: ClassicCaller, now: Now
) -> CommandOutcome:
    """Handle JoinGroup. The caller creates a missing group, and keeps it if this does not raise."""
    config = context.config().classic
    check_request(request, config)
    check_not_dead(group)
    is_newcomer = request.member_id == ""
    if not is_newcomer and not group.members and request.member_id not in group.pending_members:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"{group.group_id} has no members")
    # Returned and not raised: a full group also removes the member that it rejects (rule 1).
    if not _has_room(group, request, config.members_max):
        return _reject_full_group(context, group, request, caller.pending, now)
    joiner = _Joiner.of(request, caller)
    if not group.supports(request.protocol_type, {protocol.name for protocol in joiner.protocols}):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"{group.group_id} has no protocol in common")
    _check_metadata_size(context, group, joiner)
    if is_newcomer:
        return _join_newcomer(context, group, joiner, now)
    if request.member_id in group.pending_members and request.group_instance_id is None:
        return _add(context, group, request.member_id, joiner, now)
    group.check_member(request.member_id, request.group_instance_id)
    return _rejoin(context, group, joiner, now)


# Checks


def check_request(request: JoinGroupRequest, config: ClassicConfig) -> None:
    """Raise ApiError for what no group accepts, whatever its protocol."""
    validate_group_id(request.group_id)
    if not config.session_ms_min <= request.session_timeout_ms <= config.session_ms_max:
        limits = f"{config.session_ms_min} to {config.session_ms_max} ms"
        raise ApiError(ErrorCode.INVALID_SESSION_TIMEOUT, f"a session takes {limits}")
    instance_id = request.group_instance_id
    if instance_id is not None and not 0 < len(instance_id) <= _INSTANCE_ID_CHARACTERS_MAX:
        raise ApiError(ErrorCode.INVALID_REQUEST, "an instance id has 1 to 249 characters")
    names = [request.protocol_type, *(protocol.name for protocol in request.protocols)]
    if any(len(name.encode()) > SHORT_MAX for name in names):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the name of a protocol is too long")


def validate_group_id(group_id: str) -> None:
    """Raise ApiError for an empty or too long id: the id is in the key of every record of the group."""
    if not group_id or len(group_id.encode()) > GROUP_ID_BYTES_MAX:
        detail = f"a group needs a name of 1 to {GROUP_ID_BYTES_MAX} bytes"
        raise ApiError(ErrorCode.INVALID_GROUP_ID, detail)


def _existing_member_id(group: ClassicGroup, request: JoinGroupRequest) -> str:
    """Id of the member that the request replaces or updates: a static member is found by its instance id."""
    return group.static_members.get(request.group_instance_id or "", request.member_id)


def _has_room(group: ClassicGroup, request: JoinGroupRequest, members_max: int) -> bool:
    """Whether the group can take the member. During a rebalance only members that joined count, so that the
    last ones above the limit are rejected."""
    present = group.joining if group.state is ClassicState.PREPARING else group.members
    holder = _existing_member_id(group, request)
    if holder in present:
        return True
    has_pending_room = holder != "" or len(group.pending_members) < members_max
    return len(present) < members_max and has_pending_room


def _reject_full_group(
    context: GroupContext, group: ClassicGroup, request: JoinGroupRequest, pending: WaitingRequest, now: Now
) -> CommandOutcome:
    rejected = pending.rejection(ErrorCode.GROUP_MAX_SIZE_REACHED, f"{group.group_id} is full")
    replies = remove_member(context, group, request.member_id) if request.member_id else []
    return CommandOutcome(replies=[rejected, *replies]) + complete_if_all_joined(context, group, now)


def _check_metadata_size(context: GroupContext, group: ClassicGroup, joiner: _Joiner) -> None:
    """Raise GROUP_MAX_SIZE_REACHED when metadata is too large: the closest error code that clients know."""
    known = group.members.get(_existing_member_id(group, joiner.request))
    added = protocols_metadata_bytes(joiner.protocols) - (
        protocols_metadata_bytes(known.protocols) if known else 0
    )
    if group.metadata_bytes + added > context.limits.metadata_bytes_max:
        raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"members of {group.group_id} say too much")


# New members


def _join_newcomer(context: GroupContext, group: ClassicGroup, joiner: _Joiner, now: Now) -> CommandOutcome:
    instance_id = joiner.request.group_instance_id
    if instance_id is not None:
        member_id = f"{instance_id}-{context.generate_member_id()}"
        if instance_id in group.static_members:
            return _replace(context, group, member_id, joiner, now)
        return _add(context, group, member_id, joiner, now)
    client_id = joiner.caller.client.client_id[:_CLIENT_ID_CHARACTERS_IN_MEMBER_ID]
    member_id = f"{client_id}-{context.generate_member_id()}"
    if joiner.caller.version < _MEMBER_ID_REQUIRED_FROM:
        return _add(context, group, member_id, joiner, now)
    group.add_pending(member_id)
    # A pending id expires like a session, so that a client that never comes back does not block the
    # rebalance.
    context.set_timer(session_key(group, member_id), joiner.timeouts.session_ms, now)
    required = JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
    if joiner.caller.version >= _PROTOCOL_NULL_FROM:
        required.protocol_name = None
    return CommandOutcome(replies=(Reply(joiner.pending, required),))


def _add(
    context: GroupContext, group: ClassicGroup, member_id: str, joiner: _Joiner, now: Now
) -> CommandOutcome:
    request, client = joiner.request, joiner.caller.client
    member = ClassicMember(member_id, request.group_instance_id, client, joiner.protocols, joiner.timeouts)
    member.is_new = True
    group.add(member, request.protocol_type)
    group.joining[member_id] = joiner.pending
    group.has_newcomer = True
    context.set_timer(session_key(group, member_id), NEW_MEMBER_MS_MAX, now)
    return prepare_rebalance_or_complete(context, group, joiner.with_reason(f"{member_id} joined"), now)


# Static members that rejoin


def _replace(
    context: GroupContext, group: ClassicGroup, member_id: str, joiner: _Joiner, now: Now
) -> CommandOutcome:
    """Give the instance a new member id. Requests with the old id get FENCED_INSTANCE_ID."""
    assert joiner.request.group_instance_id is not None
    old_leader = group.leader
    old_id = group.static_members[joiner.request.group_instance_id]
    context.timers.cancel(session_key(group, old_id))
    parked = group.replace_static(old_id, member_id)
    fenced = CommandOutcome(replies=[pending.rejection(ErrorCode.FENCED_INSTANCE_ID) for pending in parked])
    member = group.members[member_id]
    member.is_new = False
    group.update(member, joiner.caller.client, joiner.protocols, joiner.timeouts)
    refresh_session(context, group, member_id, now)
    if group.state is ClassicState.STABLE and group.chosen_protocol() == group.protocol_name:
        reply = _replacement_reply(group, member, old_leader, joiner.caller.version)
        return fenced + CommandOutcome((group.record(),), (Reply(joiner.pending, reply),))
    group.joining[member_id] = joiner.pending
    # The leader may be computing an assignment for the old id: only a new generation can help.
    return fenced + prepare_rebalance_or_complete(
        context, group, joiner.with_reason(f"{member_id} came back"), now
    )


def _replacement_reply(
    group: ClassicGroup, member: ClassicMember, old_leader: str | None, version: int
) -> JoinGroupResponse:
    """Build the reply for an unchanged generation: a returning leader must not send new assignments."""
    reply = generation_reply(group, member)
    if version >= _SKIP_ASSIGNMENT_FROM:
        reply.skip_assignment = member.member_id == group.leader
        return reply
    # Older clients cannot skip the assignment, so the reply does not name them as leader.
    reply.leader = old_leader or ""
    reply.members = []
    return reply


# Known members


def _rejoin(context: GroupContext, group: ClassicGroup, joiner: _Joiner, now: Now) -> CommandOutcome:
    member = group.members[joiner.request.member_id]
    is_changed = tuple(joiner.protocols) != member.protocols
    leads_stable = group.state is ClassicState.STABLE and member.member_id == group.leader
    if group.state is not ClassicState.PREPARING and not is_changed and not leads_stable:
        # The previous reply may have been lost. The member can continue with SyncGroup in this generation.
        refresh_session(context, group, member.member_id, now)
        return CommandOutcome(replies=(Reply(joiner.pending, generation_reply(group, member)),))
    reason = joiner.with_reason(_rejoin_reason(member, is_changed, leads_stable))
    group.update(member, joiner.caller.client, joiner.protocols, joiner.timeouts)
    superseded = CommandOutcome(replies=park(group.joining, member.member_id, joiner.pending))
    return superseded + prepare_rebalance_or_complete(context, group, reason, now)


def _rejoin_reason(member: ClassicMember, is_changed: bool, leads_stable: bool) -> str:
    if is_changed or not leads_stable:
        return f"{member.member_id} changed its subscription"
    return f"the leader {member.member_id} joined again"
