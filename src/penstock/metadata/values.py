"""What is stored under each key: small JSON documents that say their version.

Rule 1: a field is never added, removed or read differently without a new version. An old broker
        that wrote back a document it only half understood would lose the other half.
Rule 2: what cannot be read is CorruptData naming the key. Nothing is guessed or skipped.
"""

from typing import Annotated, TypeVar

import msgspec

from penstock.errors import CorruptData
from penstock.metadata.keys import topic_id_from_text
from penstock.types import TopicId

VERSION = 1

Count = Annotated[int, msgspec.Meta(ge=1)]
Natural = Annotated[int, msgspec.Meta(ge=0)]
NodeOrNone = Annotated[int, msgspec.Meta(ge=-1)]


class TopicValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="version", tag=VERSION):
    topic_id: str
    partitions: Count
    """Rewritten with every growth, so that a growth and a deletion cannot both succeed."""
    internal: bool
    created_ms: int
    overrides: dict[str, str]


class PartitionValue(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="version", tag=VERSION
):
    replicas: Annotated[tuple[Natural, ...], msgspec.Meta(min_length=1)]
    leader: NodeOrNone
    leader_epoch: Natural
    isr: tuple[Natural, ...]
    partition_epoch: Natural


class EndpointValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    host: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]


class BrokerValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="version", tag=VERSION):
    rack: str | None
    endpoints: dict[str, EndpointValue]
    """By listener name."""


class BrokerConfigValue(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="version", tag=VERSION
):
    overrides: dict[str, str]


class GroupConfigValue(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="version", tag=VERSION
):
    overrides: dict[str, str]


class ProducerIdsValue(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="version", tag=VERSION
):
    next_id: Natural
    """No id below this one will be handed out again."""


Value = TopicValue | PartitionValue | BrokerValue | BrokerConfigValue | GroupConfigValue | ProducerIdsValue
V = TypeVar(
    "V", TopicValue, PartitionValue, BrokerValue, BrokerConfigValue, GroupConfigValue, ProducerIdsValue
)


class _Versioned(msgspec.Struct):
    version: int


_decoders: dict[type[Value], msgspec.json.Decoder[Value]] = {
    kind: msgspec.json.Decoder(kind)
    for kind in (
        TopicValue,
        PartitionValue,
        BrokerValue,
        BrokerConfigValue,
        GroupConfigValue,
        ProducerIdsValue,
    )
}
_encoder = msgspec.json.Encoder()
_BEGINNING = b'{"version":%d,' % VERSION
"""Of every document that `encode` makes. The decoder alone would let a missing version pass."""


def encode(value: Value) -> bytes:
    return _encoder.encode(value)


def decode(kind: type[V], key: str, data: bytes) -> V:
    """The value stored under `key`, or CorruptData naming it."""
    try:
        if not data.startswith(_BEGINNING):
            raise _stranger(key, data)
        value = _decoders[kind].decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptData(f"metadata key {key}: {error}") from error
    assert isinstance(value, kind)
    return value


def topic_id_of(value: TopicValue, key: str) -> TopicId:
    try:
        return topic_id_from_text(value.topic_id)
    except ValueError as error:
        raise CorruptData(f"metadata key {key}: {error}") from error


def _stranger(key: str, data: bytes) -> CorruptData:
    version = msgspec.json.decode(data, type=_Versioned).version
    if version == VERSION:
        return CorruptData(f"metadata key {key}: the value does not begin with its version")
    return CorruptData(f"metadata key {key}: version {version} is not known here; version {VERSION} is")
