"""A consumer group (KIP-848): its epochs, its members, and who shall read, reads, and holds what.

    group epoch        goes up when members, subscriptions or topics change
    assignment epoch   the group epoch that the target assignment was made for
    member epoch       the assignment epoch that a member has come to

    Empty          nobody is there
    Assigning      the group epoch is ahead: a target is to be made, at the next heartbeat
    Reconciling    some member has not come to its target yet
    Stable         everybody reads what it shall read
    Dead           the group was deleted, or is another's

Durable is everything above, in the records of types 3 to 8 and 16. Volatile are the timers, the
rebalances that were counted, and what is to be looked at again because topics changed.

Rule 1: what is durable changes through `replay` only, whether the record is new or from the log.
Rule 2: a partition has at most one holder: the member that was given it and has not given it up.
Rule 3: what is asked at every heartbeat is kept as a number or a set, not counted anew.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, TypeVar

from penstock.coordinator.outcome import Pending
from penstock.groups.consumer_assignment import EMPTY, Assignment, read
from penstock.groups.consumer_member import NOWHERE, About, ConsumerMember, Position, Subscription
from penstock.groups.rebalances import Rebalances
from penstock.groups.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    Key,
)
from penstock.groups.regex import Resolution, Resolving
from penstock.protocol.schema import Struct
from penstock.types import NO_TIMESTAMP, TopicId

K = TypeVar("K")

CONSUMER_KEYS = (
    ConsumerGroupMetadataKey,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupRegularExpressionKey,
)
"""The keys of records that are to be handed to `ConsumerGroup.replay`; each has a `group_id`."""


class ConsumerState(Enum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"

    def __str__(self) -> str:
        return self.value


class ConsumerGroup:
    __slots__ = (
        "assignment_epoch",
        "assignor_votes",
        "away",
        "changed_ms",
        "classic_count",
        "classic_support",
        "epoch",
        "group_id",
        "holders",
        "is_deleted",
        "is_refresh_due",
        "members",
        "metadata_hash",
        "rebalances",
        "regexes",
        "resolving",
        "stale_regexes",
        "static_members",
        "subscriptions",
        "target",
        "unreconciled",
        "weight_bytes",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.is_deleted = False
        self.epoch = 0
        self.metadata_hash = 0
        """Of the subscribed topics when the epoch was set."""
        self.changed_ms = NO_TIMESTAMP
        """When the epoch was set."""
        self.assignment_epoch = 0
        self.members: dict[str, ConsumerMember] = {}
        self.target: dict[str, Assignment] = {}
        """By member id. Members that shall read nothing may be missing."""
        self.regexes: dict[str, Resolution] = {}
        # Derived from the members
        self.static_members: dict[str, str] = {}
        self.holders: dict[TopicId, dict[int, str]] = {}
        self.subscriptions: dict[Subscription, int] = {}
        self.assignor_votes: dict[str, int] = {}
        self.classic_support: dict[str, int] = {}
        self.classic_count = 0
        self.unreconciled: set[str] = set()
        self.away: set[str] = set()
        self.weight_bytes = 0
        # Volatile
        self.rebalances = Rebalances()
        self.is_refresh_due = True
        """Topics may have changed since the epoch was set."""
        self.stale_regexes: set[str] = set()
        """Those that were resolved before topics changed."""
        self.resolving: dict[str, Resolving] = {}

    def __repr__(self) -> str:
        return f"<ConsumerGroup {self.group_id} {self.state} {self.epoch} of {len(self.members)}>"

    # Questions

    @property
    def state(self) -> ConsumerState:
        if self.is_deleted:
            return ConsumerState.DEAD
        if not self.members:
            return ConsumerState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerState.ASSIGNING
        return ConsumerState.RECONCILING if self.unreconciled else ConsumerState.STABLE

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def empty_since_ms(self) -> int | None:
        """None while it has members. The last one to leave set the epoch."""
        return self.changed_ms if self.is_empty else None

    @property
    def subscribed_topics(self) -> frozenset[str]:
        return self.topics_of(self.subscriptions)

    def topics_of(
        self, subscriptions: Iterable[Subscription], resolved: Mapping[str, frozenset[str]] | None = None
    ) -> frozenset[str]:
        """The topics that are meant; what `resolved` says goes before what is known of an expression."""
        topics: set[str] = set()
        for names, regex in subscriptions:
            topics.update(names)
            if regex is not None:
                known = self.regexes.get(regex)
                topics |= (resolved or {}).get(regex, known.topics if known else frozenset())
        return frozenset(topics)

    def regex_users(self, regex: str) -> int:
        return sum(count for subscription, count in self.subscriptions.items() if subscription.regex == regex)

    def holder(self, topic_id: TopicId, partition: int) -> str | None:
        return self.holders.get(topic_id, {}).get(partition)

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        member_id = self.static_members.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def target_of(self, member_id: str) -> Assignment:
        return self.target.get(member_id, EMPTY)

    def subscriptions_without(self, members: Collection[ConsumerMember]) -> set[Subscription]:
        """The different subscriptions of all the others."""
        left = dict(self.subscriptions)
        for member in members:
            left[member.about.subscription] -= 1
        return {subscription for subscription, count in left.items() if count}

    def supports_classic(self, names: Collection[str]) -> bool:
        """Whether a newcomer that knows these protocols finds one that all classic members know."""
        return any(self.classic_support.get(name, 0) == self.classic_count for name in names)

    def parked(self) -> Iterator[Pending]:
        """Nobody waits for anything here."""
        return iter(())

    # The log

    def replay(self, key: Key[Struct], value: Struct | None, timestamp_ms: int) -> None:
        """Apply a record whose key is one of `CONSUMER_KEYS` and of this group."""
        match key, value:
            case ConsumerGroupMetadataKey(), _:
                assert value is None or isinstance(value, ConsumerGroupMetadataValue)
                self.replay_metadata(value, timestamp_ms)
            case ConsumerGroupMemberMetadataKey(), _:
                assert value is None or isinstance(value, ConsumerGroupMemberMetadataValue)
                self.replay_member(key.member_id, value)
            case ConsumerGroupTargetAssignmentMetadataKey(), _:
                assert value is None or isinstance(value, ConsumerGroupTargetAssignmentMetadataValue)
                self.replay_target_metadata(value)
            case ConsumerGroupTargetAssignmentMemberKey(), _:
                assert value is None or isinstance(value, ConsumerGroupTargetAssignmentMemberValue)
                self.replay_target(key.member_id, value)
            case ConsumerGroupCurrentMemberAssignmentKey(), _:
                assert value is None or isinstance(value, ConsumerGroupCurrentMemberAssignmentValue)
                self.replay_position(key.member_id, value)
            case ConsumerGroupRegularExpressionKey(), _:
                assert value is None or isinstance(value, ConsumerGroupRegularExpressionValue)
                self.replay_regex(key.regular_expression, value)

    def replay_metadata(self, value: ConsumerGroupMetadataValue | None, timestamp_ms: int) -> None:
        self.is_deleted = value is None
        if value is not None:
            self.epoch = value.epoch
            self.metadata_hash = value.metadata_hash
            self.changed_ms = timestamp_ms

    def replay_member(self, member_id: str, value: ConsumerGroupMemberMetadataValue | None) -> None:
        if value is None:
            self._put(member_id, None)
        else:
            position = self.members[member_id].position if member_id in self.members else NOWHERE
            self._put(member_id, ConsumerMember(member_id, About.read_back(value), position))

    def replay_position(
        self, member_id: str, value: ConsumerGroupCurrentMemberAssignmentValue | None
    ) -> None:
        """It may come before the rest of the member: compaction keeps the last of each."""
        known = self.members.get(member_id)
        if value is None and known is None:
            return
        member = known or ConsumerMember(member_id)
        self._put(member_id, member.with_position(NOWHERE if value is None else Position.read_back(value)))

    def replay_target_metadata(self, value: ConsumerGroupTargetAssignmentMetadataValue | None) -> None:
        self.assignment_epoch = 0 if value is None else value.assignment_epoch
        self.unreconciled = {
            member_id
            for member_id, member in self.members.items()
            if not member.is_reconciled(self.assignment_epoch)
        }

    def replay_target(self, member_id: str, value: ConsumerGroupTargetAssignmentMemberValue | None) -> None:
        assignment = EMPTY if value is None else read(value.topic_partitions)
        if assignment:
            self.target[member_id] = assignment
        else:
            self.target.pop(member_id, None)

    def replay_regex(self, regex: str, value: ConsumerGroupRegularExpressionValue | None) -> None:
        if value is None:
            self.regexes.pop(regex, None)
            self.stale_regexes.discard(regex)
            self.resolving.pop(regex, None)
        else:
            self.regexes[regex] = Resolution(frozenset(value.topics), value.version, value.timestamp_ms)

    # Keeping the books

    def _put(self, member_id: str, after: ConsumerMember | None) -> None:
        before = self.members.get(member_id)
        if before is not None:
            self._count(before, -1)
            self._release(before)
        if after is None:
            self.members.pop(member_id, None)
            return
        self.members[member_id] = after
        self._count(after, 1)
        self._hold(after)

    def _count(self, member: ConsumerMember, sign: int) -> None:
        about, member_id = member.about, member.member_id
        self.weight_bytes += sign * about.weigh(self.group_id, member_id)
        _add(self.subscriptions, about.subscription, sign)
        if about.assignor is not None:
            _add(self.assignor_votes, about.assignor, sign)
        if about.classic is not None:
            self.classic_count += sign
            for name in {protocol.name for protocol in about.classic.protocols}:
                _add(self.classic_support, name, sign)

    def _release(self, member: ConsumerMember) -> None:
        member_id, instance_id = member.member_id, member.about.instance_id
        if instance_id is not None and self.static_members.get(instance_id) == member_id:
            del self.static_members[instance_id]
        self.unreconciled.discard(member_id)
        self.away.discard(member_id)
        for topic_id, partition in _held(member.position):
            held = self.holders.get(topic_id, {})
            if held.get(partition) == member_id:
                del held[partition]
                if not held:
                    del self.holders[topic_id]

    def _hold(self, member: ConsumerMember) -> None:
        if member.about.instance_id is not None:
            self.static_members[member.about.instance_id] = member.member_id
        if not member.is_reconciled(self.assignment_epoch):
            self.unreconciled.add(member.member_id)
        if member.is_away:
            self.away.add(member.member_id)
        for topic_id, partition in _held(member.position):
            self.holders.setdefault(topic_id, {})[partition] = member.member_id

    def durable(self) -> dict[str, Any]:
        """Everything that can be read back from the log, for comparison."""
        volatile = {"rebalances", "is_refresh_due", "stale_regexes", "resolving"}
        return {name: getattr(self, name) for name in self.__slots__ if name not in volatile}


def _held(position: Position) -> Iterator[tuple[TopicId, int]]:
    for assignment in (position.assigned, position.revoking):
        for topic_id, partitions in assignment.items():
            for partition in partitions:
                yield topic_id, partition


def _add(counts: dict[K, int], key: K, sign: int) -> None:
    count = counts.get(key, 0) + sign
    if count:
        counts[key] = count
    else:
        del counts[key]
