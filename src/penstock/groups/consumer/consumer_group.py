"""A consumer group (KIP-848): its epochs, its members, and their target and current assignments.

    group epoch        goes up when members, subscriptions or topics change
    assignment epoch   the group epoch that the target assignment was computed for
    member epoch       the assignment epoch that a member has reached

    Empty          no members
    Assigning      the group epoch is ahead: the next heartbeat computes a target assignment
    Reconciling    some member has not reached its target yet
    Stable         every member reads its target
    Dead           the group was deleted or converted to a classic group

All of this is durable, in the records of types 3 to 8 and 16. Volatile are the timers, the rebalance
counter, and the marks for what to check again because topics changed.

Rule 1: durable state changes through `replay` only, for new records and for records from the log.
Rule 2: a partition has at most one holder: the member that it was assigned to and that has not revoked it.
Rule 3: what every heartbeat needs is kept as a counter or a set, and not recomputed.
"""

from collections.abc import Collection, Iterator, Mapping, Set
from enum import Enum
from typing import Any

from msgspec.structs import replace

from penstock.coordinator.outcome import WaitingRequest
from penstock.groups.consumer.assignment import (
    EMPTY,
    Assignment,
    assignment_memory,
    parse_assignment,
    reuse_equal_parts,
)
from penstock.groups.consumer.consumer_member import (
    UNASSIGNED,
    ConsumerMember,
    ConsumerMemberMetadata,
    MemberAssignment,
    Subscription,
)
from penstock.groups.consumer.regex import RegexResolver, ResolvedRegularExpression
from penstock.groups.consumer.subscribed_topics import SubscribedTopics, add
from penstock.groups.rebalance_statistics import RebalanceStatistics
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
    RecordKey,
)
from penstock.protocol.schema import Struct
from penstock.types import NO_TIMESTAMP, TopicId

CONSUMER_KEYS = (
    ConsumerGroupMetadataKey,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupRegularExpressionKey,
)
"""Record keys that `ConsumerGroup.replay` handles; each has a `group_id`."""


class ConsumerState(Enum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"

    def __str__(self) -> str:
        return self.value


class ConsumerGroup:
    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.is_deleted = False
        self.epoch = 0
        self.metadata_hash = 0
        """Hash of the subscribed topics when the epoch was set."""
        self.epoch_changed_ms = NO_TIMESTAMP
        """Time when the epoch was set."""
        self.assignment_epoch = 0
        self.members: dict[str, ConsumerMember] = {}
        self.target: dict[str, Assignment] = {}
        """Target assignments by member id. Members with an empty target may be missing."""
        # Derived from the members
        self.static_members: dict[str, str] = {}
        self.holders: dict[TopicId, dict[int, str]] = {}
        self.subscribed = SubscribedTopics()
        """Subscribed topics, and the topics that regular expressions matched."""
        self.classic_support: dict[str, int] = {}
        self.classic_count = 0
        self.unreconciled: set[str] = set()
        self.left_temporarily: set[str] = set()
        self.metadata_bytes = 0
        """Estimated size of the member metadata in the log."""
        self.member_bytes = 0
        """Estimated memory of the members and their assignments."""
        # Volatile
        self.rebalances = RebalanceStatistics()
        self.needs_topic_refresh = True
        """True: topics may have changed since the epoch was set."""
        self.stale_regexes: set[str] = set()
        """Expressions that were resolved before topics changed."""
        self.resolving: dict[str, RegexResolver] = {}

    def __repr__(self) -> str:
        return f"<ConsumerGroup {self.group_id} {self.state} {self.epoch} of {len(self.members)}>"

    # Queries

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
        """Time since when the group is empty; None while it has members. The last member to leave set the
        epoch."""
        return self.epoch_changed_ms if self.is_empty else None

    @property
    def regexes(self) -> Mapping[str, ResolvedRegularExpression]:
        return self.subscribed.regexes

    @property
    def subscribed_topics(self) -> frozenset[str]:
        return self.subscribed.all()

    def topics_of(
        self, subscriptions: Set[Subscription], resolved: Mapping[str, frozenset[str]] | None = None
    ) -> frozenset[str]:
        """Topics of these subscriptions. `resolved` takes precedence over known matches of an expression."""
        return self.subscribed.topics_if(subscriptions, resolved or {})

    @property
    def memory_bytes(self) -> int:
        """Estimated memory. It can far exceed request sizes: a short expression can match many topics."""
        resolving = sum(resolving.memory_bytes for resolving in self.resolving.values())
        # Tables do not shrink when members leave or topics go.
        tables = sum(table.__sizeof__() for table in (self.members, self.target, self.holders))
        return self.member_bytes + tables + self.subscribed.memory_bytes + resolving

    def holder(self, topic_id: TopicId, partition: int) -> str | None:
        return self.holders.get(topic_id, {}).get(partition)

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        member_id = self.static_members.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def target_of(self, member_id: str) -> Assignment:
        return self.target.get(member_id, EMPTY)

    def subscriptions_without(self, members: Collection[ConsumerMember]) -> set[Subscription]:
        """Distinct subscriptions of all other members."""
        return self.subscribed.subscriptions_without(member.metadata.subscription for member in members)

    def supports_classic(self, names: Collection[str]) -> bool:
        """Whether one of these protocols is supported by all classic members."""
        return any(self.classic_support.get(name, 0) == self.classic_count for name in names)

    def parked(self) -> Iterator[WaitingRequest]:
        """Waiting requests: none, a consumer group replies to every request at once."""
        return iter(())

    # The log

    def replay(self, key: RecordKey[Struct], value: Any, timestamp_ms: int) -> None:
        """Apply a record of this group whose key is one of `CONSUMER_KEYS`; `value` has the key's class."""
        match key:
            case ConsumerGroupMetadataKey():
                self._replay_metadata(value, timestamp_ms)
            case ConsumerGroupMemberMetadataKey():
                self._replay_member(key.member_id, value)
            case ConsumerGroupTargetAssignmentMetadataKey():
                self._replay_target_metadata(value)
            case ConsumerGroupTargetAssignmentMemberKey():
                self._replay_target(key.member_id, value)
            case ConsumerGroupCurrentMemberAssignmentKey():
                self._replay_current_assignment(key.member_id, value)
            case ConsumerGroupRegularExpressionKey():
                self._replay_regex(key.regular_expression, value)

    def _replay_metadata(self, value: ConsumerGroupMetadataValue | None, timestamp_ms: int) -> None:
        self.is_deleted = value is None
        if value is not None:
            self.epoch = value.epoch
            self.metadata_hash = value.metadata_hash
            self.epoch_changed_ms = timestamp_ms

    def _replay_member(self, member_id: str, value: ConsumerGroupMemberMetadataValue | None) -> None:
        if value is None:
            self._put(member_id, None)
        else:
            known = self.members.get(member_id) or ConsumerMember(member_id)
            self._put(member_id, known.with_metadata(ConsumerMemberMetadata.from_value(value)))

    def _replay_current_assignment(
        self, member_id: str, value: ConsumerGroupCurrentMemberAssignmentValue | None
    ) -> None:
        """Apply a current assignment. It may precede the member's metadata: compaction keeps the last of
        each."""
        known = self.members.get(member_id)
        if value is None and known is None:
            return
        member = known or ConsumerMember(member_id)
        current_assignment = UNASSIGNED if value is None else MemberAssignment.from_value(value)
        # Reuse the sets of the target: in a stable group both are equal, and memory is halved.
        assigned = reuse_equal_parts(current_assignment.assigned, self.target_of(member_id))
        self._put(member_id, member.with_assignment(replace(current_assignment, assigned=assigned)))

    def _replay_target_metadata(self, value: ConsumerGroupTargetAssignmentMetadataValue | None) -> None:
        self.assignment_epoch = 0 if value is None else value.assignment_epoch
        self.unreconciled = {
            member_id
            for member_id, member in self.members.items()
            if not member.is_reconciled(self.assignment_epoch)
        }

    def _replay_target(self, member_id: str, value: ConsumerGroupTargetAssignmentMemberValue | None) -> None:
        assignment = EMPTY if value is None else parse_assignment(value.topic_partitions)
        before_bytes = self.partitions_memory(member_id)
        if assignment:
            member = self.members.get(member_id)
            self.target[member_id] = reuse_equal_parts(
                assignment, member.current_assignment.assigned if member else EMPTY
            )
        else:
            self.target.pop(member_id, None)
        self.member_bytes += self.partitions_memory(member_id) - before_bytes

    def _replay_regex(self, regex: str, value: ConsumerGroupRegularExpressionValue | None) -> None:
        if value is None:
            self.subscribed.resolve(regex, None)
            self.stale_regexes.discard(regex)
            self.resolving.pop(regex, None)
        else:
            resolution = ResolvedRegularExpression(frozenset(value.topics), value.version, value.timestamp_ms)
            self.subscribed.resolve(regex, resolution)

    # Derived state

    def _put(self, member_id: str, after: ConsumerMember | None) -> None:
        before, before_bytes = self.members.get(member_id), self.partitions_memory(member_id)
        if after is None:
            self.members.pop(member_id, None)
        else:
            self.members[member_id] = after
        self.member_bytes += self.partitions_memory(member_id) - before_bytes
        self._recount(before, after)
        self._index_member(member_id, before, after)

    def _recount(self, before: ConsumerMember | None, after: ConsumerMember | None) -> None:
        if before is not None and after is not None and before.metadata == after.metadata:
            return
        # In this order: otherwise counters that both share would drop to zero and be rebuilt.
        if after is not None:
            self._count(after, 1)
        if before is not None:
            self._count(before, -1)

    def _count(self, member: ConsumerMember, sign: int) -> None:
        metadata, member_id = member.metadata, member.member_id
        self.metadata_bytes += sign * metadata.weigh(self.group_id, member_id)
        self.member_bytes += sign * metadata.memory_bytes(member_id)
        self.subscribed.count(metadata.subscription, sign)
        if metadata.classic is not None:
            self.classic_count += sign
            for name in {protocol.name for protocol in metadata.classic.protocols}:
                add(self.classic_support, name, sign)

    def _index_member(
        self, member_id: str, before: ConsumerMember | None, after: ConsumerMember | None
    ) -> None:
        """Update the lookup tables of members."""
        instance_id = before.metadata.instance_id if before else None
        if instance_id is not None and self.static_members.get(instance_id) == member_id:
            del self.static_members[instance_id]
        if after is not None and after.metadata.instance_id is not None:
            self.static_members[after.metadata.instance_id] = member_id
        self.unreconciled.discard(member_id)
        self.left_temporarily.discard(member_id)
        if after is not None and not after.is_reconciled(self.assignment_epoch):
            self.unreconciled.add(member_id)
        if after is not None and after.has_left_temporarily:
            self.left_temporarily.add(member_id)
        held = before.current_assignment if before else UNASSIGNED
        holds = after.current_assignment if after else UNASSIGNED
        if (held.assigned, held.revoking) != (holds.assigned, holds.revoking):
            self._remove_holder(member_id, held)
            self._add_holder(member_id, holds)

    def _remove_holder(self, member_id: str, current_assignment: MemberAssignment) -> None:
        for topic_id, partitions in _held_partitions(current_assignment):
            holders = self.holders.get(topic_id, {})
            for partition in partitions:
                # Another member may have been recorded as the holder since; its entry stays.
                if holders.get(partition) == member_id:
                    del holders[partition]
            if not holders and topic_id in self.holders:
                del self.holders[topic_id]

    def _add_holder(self, member_id: str, current_assignment: MemberAssignment) -> None:
        for topic_id, partitions in _held_partitions(current_assignment):
            self.holders.setdefault(topic_id, {}).update(dict.fromkeys(partitions, member_id))

    def partitions_memory(self, member_id: str) -> int:
        """Estimated memory of a member's target and current assignment, and of its entries in `holders`."""
        target, member = self.target_of(member_id), self.members.get(member_id)
        current_assignment = member.current_assignment if member else UNASSIGNED
        memory = assignment_memory(target) + assignment_memory(current_assignment.revoking)
        # A member that has reached its target shares it: see `reuse_equal_parts`.
        if current_assignment.assigned is not target:
            memory += assignment_memory(current_assignment.assigned)
        return memory


def _held_partitions(current_assignment: MemberAssignment) -> Iterator[tuple[TopicId, frozenset[int]]]:
    yield from current_assignment.assigned.items()
    yield from current_assignment.revoking.items()
