"""The types of the cluster image: one frozen value for each entity of the cluster, and the image of them all.

Most of them extend the entity's document, whose fields `documents.py` explains, by what its key adds: an id
or an index, and the revision of the key.

Rule 1: every value carries the revision of its key, which a decision about it compares.
Rule 2: the mappings in an image are never changed.
"""

from collections.abc import Mapping

import msgspec

from penstock.host.metadata_store import ABSENT
from penstock.metadata import levels
from penstock.metadata.documents import (
    BrokerSessionValue,
    BrokerValue,
    ControllerValue,
    FeaturesValue,
    OverridesValue,
    PartitionValue,
    ProducerIdsValue,
    UnreachableBrokersValue,
)
from penstock.types import TopicId

NO_NODE = -1

GROUP_TOPIC = "__consumer_offsets"
INTERNAL_TOPICS = frozenset({GROUP_TOPIC, "__transaction_state", "__share_group_state"})
"""Kafka's internal topics. Metadata responses mark them as internal, even if a client created them."""


# Not tracked by the garbage collector: a hundred thousand of these hold only numbers and tuples of numbers,
# so they can be in no cycle.
class PartitionState(PartitionValue, frozen=True, kw_only=True, gc=False):
    index: int
    revision: int

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment under way; without one, the current replicas."""
        return without(self.replicas, self.removing)

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding or self.removing)


class Topic(msgspec.Struct, frozen=True):
    name: str
    id: TopicId
    internal: bool
    created_ms: int
    overrides: Mapping[str, str]
    partitions: tuple[PartitionState, ...]
    revision: int
    min_isr_changes: int = 0


class BrokerSession(BrokerSessionValue, frozen=True, kw_only=True):
    """A broker's session, with what the process reported when the session began."""

    epoch: int
    """The broker epoch: the revision of the session key."""


class BrokerRegistration(BrokerValue, frozen=True, kw_only=True):
    id: int
    revision: int
    live: BrokerSession | None = None

    @property
    def is_embedded(self) -> bool:
        """Whether the broker is the whole cluster. It has no session, and is up whenever a process reads this
        image.
        """
        return not self.incarnation

    @property
    def level_max(self) -> int:
        """The newest level that the broker supports."""
        return self.features.get(levels.FEATURE, levels.OLDEST)

    @property
    def broker_epoch(self) -> int:
        return ABSENT if self.live is None else self.live.epoch

    @property
    def is_alive(self) -> bool:
        return self.live is not None or self.is_embedded

    @property
    def is_admitted(self) -> bool:
        """Whether the broker may lead and be in sync. Otherwise it is fenced."""
        return self.is_embedded or (self.live is not None and self.live.epoch == self.admitted_epoch)


class UnreachableBrokers(UnreachableBrokersValue, frozen=True, kw_only=True):
    revision: int


class Controller(ControllerValue, frozen=True, kw_only=True):
    term: int
    """The revision of the controller's key."""


class Overrides(OverridesValue, frozen=True, kw_only=True):
    revision: int


class ProducerIds(ProducerIdsValue, frozen=True, kw_only=True):
    revision: int


class Features(FeaturesValue, frozen=True, kw_only=True):
    revision: int


NO_OVERRIDES = Overrides(overrides={}, revision=ABSENT)
NO_PRODUCER_IDS = ProducerIds(next_id=0, revision=ABSENT)
NO_FEATURES = Features(levels={}, revision=ABSENT)


PartitionStates = Mapping[int, PartitionState]
"""Partition states by index."""


class ClusterImage(msgspec.Struct, frozen=True, kw_only=True):
    cluster_id: str
    revision: int = 0
    topics: Mapping[str, Topic] = {}
    topics_by_id: Mapping[TopicId, Topic] = {}
    topics_by_metric_name: Mapping[str, str] = {}
    """Topic names by the name that metrics use: two topics may not share one."""
    brokers: Mapping[int, BrokerRegistration] = {}
    admitted: frozenset[int] = frozenset()
    """Ids of the brokers that may lead and be in sync."""
    controller: Controller | None = None
    broker_overrides: Mapping[int | None, Overrides] = {}
    """Overrides by broker id; None holds the cluster-wide defaults."""
    group_overrides: Mapping[str, Overrides] = {}
    producer_ids: ProducerIds = NO_PRODUCER_IDS
    features: Features = NO_FEATURES
    partition_count: int = 0
    prepared: Mapping[TopicId, PartitionStates] = {}
    """Partitions that do not count, or do not count yet."""
    sessions: Mapping[int, BrokerSession] = {}
    """Sessions of every session key, also those of brokers that are not registered."""
    unreachable: Mapping[int, UnreachableBrokers] = {}
    """Reports of brokers that cannot reach others, by the broker that reports. Which of them count:
    `controller/reachability.py`."""

    @property
    def is_embedded(self) -> bool:
        """Whether no broker has a session: then there is one broker, which decides alone."""
        return all(broker.is_embedded for broker in self.brokers.values())

    @property
    def controller_id(self) -> int:
        """The id of the controller. Without a controller key, the embedded broker with the lowest id
        decides.
        """
        if self.controller is not None:
            return self.controller.broker_id
        return min(self.brokers, default=NO_NODE) if self.is_embedded else NO_NODE

    @property
    def level(self) -> int:
        """The level, which determines the formats that may be written. A standalone broker stores none."""
        return self.features.levels.get(levels.FEATURE, levels.OLDEST)

    def partition(self, topic: str, index: int) -> PartitionState | None:
        found = self.topics.get(topic)
        if found is None or not 0 <= index < len(found.partitions):
            return None
        return found.partitions[index]

    def overrides_of_broker(self, broker_id: int | None) -> Overrides:
        return self.broker_overrides.get(broker_id, NO_OVERRIDES)

    def overrides_of_group(self, group_id: str) -> Overrides:
        return self.group_overrides.get(group_id, NO_OVERRIDES)


def metric_name(topic: str) -> str:
    """The topic's name in metrics, which replace dots by underscores, as Kafka's do."""
    return topic.replace(".", "_")


def without(nodes: tuple[int, ...], others: tuple[int, ...]) -> tuple[int, ...]:
    """The nodes that are not among the others, in the same order."""
    return tuple(node for node in nodes if node not in others) if others else nodes
