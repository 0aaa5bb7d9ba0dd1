# ruff: noqa: RUF012 - msgspec makes a new empty list for every instance
"""What consumers tell each other through a classic group: a version (int16) and its fields.

The coordinator ferries these bytes unread. It looks inside where it must: whose topics may be
forgotten (OffsetDelete, expiry), and when a group moves from one group protocol to the other.

Rule 1: a version newer than ours is read as the newest we know, as all clients do: newer versions
        only add fields at the end. What follows the known fields is ignored for the same reason.
Rule 2: where only the topics matter, the fields of version 0 are read and no others, as in Kafka: some
        clients declare version 1 and do not write the field that it adds.
Rule 3: bytes that cannot be read are None. They are any client's to choose and the client's affair:
        what they mean for a group, its caller says.
"""

from __future__ import annotations

from struct import Struct as Layout
from typing import Annotated, Final, TypeVar, cast

from penstock.errors import ProtocolError
from penstock.protocol.compiler import decode, encoder
from penstock.protocol.schema import Bytes, Int32, String, Struct, versions
from penstock.types import Buffer

PROTOCOL_TYPE: Final = "consumer"
VERSION_MAX: Final = 3

_PREFIX: Final = Layout(">h")


class ConsumerTopicPartitions(Struct):
    topic: String = ""
    partitions: list[Int32] = []


class ConsumerProtocolSubscription(Struct):
    """What a member wants to read, and what it held when it asked to join."""

    topics: list[String] = []
    user_data: Bytes | None = None
    owned_partitions: Annotated[list[ConsumerTopicPartitions], versions(1)] = []
    generation_id: Annotated[Int32, versions(2)] = -1
    rack_id: Annotated[String | None, versions(3)] = None


class ConsumerProtocolAssignment(Struct):
    """What a member shall read."""

    assigned_partitions: list[ConsumerTopicPartitions] = []
    user_data: Bytes | None = None


def decode_subscription(data: Buffer) -> ConsumerProtocolSubscription | None:
    return _decode(ConsumerProtocolSubscription, data)


def decode_subscribed_topics(data: Buffer) -> list[str] | None:
    """The topics of a subscription, whatever version it declares."""
    if len(data) < _PREFIX.size:
        return None
    try:
        subscription, _ = decode(ConsumerProtocolSubscription, 0, False, data, _PREFIX.size)
    except ProtocolError:
        return None
    return subscription.topics


def decode_assignment(data: Buffer) -> ConsumerProtocolAssignment | None:
    return _decode(ConsumerProtocolAssignment, data)


def decode_version(data: Buffer) -> int | None:
    """The version as the client gave it. What is encoded for the client shall have the same."""
    if len(data) < _PREFIX.size:
        return None
    version: int = _PREFIX.unpack_from(data)[0]
    return version if version >= 0 else None


def encode_assignment(assignment: ConsumerProtocolAssignment, version: int = VERSION_MAX) -> bytes:
    """The bytes of an assignment for a client of this version, or in the newest that we know."""
    assert version >= 0, f"version {version} is none that `decode_version` gives"
    known = min(version, VERSION_MAX)
    (body,) = encoder(ConsumerProtocolAssignment, known, False)(assignment)
    return _PREFIX.pack(known) + cast(bytes, body)


_Decoded = TypeVar("_Decoded", bound=Struct)


def _decode(kind: type[_Decoded], data: Buffer) -> _Decoded | None:
    version = decode_version(data)
    if version is None:
        return None
    try:
        decoded, _ = decode(kind, min(version, VERSION_MAX), False, data, _PREFIX.size)
    except ProtocolError:
        return None
    return decoded
