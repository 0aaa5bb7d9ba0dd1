"""The documents stored under each key: small JSON values that carry their version.

The image (`cluster_image.py`) extends most of these types by what the key adds: its revision, the broker id.

Rule 1: a field is never added, removed or reinterpreted without a new version. An old broker that rewrote a
        document with fields unknown to it would lose them.
Rule 2: a document that cannot be read is CorruptData naming the key. Nothing is guessed or skipped.
"""

from collections.abc import Mapping
from functools import cache
from typing import Annotated, TypeVar

import msgspec
from msgspec.structs import astuple

from penstock.errors import CorruptData
from penstock.host.metadata_store import ABSENT
from penstock.metadata.keys import TOPIC_ID_TEXT

Count = Annotated[int, msgspec.Meta(ge=1)]
Natural = Annotated[int, msgspec.Meta(ge=0)]
NodeOrNone = Annotated[int, msgspec.Meta(ge=-1)]
Nodes = tuple[Natural, ...]
NonEmptyNodes = Annotated[Nodes, msgspec.Meta(min_length=1)]
TopicIdText = Annotated[str, msgspec.Meta(pattern=TOPIC_ID_TEXT)]

VERSION = 1


class MetadataValue(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="version",
    tag=VERSION,
):
    """A document."""


class TopicValue(MetadataValue, frozen=True):
    topic_id: TopicIdText
    partitions: Count
    """Rewritten with every growth, so that a growth and a deletion cannot both succeed."""
    internal: bool
    created_ms: int
    overrides: dict[str, str]
    min_isr_changes: Natural = 0
    """Number of changes of this topic's min.insync.replicas. See `PartitionValue.min_isr_changes`."""


class PartitionValue(MetadataValue, frozen=True):
    replicas: NonEmptyNodes
    """During a reassignment: the target replicas, the preferred leader first, then `removing`."""
    leader: NodeOrNone
    """-1 if the partition has no leader."""
    leader_epoch: Natural
    isr: Nodes
    partition_epoch: Natural
    elr: Nodes = ()
    """The ELR as written: no longer in sync, but nothing was committed without them. Which of its members are
    still eligible: `durability.eligible_leaders`."""
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


class Endpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    host: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]


class BrokerValue(MetadataValue, frozen=True):
    rack: str | None
    endpoints: Mapping[str, Endpoint]
    """Endpoints by listener name."""
    incarnation: str = ""
    """Incarnation of the process with these endpoints. Empty: an embedded broker, which has no session."""
    is_draining: bool = False
    features: Mapping[str, Natural] = {}
    admitted_epoch: Natural = ABSENT
    """The broker epoch that may lead and be in sync: the revision of a session key."""
    directory_id: str = ""
    """Directory id of the disk that this epoch had. Empty before the first admission."""
    flushes_before_ack: bool = True
    """Whether that epoch flushed before acknowledging, for topics that leave the choice to the broker."""
    is_new: bool = False
    """Whether the broker has joined, and has not yet been given its share of partitions."""
    start_id: str = ""
    """Start id of the process that had this epoch."""


class BrokerSessionValue(MetadataValue, frozen=True):
    """Written once, tied to the broker's session. The revision of this document is the broker epoch."""

    incarnation: str
    """Drawn again for every session."""
    directory_id: str
    """Drawn when the data directory was created."""
    clean_epoch: Natural = ABSENT
    """The admitted broker epoch that stopped cleanly on this data directory, or ABSENT."""
    flushes_before_ack: bool = True
    """Whether the broker flushes before it acknowledges, for topics that leave the choice to the broker."""
    start_id: str = ""
    """Drawn by every process, and written to its disk before it is registered here."""
    lock: str = ""
    """Globally unique name of the lock on the broker's data directory. Empty: the lock has no name."""
    has_lost_all: bool = False
    """Whether nothing on the broker's disk counts as what it once held."""
    lost: Mapping[TopicIdText, tuple[Natural, ...]] = {}
    """By topic id: the partitions that the broker once held, and no longer holds."""


class UnreachableBrokersValue(MetadataValue, frozen=True):
    """Brokers that one broker cannot reach, tied to the session of the broker that reports them."""

    broker_epoch: Natural
    """The broker epoch of the broker that reports."""
    brokers: Mapping[Natural, Natural]
    """By the id of a broker that cannot be reached: its broker epoch."""
    recovering: Mapping[Natural, Natural] = {}
    """The same of brokers that can be reached again, and could not a moment ago."""


class ControllerValue(MetadataValue, frozen=True):
    """The current controller, tied to its session. The revision of this document is the controller's term."""

    broker_id: Natural


class OverridesValue(MetadataValue, frozen=True):
    """Dynamic settings of a broker, of all brokers (the defaults), or of a group."""

    overrides: Mapping[str, str]
    min_isr_changes: Natural = 0
    """Number of changes of min.insync.replicas in the cluster-wide defaults, as in a topic."""


class ProducerIdsValue(MetadataValue, frozen=True):
    next_id: Natural
    """The lowest id not handed out yet. Ids below it are never handed out again."""


class FeaturesValue(MetadataValue, frozen=True):
    levels: Mapping[str, Count]
    """By feature: the level that every broker of the cluster supports, and may write."""


V = TypeVar("V", bound=MetadataValue)

# How every document begins. The decoder alone would accept a document without a version.
_BEGINNING = b'{"version":%d,' % VERSION
_encoder = msgspec.json.Encoder()


class _Versioned(msgspec.Struct):
    version: int


def encode_document(value: MetadataValue) -> bytes:
    """The document, without the fields that a type of the image adds to it."""
    kind = _document_type(type(value))
    if kind is not type(value):
        value = kind(*(getattr(value, field) for field in kind.__struct_fields__))
    return _encoder.encode(value)


def decode_document(kind: type[V], key: str, data: bytes) -> V:
    """The value stored under `key`, or CorruptData naming the key."""
    try:
        if not data.startswith(_BEGINNING):
            raise CorruptData(f"metadata key {key}: {_version_problem(data)}")
        value: V = _decoder(kind).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptData(f"metadata key {key}: {error}") from error
    return value


def decode_as(kind: type[V], key: str, data: bytes, **added: int) -> V:
    """A value of the image: the document stored under `key`, with the fields that its type adds."""
    return kind(*astuple(decode_document(_document_type(kind), key, data)), **added)


def _version_problem(data: bytes) -> str:
    version = msgspec.json.decode(data, type=_Versioned).version
    if version == VERSION:
        return "the value does not begin with its version"
    return f"version {version} is not known here; version {VERSION} is"


@cache
def _document_type(kind: type[MetadataValue]) -> type[MetadataValue]:
    """The document that a type of the image extends; a document's own type."""
    return kind.__mro__[kind.__mro__.index(MetadataValue) - 1]


@cache
def _decoder(kind: type[V]) -> msgspec.json.Decoder[V]:
    return msgspec.json.Decoder(kind)
