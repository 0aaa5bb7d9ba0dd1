"""A classic group: its members, its state, and the requests that wait in it.

    Empty                 no members
    PreparingRebalance    members rejoin: the JoinGroup of every member is awaited
    CompletingRebalance   a generation has begun: the leader's SyncGroup is awaited
    Stable                every member can fetch its assignment
    Dead                  the group was deleted or converted to a consumer group

Durable state is in the log: generation, protocol, leader, the time of the last state change, and for each
member its ids, client, timeouts, assignment, and its metadata for the chosen protocol. The group writes it
when it becomes Stable or Empty, and when a static member is replaced. All other state is volatile: waiting
requests, pending member ids, protocols that were not chosen, the rebalance counter. After a crash the group
is as it was when it was last Stable or Empty; a member with a later generation gets ILLEGAL_GENERATION and
joins again.

Rule 1: this file holds the state only. The decisions are in `join.py`, `sync.py`, `rebalance.py` and the
        other files of this folder.
Rule 2: members change only through the methods here, which keep the sums and indexes correct.
"""

from collections.abc import Collection, Iterable
from enum import Enum
from typing import Final

from penstock.coordinator.outcome import Now, StateRecord, WaitingRequest
from penstock.errors import ApiError, ErrorCode
from penstock.groups.classic.classic_member import ClassicMember, ClassicProtocol, ClassicTimeouts
from penstock.groups.embedded_protocol import PROTOCOL_TYPE, decode_subscribed_topics
from penstock.groups.group_context import ClientInfo
from penstock.groups.rebalance_statistics import RebalanceStatistics
from penstock.groups.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    encode_key,
    encode_value,
)
from penstock.protocol.messages.describe_groups import DescribedGroup
from penstock.types import NO_TIMESTAMP


class ClassicState(Enum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"

    def __str__(self) -> str:
        return self.value


_VALID_PREVIOUS_STATES = {
    ClassicState.EMPTY: (ClassicState.PREPARING,),
    ClassicState.PREPARING: (ClassicState.EMPTY, ClassicState.COMPLETING, ClassicState.STABLE),
    ClassicState.COMPLETING: (ClassicState.PREPARING,),
    ClassicState.STABLE: (ClassicState.COMPLETING,),
    ClassicState.DEAD: tuple(ClassicState),
}


_PENDING_BYTES: Final = 1_000
"""Estimated memory of a pending member id and its timer."""


class ClassicGroup:
    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.rebalances = RebalanceStatistics()
        self.is_active = False
        """False while the log is replayed. True: timers run, and the group writes its own records."""
        self._clear()

    def _clear(self) -> None:
        self.state = ClassicState.EMPTY
        self.current_state_timestamp_ms = NO_TIMESTAMP
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.needs_rebalance = False
        """True: converted from a consumer group, and no rebalance has run since. Its record has no leader,
        so a group that is loaded from the log in this state starts a rebalance."""
        self.members: dict[str, ClassicMember] = {}
        self.static_members: dict[str, str] = {}
        """Member ids by instance id."""
        self.pending_members: set[str] = set()
        """Member ids that were returned with MEMBER_ID_REQUIRED and are not used yet."""
        self.joining: dict[str, WaitingRequest] = {}
        """JoinGroup requests that wait for the other members, by member id."""
        self.syncing: dict[str, WaitingRequest] = {}
        """SyncGroup requests that wait for the leader's assignment, by member id."""
        self.pending_syncs: set[str] = set()
        """Members of this generation that have not sent SyncGroup yet."""
        self.supported_protocols: dict[str, int] = {}
        """Number of members that support a protocol."""
        self.metadata_bytes = 0
        """Total metadata of members and pending members."""
        self.member_bytes = 0
        """Estimated memory of the members."""
        self.initial_ms_left: int | None = None
        """Remaining time to extend the initial rebalance delay; None unless the group was Empty before."""
        self.has_newcomer = False
        """True: a member joined since the initial delay began or was extended."""

    @classmethod
    def new(cls, group_id: str, now: Now) -> "ClassicGroup":
        group = cls(group_id)
        group.current_state_timestamp_ms = now.wall_ms
        group.is_active = True
        return group

    def __repr__(self) -> str:
        return f"<ClassicGroup {self.group_id} {self.state} {self.generation} of {len(self.members)}>"

    # Queries

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicState.EMPTY

    @property
    def memory_bytes(self) -> int:
        """Estimated memory."""
        # The table of members does not shrink when members leave.
        return self.member_bytes + self.members.__sizeof__() + _PENDING_BYTES * len(self.pending_members)

    @property
    def is_initial(self) -> bool:
        """True during the first rebalance since Empty, which waits for more members."""
        return self.initial_ms_left is not None

    @property
    def is_unused(self) -> bool:
        """True: the log has no record of the group and no client is about to join; it can be dropped."""
        return self.is_empty and not self.generation and not self.pending_members

    @property
    def has_all_joined(self) -> bool:
        return len(self.joining) == len(self.members) and not self.pending_members

    @property
    def uses_consumer_protocol(self) -> bool:
        """Whether subscriptions can be decoded, which converting to a consumer group requires."""
        return self.protocol_type == PROTOCOL_TYPE

    def rebalance_ms(self) -> int:
        """Rebalance timeout of the group: the longest of its members."""
        return max((member.timeouts.rebalance_ms for member in self.members.values()), default=0)

    def parked(self) -> Iterable[WaitingRequest]:
        yield from self.joining.values()
        yield from self.syncing.values()

    def check_member(self, member_id: str, instance_id: str | None) -> None:
        """Raise ApiError unless the id is a member, and the current member of its instance id."""
        if instance_id is not None:
            holder = self.static_members.get(instance_id)
            if holder is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"no member has the instance id {instance_id}")
            # Another process with this instance id joined later: fence the older one.
            if holder != member_id:
                raise ApiError(ErrorCode.FENCED_INSTANCE_ID, f"{instance_id} is the member {holder} now")
        if member_id not in self.members:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is no member of {self.group_id}")

    def supports(self, protocol_type: str, names: Collection[str]) -> bool:
        """Whether one of these protocols is supported by all members."""
        if not self.members:
            return protocol_type != "" and len(names) > 0
        count = len(self.members)
        return protocol_type == self.protocol_type and any(
            self.supported_protocols.get(name) == count for name in names
        )

    def chosen_protocol(self) -> str:
        """The protocol with the most votes among those that all members support; on a tie, the earliest
        vote."""
        count = len(self.members)
        candidates = {name for name, knowing in self.supported_protocols.items() if knowing == count}
        votes: dict[str, int] = {}
        for member in self.members.values():
            name = member.vote(candidates)
            votes[name] = votes.get(name, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def subscribed_topics(self) -> frozenset[str] | None:
        """Topics that members subscribe to. None: unknown, because a subscription cannot be decoded."""
        if not self.uses_consumer_protocol:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            # During a rebalance a new member may not support the protocol that is still in force.
            name = self.protocol_name if self.protocol_name in member.names() else member.protocols[0].name
            subscribed = decode_subscribed_topics(member.metadata(name))
            if subscribed is None:
                return None
            topics.update(subscribed)
        return frozenset(topics)

    def describe(self) -> DescribedGroup:
        """Build the DescribeGroups entry. Member metadata is included once the group is Stable."""
        protocol = self.protocol_name if self.state is ClassicState.STABLE else None
        return DescribedGroup(
            group_id=self.group_id,
            group_state=str(self.state),
            protocol_type=self.protocol_type or "",
            protocol_data=protocol or "",
            members=[member.described(protocol) for member in self.members.values()],
        )

    # State changes

    def enter(self, state: ClassicState, now: Now) -> None:
        assert self.state in _VALID_PREVIOUS_STATES[state], f"{self!r} cannot become {state}"
        self.state = state
        self.current_state_timestamp_ms = now.wall_ms

    def begin_generation(self, now: Now) -> None:
        """Begin the next generation with the current members, after the last of them has joined."""
        self.generation += 1
        self.pending_syncs.clear()
        self.initial_ms_left = None
        self.needs_rebalance = False
        self.protocol_name = self.chosen_protocol() if self.members else None
        self.enter(ClassicState.COMPLETING if self.members else ClassicState.EMPTY, now)

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it joined, else take the first member that joined. False: no member joined."""
        if self.leader not in self.joining:
            joined = next((member_id for member_id in self.members if member_id in self.joining), None)
            self.leader = joined or self.leader
        return self.leader in self.joining

    # Membership changes

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        assert member.member_id not in self.members, f"{member.member_id} is a member already"
        assert member.instance_id is None or member.instance_id not in self.static_members
        self.remove_pending(member.member_id)
        if not self.members:
            self.protocol_type = protocol_type
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self._count(member, 1)

    def remove(self, member_id: str) -> list[WaitingRequest]:
        """Remove a member or a pending member, and return the member's waiting requests."""
        self.remove_pending(member_id)
        self.pending_syncs.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is None:
            return []
        self._count(member, -1)
        if member.instance_id is not None:
            del self.static_members[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return self._remove_waiting(member_id)

    def update(
        self,
        member: ClassicMember,
        client: ClientInfo,
        protocols: Iterable[ClassicProtocol],
        timeouts: ClassicTimeouts,
    ) -> None:
        """Replace the metadata of a member that joined again."""
        self._count(member, -1)
        member.update_metadata(client, protocols, timeouts)
        self._count(member, 1)

    def replace_static(self, old_id: str, new_id: str) -> list[WaitingRequest]:
        """Give a static member its new id; it keeps its assignment. The old id is fenced. Returns the old
        id's waiting requests."""
        member = self.members.pop(old_id)
        assert member.instance_id is not None, f"{old_id} is not static"
        # Subtracted before the rename: the sizes include the member id.
        self._count(member, -1)
        fenced = self._remove_waiting(old_id)
        member.rename(new_id)
        self.members[new_id] = member
        self.static_members[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.pending_syncs:
            self.pending_syncs.remove(old_id)
            self.pending_syncs.add(new_id)
        self._count(member, 1)
        return fenced

    def add_pending(self, member_id: str) -> None:
        self.pending_members.add(member_id)
        self.metadata_bytes += len(member_id)

    def remove_pending(self, member_id: str) -> None:
        if member_id in self.pending_members:
            self.pending_members.remove(member_id)
            self.metadata_bytes -= len(member_id)

    def _remove_waiting(self, member_id: str) -> list[WaitingRequest]:
        parked = (self.joining.pop(member_id, None), self.syncing.pop(member_id, None))
        return [pending for pending in parked if pending is not None]

    def _count(self, member: ClassicMember, sign: int) -> None:
        self.metadata_bytes += sign * member.metadata_bytes
        self.member_bytes += sign * member.memory_bytes
        for name in member.names():
            count = self.supported_protocols.get(name, 0) + sign
            if count:
                self.supported_protocols[name] = count
            else:
                del self.supported_protocols[name]

    # The log

    def snapshot(self) -> GroupMetadataValue:
        """Durable state as a record value. The log has it while the group is Stable or Empty."""
        return GroupMetadataValue(
            self.protocol_type or "",
            self.generation,
            self.protocol_name,
            None if self.needs_rebalance else self.leader,
            self.current_state_timestamp_ms,
            [member.to_value(self.protocol_name) for member in self.members.values()],
        )

    def record(self) -> StateRecord:
        # Most assignments changed since the last record.
        self.member_bytes = sum(member.memory_bytes for member in self.members.values())
        return StateRecord(encode_key(GroupMetadataKey(self.group_id)), encode_value(self.snapshot()))

    def restore(self, value: GroupMetadataValue) -> None:
        """Load a record. An active group wrote it itself, and may have changed since."""
        if self.is_active:
            return
        self._clear()
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol_name = value.protocol
        for record in value.members:
            self._restore_member(record)
        if value.leader in self.members:
            self.leader = value.leader
        self.needs_rebalance = value.leader is None and len(self.members) > 0
        self.state = ClassicState.STABLE if self.members else ClassicState.EMPTY
        self.current_state_timestamp_ms = value.current_state_timestamp_ms

    def _restore_member(self, record: MemberMetadata) -> None:
        """Add a member, ignoring duplicate ids in the record."""
        is_known = record.member_id in self.members or record.group_instance_id in self.static_members
        if not is_known:
            self.add(ClassicMember.from_value(record, self.protocol_name or ""), self.protocol_type or "")
