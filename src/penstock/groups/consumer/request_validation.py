"""Validation of consumer group requests: fields, membership, epochs, sizes.

Rule 1: nothing here changes state; every rejection is raised.
"""

from typing import Final

from penstock.config.groups import ConsumerConfig
from penstock.errors import ApiError, ErrorCode
from penstock.groups.classic.join import validate_group_id
from penstock.groups.consumer.assignment import EMPTY, Assignment, is_subset
from penstock.groups.consumer.consumer_group import ConsumerGroup
from penstock.groups.consumer.consumer_member import (
    JOIN_GROUP_EPOCH,
    LEAVE_GROUP_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    MemberState,
)
from penstock.groups.consumer.member_update import MemberChange
from penstock.groups.group_context import GroupContext
from penstock.limits import SHORT_MAX
from penstock.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

_OWN_MEMBER_ID_FROM: Final = 1
_COMMIT_VERSION_MIN: Final = 9
"""Older versions of OffsetCommit do not have STALE_MEMBER_EPOCH."""


# Requests


def validate_heartbeat(request: ConsumerGroupHeartbeatRequest, version: int, config: ConsumerConfig) -> None:
    if not request.group_id:
        raise _invalid("a group needs a name")
    validate_group_id(request.group_id)
    if "" in (request.instance_id, request.rack_id):
        raise _invalid("an instance id or a rack is not empty")
    if request.member_epoch < STATIC_LEAVE_EPOCH:
        raise _invalid(f"there is no member epoch {request.member_epoch}")
    if not request.member_id and (version >= _OWN_MEMBER_ID_FROM or request.member_epoch != JOIN_GROUP_EPOCH):
        raise _invalid("a member has an id")
    if len(request.member_id.encode()) > SHORT_MAX:
        raise _invalid("the member id is too long")
    if request.member_epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        raise _invalid("only a static member can leave for a while")
    if request.member_epoch == JOIN_GROUP_EPOCH:
        _check_joining(request)
    if request.server_assignor is not None and request.server_assignor not in config.assignors:
        known = ", ".join(config.assignors)
        raise ApiError(ErrorCode.UNSUPPORTED_ASSIGNOR, f"there are {known}, not {request.server_assignor}")


def _check_joining(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise _invalid("a member that joins states its rebalance timeout")
    if request.topic_partitions is None or request.topic_partitions:
        raise _invalid("a member that joins has no partitions")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise _invalid("a member that joins says what it subscribes to")


def _invalid(detail: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, detail)


# Members


def validate_member_epoch(member: ConsumerMember, epoch: int, owned: Assignment | None) -> None:
    """Raise ApiError unless this is the member's epoch. The previous epoch is valid too if the reported
    partitions fit the assignment: the reply with the new epoch may have been lost."""
    current_assignment = member.current_assignment
    is_unknown = current_assignment.state is MemberState.UNKNOWN and owned != EMPTY
    if epoch == current_assignment.epoch and not is_unknown:
        return
    # A superset of the assignment would mean that the member still owns partitions that it must not read.
    is_last = epoch == current_assignment.previous_epoch and epoch < current_assignment.epoch
    if is_unknown or not (is_last and owned is not None and is_subset(owned, current_assignment.assigned)):
        detail = f"the epoch of {member.member_id} is {current_assignment.epoch}, not {epoch}"
        raise ApiError(ErrorCode.FENCED_MEMBER_EPOCH, f"{detail}; give up all partitions and join again")


def find_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    """Raise ApiError unless the id is a member, and the current member of its instance id."""
    if instance_id is None:
        member = group.members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is no member of {group.group_id}")
        return member
    holder = group.static_member(instance_id)
    if holder is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"no member has the instance id {instance_id}")
    # Another process with this instance id joined later: fence the older one.
    if holder.member_id != member_id:
        raise ApiError(ErrorCode.FENCED_INSTANCE_ID, f"{instance_id} is the member {holder.member_id} now")
    return holder


def check_group_size(context: GroupContext, group: ConsumerGroup, change: MemberChange) -> None:
    members_max = context.config().consumer.members_max
    if change.known is None and len(group.members) >= members_max:
        raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"{group.group_id} has {members_max} members")
    if change.before is not None and change.before.metadata == change.after.metadata:
        return
    known = change.known
    freed = known.metadata.weigh(group.group_id, known.member_id) if known else 0
    added = change.after.metadata.weigh(group.group_id, change.after.member_id)
    if group.metadata_bytes - freed + added > context.limits.metadata_bytes_max:
        raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"members of {group.group_id} say too much")


# Offsets


def validate_commit(group: ConsumerGroup, member_id: str, epoch: int, version: int) -> None:
    """Raise ApiError unless the commit is from a member at its epoch, or the group has no members."""
    if epoch < 0 and group.is_empty:
        return  # a commit without membership, as administration tools send it
    member = find_member(group, member_id, None)
    if member.metadata.classic is None and version < _COMMIT_VERSION_MIN:
        detail = f"members of the consumer protocol commit with version {_COMMIT_VERSION_MIN} or later"
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, detail)
    # A member with a stale epoch must not overwrite offsets of the partition's new owner.
    _validate_epoch(member, epoch)


def validate_fetch(group: ConsumerGroup, member_id: str | None, epoch: int) -> None:
    """Raise ApiError for a wrong member id or epoch. A request without either may read offsets."""
    if not member_id and epoch < 0:
        return
    _validate_epoch(find_member(group, member_id or "", None), epoch)


def _validate_epoch(member: ConsumerMember, epoch: int) -> None:
    if epoch != member.epoch or epoch <= LEAVE_GROUP_EPOCH:
        is_classic = member.metadata.classic is not None
        code = ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH
        raise ApiError(code, f"the epoch of {member.member_id} is {member.epoch}, not {epoch}")
