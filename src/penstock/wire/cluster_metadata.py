"""The client's view of the cluster from Metadata responses: brokers, topics, leaders. Pure.

Rule 1: the view is only the latest response and may be stale; what is dropped from it is requested again.
Rule 2: if two brokers describe a topic differently, the description with the requested topic id wins
        (`merge_better`). Of two descriptions with other ids the first one stays.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from penstock.config.listeners import Address
from penstock.errors import ErrorCode
from penstock.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from penstock.types import NO_TOPIC_ID, NodeId, TopicId, TopicPartition
from penstock.wire.retry_policy import Remedy, RequestFailure, failure_of, is_unknown_topic

_NO_LEADER: Final = RequestFailure(
    "it has no leader at present", Remedy.FIND_LEADER, ErrorCode.LEADER_NOT_AVAILABLE
)


class TopicMatch(IntEnum):
    """How well the metadata of a topic matches the request, from worst to best."""

    UNKNOWN = 0
    FAILURE = 1
    OTHER_ID = 2
    REQUESTED_ID = 3


class TopicMetadata(NamedTuple):
    name: str
    id: TopicId
    partitions: int
    internal: bool


class TopicWithLeaders(NamedTuple):
    facts: TopicMetadata
    leaders: dict[int, tuple[NodeId, int]]
    """Leader and leader epoch by partition."""


class Leader(NamedTuple):
    address: Address
    epoch: int
    topic_id: TopicId


class ClusterMetadata:
    def __init__(self) -> None:
        self.addresses: dict[NodeId, Address] = {}
        self.controller: Address | None = None
        self._topics: dict[str, TopicWithLeaders] = {}
        self._topic_failures: dict[str, RequestFailure] = {}

    def update(self, answer: MetadataResponse) -> None:
        self.addresses = {NodeId(node.node_id): Address(node.host, node.port) for node in answer.brokers}
        self.controller = self.addresses.get(NodeId(answer.controller_id))
        for topic in answer.topics:
            self._update_topic(topic)

    def _update_topic(self, topic: MetadataResponseTopic) -> None:
        name = topic.name or ""
        # An error replaces the cached topic too: its leaders may be stale.
        self.forget([name])
        if topic.error_code != ErrorCode.NONE:
            self._topic_failures[name] = failure_of(topic.error_code)
            return
        facts = TopicMetadata(name, TopicId(topic.topic_id), len(topic.partitions), topic.is_internal)
        leaders = {
            partition.partition_index: (NodeId(partition.leader_id), partition.leader_epoch)
            for partition in topic.partitions
        }
        self._topics[name] = TopicWithLeaders(facts, leaders)

    def merge_better(self, answer: MetadataResponse, requested: Mapping[str, TopicId]) -> bool:
        """Adopt another broker's metadata for the topics that it matches better. True: some were adopted."""
        other = ClusterMetadata()
        other.update(answer)
        better = [
            name
            for name in requested
            if other._match(name, requested[name]) > self._match(name, requested[name])
        ]
        if not better:
            return False
        # The leaders of the adopted topics are looked up among the addresses of the same response.
        self.addresses, self.controller = other.addresses, other.controller
        for topic in answer.topics:
            if topic.name in better:
                self._update_topic(topic)
        return True

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._topics.pop(name, None)
            self._topic_failures.pop(name, None)

    def missing_topics(self, requested: Mapping[str, TopicId]) -> dict[str, TopicId]:
        """Topics that no broker has described, or only with another id."""
        lacked = (TopicMatch.UNKNOWN, TopicMatch.OTHER_ID)
        return {name: each for name, each in requested.items() if self._match(name, each) in lacked}

    def _match(self, name: str, requested: TopicId) -> TopicMatch:
        if name in self._topics:
            is_wanted = is_same_topic(self._topics[name].facts.id, requested)
            return TopicMatch.REQUESTED_ID if is_wanted else TopicMatch.OTHER_ID
        failure = self._topic_failures.get(name)
        return TopicMatch.UNKNOWN if failure is None or is_unknown_topic(failure) else TopicMatch.FAILURE

    def names(self) -> list[str]:
        return [*self._topics, *self._topic_failures]

    def facts(self, name: str) -> TopicMetadata | RequestFailure | None:
        if name in self._topics:
            return self._topics[name].facts
        return self._topic_failures.get(name)

    def leader_of(
        self, partition: TopicPartition, requested: TopicId = NO_TOPIC_ID
    ) -> Leader | RequestFailure:
        """Leader of the partition, if its topic has the requested id."""
        topic = self._topics.get(partition.topic)
        if topic is None:
            unknown = failure_of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return self._topic_failures.get(partition.topic, unknown)
        if not is_same_topic(topic.facts.id, requested):
            detail = f"topic {partition.topic} was deleted and made anew; what was to be read of it is gone"
            return failure_of(ErrorCode.INCONSISTENT_TOPIC_ID, detail)
        if partition.partition not in topic.leaders:
            detail = f"the topic has {topic.facts.partitions} partitions"
            return failure_of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail)
        node, epoch = topic.leaders[partition.partition]
        address = self.addresses.get(node)
        return _NO_LEADER if address is None else Leader(address, epoch, topic.facts.id)

    def has_all_leaders(self, name: str) -> bool:
        """Whether every partition of a topic has a leader."""
        topic = self._topics.get(name)
        return topic is not None and all(node in self.addresses for node, _ in topic.leaders.values())


def is_same_topic(one: TopicId, other: TopicId) -> bool:
    """Whether two ids can belong to one topic: brokers without topic ids send none."""
    return one == other or NO_TOPIC_ID in (one, other)
