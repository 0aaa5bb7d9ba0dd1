"""ConsumerGroupHeartbeat while the log is not writable: sessions continue, and nothing changes.

A member that reports no change gets a normal reply and keeps its assignment. A member that reports a change
gets COORDINATOR_NOT_AVAILABLE, which it retries, but its session continues too. So a full disk stops a
group's commits and does not remove its members.
"""

from penstock.coordinator.outcome import CommandOutcome, Now, Reply, not_writable
from penstock.groups.consumer.assignment import parse_assignment
from penstock.groups.consumer.consumer_group import ConsumerGroup
from penstock.groups.consumer.consumer_heartbeat import ConsumerCaller, heartbeat_assignment
from penstock.groups.consumer.consumer_member import JOIN_GROUP_EPOCH, ConsumerMember, MemberState
from penstock.groups.consumer.consumer_timers import refresh_session
from penstock.groups.consumer.request_validation import find_member
from penstock.groups.group_context import GroupContext
from penstock.groups.migration import Group
from penstock.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


def read_only_heartbeat(
    context: GroupContext,
    group: Group | None,
    request: ConsumerGroupHeartbeatRequest,
    caller: ConsumerCaller,
    now: Now,
) -> CommandOutcome:
    if not isinstance(group, ConsumerGroup) or request.member_epoch <= JOIN_GROUP_EPOCH:
        raise not_writable()
    member = find_member(group, request.member_id, request.instance_id)
    # Before the rejection below: a report that cannot be stored still proves that the member lives.
    if request.member_epoch == member.epoch:
        refresh_session(context, group, member, now)
    if request.member_epoch != member.epoch or _has_changes(member, request):
        raise not_writable()
    is_asking = request.topic_partitions is not None
    response = ConsumerGroupHeartbeatResponse(
        member_id=member.member_id,
        member_epoch=member.epoch,
        heartbeat_interval_ms=context.consumer_config(group.group_id).heartbeat_ms,
        assignment=heartbeat_assignment(member.current_assignment.assigned) if is_asking else None,
    )
    return CommandOutcome(replies=(Reply(caller.pending, response),))


def _has_changes(member: ConsumerMember, request: ConsumerGroupHeartbeatRequest) -> bool:
    metadata, current_assignment = member.metadata, member.current_assignment
    names, regex = metadata.subscription
    if request.topic_partitions is not None:
        is_stable = current_assignment.state is MemberState.STABLE
        if not is_stable or parse_assignment(request.topic_partitions) != current_assignment.assigned:
            return True
    if request.subscribed_topic_names is not None and set(request.subscribed_topic_names) != set(names):
        return True
    reported = (
        (request.subscribed_topic_regex, regex or ""),
        (request.server_assignor, metadata.assignor),
        (request.rack_id, metadata.rack_id),
    )
    if any(word is not None and word != known for word, known in reported):
        return True
    return metadata.classic is not None or request.rebalance_timeout_ms not in (-1, metadata.rebalance_ms)
