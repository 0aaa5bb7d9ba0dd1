"""What an image is made of: one frozen value for each thing the cluster knows, and all of them.

Rule 1: every fact carries the revision of its key, which is what a decision about it compares.
Rule 2: nobody changes the mappings in here.
"""

from collections.abc import Mapping

import msgspec

from penstock.host.metadata_store import ABSENT
from penstock.metadata import levels
from penstock.types import TopicId

NO_NODE = -1

GROUP_TOPIC = "__consumer_offsets"
INTERNAL_TOPICS = frozenset({GROUP_TOPIC, "__transaction_state", "__share_group_state"})
"""Kafka's own. Whoever creates one, clients are told that it is not for them."""


# Not followed by the garbage collector: a hundred thousand of these can be in no cycle, since
# they hold only numbers and tuples of numbers.
class PartitionState(msgspec.Struct, frozen=True, gc=False):
    index: int
    leader: int
    """-1 when nobody leads."""
    leader_epoch: int
    replicas: tuple[int, ...]
    """While they are being reassigned: those to be, the preferred leader first, then `removing`."""
    isr: tuple[int, ...]
    partition_epoch: int
    revision: int
    elr: tuple[int, ...] = ()
    """As written. Whether they are still eligible: `durability.eligible_leaders`."""
    last_known_elr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    is_recovering: bool = False
    min_isr_changes: int = 0

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas when the reassignment under way is done; else those there are."""
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


class Endpoint(msgspec.Struct, frozen=True):
    host: str
    port: int


class BrokerSession(msgspec.Struct, frozen=True):
    """A broker's session, as the process said when it began."""

    epoch: int
    """The broker's epoch: the revision of its live key."""
    incarnation: str
    directory_id: str
    clean_epoch: int = ABSENT
    flushes_before_ack: bool = True
    start_id: str = ""
    lock: str = ""
    has_lost_all: bool = False
    lost: Mapping[TopicId, tuple[int, ...]] = {}


class BrokerRegistration(msgspec.Struct, frozen=True):
    id: int
    rack: str | None
    endpoints: Mapping[str, Endpoint]
    """By listener name."""
    revision: int
    incarnation: str = ""
    is_draining: bool = False
    features: Mapping[str, int] = {}
    admitted_epoch: int = ABSENT
    directory_id: str = ""
    flushes_before_ack: bool = True
    is_new: bool = False
    start_id: str = ""
    live: BrokerSession | None = None

    @property
    def is_embedded(self) -> bool:
        """It is the whole cluster, has no session, and is there whenever anybody reads this."""
        return not self.incarnation

    @property
    def level_max(self) -> int:
        """The newest level that it knows."""
        return self.features.get(levels.FEATURE, levels.OLDEST)

    @property
    def broker_epoch(self) -> int:
        return ABSENT if self.live is None else self.live.epoch

    @property
    def is_alive(self) -> bool:
        return self.live is not None or self.is_embedded

    @property
    def is_admitted(self) -> bool:
        """It may lead and be in sync. Whoever is not, is fenced."""
        return self.is_embedded or (self.live is not None and self.live.epoch == self.admitted_epoch)


class Controller(msgspec.Struct, frozen=True):
    broker_id: int
    term: int
    """The revision of the controller's key."""


class Overrides(msgspec.Struct, frozen=True):
    """Of a broker, of all brokers, or of a group."""

    overrides: Mapping[str, str]
    revision: int
    min_isr_changes: int = 0


class ProducerIds(msgspec.Struct, frozen=True):
    next_id: int
    revision: int


class Features(msgspec.Struct, frozen=True):
    levels: Mapping[str, int]
    revision: int


NO_OVERRIDES = Overrides(overrides={}, revision=ABSENT)
NO_PRODUCER_IDS = ProducerIds(next_id=0, revision=ABSENT)
NO_FEATURES = Features(levels={}, revision=ABSENT)


PartitionStates = Mapping[int, PartitionState]
"""By index."""


class ClusterImage(msgspec.Struct, frozen=True, kw_only=True):
    cluster_id: str
    revision: int = 0
    topics: Mapping[str, Topic] = {}
    topics_by_id: Mapping[TopicId, Topic] = {}
    topics_by_metric_name: Mapping[str, str] = {}
    """Topic names by the name that metrics know them by: two may not share one."""
    brokers: Mapping[int, BrokerRegistration] = {}
    admitted: frozenset[int] = frozenset()
    """Those brokers that may lead and be in sync."""
    controller: Controller | None = None
    broker_overrides: Mapping[int | None, Overrides] = {}
    """None holds the default for every broker."""
    group_overrides: Mapping[str, Overrides] = {}
    producer_ids: ProducerIds = NO_PRODUCER_IDS
    features: Features = NO_FEATURES
    partition_count: int = 0
    prepared: Mapping[TopicId, PartitionStates] = {}
    """Partitions that do not count, or not yet."""
    sessions: Mapping[int, BrokerSession] = {}
    """Of every live key, also of one whose broker is not registered."""

    @property
    def is_embedded(self) -> bool:
        """No broker has a session: there is one, and nobody to agree with."""
        return all(broker.is_embedded for broker in self.brokers.values())

    @property
    def controller_id(self) -> int:
        """Without a lease to hold, the broker with the lowest id decides."""
        if self.controller is not None:
            return self.controller.broker_id
        return min(self.brokers, default=NO_NODE) if self.is_embedded else NO_NODE

    @property
    def level(self) -> int:
        """Which formats may be written. Clusters older than levels have none in their store."""
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
    """Metrics write a dot as an underscore, as Kafka's do."""
    return topic.replace(".", "_")


def without(nodes: tuple[int, ...], others: tuple[int, ...]) -> tuple[int, ...]:
    """In the same order."""
    return tuple(node for node in nodes if node not in others) if others else nodes
