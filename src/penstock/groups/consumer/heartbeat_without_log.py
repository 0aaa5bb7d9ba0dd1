"""ConsumerGroupHeartbeat while nothing can be written: members live on, and nothing changes.

A member that says nothing new is answered as ever: it keeps what it has. Whoever says something that
would have to be written is told to try again, but its session goes on as well. So a full disk costs a
group its commits and not its members.
"""

from penstock.coordinator.outcome import Now, Outcome, Reply
from penstock.errors import ApiError, ErrorCode
from penstock.groups.consumer.assignment import read
from penstock.groups.consumer.consumer_group import ConsumerGroup
from penstock.groups.consumer.consumer_heartbeat import Caller, told_assignment
from penstock.groups.consumer.consumer_member import JOINING_EPOCH, ConsumerMember, MemberState
from penstock.groups.consumer.consumer_timers import refresh_session
from penstock.groups.consumer.request_validation import find_member
from penstock.groups.group_context import Surroundings
from penstock.groups.migration import Group
from penstock.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


def sign_of_life(
    surroundings: Surroundings,
    group: Group | None,
    request: ConsumerGroupHeartbeatRequest,
    caller: Caller,
    now: Now,
) -> Outcome:
    if not isinstance(group, ConsumerGroup) or request.member_epoch <= JOINING_EPOCH:
        raise _not_now()
    member = find_member(group, request.member_id, request.instance_id)
    if request.member_epoch == member.epoch:
        refresh_session(surroundings, group, member, now)
    if request.member_epoch != member.epoch or _says_something_new(member, request):
        raise _not_now()
    is_asking = request.topic_partitions is not None
    response = ConsumerGroupHeartbeatResponse(
        member_id=member.member_id,
        member_epoch=member.epoch,
        heartbeat_interval_ms=surroundings.consumer_config(group.group_id).heartbeat_ms,
        assignment=told_assignment(member.position.assigned) if is_asking else None,
    )
    return Outcome(replies=(Reply(caller.pending, response),))


def _not_now() -> ApiError:
    return ApiError(
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        "nothing can be written: the disk is full, or too few replicas are in sync",
    )


def _says_something_new(member: ConsumerMember, request: ConsumerGroupHeartbeatRequest) -> bool:
    about, position = member.about, member.position
    names, regex = about.subscription
    if request.topic_partitions is not None:
        is_settled = position.state is MemberState.STABLE
        if not is_settled or read(request.topic_partitions) != position.assigned:
            return True
    if request.subscribed_topic_names is not None and set(request.subscribed_topic_names) != set(names):
        return True
    said = (
        (request.subscribed_topic_regex, regex or ""),
        (request.server_assignor, about.assignor),
        (request.rack_id, about.rack_id),
    )
    if any(word is not None and word != known for word, known in said):
        return True
    return about.classic is not None or request.rebalance_timeout_ms not in (-1, about.rebalance_ms)
