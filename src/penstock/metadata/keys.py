"""The layout of keys in the metadata store, and the text form of topic ids.

    /penstock/cluster_id                       the id of the cluster that uses this store
    /penstock/{cluster_id}/topics/{name}
    /penstock/{cluster_id}/partitions/{topic_id}/{index}
    /penstock/{cluster_id}/brokers/{id}
    /penstock/{cluster_id}/live/{id}
    /penstock/{cluster_id}/unreachable/{id}     what broker {id} cannot reach
    /penstock/{cluster_id}/controller
    /penstock/{cluster_id}/configs/broker/{id or "default"}
    /penstock/{cluster_id}/configs/group/{group_id}
    /penstock/{cluster_id}/producer_ids/next_block
    /penstock/{cluster_id}/features

Rule 1: text chosen by users (topic names, the cluster id) is percent-encoded, so that no name contains a
        slash and none can address a key outside its own folder.
Rule 2: a key has one spelling. `parse` rejects any other with CorruptData, so that two keys never mean the
        same thing.
Rule 3: keys of kinds that are not listed here belong to other parts, and are skipped.
"""

import base64
import re
from typing import NamedTuple
from urllib.parse import quote, unquote

from penstock.errors import CorruptData
from penstock.types import NO_TOPIC_ID, TopicId

TOPIC_ID_BYTES = 16
# The last character carries two bits, so several texts would decode to the same id: one spelling is accepted.
TOPIC_ID_TEXT = r"\A[A-Za-z0-9_-]{21}[AQgw]\Z"
METADATA_TOPIC_ID = TopicId(bytes(15) + b"\x01")
"""The topic id of Kafka's own metadata log. Clients may treat it specially."""

CLUSTER_ID_KEY = "/penstock/cluster_id"
"""Outside every cluster's own keys: the first cluster that uses the store writes it, and it never changes."""

BROKER_DEFAULT = "default"


def topic_id_text(topic_id: TopicId) -> str:
    """The text form of a topic id: URL-safe base64 without padding, as Kafka's tools print it."""
    assert len(topic_id) == TOPIC_ID_BYTES
    return base64.urlsafe_b64encode(topic_id).decode("ascii").rstrip("=")


def topic_id_from_text(text: str) -> TopicId:
    """The topic id of this text. ValueError unless the text is exactly what `topic_id_text` would have
    written.
    """
    if re.search(TOPIC_ID_TEXT, text) is None:
        raise ValueError(f"{text!r} is not a topic id: 22 characters of base64")
    return TopicId(base64.urlsafe_b64decode(text + "=="))


def acceptable_topic_id(topic_id: bytes) -> bool:
    """Whether a topic may have this id.

    Zero means "no id" on the wire, one is Kafka's metadata log, and a text form that begins with a dash would
    be taken for an option on a command line.
    """
    assert len(topic_id) == TOPIC_ID_BYTES
    if topic_id in (NO_TOPIC_ID, METADATA_TOPIC_ID):
        return False
    return not topic_id_text(TopicId(topic_id)).startswith("-")


class TopicKey(NamedTuple):
    name: str


class PartitionKey(NamedTuple):
    topic_id: TopicId
    partition: int


class BrokerKey(NamedTuple):
    broker_id: int


class BrokerSessionKey(NamedTuple):
    """Exists as long as the broker's session."""

    broker_id: int


class UnreachableBrokersKey(NamedTuple):
    """Exists while this broker reports other brokers as unreachable, and has its session."""

    broker_id: int


class ControllerKey(NamedTuple):
    pass


class BrokerConfigKey(NamedTuple):
    broker_id: int | None
    """None: the cluster-wide defaults."""


class GroupConfigKey(NamedTuple):
    group_id: str


class ProducerIdsKey(NamedTuple):
    pass


class FeaturesKey(NamedTuple):
    pass


MetadataKey = (
    TopicKey
    | PartitionKey
    | BrokerKey
    | BrokerSessionKey
    | UnreachableBrokersKey
    | ControllerKey
    | BrokerConfigKey
    | GroupConfigKey
    | ProducerIdsKey
    | FeaturesKey
)


class ClusterKeys:
    """Builds and parses the keys of one cluster."""

    __slots__ = ("_ids", "controller", "features", "prefix", "producer_ids")

    def __init__(self, cluster_id: str) -> None:
        assert cluster_id, "a cluster has a name"
        self.prefix = f"/penstock/{quote(cluster_id, safe='')}/"
        self.producer_ids = f"{self.prefix}producer_ids/next_block"
        self.controller = f"{self.prefix}controller"
        self.features = f"{self.prefix}features"
        # Partitions of one topic follow each other in a snapshot: its id is decoded once.
        self._ids: dict[str, TopicId] = {}

    def topic(self, name: str) -> str:
        return f"{self.prefix}topics/{quote(name, safe='')}"

    def partition(self, topic_id: TopicId, index: int) -> str:
        return f"{self.partitions(topic_id)}{index}"

    def partitions(self, topic_id: TopicId) -> str:
        """The prefix that the keys of all partitions of a topic share, and no other key has."""
        return f"{self.prefix}partitions/{topic_id_text(topic_id)}/"

    def broker(self, broker_id: int) -> str:
        return f"{self.prefix}brokers/{broker_id}"

    def live(self, broker_id: int) -> str:
        return f"{self.prefix}live/{broker_id}"

    def unreachable(self, broker_id: int) -> str:
        return f"{self.prefix}unreachable/{broker_id}"

    def broker_config(self, broker_id: int | None) -> str:
        return f"{self.prefix}configs/broker/{BROKER_DEFAULT if broker_id is None else broker_id}"

    def group_config(self, group_id: str) -> str:
        return f"{self.prefix}configs/group/{quote(group_id, safe='')}"

    def parse(self, key: str) -> MetadataKey | None:
        """The meaning of a key, or None if its kind is not known here."""
        assert key.startswith(self.prefix), f"{key} belongs to another cluster"
        try:
            return self._parse_parts(key.removeprefix(self.prefix).split("/"))
        except ValueError as error:
            raise CorruptData(f"metadata key {key}: {error}") from error

    def parse_partitions(self, prefix: str) -> TopicId:
        """The id of the topic whose partitions' keys begin with `prefix`."""
        assert prefix.startswith(self.prefix), f"{prefix} belongs to another cluster"
        match prefix.removeprefix(self.prefix).split("/"):
            case ["partitions", topic_id, ""]:
                return self._topic_id(topic_id)
        raise AssertionError(f"nothing but the partitions of a topic is deleted by prefix, not {prefix}")

    def _parse_parts(self, parts: list[str]) -> MetadataKey | None:
        match parts:
            case ["partitions", topic_id, index]:
                return PartitionKey(self._topic_id(topic_id), _number(index))
            case ["topics", name]:
                return TopicKey(_name(name))
            case ["brokers", broker_id]:
                return BrokerKey(_number(broker_id))
            case ["live", broker_id]:
                return BrokerSessionKey(_number(broker_id))
            case ["unreachable", broker_id]:
                return UnreachableBrokersKey(_number(broker_id))
            case ["controller"]:
                return ControllerKey()
            case ["configs", "broker", broker_id]:
                return BrokerConfigKey(None if broker_id == BROKER_DEFAULT else _number(broker_id))
            case ["configs", "group", group_id]:
                return GroupConfigKey(_name(group_id))
            case ["producer_ids", "next_block"]:
                return ProducerIdsKey()
            case ["features"]:
                return FeaturesKey()
            case ["partitions" | "topics" | "brokers" | "live" | "controller", *_]:
                raise ValueError("it has the wrong number of parts")
            case ["producer_ids" | "features" | "unreachable", *_] | ["configs", "broker" | "group", *_]:
                raise ValueError("it has the wrong number of parts")
        return None

    def _topic_id(self, text: str) -> TopicId:
        topic_id = self._ids.get(text)
        if topic_id is None:
            topic_id = self._ids[text] = topic_id_from_text(text)
        return topic_id


def _number(text: str) -> int:
    # Leading zeros would give one broker two keys.
    if not (text.isascii() and text.isdigit()) or (len(text) > 1 and text[0] == "0"):
        raise ValueError(f"{text!r} is not a number as it is written in a key")
    return int(text)


def _name(text: str) -> str:
    name = unquote(text)
    if not name or quote(name, safe="") != text:
        raise ValueError(f"{text!r} is not a name as it is written in a key")
    return name
