"""The cluster as this broker sees it: one immutable value, replaced whole.

Handlers read the image they were given; nothing under their hands changes. Looking up a topic by
name or by id, and a partition by index, is one dict or tuple access.

Strategy: reading the whole store and applying one transaction are the same code. Both hand events
(key, value, revision) to a draft and let it finish; the first starts from an empty image. So an
image that was kept current equals one that was read afresh, and topics that were not touched are
shared between the old image and the new.

Rule 1: every fact carries the revision of its key, which is what a decision about it compares.
Rule 2: a topic is shown whole (all its partitions, from zero) or the store is corrupt: transactions
        are atomic, so nothing else can be seen.
Rule 3: nobody changes the mappings in here.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from penstock.errors import CorruptData
from penstock.host.metadata_store import ABSENT, Change, Put, Snapshot
from penstock.metadata.keys import (
    BrokerConfigKey,
    BrokerKey,
    GroupConfigKey,
    Keys,
    PartitionKey,
    ProducerIdsKey,
    TopicKey,
)
from penstock.metadata.values import (
    BrokerConfigValue,
    BrokerValue,
    GroupConfigValue,
    PartitionValue,
    ProducerIdsValue,
    TopicValue,
    decode,
    topic_id_of,
)
from penstock.types import TopicId

NO_NODE = -1

GROUP_TOPIC = "__consumer_offsets"
INTERNAL_TOPICS = frozenset({GROUP_TOPIC, "__transaction_state", "__share_group_state"})
"""Kafka's own. Whoever creates one, clients are told that it is not for them."""

K = TypeVar("K")
V = TypeVar("V")


# Not followed by the garbage collector: a hundred thousand of these can be in no cycle, since
# they hold only numbers and tuples of numbers.
class PartitionState(msgspec.Struct, frozen=True, gc=False):
    index: int
    leader: int
    """-1 when nobody leads."""
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    partition_epoch: int
    revision: int


class Topic(msgspec.Struct, frozen=True):
    name: str
    id: TopicId
    internal: bool
    created_ms: int
    overrides: Mapping[str, str]
    partitions: tuple[PartitionState, ...]
    revision: int


class Endpoint(msgspec.Struct, frozen=True):
    host: str
    port: int


class Broker(msgspec.Struct, frozen=True):
    id: int
    rack: str | None
    endpoints: Mapping[str, Endpoint]
    """By listener name."""
    revision: int


class Overrides(msgspec.Struct, frozen=True):
    """Of a broker, of all brokers, or of a group."""

    overrides: Mapping[str, str]
    revision: int


class ProducerIds(msgspec.Struct, frozen=True):
    next_id: int
    revision: int


NO_OVERRIDES = Overrides(overrides={}, revision=ABSENT)
NO_PRODUCER_IDS = ProducerIds(next_id=0, revision=ABSENT)


class ClusterImage(msgspec.Struct, frozen=True, kw_only=True):
    cluster_id: str
    revision: int = 0
    topics: Mapping[str, Topic] = {}
    topics_by_id: Mapping[TopicId, Topic] = {}
    topics_by_metric_name: Mapping[str, str] = {}
    """Topic names by the name that metrics know them by: two may not share one."""
    brokers: Mapping[int, Broker] = {}
    broker_overrides: Mapping[int | None, Overrides] = {}
    """None holds the default for every broker."""
    group_overrides: Mapping[str, Overrides] = {}
    producer_ids: ProducerIds = NO_PRODUCER_IDS
    partition_count: int = 0

    @property
    def controller_id(self) -> int:
        """Without a lease to hold, the broker with the lowest id decides."""
        return min(self.brokers, default=NO_NODE)

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


def image_of(snapshot: Snapshot, cluster_id: str) -> ClusterImage:
    """The image of a whole store, read with `Keys(cluster_id).prefix`."""
    draft = _Draft(ClusterImage(cluster_id=cluster_id))
    for key, entry in snapshot.entries.items():
        draft.put(key, entry.value, entry.revision)
    return draft.finish(snapshot.revision)


def apply(image: ClusterImage, changes: Iterable[Change], revision: int) -> ClusterImage:
    """The image after the transaction that was committed at `revision`."""
    draft = _Draft(image)
    for change in changes:
        if isinstance(change, Put):
            draft.put(change.key, change.value, revision)
        else:
            draft.delete(change.key)
    return draft.finish(revision)


class _Draft:
    """Collects what happens to each key, then builds the next image in one go."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self._keys = Keys(image.cluster_id)
        self._topics: dict[str, tuple[TopicValue, int] | None] = {}
        self._partitions: dict[TopicId, dict[int, PartitionState | None]] = {}
        self._brokers: dict[int, Broker | None] = {}
        self._broker_overrides: dict[int | None, Overrides | None] = {}
        self._group_overrides: dict[str, Overrides | None] = {}
        self._producer_ids = image.producer_ids
        # Most partitions have one of a few lists of replicas: keep each list once.
        self._node_lists: dict[tuple[int, ...], tuple[int, ...]] = {}

    def put(self, key: str, data: bytes, revision: int) -> None:
        match self._keys.parse(key):
            case PartitionKey(topic_id, index):
                value = decode(PartitionValue, key, data)
                self._partitions.setdefault(topic_id, {})[index] = self._state(key, index, value, revision)
            case TopicKey(name):
                self._topics[name] = decode(TopicValue, key, data), revision
            case BrokerKey(broker_id):
                self._brokers[broker_id] = _broker(broker_id, decode(BrokerValue, key, data), revision)
            case BrokerConfigKey(broker_id):
                overrides = decode(BrokerConfigValue, key, data).overrides
                self._broker_overrides[broker_id] = Overrides(overrides, revision)
            case GroupConfigKey(group_id):
                overrides = decode(GroupConfigValue, key, data).overrides
                self._group_overrides[group_id] = Overrides(overrides, revision)
            case ProducerIdsKey():
                self._producer_ids = ProducerIds(decode(ProducerIdsValue, key, data).next_id, revision)

    def delete(self, key: str) -> None:
        match self._keys.parse(key):
            case PartitionKey(topic_id, index):
                self._partitions.setdefault(topic_id, {})[index] = None
            case TopicKey(name):
                self._topics[name] = None
            case BrokerKey(broker_id):
                self._brokers[broker_id] = None
            case BrokerConfigKey(broker_id):
                self._broker_overrides[broker_id] = None
            case GroupConfigKey(group_id):
                self._group_overrides[group_id] = None
            case ProducerIdsKey():
                self._producer_ids = NO_PRODUCER_IDS

    def finish(self, revision: int) -> ClusterImage:
        before = self._image
        image = msgspec.structs.replace(
            before,
            revision=revision,
            brokers=_overlaid(before.brokers, self._brokers),
            broker_overrides=_overlaid(before.broker_overrides, self._broker_overrides),
            group_overrides=_overlaid(before.group_overrides, self._group_overrides),
            producer_ids=self._producer_ids,
        )
        if not self._topics and not self._partitions:
            return image
        return self._with_topics(image)

    def _with_topics(self, image: ClusterImage) -> ClusterImage:
        topics, by_id = dict(image.topics), dict(image.topics_by_id)
        by_metric_name = dict(image.topics_by_metric_name)
        partition_count = image.partition_count
        next_topics = self._next_topics()
        for name in next_topics:
            before = topics.pop(name, None)
            if before is not None:
                del by_id[before.id]
                by_metric_name.pop(metric_name(name), None)
                partition_count -= len(before.partitions)
        for name, topic in next_topics.items():
            if topic is None:
                continue
            if topic.id in by_id:
                raise CorruptData(f"metadata key {self._keys.topic(name)}: another topic has its id")
            topics[name] = by_id[topic.id] = topic
            by_metric_name[metric_name(name)] = name
            partition_count += len(topic.partitions)
        return msgspec.structs.replace(
            image,
            topics=topics,
            topics_by_id=by_id,
            topics_by_metric_name=by_metric_name,
            partition_count=partition_count,
        )

    def _next_topics(self) -> dict[str, Topic | None]:
        """Every topic that was touched, as it is now; None for those that are gone."""
        touched: dict[str, Topic | None] = {}
        for name, put in self._topics.items():
            touched[name] = None if put is None else self._built(name, *put)
        for topic_id, changes in self._partitions.items():
            # What is left was touched in its partitions only, or belonged to a topic that is gone.
            topic = self._image.topics_by_id.get(topic_id)
            if topic is not None and topic.name not in touched:
                touched[topic.name] = self._repartitioned(topic, changes)
            elif any(state is not None for state in changes.values()):
                index = next(index for index, state in changes.items() if state is not None)
                raise CorruptData(f"metadata key {self._keys.partition(topic_id, index)}: it has no topic")
        return touched

    def _built(self, name: str, value: TopicValue, revision: int) -> Topic:
        key = self._keys.topic(name)
        topic_id = topic_id_of(value, key)
        before = self._image.topics.get(name)
        known = before.partitions if before is not None and before.id == topic_id else ()
        partitions = self._merged(key, known, self._partitions.pop(topic_id, {}), value.partitions)
        return Topic(name, topic_id, value.internal, value.created_ms, value.overrides, partitions, revision)

    def _repartitioned(self, topic: Topic, changes: Mapping[int, PartitionState | None]) -> Topic:
        key = self._keys.topic(topic.name)
        partitions = self._merged(key, topic.partitions, changes, len(topic.partitions))
        return msgspec.structs.replace(topic, partitions=partitions)

    def _merged(
        self,
        key: str,
        known: tuple[PartitionState, ...],
        changes: Mapping[int, PartitionState | None],
        count: int,
    ) -> tuple[PartitionState, ...]:
        if not changes and len(known) == count:
            return known
        by_index: dict[int, PartitionState | None] = dict(enumerate(known))
        by_index.update(changes)
        found = [state for state in map(by_index.get, range(count)) if state is not None]
        present = sum(state is not None for state in by_index.values())
        if len(found) != count or present != count:
            raise CorruptData(f"metadata key {key}: it says {count} partitions, and others are stored")
        return tuple(found)

    def _state(self, key: str, index: int, value: PartitionValue, revision: int) -> PartitionState:
        if value.leader != NO_NODE and value.leader not in value.replicas:
            raise CorruptData(f"metadata key {key}: its leader {value.leader} holds no replica")
        if value.isr != value.replicas and not set(value.isr) <= set(value.replicas):
            raise CorruptData(f"metadata key {key}: a node is in sync that holds no replica")
        replicas = self._node_lists.setdefault(value.replicas, value.replicas)
        isr = self._node_lists.setdefault(value.isr, value.isr)
        return PartitionState(
            index, value.leader, value.leader_epoch, replicas, isr, value.partition_epoch, revision
        )


def _broker(broker_id: int, value: BrokerValue, revision: int) -> Broker:
    endpoints = {name: Endpoint(at.host, at.port) for name, at in value.endpoints.items()}
    return Broker(broker_id, value.rack, endpoints, revision)


def _overlaid(before: Mapping[K, V], changes: Mapping[K, V | None]) -> Mapping[K, V]:
    if not changes:
        return before
    after = dict(before)
    for key, value in changes.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = value
    return after


class Grown(msgspec.Struct, frozen=True):
    topic: Topic
    partitions_before: int


class TopicChanges(msgspec.Struct, frozen=True):
    """What happened to topics between two images. Each list is in the order of names.

    A topic that was deleted and created again under the same name is in both lists.
    """

    created: tuple[Topic, ...]
    deleted: tuple[Topic, ...]
    grown: tuple[Grown, ...]
    reconfigured: tuple[Topic, ...]


def changed_topics(before: ClusterImage, after: ClusterImage) -> TopicChanges:
    created, deleted, grown, reconfigured = [], [], [], []
    for name, topic in after.topics.items():
        old = before.topics.get(name)
        if old is topic:
            continue
        if old is None or old.id != topic.id:
            created.append(topic)
            continue
        if len(topic.partitions) > len(old.partitions):
            grown.append(Grown(topic, len(old.partitions)))
        if topic.overrides != old.overrides:
            reconfigured.append(topic)
    if before.topics is not after.topics:
        deleted = [topic for id_, topic in before.topics_by_id.items() if id_ not in after.topics_by_id]
    return TopicChanges(
        created=tuple(sorted(created, key=_by_name)),
        deleted=tuple(sorted(deleted, key=_by_name)),
        grown=tuple(sorted(grown, key=lambda entry: entry.topic.name)),
        reconfigured=tuple(sorted(reconfigured, key=_by_name)),
    )


def _by_name(topic: Topic) -> str:
    return topic.name
