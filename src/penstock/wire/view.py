"""The cluster as its brokers told us: who they are, which topics exist, who leads. Pure.

Rule: what is forgotten is asked for again; nothing here is ever believed to be the truth, only the
      last that was heard.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.config.listeners import Address
from penstock.errors import ErrorCode
from penstock.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from penstock.types import NodeId, TopicId, TopicPartition
from penstock.wire.retrying import Remedy, Trouble, is_unknown_topic, trouble_of

_NO_LEADER: Final = Trouble("it has no leader at present", Remedy.FIND_LEADER, ErrorCode.LEADER_NOT_AVAILABLE)


class TopicFacts(NamedTuple):
    name: str
    id: TopicId
    partitions: int
    internal: bool


class TopicView(NamedTuple):
    facts: TopicFacts
    leaders: dict[int, tuple[NodeId, int]]
    """The broker that leads a partition, and in which epoch."""


class Leader(NamedTuple):
    address: Address
    epoch: int
    topic_id: TopicId


class ClusterView:
    def __init__(self) -> None:
        self.addresses: dict[NodeId, Address] = {}
        self.controller: Address | None = None
        self._topics: dict[str, TopicView] = {}
        self._troubles: dict[str, Trouble] = {}

    def learn(self, answer: MetadataResponse) -> None:
        self.addresses = {NodeId(node.node_id): Address(node.host, node.port) for node in answer.brokers}
        self.controller = self.addresses.get(NodeId(answer.controller_id))
        for topic in answer.topics:
            self._learn_topic(topic)

    def _learn_topic(self, topic: MetadataResponseTopic) -> None:
        name = topic.name or ""
        self.forget([name])
        if topic.error_code != ErrorCode.NONE:
            self._troubles[name] = trouble_of(topic.error_code)
            return
        facts = TopicFacts(name, TopicId(topic.topic_id), len(topic.partitions), topic.is_internal)
        leaders = {
            partition.partition_index: (NodeId(partition.leader_id), partition.leader_epoch)
            for partition in topic.partitions
        }
        self._topics[name] = TopicView(facts, leaders)

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._topics.pop(name, None)
            self._troubles.pop(name, None)

    def unheard_of(self, names: Iterable[str]) -> list[str]:
        """Those about which nothing is known, not even that they do not exist."""
        return [
            name for name in dict.fromkeys(names) if name not in self._topics and name not in self._troubles
        ]

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Those that no broker has described, because the brokers asked say that they do not exist."""
        return [
            name
            for name in names
            if name not in self._topics
            and (name not in self._troubles or is_unknown_topic(self._troubles[name]))
        ]

    def names(self) -> list[str]:
        return [*self._topics, *self._troubles]

    def facts(self, name: str) -> TopicFacts | Trouble | None:
        if name in self._topics:
            return self._topics[name].facts
        return self._troubles.get(name)

    def leader_of(self, partition: TopicPartition) -> Leader | Trouble:
        topic = self._topics.get(partition.topic)
        if topic is None:
            unknown = trouble_of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return self._troubles.get(partition.topic, unknown)
        if partition.partition not in topic.leaders:
            detail = f"the topic has {topic.facts.partitions} partitions"
            return trouble_of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail)
        node, epoch = topic.leaders[partition.partition]
        address = self.addresses.get(node)
        return _NO_LEADER if address is None else Leader(address, epoch, topic.facts.id)

    def is_led_whole(self, name: str) -> bool:
        """Whether every partition of a topic has a leader."""
        topic = self._topics.get(name)
        return topic is not None and all(node in self.addresses for node, _ in topic.leaders.values())
