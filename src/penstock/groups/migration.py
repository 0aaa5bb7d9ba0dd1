"""Groups move between the two protocols while they live, one member at a time.

    classic to consumer   the first member of the consumer protocol joins: everybody becomes a member of
                          a consumer group, with what it may still read of the last one; members that
                          still speak the classic protocol are served by `classic_members.py`
    consumer to classic   the last member of the consumer protocol is gone, and others remain: they
                          become a classic group and are asked to gather

An empty group has nothing to carry over; it becomes whatever the first newcomer speaks.

Rule 1: the group that ends is left alone until everything that can be refused has been. Then its timers
        end, and whoever waited for something in it is told to join again.
Rule 2: the new group replaces the old one in the books before its records are replayed. So a tombstone
        of the old kind finds the new kind there, and does nothing.
"""

from typing import Final, NamedTuple

from penstock.coordinator.outcome import Now, Outcome, Reply, StateRecord
from penstock.errors import ApiError, ErrorCode
from penstock.groups.classic import classic_timers
from penstock.groups.classic.classic_group import ClassicGroup, ClassicState
from penstock.groups.classic.classic_member import ClassicMember, ClassicTimeouts
from penstock.groups.classic.rebalance import refresh_session as refresh_classic_session
from penstock.groups.consumer import consumer_timers
from penstock.groups.consumer.assignment import (
    EMPTY,
    Assignment,
    in_order,
    joined,
    overlaps,
    without,
)
from penstock.groups.consumer.consumer_group import ConsumerGroup
from penstock.groups.consumer.consumer_member import (
    About,
    ClassicSide,
    ConsumerMember,
    MemberState,
    Position,
    Subscription,
)
from penstock.groups.consumer.consumer_records import (
    about_record,
    assignment_epoch_record,
    epoch_record,
    group_tombstones,
    position_record,
    target_record,
)
from penstock.groups.consumer.target_assignment import topics_hash
from penstock.groups.consumer_protocol import (
    PROTOCOL_TYPE,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerTopicPartitions,
    decode_assignment,
    decode_subscription,
    decode_version,
    encode_assignment,
)
from penstock.groups.group_context import Surroundings, Topics
from penstock.groups.records import GroupMetadataKey, UnknownKey, decode_key, decode_value, encode_key
from penstock.types import TopicId

Group = ClassicGroup | ConsumerGroup

_OF_NO_TOPICS: Final = 0
"""The hash that a new consumer group begins with."""


class Settled(NamedTuple):
    group: Group
    """The group from now on: the same, or what it became."""
    outcome: Outcome


# From classic to consumer


class Upgrade(NamedTuple):
    group: ConsumerGroup
    records: list[StateRecord]


def upgraded(surroundings: Surroundings, classic: ClassicGroup, now: Now) -> Upgrade:
    """The consumer group that the classic one can become, which is not touched yet."""
    group = ConsumerGroup(classic.group_id)
    group.rebalances = classic.rebalances
    records = [StateRecord(encode_key(GroupMetadataKey(classic.group_id)), None)]
    if not classic.is_empty:
        _check_upgrade(surroundings, classic)
        members = _upgraded_members(classic, surroundings.topics())
        records += _upgrade_records(classic, members, surroundings.topics(), now)
        # The group must be complete for whoever joins it now. Replaying them again changes nothing.
        for record in records[1:]:
            replay(group, record, now.wall_ms)
        if group.weight_bytes > surroundings.limits.metadata_bytes_max:
            raise _cannot(classic, "its members say too much")
    return Upgrade(group, records)


def replay(group: ConsumerGroup, record: StateRecord, timestamp_ms: int) -> None:
    key = decode_key(record.key)
    assert not isinstance(key, UnknownKey)
    group.replay(key, decode_value(key, record.value), timestamp_ms)


def _check_upgrade(surroundings: Surroundings, classic: ClassicGroup) -> None:
    config = surroundings.config().consumer
    if not config.upgrade_allowed:
        raise _cannot(classic, "the migration policy does not allow it")
    if classic.state is ClassicState.DEAD:
        raise _cannot(classic, "it was deleted")
    if not classic.uses_consumer_protocol:
        raise _cannot(classic, f"its protocol is {classic.protocol_type}")
    if len(classic.members) > config.members_max:
        raise _cannot(classic, f"it has more than {config.members_max} members")


def _cannot(classic: ClassicGroup, reason: str) -> ApiError:
    detail = f"{classic.group_id} is a classic group and cannot become a consumer group: {reason}"
    return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, detail)


class _Last(NamedTuple):
    """What a classic member said last, and what it was given last."""

    member: ClassicMember
    subscription: ConsumerProtocolSubscription
    given: Assignment


def _upgraded_members(classic: ClassicGroup, topics: Topics) -> list[ConsumerMember]:
    lasts = [_last(classic, member, topics) for member in classic.members.values()]
    taken: Assignment = EMPTY
    for last in lasts:
        if overlaps(taken, last.given):
            raise _cannot(classic, "a partition is assigned twice")
        taken = joined(taken, last.given)
    members: list[ConsumerMember] = []
    for last in lasts:
        # One that was told to give something up reads it until it has heard of that. Kafka forgets
        # this, and what was given in a generation that a later one interrupted.
        unreleased = without(by_id(last.subscription.owned_partitions, topics), taken)
        taken = joined(taken, unreleased)
        members.append(_upgraded_member(classic, last, joined(last.given, unreleased)))
    return members


def _last(classic: ClassicGroup, member: ClassicMember, topics: Topics) -> _Last:
    protocols = sorted(member.protocols, key=lambda protocol: protocol.name != classic.protocol_name)
    subscription = decode_subscription(protocols[0].metadata)
    assignment = decode_assignment(member.held) if member.held else ConsumerProtocolAssignment()
    if subscription is None or assignment is None:
        raise _cannot(classic, f"what {member.member_id} said cannot be read")
    return _Last(member, subscription, by_id(assignment.assigned_partitions, topics))


def _upgraded_member(classic: ClassicGroup, last: _Last, assigned: Assignment) -> ConsumerMember:
    member, subscription, _ = last
    about = About(
        member.instance_id,
        subscription.rack_id,
        member.client,
        Subscription.of(subscription.topics, None),
        member.timeouts.rebalance_ms,
        None,
        ClassicSide(member.timeouts.session_ms, member.protocols),
    )
    epoch = classic.generation
    return ConsumerMember(member.member_id, about, Position(epoch, epoch, MemberState.STABLE, assigned))


def by_id(named: list[ConsumerTopicPartitions], topics: Topics) -> Assignment:
    """What consumers say by name; what does not exist is left out."""
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
    classic: ClassicGroup, members: list[ConsumerMember], topics: Topics, now: Now
) -> list[StateRecord]:
    group_id, epoch = classic.group_id, classic.generation
    names = {name for member in members for name in member.about.subscription.names}
    # Who was about to be given something shall not wait for the next change: a group that was not at
    # rest begins with a new epoch even if the first of the new protocol only takes a member's place.
    is_at_rest = classic.state is ClassicState.STABLE and not classic.is_unsettled
    return [
        *(about_record(group_id, member) for member in members),
        epoch_record(group_id, epoch, topics_hash(names, topics) if is_at_rest else _OF_NO_TOPICS),
        *(target_record(group_id, member.member_id, member.position.assigned) for member in members),
        assignment_epoch_record(group_id, epoch, now.wall_ms),
        *(position_record(group_id, member) for member in members),
    ]


def begin_upgraded(
    surroundings: Surroundings, classic: ClassicGroup, group: ConsumerGroup, now: Now
) -> list[Reply]:
    """Nothing was refused: the classic group ends, and its members are timed as those of the new one."""
    parked = list(classic.parked())
    classic.joining.clear()
    classic.syncing.clear()
    classic_timers.end(surroundings, classic, now)
    for member in group.members.values():
        consumer_timers.refresh_session(surroundings, group, member, now)
    return [pending.refusal(ErrorCode.REBALANCE_IN_PROGRESS) for pending in parked]


# From consumer to classic


def can_downgrade(surroundings: Surroundings, group: ConsumerGroup, leaving: set[str]) -> bool:
    """Whether those who remain all speak the classic protocol, and may go back to it."""
    remaining = [member for member_id, member in group.members.items() if member_id not in leaving]
    config = surroundings.config()
    return (
        config.consumer.downgrade_allowed
        and 0 < len(remaining) <= config.classic.members_max
        and all(member.about.classic is not None for member in remaining)
    )


def emptied(group: ConsumerGroup, now: Now) -> tuple[ClassicGroup, list[StateRecord]]:
    """The empty classic group that an empty consumer group becomes.

    Whoever asked for it may never join, and the group's offsets are still kept from when it became
    empty. Kafka writes no such record, and then counts from when they were committed.
    """
    assert group.is_empty, f"{group!r} has members"
    classic = ClassicGroup.new(group.group_id, now)
    classic.rebalances = group.rebalances
    classic.protocol_type = PROTOCOL_TYPE
    classic.generation = group.epoch
    if group.empty_since_ms is not None:
        classic.current_state_timestamp_ms = group.empty_since_ms
    return classic, [*group_tombstones(group), classic.record()]


def downgraded(
    surroundings: Surroundings, group: ConsumerGroup, members: list[ConsumerMember], now: Now
) -> tuple[ClassicGroup, list[StateRecord]]:
    """The classic group of these members, which is Stable; the consumer group has ended."""
    classic = ClassicGroup.new(group.group_id, now)
    classic.rebalances = group.rebalances
    for member in members:
        classic.add(_downgraded_member(member), PROTOCOL_TYPE)
    classic.generation = group.epoch
    classic.protocol_name = classic.chosen_protocol()
    classic.state = ClassicState.STABLE
    classic.is_unsettled = True
    for member_id, assignment in _divided(group, members).items():
        metadata = classic.members[member_id].metadata(classic.protocol_name)
        classic.members[member_id].assign(classic_assignment(assignment, metadata, surroundings.topics()))
    consumer_timers.end(surroundings, group)
    for member in members:
        refresh_classic_session(surroundings, classic, member.member_id, now)
    return classic, [*group_tombstones(group), classic.record()]


def _divided(group: ConsumerGroup, members: list[ConsumerMember]) -> dict[str, Assignment]:
    """What each may read by now, and what it shall read where no other may.

    Kafka writes down what they shall read. But they have not come to that, and if a member of the
    consumer protocol joins next, what they read still would be given to it.
    """
    held = {
        member.member_id: joined(member.position.assigned, member.position.revoking) for member in members
    }
    taken: Assignment = EMPTY
    for assignment in held.values():
        taken = joined(taken, assignment)
    return {
        member_id: joined(assignment, without(group.target_of(member_id), taken))
        for member_id, assignment in held.items()
    }


def _downgraded_member(member: ConsumerMember) -> ClassicMember:
    about = member.about
    assert about.classic is not None, f"{member.member_id} does not speak the classic protocol"
    timeouts = ClassicTimeouts(about.classic.session_ms, about.rebalance_ms)
    return ClassicMember(member.member_id, about.instance_id, about.client, about.classic.protocols, timeouts)


def classic_assignment(assignment: Assignment, metadata: bytes, topics: Topics) -> bytes:
    """As the client who said this can read it; topics that are gone are left out."""
    named = [
        ConsumerTopicPartitions(topics.by_id[topic_id].name, partitions)
        for topic_id, partitions in in_order(assignment)
        if topic_id in topics.by_id
    ]
    return encode_assignment(ConsumerProtocolAssignment(named), decode_version(metadata) or 0)
