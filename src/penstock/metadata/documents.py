"""What is stored under each key: small JSON documents that say their version.

Rule 1: a field is never added, removed or read differently without a new version. An old broker
        that wrote back a document it only half understood would lose the other half.
Rule 2: what cannot be read is CorruptData naming the key. Nothing is guessed or skipped.
Rule 3: the newest version is written; older ones are read, as the newest (`_OLDER`).
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
Replicas = Annotated[Nodes, msgspec.Meta(min_length=1)]


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="version", tag=1):
    """Of version 1, unless it says otherwise."""


class TopicValue(Document, frozen=True, tag=2, omit_defaults=True):
    topic_id: str
    partitions: Count
    """Rewritten with every growth, so that a growth and a deletion cannot both succeed."""
    internal: bool
    created_ms: int
    overrides: dict[str, str]
    min_isr_changes: Natural = 0
    """How often min.insync.replicas was changed here. See `PartitionValue.min_isr_changes`."""


class PartitionValue(Document, frozen=True, tag=2, omit_defaults=True):
    replicas: Replicas
    """While they are being reassigned: those to be, the preferred leader first, then `removing`."""
    leader: NodeOrNone
    leader_epoch: Natural
    isr: Nodes
    partition_epoch: Natural
    elr: Nodes = ()
    """Not in sync any more, but nothing was committed without them: eligible leaders."""
    last_known_elr: Nodes = ()
    adding: Nodes = ()
    removing: Nodes = ()
    is_recovering: bool = False
    """The leader may lack what was acknowledged."""
    min_isr_changes: Natural = 0
    """Of topic and cluster together, when `elr` was written. Since the high watermark stood still
    under the minimum of that time alone, another number means that nobody in `elr` is eligible."""


class EndpointValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    host: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]


class BrokerValue(Document, frozen=True, tag=2, omit_defaults=True):
    rack: str | None
    endpoints: dict[str, EndpointValue]
    """By listener name."""
    incarnation: str = ""
    """Of the process that listens there. Empty: an embedded broker, which has no session."""
    is_draining: bool = False
    features: dict[str, Natural] = {}
    admitted_epoch: Natural = 0
    """The broker epoch that may lead and be in sync: the revision of a live key."""
    directory_id: str = ""
    """Of the disk that this epoch had. Empty before the first admission."""
    flushes_before_ack: bool = True
    """Whether that epoch did so for topics that leave it to the broker."""
    is_new: bool = False
    """It has joined, and has not been given its share of partitions yet."""
    start_id: str = ""
    """Of the process that had this epoch."""


class LiveValue(Document, frozen=True, omit_defaults=True):
    """Written once, tied to the broker's session. Its revision is the broker's epoch."""

    incarnation: str
    directory_id: str
    clean_epoch: Natural = 0
    """Of the stop before this start, if that was clean: the broker epoch that stopped."""
    flushes_before_ack: bool = True
    start_id: str = ""
    """Drawn by every process, and on its disk before it says so here."""
    lock: str = ""
    """Names the lock on its data directory, among all locks there ever were. Empty: it cannot be named."""
    has_lost_all: bool = False
    """Nothing on its disk counts as what it had."""
    lost: dict[str, tuple[Natural, ...]] = {}
    """By topic id: the partitions that it once had, and has not now."""


class ControllerValue(Document, frozen=True):
    """Tied to a session. Its revision is the controller's term."""

    broker_id: Natural


class BrokerConfigValue(Document, frozen=True, tag=2, omit_defaults=True):
    overrides: dict[str, str]
    min_isr_changes: Natural = 0
    """Of the default for all brokers, as of a topic."""


class GroupConfigValue(Document, frozen=True):
    overrides: dict[str, str]


class ProducerIdsValue(Document, frozen=True):
    next_id: Natural
    """No id below this one will be handed out again."""


class FeaturesValue(Document, frozen=True):
    levels: dict[str, Count]
    """By feature: what every broker of the cluster understands, and may write."""


class _TopicValue1(Document, frozen=True):
    topic_id: str
    partitions: Count
    internal: bool
    created_ms: int
    overrides: dict[str, str]

    def renewed(self) -> TopicValue:
        return TopicValue(self.topic_id, self.partitions, self.internal, self.created_ms, self.overrides)


class _PartitionValue1(Document, frozen=True):
    replicas: Replicas
    leader: NodeOrNone
    leader_epoch: Natural
    isr: Nodes
    partition_epoch: Natural

    def renewed(self) -> PartitionValue:
        return PartitionValue(self.replicas, self.leader, self.leader_epoch, self.isr, self.partition_epoch)


class _BrokerValue1(Document, frozen=True):
    rack: str | None
    endpoints: dict[str, EndpointValue]

    def renewed(self) -> BrokerValue:
        return BrokerValue(self.rack, self.endpoints)


class _BrokerConfigValue1(Document, frozen=True):
    overrides: dict[str, str]

    def renewed(self) -> BrokerConfigValue:
        return BrokerConfigValue(self.overrides)


V = TypeVar("V", bound=Document)
Value = Document


class _Versioned(msgspec.Struct):
    version: int


class _Reader(NamedTuple):
    beginning: bytes
    """Of every document of this version. The decoder alone would let a missing version pass."""
    read: Callable[[bytes], Any]


def _version(kind: type[Document]) -> int:
    version = kind.__struct_config__.tag
    assert isinstance(version, int)
    return version


def _beginning(kind: type[Document]) -> bytes:
    return b'{"version":%d,' % _version(kind)


def _older(kind: Any) -> _Reader:
    decoder = msgspec.json.Decoder(kind)
    return _Reader(_beginning(kind), lambda data: decoder.decode(data).renewed())


_KINDS: tuple[type[Document], ...] = (
    TopicValue,
    PartitionValue,
    BrokerValue,
    LiveValue,
    ControllerValue,
    BrokerConfigValue,
    GroupConfigValue,
    ProducerIdsValue,
    FeaturesValue,
)
_OLDER: dict[type[Document], _Reader] = {
    TopicValue: _older(_TopicValue1),
    PartitionValue: _older(_PartitionValue1),
    BrokerValue: _older(_BrokerValue1),
    BrokerConfigValue: _older(_BrokerConfigValue1),
}
_NEWEST = {kind: _Reader(_beginning(kind), msgspec.json.Decoder(kind).decode) for kind in _KINDS}
_encoder = msgspec.json.Encoder()


def encode(value: Document) -> bytes:
    return _encoder.encode(value)


def decode(kind: type[V], key: str, data: bytes) -> V:
    """The value stored under `key`, or CorruptData naming it."""
    reader = _NEWEST[kind]
    try:
        if not data.startswith(reader.beginning):
            reader = _reader_of_older(kind, key, data)
        value = reader.read(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptData(f"metadata key {key}: {error}") from error
    assert isinstance(value, kind)
    return value


def topic_id_of(value: TopicValue, key: str) -> TopicId:
    return parsed_topic_id(value.topic_id, key)


def parsed_topic_id(text: str, key: str) -> TopicId:
    """As it is written in the value of a key; CorruptData naming that if it is none."""
    try:
        return topic_id_from_text(text)
    except ValueError as error:
        raise CorruptData(f"metadata key {key}: {error}") from error


def _reader_of_older(kind: type[Document], key: str, data: bytes) -> _Reader:
    older = _OLDER.get(kind)
    if older is not None and data.startswith(older.beginning):
        return older
    version = msgspec.json.decode(data, type=_Versioned).version
    newest = _version(kind)
    if version == newest or (older is not None and version == 1):
        raise CorruptData(f"metadata key {key}: the value does not begin with its version")
    raise CorruptData(f"metadata key {key}: version {version} is not known here; version {newest} is")
