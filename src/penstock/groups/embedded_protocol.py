# ruff: noqa: RUF012 - msgspec makes a new empty list for every instance
"""The embedded protocol of consumers in a classic group: subscriptions and assignments.

Each message is a version (int16) and its fields. The coordinator passes these bytes on without reading
them, with two exceptions: it reads the subscribed topics before it deletes offsets (OffsetDelete, expiry),
and both messages when a group changes its group protocol.

Rule 1: a version newer than ours is read as the newest that we know, as all clients do: newer versions only
        add fields at the end. Bytes after the known fields are ignored for the same reason.
Rule 2: where only the topics matter, only the fields of version 0 are read, as in Kafka: some clients
        declare version 1 and do not write the field that it adds.
Rule 3: bytes that cannot be read decode to None. A client may send any bytes; the caller decides what
        unreadable bytes mean for the group.
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
    """Subscription of a member, and the partitions that it owned when it sent JoinGroup."""

    topics: list[String] = []
    user_data: Bytes | None = None
    owned_partitions: Annotated[list[ConsumerTopicPartitions], versions(1)] = []
    generation_id: Annotated[Int32, versions(2)] = -1
    rack_id: Annotated[String | None, versions(3)] = None


class ConsumerProtocolAssignment(Struct):
    """Partitions that are assigned to a member."""

    assigned_partitions: list[ConsumerTopicPartitions] = []
    user_data: Bytes | None = None


def decode_subscription(data: Buffer) -> ConsumerProtocolSubscription | None:
    return _decode(ConsumerProtocolSubscription, data)


def decode_subscribed_topics(data: Buffer) -> list[str] | None:
    """Topics of a subscription, whatever version it declares."""
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
    """Version of a client's message, as sent. What is encoded for that client must have the same version."""
    if len(data) < _PREFIX.size:
        return None
    version: int = _PREFIX.unpack_from(data)[0]
    return version if version >= 0 else None


def encode_assignment(assignment: ConsumerProtocolAssignment, version: int = VERSION_MAX) -> bytes:
    """Encode an assignment for a client of this version, or in the newest version that we know."""
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
