"""Groups move between the two protocols while they live, one member at a time.

    classic to consumer   the first member of the consumer protocol joins: everybody becomes a member of
                          a consumer group, with the assignment of the last generation; members that
                          still speak the classic protocol are served by `consumer_classic.py`
    consumer to classic   the last member of the consumer protocol is gone, and others remain: they
                          become a classic group and are asked to gather

An empty group has nothing to carry over; it becomes whatever the first newcomer speaks.

Rule 1: the group that ends is left alone until everything that can be refused has been. Then its timers
        end, and whoever waited for something in it is told to join again.
Rule 2: the new group replaces the old one in the books before its records are replayed. So a tombstone
        of the old kind finds the new kind there, and does nothing.
"""

from typing import NamedTuple

from penstock.coordinator.outcome import Now, Outcome, Reply, StateRecord
from penstock.errors import ApiError, ErrorCode
from penstock.groups import classic_timers, consumer_timers
from penstock.groups.classic_group import ClassicGroup, ClassicState
from penstock.groups.classic_member import ClassicMember, ClassicTimeouts
from penstock.groups.classic_rebalance import refresh_session as refresh_classic_session
from penstock.groups.consumer_assignment import EMPTY, Assignment, in_order, overlaps
from penstock.groups.consumer_group import ConsumerGroup
from penstock.groups.consumer_member import (
    About,
    ClassicSide,
    ConsumerMember,
    MemberState,
    Position,
    Subscription,
)
from penstock.groups.consumer_protocol import (
    PROTOCOL_TYPE,
    ConsumerProtocolAssignment,
    ConsumerTopicPartitions,
    decode_assignment,
    decode_subscription,
    decode_version,
    encode_assignment,
)
from penstock.groups.consumer_records import (
    about_record,
    assignment_epoch_record,
    epoch_record,
    group_tombstones,
    position_record,
    target_record,
)
from penstock.groups.consumer_target import topics_hash
from penstock.groups.records import GroupMetadataKey, UnknownKey, decode_key, decode_value, encode_key
from penstock.groups.surroundings import Surroundings, Topics
from penstock.limits import GROUP_METADATA_BYTES_MAX
from penstock.types import TopicId

Group = ClassicGroup | ConsumerGroup


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
        if group.weight_bytes > GROUP_METADATA_BYTES_MAX:
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


def _upgraded_members(classic: ClassicGroup, topics: Topics) -> list[ConsumerMember]:
    members: list[ConsumerMember] = []
    given: Assignment = EMPTY
    for classic_member in classic.members.values():
        member = _upgraded_member(classic, classic_member, topics)
        if overlaps(given, member.position.assigned):
            raise _cannot(classic, "a partition is assigned twice")
        given = {**given, **_united(given, member.position.assigned)}
        members.append(member)
    return members


def _united(one: Assignment, other: Assignment) -> Assignment:
    return {topic_id: partitions | one.get(topic_id, frozenset()) for topic_id, partitions in other.items()}


def _upgraded_member(classic: ClassicGroup, member: ClassicMember, topics: Topics) -> ConsumerMember:
    protocols = sorted(member.protocols, key=lambda protocol: protocol.name != classic.protocol_name)
    subscription = decode_subscription(protocols[0].metadata)
    assignment = decode_assignment(member.assignment) if member.assignment else ConsumerProtocolAssignment()
    if subscription is None or assignment is None:
        raise _cannot(classic, f"what {member.member_id} said cannot be read")
    about = About(
        member.instance_id,
        subscription.rack_id,
        member.client,
        Subscription.of(subscription.topics, None),
        member.timeouts.rebalance_ms,
        None,
        ClassicSide(member.timeouts.session_ms, member.protocols),
    )
    assigned = by_id(assignment.assigned_partitions, topics)
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
    return [
        *(about_record(group_id, member) for member in members),
        epoch_record(group_id, epoch, topics_hash(names, topics)),
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


def emptied(surroundings: Surroundings, group: ConsumerGroup, now: Now) -> Settled:
    """An empty consumer group becomes an empty classic one."""
    assert group.is_empty, f"{group!r} has members"
    classic = ClassicGroup.new(group.group_id, now)
    classic.rebalances = group.rebalances
    return Settled(classic, Outcome(records=group_tombstones(group)))


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
    for member in members:
        metadata = classic.members[member.member_id].metadata(classic.protocol_name)
        target = group.target_of(member.member_id)
        classic.members[member.member_id].assignment = classic_assignment(
            target, metadata, surroundings.topics()
        )
    consumer_timers.end(surroundings, group)
    for member in members:
        refresh_classic_session(surroundings, classic, member.member_id, now)
    return classic, [*group_tombstones(group), classic.record()]


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
