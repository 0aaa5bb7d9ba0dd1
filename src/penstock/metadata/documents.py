"""The documents stored under each key: small JSON values that carry their version.

Rule 1: a field is never added, removed or reinterpreted without a new version. An old broker that rewrote a
        document with fields unknown to it would lose them.
Rule 2: a document that cannot be read is CorruptData naming the key. Nothing is guessed or skipped.
Rule 3: the newest version is written; older versions are read and converted to the newest
        (`_OLD_VERSION_DECODERS`).
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from penstock.errors import CorruptData
from penstock.metadata.keys import topic_id_from_text
from penstock.types import TopicId

Count = Annotated[int, msgspec.Meta(ge=1)]
Natural = Annotated[int, msgspec.Meta(ge=0)]
NodeOrNone = Annotated[int, msgspec.Meta(ge=-1)]
Nodes = tuple[Natural, ...]
NonEmptyNodes = Annotated[Nodes, msgspec.Meta(min_length=1)]


class MetadataValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="version", tag=1):
    """A document of version 1, unless its class declares another version."""


class TopicValue(MetadataValue, frozen=True, tag=2, omit_defaults=True):
    topic_id: str
    partitions: Count
    """Rewritten with every growth, so that a growth and a deletion cannot both succeed."""
    internal: bool
    created_ms: int
    overrides: dict[str, str]
    min_isr_changes: Natural = 0
    """Number of changes of this topic's min.insync.replicas. See `PartitionValue.min_isr_changes`."""


class PartitionValue(MetadataValue, frozen=True, tag=2, omit_defaults=True):
    replicas: NonEmptyNodes
    """During a reassignment: the target replicas, the preferred leader first, then `removing`."""
    leader: NodeOrNone
    leader_epoch: Natural
    isr: Nodes
    partition_epoch: Natural
    elr: Nodes = ()
    """Eligible leaders: no longer in sync, but nothing was committed without them."""
    last_known_elr: Nodes = ()
    adding: Nodes = ()
    removing: Nodes = ()
    is_recovering: bool = False
    """Set by an unclean election: the leader may lack acknowledged records."""
    min_isr_changes: Natural = 0
    """The changes of min.insync.replicas, counted over topic and cluster, when `elr` was written.

    The high watermark stood still under the minimum of that time only. So if the count has changed since, no
    member of `elr` is eligible.
    """


class EndpointValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    host: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]


class BrokerValue(MetadataValue, frozen=True, tag=2, omit_defaults=True):
    rack: str | None
    endpoints: dict[str, EndpointValue]
    """Endpoints by listener name."""
    incarnation: str = ""
    """Incarnation of the process with these endpoints. Empty: an embedded broker, which has no session."""
    is_draining: bool = False
    features: dict[str, Natural] = {}
    admitted_epoch: Natural = 0
    """The broker epoch that may lead and be in sync: the revision of a session key."""
    directory_id: str = ""
    """Directory id of the disk that this epoch had. Empty before the first admission."""
    flushes_before_ack: bool = True
    """Whether that epoch flushed before acknowledging, for topics that leave the choice to the broker."""
    is_new: bool = False
    """Whether the broker has joined, and has not yet been given its share of partitions."""
    start_id: str = ""
    """Start id of the process that had this epoch."""


class BrokerSessionValue(MetadataValue, frozen=True, omit_defaults=True):
    """Written once, tied to the broker's session. The revision of this document is the broker epoch."""

    incarnation: str
    directory_id: str
    clean_epoch: Natural = 0
    """The broker epoch that stopped cleanly before this start; 0 if the stop was not clean."""
    flushes_before_ack: bool = True
    start_id: str = ""
    """Drawn by every process, and written to its disk before it is registered here."""
    lock: str = ""
    """Globally unique name of the lock on the broker's data directory. Empty: the lock has no name."""
    has_lost_all: bool = False
    """Whether nothing on the broker's disk counts as what it once held."""
    lost: dict[str, tuple[Natural, ...]] = {}
    """By topic id: the partitions that the broker once held, and no longer holds."""


class ControllerValue(MetadataValue, frozen=True):
    """The current controller, tied to its session. The revision of this document is the controller's term."""

    broker_id: Natural


class BrokerConfigValue(MetadataValue, frozen=True, tag=2, omit_defaults=True):
    overrides: dict[str, str]
    min_isr_changes: Natural = 0
    """Number of changes of min.insync.replicas in the cluster-wide defaults, as in a topic."""


class GroupConfigValue(MetadataValue, frozen=True):
    overrides: dict[str, str]


class ProducerIdsValue(MetadataValue, frozen=True):
    next_id: Natural
    """The lowest id not handed out yet. Ids below it are never handed out again."""


class FeaturesValue(MetadataValue, frozen=True):
    levels: dict[str, Count]
    """By feature: the level that every broker of the cluster supports, and may write."""


class _TopicValue1(MetadataValue, frozen=True):
    topic_id: str
    partitions: Count
    internal: bool
    created_ms: int
    overrides: dict[str, str]

    def upgraded(self) -> TopicValue:
        return TopicValue(self.topic_id, self.partitions, self.internal, self.created_ms, self.overrides)


class _PartitionValue1(MetadataValue, frozen=True):
    replicas: NonEmptyNodes
    leader: NodeOrNone
    leader_epoch: Natural
    isr: Nodes
    partition_epoch: Natural

    def upgraded(self) -> PartitionValue:
        return PartitionValue(self.replicas, self.leader, self.leader_epoch, self.isr, self.partition_epoch)


class _BrokerValue1(MetadataValue, frozen=True):
    rack: str | None
    endpoints: dict[str, EndpointValue]

    def upgraded(self) -> BrokerValue:
        return BrokerValue(self.rack, self.endpoints)


class _BrokerConfigValue1(MetadataValue, frozen=True):
    overrides: dict[str, str]

    def upgraded(self) -> BrokerConfigValue:
        return BrokerConfigValue(self.overrides)


V = TypeVar("V", bound=MetadataValue)
Value = MetadataValue


class _Versioned(msgspec.Struct):
    version: int


class _VersionDecoder(NamedTuple):
    prefix: bytes
    """How every document of this version begins. The decoder alone would accept a missing version."""
    read: Callable[[bytes], Any]


def _version(kind: type[MetadataValue]) -> int:
    version = kind.__struct_config__.tag
    assert isinstance(version, int)
    return version


def _version_prefix(kind: type[MetadataValue]) -> bytes:
    return b'{"version":%d,' % _version(kind)


def _old_version_decoder(kind: Any) -> _VersionDecoder:
    decoder = msgspec.json.Decoder(kind)
    return _VersionDecoder(_version_prefix(kind), lambda data: decoder.decode(data).upgraded())


_KINDS: tuple[type[MetadataValue], ...] = (
    TopicValue,
    PartitionValue,
    BrokerValue,
    BrokerSessionValue,
    ControllerValue,
    BrokerConfigValue,
    GroupConfigValue,
    ProducerIdsValue,
    FeaturesValue,
)
_OLD_VERSION_DECODERS: dict[type[MetadataValue], _VersionDecoder] = {
    TopicValue: _old_version_decoder(_TopicValue1),
    PartitionValue: _old_version_decoder(_PartitionValue1),
    BrokerValue: _old_version_decoder(_BrokerValue1),
    BrokerConfigValue: _old_version_decoder(_BrokerConfigValue1),
}
_NEWEST_VERSION_DECODERS = {
    kind: _VersionDecoder(_version_prefix(kind), msgspec.json.Decoder(kind).decode) for kind in _KINDS
}
_encoder = msgspec.json.Encoder()


def encode(value: MetadataValue) -> bytes:
    return _encoder.encode(value)


def decode(kind: type[V], key: str, data: bytes) -> V:
    """The value stored under `key`, or CorruptData naming the key."""
    reader = _NEWEST_VERSION_DECODERS[kind]
    try:
        # A comparison of bytes instead of a second parse: nearly all documents have the newest version.
        if not data.startswith(reader.prefix):
            reader = _decoder_of_old_version(kind, key, data)
        value = reader.read(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptData(f"metadata key {key}: {error}") from error
    assert isinstance(value, kind)
    return value


def topic_id_of(value: TopicValue, key: str) -> TopicId:
    return parse_topic_id(value.topic_id, key)


def parse_topic_id(text: str, key: str) -> TopicId:
    """The topic id written in the value of a key; CorruptData naming the key if the text is not a topic
    id.
    """
    try:
        return topic_id_from_text(text)
    except ValueError as error:
        raise CorruptData(f"metadata key {key}: {error}") from error


def _decoder_of_old_version(kind: type[MetadataValue], key: str, data: bytes) -> _VersionDecoder:
    older = _OLD_VERSION_DECODERS.get(kind)
    if older is not None and data.startswith(older.prefix):
        return older
    version = msgspec.json.decode(data, type=_Versioned).version
    newest = _version(kind)
    if version == newest or (older is not None and version == 1):
        raise CorruptData(f"metadata key {key}: the value does not begin with its version")
    raise CorruptData(f"metadata key {key}: version {version} is not known here; version {newest} is")
