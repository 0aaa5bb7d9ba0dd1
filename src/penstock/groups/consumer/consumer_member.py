"""A member of a consumer group: its metadata and its current assignment.

The two parts are two records in the log. `ConsumerMemberMetadata` changes when the member reports something
new, and `MemberAssignment` when the member moves towards its target. Each is replaced whole.

    Stable         the member reads the target of its epoch
    Unrevoked      the member must revoke partitions and has not confirmed it yet
    Unreleased     the member has reached its epoch and waits for partitions that other members hold
    Unknown        newer software wrote its record
"""

from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from penstock.groups.classic.classic_member import (
    ClassicProtocol,
    protocols_memory,
    protocols_metadata_bytes,
)
from penstock.groups.consumer.assignment import EMPTY, Assignment, parse_assignment, sorted_topics
from penstock.groups.group_context import ClientInfo
from penstock.groups.memory_estimates import MEMBER_BYTES, text_memory, texts_memory
from penstock.groups.records import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    CurrentTopicPartitions,
    RecordedClassicProtocol,
)

JOIN_GROUP_EPOCH: Final = 0
LEAVE_GROUP_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2
"""Member epoch of a static member that left temporarily."""

_MEMBER_BYTES: Final = 128
_RECORDS_PER_MEMBER: Final = 3
"""Records per member, each with the group id and the member id in its key."""


class MemberState(IntEnum):
    """State of a member, numbered as in the records."""

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2
    UNKNOWN = 127


class Subscription(NamedTuple):
    names: tuple[str, ...] = ()
    """Topic names, sorted and distinct."""
    regex: str | None = None

    @classmethod
    def of(cls, names: list[str] | tuple[str, ...], regex: str | None) -> "Subscription":
        return cls(tuple(sorted(set(names))), regex or None)


NO_SUBSCRIPTION: Final = Subscription()


class ClassicMembership(NamedTuple):
    """Session timeout and protocols of a classic-protocol member."""

    session_ms: int
    protocols: tuple[ClassicProtocol, ...]

    @property
    def protocol(self) -> ClassicProtocol:
        """The member's preferred protocol."""
        return self.protocols[0]


class ConsumerMemberMetadata(msgspec.Struct, frozen=True):
    instance_id: str | None = None
    rack_id: str | None = None
    client: ClientInfo = ClientInfo("", "")
    subscription: Subscription = NO_SUBSCRIPTION
    rebalance_ms: int = 0
    assignor: str | None = None
    classic: ClassicMembership | None = None

    def to_value(self) -> ConsumerGroupMemberMetadataValue:
        return ConsumerGroupMemberMetadataValue(
            self.instance_id,
            self.rack_id,
            self.client.client_id,
            self.client.host,
            list(self.subscription.names),
            self.subscription.regex,
            self.rebalance_ms,
            self.assignor,
            _classic_to_value(self.classic),
        )

    @classmethod
    def from_value(cls, value: ConsumerGroupMemberMetadataValue) -> "ConsumerMemberMetadata":
        return cls(
            value.instance_id,
            value.rack_id,
            ClientInfo(value.client_id, value.client_host),
            Subscription.of(value.subscribed_topic_names, value.subscribed_topic_regex),
            max(value.rebalance_timeout_ms, 0),
            value.server_assignor,
            _classic_from_value(value.classic_member_metadata),
        )

    def weigh(self, group_id: str, member_id: str) -> int:
        """Estimated size in the log."""
        keys = _RECORDS_PER_MEMBER * (len(group_id.encode()) + len(member_id.encode()))
        told = sum(len(text.encode()) for text in self._texts() if text)
        return (
            _MEMBER_BYTES
            + keys
            + told
            + (protocols_metadata_bytes(self.classic.protocols) if self.classic else 0)
        )

    def memory_bytes(self, member_id: str) -> int:
        """Estimated memory."""
        texts = _RECORDS_PER_MEMBER * text_memory(member_id) + texts_memory(filter(None, self._texts()))
        return MEMBER_BYTES + texts + (protocols_memory(self.classic.protocols) if self.classic else 0)

    def _texts(self) -> tuple[str | None, ...]:
        names, regex = self.subscription
        return (self.instance_id, self.rack_id, *self.client, regex, self.assignor, *names)


def _classic_to_value(membership: ClassicMembership | None) -> ClassicMemberMetadata | None:
    if membership is None:
        return None
    protocols = [RecordedClassicProtocol(name, metadata) for name, metadata in membership.protocols]
    return ClassicMemberMetadata(membership.session_ms, protocols)


def _classic_from_value(value: ClassicMemberMetadata | None) -> ClassicMembership | None:
    """Convert the recorded value; a classic member has at least one protocol."""
    if value is None or not value.supported_protocols:
        return None
    protocols = (ClassicProtocol(each.name, bytes(each.metadata)) for each in value.supported_protocols)
    return ClassicMembership(value.session_timeout_ms, tuple(protocols))


class MemberAssignment(msgspec.Struct, frozen=True):
    epoch: int = JOIN_GROUP_EPOCH
    previous_epoch: int = JOIN_GROUP_EPOCH
    """Epoch that the member may still have if the last reply was lost."""
    state: MemberState = MemberState.STABLE
    assigned: Assignment = EMPTY
    """Partitions assigned to the member."""
    revoking: Assignment = EMPTY
    """Partitions that the member must revoke and may still read."""

    def to_value(self) -> ConsumerGroupCurrentMemberAssignmentValue:
        return ConsumerGroupCurrentMemberAssignmentValue(
            self.epoch,
            self.previous_epoch,
            self.state,
            [CurrentTopicPartitions(*topic) for topic in sorted_topics(self.assigned)],
            [CurrentTopicPartitions(*topic) for topic in sorted_topics(self.revoking)],
        )

    @classmethod
    def from_value(cls, value: ConsumerGroupCurrentMemberAssignmentValue) -> "MemberAssignment":
        # With an unknown state the member must revoke everything and rejoin: see `validate_member_epoch`.
        is_known = value.state in MemberState.__members__.values()
        return cls(
            value.member_epoch,
            value.previous_member_epoch,
            MemberState(value.state) if is_known else MemberState.UNKNOWN,
            parse_assignment(value.assigned_partitions),
            parse_assignment(value.partitions_pending_revocation),
        )


UNASSIGNED: Final = MemberAssignment()


class ConsumerMember(msgspec.Struct, frozen=True):
    member_id: str
    metadata: ConsumerMemberMetadata = ConsumerMemberMetadata()
    current_assignment: MemberAssignment = UNASSIGNED

    @property
    def epoch(self) -> int:
        return self.current_assignment.epoch

    @property
    def has_left_temporarily(self) -> bool:
        return self.current_assignment.epoch == STATIC_LEAVE_EPOCH

    def is_reconciled(self, assignment_epoch: int) -> bool:
        return (
            self.current_assignment.state is MemberState.STABLE
            and self.current_assignment.epoch == assignment_epoch
        )

    def with_metadata(self, metadata: ConsumerMemberMetadata) -> "ConsumerMember":
        return ConsumerMember(self.member_id, metadata, self.current_assignment)

    def with_assignment(self, current_assignment: MemberAssignment) -> "ConsumerMember":
        return ConsumerMember(self.member_id, self.metadata, current_assignment)
