"""Migration of live groups between the classic and the consumer protocol, one member at a time.

    classic to consumer   The first member of the consumer protocol joins. All members become members of
                          a consumer group and keep the partitions that they may still read;
                          `classic_requests.py` serves members that still use the classic protocol.
    consumer to classic   The last member of the consumer protocol leaves and classic members remain.
                          They become a classic group, which starts a rebalance.

An empty group has no members to carry over; it takes the protocol of the first member that joins.

Rule 1: the old group is not changed until every check that can reject the request has passed. Then its
        timers are cancelled, and its waiting members get an error on which they join again.
Rule 2: the new group replaces the old one in the store before its records are replayed. So a tombstone of
        the old kind finds a group of the new kind, and has no effect.
"""

from typing import Final, NamedTuple

from penstock.coordinator.outcome import CommandOutcome, Now, Reply, StateRecord
from penstock.errors import ApiError, ErrorCode
from penstock.groups.classic import classic_timers
from penstock.groups.classic.classic_group import ClassicGroup, ClassicState
from penstock.groups.classic.classic_member import ClassicMember, ClassicTimeouts
from penstock.groups.classic.rebalance import refresh_session as refresh_classic_session
from penstock.groups.consumer import consumer_timers
from penstock.groups.consumer.assignment import (
    EMPTY,
    Assignment,
    difference,
    overlaps,
    sorted_topics,
    union,
)
from penstock.groups.consumer.consumer_group import ConsumerGroup
from penstock.groups.consumer.consumer_member import (
    ClassicMembership,
    ConsumerMember,
    ConsumerMemberMetadata,
    MemberAssignment,
    MemberState,
    Subscription,
)
from penstock.groups.consumer.consumer_records import (
    assignment_epoch_record,
    current_assignment_record,
    epoch_record,
    group_tombstones,
    member_metadata_record,
    target_record,
)
from penstock.groups.consumer.target_assignment import topics_hash
from penstock.groups.embedded_protocol import (
    PROTOCOL_TYPE,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerTopicPartitions,
    decode_assignment,
    decode_subscription,
    decode_version,
    encode_assignment,
)
from penstock.groups.group_context import GroupContext, TopicsImage
from penstock.groups.records import GroupMetadataKey, UnknownKey, decode_key, decode_value, encode_key
from penstock.types import TopicId

Group = ClassicGroup | ConsumerGroup

_NO_TOPICS_HASH: Final = 0
"""Topics hash of a new consumer group."""


class GroupTransition(NamedTuple):
    group: Group
    """The group after the request: the same, or the one it was converted to."""
    outcome: CommandOutcome


# From classic to consumer


class Upgrade(NamedTuple):
    group: ConsumerGroup
    records: list[StateRecord]


def plan_upgrade(context: GroupContext, classic: ClassicGroup, now: Now) -> Upgrade:
    """Build the consumer group that replaces the classic one, which is not changed yet."""
    group = ConsumerGroup(classic.group_id)
    group.rebalances = classic.rebalances
    records = [StateRecord(encode_key(GroupMetadataKey(classic.group_id)), None)]
    if not classic.is_empty:
        _check_upgrade(context, classic)
        members = _upgraded_members(classic, context.topics())
        records += _upgrade_records(classic, members, context.topics(), now)
        # The group must be complete for the member that joins next. Replaying the records again changes
        # nothing. The first record, the tombstone of the classic group, is skipped.
        for record in records[1:]:
            replay(group, record, now.wall_ms)
        if group.metadata_bytes > context.limits.metadata_bytes_max:
            raise _upgrade_rejected(classic, "its members say too much")
    return Upgrade(group, records)


def replay(group: ConsumerGroup, record: StateRecord, timestamp_ms: int) -> None:
    key = decode_key(record.key)
    assert not isinstance(key, UnknownKey)
    group.replay(key, decode_value(key, record.value), timestamp_ms)


def _check_upgrade(context: GroupContext, classic: ClassicGroup) -> None:
    config = context.config().consumer
    if not config.upgrade_allowed:
        raise _upgrade_rejected(classic, "the migration policy does not allow it")
    if classic.state is ClassicState.DEAD:
        raise _upgrade_rejected(classic, "it was deleted")
    if not classic.uses_consumer_protocol:
        raise _upgrade_rejected(classic, f"its protocol is {classic.protocol_type}")
    if len(classic.members) > config.members_max:
        raise _upgrade_rejected(classic, f"it has more than {config.members_max} members")


def _upgrade_rejected(classic: ClassicGroup, reason: str) -> ApiError:
    detail = f"{classic.group_id} is a classic group and cannot become a consumer group: {reason}"
    return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, detail)


class _MemberBefore(NamedTuple):
    """Last subscription and last assignment of a classic member."""

    member: ClassicMember
    subscription: ConsumerProtocolSubscription
    assigned_before: Assignment


def _upgraded_members(classic: ClassicGroup, topics: TopicsImage) -> list[ConsumerMember]:
    members_before = [_member_before(classic, member, topics) for member in classic.members.values()]
    taken: Assignment = EMPTY
    for member_before in members_before:
        if overlaps(taken, member_before.assigned_before):
            raise _upgrade_rejected(classic, "a partition is assigned twice")
        taken = union(taken, member_before.assigned_before)
    members: list[ConsumerMember] = []
    for member_before in members_before:
        # A member that must revoke a partition reads it until its next rejoin. Kafka drops these partitions,
        # and those assigned in a generation that a later one interrupted.
        unreleased = difference(by_id(member_before.subscription.owned_partitions, topics), taken)
        taken = union(taken, unreleased)
        members.append(
            _upgraded_member(classic, member_before, union(member_before.assigned_before, unreleased))
        )
    return members


def _member_before(classic: ClassicGroup, member: ClassicMember, topics: TopicsImage) -> _MemberBefore:
    protocols = sorted(member.protocols, key=lambda protocol: protocol.name != classic.protocol_name)
    subscription = decode_subscription(protocols[0].metadata)
    assignment = (
        decode_assignment(member.last_assigned) if member.last_assigned else ConsumerProtocolAssignment()
    )
    if subscription is None or assignment is None:
        raise _upgrade_rejected(classic, f"what {member.member_id} said cannot be read")
    return _MemberBefore(member, subscription, by_id(assignment.assigned_partitions, topics))


def _upgraded_member(
    classic: ClassicGroup, member_before: _MemberBefore, assigned: Assignment
) -> ConsumerMember:
    member, subscription, _ = member_before
    metadata = ConsumerMemberMetadata(
        member.instance_id,
        subscription.rack_id,
        member.client,
        Subscription.of(subscription.topics, None),
        member.timeouts.rebalance_ms,
        None,
        ClassicMembership(member.timeouts.session_ms, member.protocols),
    )
    epoch = classic.generation
    return ConsumerMember(
        member.member_id, metadata, MemberAssignment(epoch, epoch, MemberState.STABLE, assigned)
    )


def by_id(named: list[ConsumerTopicPartitions], topics: TopicsImage) -> Assignment:
    """Convert topic names to topic ids; unknown topics and partitions are dropped."""
    assignment: dict[TopicId, frozenset[int]] = {}
    for each in named:
        topic = topics.by_name.get(each.topic)
        if topic is None:
            continue
        existing = frozenset(index for index in each.partitions if 0 <= index < len(topic.partitions))
        if existing:
            assignment[topic.id] = existing | assignment.get(topic.id, frozenset())
    return assignment


def _upgrade_records(
    classic: ClassicGroup, members: list[ConsumerMember], topics: TopicsImage, now: Now
) -> list[StateRecord]:
    group_id, epoch = classic.group_id, classic.generation
    names = {name for member in members for name in member.metadata.subscription.names}
    # A rebalance may have been due. Without a new epoch those members would wait for the next change,
    # because a consumer member that only replaces a static member does not bump the epoch.
    is_at_rest = classic.state is ClassicState.STABLE and not classic.needs_rebalance
    return [
        *(member_metadata_record(group_id, member) for member in members),
        epoch_record(group_id, epoch, topics_hash(names, topics) if is_at_rest else _NO_TOPICS_HASH),
        *(
            target_record(group_id, member.member_id, member.current_assignment.assigned)
            for member in members
        ),
        assignment_epoch_record(group_id, epoch, now.wall_ms),
        *(current_assignment_record(group_id, member) for member in members),
    ]


def apply_upgrade(
    context: GroupContext, classic: ClassicGroup, group: ConsumerGroup, now: Now
) -> list[Reply]:
    """End the classic group after all checks have passed, and start the session timers of the new group."""
    rejections = classic_timers.end(context, classic, now, ErrorCode.REBALANCE_IN_PROGRESS)
    for member in group.members.values():
        consumer_timers.refresh_session(context, group, member, now)
    return rejections


# From consumer to classic


def can_downgrade(context: GroupContext, group: ConsumerGroup, leaving: set[str]) -> bool:
    """Whether all remaining members use the classic protocol and the configuration allows a downgrade."""
    remaining = [member for member_id, member in group.members.items() if member_id not in leaving]
    config = context.config()
    return (
        config.consumer.downgrade_allowed
        and 0 < len(remaining) <= config.classic.members_max
        and all(member.metadata.classic is not None for member in remaining)
    )


def convert_empty_group(group: ConsumerGroup, now: Now) -> tuple[ClassicGroup, list[StateRecord]]:
    """Convert an empty consumer group to an empty classic group.

    The client that triggered the conversion may never join, so the time since when the group is empty is
    kept for the expiry of its offsets. Kafka writes no such record, and then counts from the commit.
    """
    assert group.is_empty, f"{group!r} has members"
    classic = ClassicGroup.new(group.group_id, now)
    classic.rebalances = group.rebalances
    classic.protocol_type = PROTOCOL_TYPE
    classic.generation = group.epoch
    if group.empty_since_ms is not None:
        classic.current_state_timestamp_ms = group.empty_since_ms
    return classic, [*group_tombstones(group), classic.record()]


def downgrade(
    context: GroupContext, group: ConsumerGroup, members: list[ConsumerMember], now: Now
) -> tuple[ClassicGroup, list[StateRecord]]:
    """Convert to a Stable classic group of these members, and end the consumer group."""
    classic = ClassicGroup.new(group.group_id, now)
    classic.rebalances = group.rebalances
    for member in members:
        classic.add(_downgraded_member(member), PROTOCOL_TYPE)
    classic.generation = group.epoch
    classic.protocol_name = classic.chosen_protocol()
    classic.state = ClassicState.STABLE
    # Members keep reading until a rebalance. The record names no leader, so a reloaded group starts one.
    classic.needs_rebalance = True
    for member_id, assignment in _downgraded_assignments(group, members).items():
        metadata = classic.members[member_id].metadata(classic.protocol_name)
        classic.members[member_id].assign(classic_assignment(assignment, metadata, context.topics()))
    consumer_timers.end(context, group)
    for member in members:
        refresh_classic_session(context, classic, member.member_id, now)
    return classic, [*group_tombstones(group), classic.record()]


def _downgraded_assignments(group: ConsumerGroup, members: list[ConsumerMember]) -> dict[str, Assignment]:
    """Partitions that each member may still read, plus its target where no other member reads.

    Kafka writes the target assignments. But members have not reached those, and if a consumer member joined
    next, partitions that are still being read would be assigned to it.
    """
    last_assigned = {
        member.member_id: union(member.current_assignment.assigned, member.current_assignment.revoking)
        for member in members
    }
    taken: Assignment = EMPTY
    for assignment in last_assigned.values():
        taken = union(taken, assignment)
    return {
        member_id: union(assignment, difference(group.target_of(member_id), taken))
        for member_id, assignment in last_assigned.items()
    }


def _downgraded_member(member: ConsumerMember) -> ClassicMember:
    metadata = member.metadata
    assert metadata.classic is not None, f"{member.member_id} does not speak the classic protocol"
    timeouts = ClassicTimeouts(metadata.classic.session_ms, metadata.rebalance_ms)
    return ClassicMember(
        member.member_id, metadata.instance_id, metadata.client, metadata.classic.protocols, timeouts
    )


def classic_assignment(assignment: Assignment, metadata: bytes, topics: TopicsImage) -> bytes:
    """Encode an assignment in the version that this client uses; deleted topics are dropped."""
    named = [
        ConsumerTopicPartitions(topics.by_id[topic_id].name, partitions)
        for topic_id, partitions in sorted_topics(assignment)
        if topic_id in topics.by_id
    ]
    return encode_assignment(ConsumerProtocolAssignment(named), decode_version(metadata) or 0)
