"""A member of a consumer group: what it told about itself, and how far it has come.

The two parts are two records in the log: `About` changes when the member says something new, and
`Position` when it moves towards what it shall read. Both are replaced whole.

    Stable         it reads what it shall read, as of its epoch
    Unrevoked      it was told to give partitions up and has not said yet that it did
    Unreleased     it has come to its epoch, and waits for partitions that others have not given up
    Unknown        newer software wrote its record
"""

from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from penstock.groups.classic.classic_member import ClassicProtocol, kept_bytes_of, weight_of
from penstock.groups.consumer.assignment import EMPTY, Assignment, in_order, read
from penstock.groups.group_context import Client
from penstock.groups.records import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    CurrentTopicPartitions,
)
from penstock.groups.records import ClassicProtocol as RecordedProtocol

JOINING_EPOCH: Final = 0
LEAVING_EPOCH: Final = -1
AWAY_EPOCH: Final = -2
"""Of a static member that will be back soon."""

_MEMBER_BYTES: Final = 128
_KEPT_BYTES: Final = 1_500
"""What a member takes in memory beside texts and partitions: it is in many tables, and it is timed."""
_RECORDS_PER_MEMBER: Final = 3
"""Each has the group's and the member's id in its key."""


class MemberState(IntEnum):
    """Numbers as in records."""

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2
    UNKNOWN = 127


class Subscription(NamedTuple):
    names: tuple[str, ...] = ()
    """Sorted, each once."""
    regex: str | None = None

    @classmethod
    def of(cls, names: list[str] | tuple[str, ...], regex: str | None) -> "Subscription":
        return cls(tuple(sorted(set(names))), regex or None)


NO_SUBSCRIPTION: Final = Subscription()


class ClassicSide(NamedTuple):
    """Of a member that speaks the classic protocol."""

    session_ms: int
    protocols: tuple[ClassicProtocol, ...]

    @property
    def protocol(self) -> ClassicProtocol:
        """The one it prefers."""
        return self.protocols[0]


class About(msgspec.Struct, frozen=True):
    instance_id: str | None = None
    rack_id: str | None = None
    client: Client = Client("", "")
    subscription: Subscription = NO_SUBSCRIPTION
    rebalance_ms: int = 0
    assignor: str | None = None
    classic: ClassicSide | None = None

    def recorded(self) -> ConsumerGroupMemberMetadataValue:
        return ConsumerGroupMemberMetadataValue(
            self.instance_id,
            self.rack_id,
            self.client.client_id,
            self.client.host,
            list(self.subscription.names),
            self.subscription.regex,
            self.rebalance_ms,
            self.assignor,
            _recorded_classic(self.classic),
        )

    @classmethod
    def read_back(cls, value: ConsumerGroupMemberMetadataValue) -> "About":
        return cls(
            value.instance_id,
            value.rack_id,
            Client(value.client_id, value.client_host),
            Subscription.of(value.subscribed_topic_names, value.subscribed_topic_regex),
            max(value.rebalance_timeout_ms, 0),
            value.server_assignor,
            _classic_read_back(value.classic_member_metadata),
        )

    def weigh(self, group_id: str, member_id: str) -> int:
        """About what it takes in the log."""
        keys = _RECORDS_PER_MEMBER * (len(group_id.encode()) + len(member_id.encode()))
        told = sum(len(text.encode()) for text in self._texts() if text)
        return _MEMBER_BYTES + keys + told + (weight_of(self.classic.protocols) if self.classic else 0)

    def kept_bytes(self, member_id: str) -> int:
        """About what it takes in memory."""
        texts = sum(text.__sizeof__() for text in self._texts() if text)
        told = kept_bytes_of(self.classic.protocols) if self.classic else 0
        return _KEPT_BYTES + _RECORDS_PER_MEMBER * member_id.__sizeof__() + texts + told

    def _texts(self) -> tuple[str | None, ...]:
        names, regex = self.subscription
        return (self.instance_id, self.rack_id, *self.client, regex, self.assignor, *names)


def _recorded_classic(side: ClassicSide | None) -> ClassicMemberMetadata | None:
    if side is None:
        return None
    protocols = [RecordedProtocol(name, metadata) for name, metadata in side.protocols]
    return ClassicMemberMetadata(side.session_ms, protocols)


def _classic_read_back(value: ClassicMemberMetadata | None) -> ClassicSide | None:
    """To be one of the classic protocol, a member must know one."""
    if value is None or not value.supported_protocols:
        return None
    protocols = (ClassicProtocol(each.name, bytes(each.metadata)) for each in value.supported_protocols)
    return ClassicSide(value.session_timeout_ms, tuple(protocols))


class Position(msgspec.Struct, frozen=True):
    epoch: int = JOINING_EPOCH
    previous_epoch: int = JOINING_EPOCH
    """What it may still believe to be its epoch, if the last answer was lost."""
    state: MemberState = MemberState.STABLE
    assigned: Assignment = EMPTY
    """What it was told to read."""
    revoking: Assignment = EMPTY
    """What it may still read though it was told not to."""

    def recorded(self) -> ConsumerGroupCurrentMemberAssignmentValue:
        return ConsumerGroupCurrentMemberAssignmentValue(
            self.epoch,
            self.previous_epoch,
            self.state,
            [CurrentTopicPartitions(*topic) for topic in in_order(self.assigned)],
            [CurrentTopicPartitions(*topic) for topic in in_order(self.revoking)],
        )

    @classmethod
    def read_back(cls, value: ConsumerGroupCurrentMemberAssignmentValue) -> "Position":
        is_known = value.state in MemberState.__members__.values()
        return cls(
            value.member_epoch,
            value.previous_member_epoch,
            MemberState(value.state) if is_known else MemberState.UNKNOWN,
            read(value.assigned_partitions),
            read(value.partitions_pending_revocation),
        )


NOWHERE: Final = Position()


class ConsumerMember(msgspec.Struct, frozen=True):
    member_id: str
    about: About = About()
    position: Position = NOWHERE

    @property
    def epoch(self) -> int:
        return self.position.epoch

    @property
    def is_away(self) -> bool:
        return self.position.epoch == AWAY_EPOCH

    def is_reconciled(self, assignment_epoch: int) -> bool:
        return self.position.state is MemberState.STABLE and self.position.epoch == assignment_epoch

    def with_about(self, about: About) -> "ConsumerMember":
        return ConsumerMember(self.member_id, about, self.position)

    def with_position(self, position: Position) -> "ConsumerMember":
        return ConsumerMember(self.member_id, self.about, position)
