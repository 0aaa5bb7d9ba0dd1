"""A member of a classic group: its metadata and its assignment."""

from collections.abc import Iterable
from typing import NamedTuple

from penstock.groups.group_context import ClientInfo
from penstock.groups.memory_estimates import MEMBER_BYTES, text_memory, texts_memory
from penstock.groups.records import MemberMetadata
from penstock.protocol.messages.describe_groups import DescribedGroupMember

_ENTRY_BYTES = 32
"""Overhead of a member or a protocol beside its strings, so that many empty ones still count."""
_PROTOCOL_MEMORY_BYTES = 200
"""Estimated memory of a protocol beside its name and metadata."""


class ClassicProtocol(NamedTuple):
    """A protocol (assignor) that a member supports, and the member's metadata for it."""

    name: str
    metadata: bytes


class ClassicTimeouts(NamedTuple):
    session_ms: int
    """Without a heartbeat for this long, a member is removed."""
    rebalance_ms: int
    """Time that a member has to rejoin in a rebalance."""


def protocols_metadata_bytes(protocols: Iterable[ClassicProtocol]) -> int:
    return sum(_ENTRY_BYTES + len(name.encode()) + len(metadata) for name, metadata in protocols)


def protocols_memory(protocols: Iterable[ClassicProtocol]) -> int:
    return sum(_PROTOCOL_MEMORY_BYTES + text_memory(name) + len(metadata) for name, metadata in protocols)


class ClassicMember:
    __slots__ = (
        "assignment",
        "client",
        "instance_id",
        "is_new",
        "last_assigned",
        "member_id",
        "memory_bytes",
        "metadata_bytes",
        "protocols",
        "timeouts",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client: ClientInfo,
        protocols: Iterable[ClassicProtocol],
        timeouts: ClassicTimeouts,
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.assignment = b""
        """Assignment in the current generation."""
        self.last_assigned = b""
        """Last assignment that the member may have received; during a rebalance it may still read it."""
        self.is_new = False
        """True: the member waits for the reply to its first JoinGroup, and may not know its id yet."""
        self.update_metadata(client, protocols, timeouts)

    def update_metadata(
        self, client: ClientInfo, protocols: Iterable[ClassicProtocol], timeouts: ClassicTimeouts
    ) -> None:
        """Store the metadata that every JoinGroup carries."""
        self.client = client
        self.protocols = tuple(protocols)
        """Protocols in the member's order of preference."""
        self.timeouts = timeouts
        self._update_sizes()

    def assign(self, assignment: bytes) -> None:
        self.assignment = self.last_assigned = assignment
        self._update_sizes()

    def rename(self, member_id: str) -> None:
        self.member_id = member_id
        self._update_sizes()

    def _update_sizes(self) -> None:
        self.metadata_bytes = self._id_bytes() + protocols_metadata_bytes(self.protocols)
        """Estimated size in the log."""
        texts = texts_memory(self._texts()) + protocols_memory(self.protocols)
        self.memory_bytes = MEMBER_BYTES + texts + len(self.last_assigned)
        """Estimated memory."""

    def _id_bytes(self) -> int:
        return _ENTRY_BYTES + sum(len(text.encode()) for text in self._texts())

    def _texts(self) -> tuple[str, ...]:
        return (self.member_id, self.instance_id or "", self.client.client_id, self.client.host)

    def record_bytes(self, protocol: str | None) -> int:
        """Estimated size in the group's record, without the assignment."""
        return self._id_bytes() + len(self.metadata(protocol))

    def metadata(self, protocol: str | None) -> bytes:
        """Metadata for this protocol; empty if the member does not support it."""
        return next((known.metadata for known in self.protocols if known.name == protocol), b"")

    def names(self) -> set[str]:
        return {protocol.name for protocol in self.protocols}

    def vote(self, candidates: set[str]) -> str:
        return next(protocol.name for protocol in self.protocols if protocol.name in candidates)

    def described(self, protocol: str | None) -> DescribedGroupMember:
        return DescribedGroupMember(
            self.member_id,
            self.instance_id,
            self.client.client_id,
            self.client.host,
            self.metadata(protocol),
            self.assignment,
        )

    def to_value(self, protocol: str | None) -> MemberMetadata:
        return MemberMetadata(
            self.member_id,
            self.instance_id,
            self.client.client_id,
            self.client.host,
            self.timeouts.rebalance_ms,
            self.timeouts.session_ms,
            self.metadata(protocol),
            self.assignment,
        )

    @classmethod
    def from_value(cls, record: MemberMetadata, protocol: str) -> "ClassicMember":
        session_ms, rebalance_ms = record.session_timeout_ms, record.rebalance_timeout_ms
        member = cls(
            record.member_id,
            record.group_instance_id,
            ClientInfo(record.client_id, record.client_host),
            (ClassicProtocol(protocol, record.subscription),),
            # Version 0 of the record has no rebalance timeout.
            ClassicTimeouts(session_ms, rebalance_ms if rebalance_ms >= 0 else session_ms),
        )
        member.assign(record.assignment)
        return member
