"""Builds the cluster image: one immutable value, replaced as a whole by every transaction.

Handlers read the image that they were given, and it never changes while they use it. Looking up a topic by
name or by id, and a partition by index, is one dict or tuple access.

Strategy: reading the whole store and applying one transaction share the same code. Both pass events (key,
value, revision) to a draft, which then builds the image; a full read starts from an empty image. So an image
that was kept current equals one that was read afresh, and unchanged topics are shared between the old image
and the new.

Rule 1: a topic is visible as a whole (all its partitions, from zero) or the store is corrupt. Partitions are
        written before the topic that makes them count. So partitions without a topic, and those at or beyond
        their topic's count, are kept apart (`prepared`) until it does.
Rule 2: one change costs what its topic costs, at the speed of copying a tuple. Other topics cost no more than
        copying the dict of topics.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import astuple

from penstock.errors import CorruptData
from penstock.host.metadata_store import DeleteAll, Put, Snapshot, StoreChange
from penstock.metadata import levels
from penstock.metadata.cluster_image import (
    NO_FEATURES,
    NO_NODE,
    NO_PRODUCER_IDS,
    BrokerRegistration,
    BrokerSession,
    ClusterImage,
    Controller,
    Features,
    Overrides,
    PartitionState,
    PartitionStates,
    ProducerIds,
    Topic,
    UnreachableBrokers,
    metric_name,
)
from penstock.metadata.documents import MetadataValue, PartitionValue, TopicValue, decode_as, decode_document
from penstock.metadata.keys import (
    BrokerConfigKey,
    BrokerKey,
    BrokerSessionKey,
    ClusterKeys,
    ControllerKey,
    FeaturesKey,
    GroupConfigKey,
    PartitionKey,
    ProducerIdsKey,
    TopicKey,
    UnreachableBrokersKey,
    topic_id_from_text,
)
from penstock.types import TopicId

E = TypeVar("E", bound=MetadataValue)
K = TypeVar("K")
V = TypeVar("V")


def image_of(snapshot: Snapshot, cluster_id: str, newest: int = levels.NEWEST) -> ClusterImage:
    """The image of a whole store, read with `ClusterKeys(cluster_id).prefix`.

    `newest` is the last level that this release supports.
    """
    draft = _Draft(ClusterImage(cluster_id=cluster_id), newest)
    # The level is checked first: at an unknown level, other documents may have an unknown meaning.
    first = snapshot.entries.get(ClusterKeys(cluster_id).features)
    if first is not None:
        draft.put(ClusterKeys(cluster_id).features, first.value, first.revision)
    for key, entry in snapshot.entries.items():
        draft.put(key, entry.value, entry.revision)
    return draft.finish(snapshot.revision)


def apply(
    image: ClusterImage, changes: Iterable[StoreChange], revision: int, *, newest: int = levels.NEWEST
) -> ClusterImage:
    """The image after the transaction that was committed at `revision`."""
    draft = _Draft(image, newest)
    for change in changes:
        if isinstance(change, DeleteAll):
            draft.delete_partitions(change.prefix)
        else:
            draft.put(change.key, change.value if isinstance(change, Put) else None, revision)
    return draft.finish(revision)


class _Draft:
    """Collects what happens to each key, then builds the next image in one step."""

    def __init__(self, image: ClusterImage, newest: int) -> None:
        self._image = image
        self._newest = newest
        self._keys = ClusterKeys(image.cluster_id)
        self._topics: dict[str, tuple[TopicValue, int] | None] = {}
        self._partitions: dict[TopicId, dict[int, PartitionState | None]] = {}
        self._brokers: dict[int, BrokerRegistration | None] = {}
        self._sessions: dict[int, BrokerSession | None] = {}
        self._broker_overrides: dict[int | None, Overrides | None] = {}
        self._group_overrides: dict[str, Overrides | None] = {}
        self._unreachable: dict[int, UnreachableBrokers | None] = {}
        self._controller = image.controller
        self._producer_ids = image.producer_ids
        self._features = image.features
        # Most partitions have one of a few replica lists: each list is kept once.
        self._node_lists: dict[tuple[int, ...], tuple[int, ...]] = {}

    def put(self, key: str, data: bytes | None, revision: int) -> None:
        """Record the document written at `revision`; None: the key was deleted."""
        parsed = self._keys.parse(key)
        # Partitions first, by the shortest way: a start reads a hundred thousand of them.
        if isinstance(parsed, PartitionKey):
            state = None if data is None else self._state(key, parsed.partition, data, revision)
            self._partitions.setdefault(parsed.topic_id, {})[parsed.partition] = state
            return

        def read(kind: type[E], **added: int) -> E | None:
            return None if data is None else decode_as(kind, key, data, **added)

        match parsed:
            case TopicKey(name):
                self._topics[name] = (
                    None if data is None else (decode_document(TopicValue, key, data), revision)
                )
            case BrokerKey(broker_id):
                self._brokers[broker_id] = read(BrokerRegistration, id=broker_id, revision=revision)
            case BrokerSessionKey(broker_id):
                self._sessions[broker_id] = read(BrokerSession, epoch=revision)
            case UnreachableBrokersKey(broker_id):
                self._unreachable[broker_id] = read(UnreachableBrokers, revision=revision)
            case ControllerKey():
                self._controller = read(Controller, term=revision)
            case BrokerConfigKey(broker_id):
                self._broker_overrides[broker_id] = read(Overrides, revision=revision)
            case GroupConfigKey(group_id):
                self._group_overrides[group_id] = read(Overrides, revision=revision)
            case ProducerIdsKey():
                self._producer_ids = read(ProducerIds, revision=revision) or NO_PRODUCER_IDS
            case FeaturesKey():
                self._features = read(Features, revision=revision) or NO_FEATURES
                _require_known_level(self._features, newest=self._newest)

    def delete_partitions(self, prefix: str) -> None:
        # The event names only the prefix, so the partitions it deleted are those of the image before.
        topic_id = self._keys.parse_partitions(prefix)
        topic = self._image.topics_by_id.get(topic_id)
        known = range(len(topic.partitions)) if topic is not None else ()
        gone = (*known, *self._image.prepared.get(topic_id, {}))
        self._partitions.setdefault(topic_id, {}).update(dict.fromkeys(gone))

    def finish(self, revision: int) -> ClusterImage:
        before = self._image
        image = msgspec.structs.replace(
            before,
            revision=revision,
            controller=self._controller,
            unreachable=_merged(before.unreachable, self._unreachable),
            broker_overrides=_merged(before.broker_overrides, self._broker_overrides),
            group_overrides=_merged(before.group_overrides, self._group_overrides),
            producer_ids=self._producer_ids,
            features=self._features,
        )
        if self._brokers or self._sessions:
            image = self._with_brokers(image)
        if self._topics or self._partitions:
            image = self._with_topics(image)
        return image

    def _with_brokers(self, image: ClusterImage) -> ClusterImage:
        brokers = dict(_merged(image.brokers, self._brokers))
        sessions = _merged(image.sessions, self._sessions)
        # A session and its registration have separate keys, which may arrive in either order.
        for broker_id in self._brokers.keys() | self._sessions.keys():
            if broker_id in brokers:
                live = sessions.get(broker_id)
                brokers[broker_id] = msgspec.structs.replace(brokers[broker_id], live=live)
        admitted = frozenset(broker.id for broker in brokers.values() if broker.is_admitted)
        return msgspec.structs.replace(image, brokers=brokers, sessions=sessions, admitted=admitted)

    def _with_topics(self, image: ClusterImage) -> ClusterImage:
        touched = self._next_topics()
        topics, by_id = dict(image.topics), dict(image.topics_by_id)
        # The names of topics changed only if a topic key was written.
        metric_names = dict(image.topics_by_metric_name) if self._topics else image.topics_by_metric_name
        partition_count = image.partition_count
        # Old ids are removed before new ones are checked: a changed topic keeps its id, and must not collide
        # with itself.
        for name in touched.topics:
            before = topics.get(name)
            if before is not None:
                del by_id[before.id]
                partition_count -= len(before.partitions)
        for name, topic in touched.topics.items():
            if topic is None:
                topics.pop(name, None)
                continue
            if topic.id in by_id:
                raise CorruptData(f"metadata key {self._keys.topic(name)}: another topic has its id")
            topics[name] = by_id[topic.id] = topic
            partition_count += len(topic.partitions)
        if isinstance(metric_names, dict):
            _rename_metrics(metric_names, image.topics, self._topics)
        return msgspec.structs.replace(
            image,
            topics=topics,
            topics_by_id=by_id,
            topics_by_metric_name=metric_names,
            partition_count=partition_count,
            prepared=_merged(image.prepared, touched.prepared),
        )

    def _next_topics(self) -> "_ChangedTopics":
        topics: dict[str, Topic | None] = {}
        prepared: dict[TopicId, PartitionStates | None] = {}
        left = dict.fromkeys(self._partitions)
        for name, put in self._topics.items():
            before = self._image.topics.get(name)
            if before is not None:
                # A replaced topic leaves partitions behind under its old id: they become prepared.
                left[before.id] = None
            topics[name] = None
            if put is not None:
                topic, aside = self._build_topic(name, *put)
                topics[name], prepared[topic.id] = topic, aside or None
                left.pop(topic.id, None)
        for topic_id in left:
            # These topics changed in their partitions only, or the partitions belong to no topic any more.
            topic_before = self._image.topics_by_id.get(topic_id)
            if topic_before is not None and topic_before.name not in topics:
                topic, aside = self._with_changed_partitions(topic_before)
                topics[topic.name], prepared[topic_id] = topic, aside or None
            else:
                prepared[topic_id] = self._all_states(topic_id) or None
        return _ChangedTopics(topics, prepared)

    def _build_topic(self, name: str, value: TopicValue, revision: int) -> tuple[Topic, PartitionStates]:
        key = self._keys.topic(name)
        topic_id = topic_id_from_text(value.topic_id)
        before = self._image.topics.get(name)
        has_same_partitions = (
            before is not None
            and before.id == topic_id
            and len(before.partitions) == value.partitions
            and topic_id not in self._partitions
        )
        # Sharing the tuple lets `image_changes` skip the topic's partitions by identity.
        if before is not None and has_same_partitions:
            partitions, aside = before.partitions, self._image.prepared.get(topic_id, {})
        else:
            partitions, aside = _split_by_count(key, self._all_states(topic_id), value.partitions)
        topic = Topic(
            name,
            topic_id,
            value.internal,
            value.created_ms,
            value.overrides,
            partitions,
            revision,
            value.min_isr_changes,
        )
        return topic, aside

    def _with_changed_partitions(self, topic: Topic) -> tuple[Topic, PartitionStates]:
        changes = self._partitions[topic.id]
        count = len(topic.partitions)
        aside = self._image.prepared.get(topic.id, {})
        # The common case, a leader or ISR change: no partition is added, removed or beyond the count.
        if all(state is not None and index < count for index, state in changes.items()):
            partitions = list(topic.partitions)
            for index, state in changes.items():
                assert state is not None
                partitions[index] = state
            return msgspec.structs.replace(topic, partitions=tuple(partitions)), aside
        shown, aside = _split_by_count(self._keys.topic(topic.name), self._all_states(topic.id), count)
        return msgspec.structs.replace(topic, partitions=shown), aside

    def _all_states(self, topic_id: TopicId) -> PartitionStates:
        """Every partition stored under this topic id, whether or not it counts."""
        states: dict[int, PartitionState] = {}
        topic = self._image.topics_by_id.get(topic_id)
        if topic is not None:
            states.update(enumerate(topic.partitions))
        states.update(self._image.prepared.get(topic_id, {}))
        return _merged(states, self._partitions.get(topic_id, {}))

    def _state(self, key: str, index: int, data: bytes, revision: int) -> PartitionState:
        value = decode_document(PartitionValue, key, data)
        if value.leader != NO_NODE and value.leader not in value.replicas:
            raise CorruptData(f"metadata key {key}: its leader {value.leader} holds no replica")
        if value.isr != value.replicas and not set(value.isr) <= set(value.replicas):
            raise CorruptData(f"metadata key {key}: a node is in sync that holds no replica")
        replicas, leader, leader_epoch, isr, *others = astuple(value)
        return PartitionState(
            self._node_lists.setdefault(replicas, replicas),
            leader,
            leader_epoch,
            self._node_lists.setdefault(isr, isr),
            *others,
            index=index,
            revision=revision,
        )


class _ChangedTopics(NamedTuple):
    topics: dict[str, Topic | None]
    """Every changed topic in its new state; None for deleted topics."""
    prepared: dict[TopicId, PartitionStates | None]


def _split_by_count(
    key: str, states: PartitionStates, count: int
) -> tuple[tuple[PartitionState, ...], PartitionStates]:
    """The partitions within a topic's count, and those beyond it."""
    shown = tuple([state for state in map(states.get, range(count)) if state is not None])
    if len(shown) != count:
        raise CorruptData(f"metadata key {key}: it says {count} partitions, and fewer are stored")
    if len(states) == count:
        return shown, {}
    return shown, {index: state for index, state in states.items() if index >= count}


def _rename_metrics(
    names: dict[str, str], before: Mapping[str, Topic], written: Mapping[str, object | None]
) -> None:
    # Old names first: one transaction may delete a topic and create another with the same metric name.
    for name in written:
        if name in before:
            names.pop(metric_name(name), None)
    names.update({metric_name(name): name for name, put in written.items() if put is not None})


def _require_known_level(features: Features, *, newest: int) -> None:
    level = features.levels.get(levels.FEATURE, levels.OLDEST)
    if not levels.OLDEST <= level <= newest:
        raise CorruptData(
            f"this cluster is at level {level}, and this release of Penstock knows "
            f"{levels.OLDEST} to {newest}: start a release that knows it"
        )


def _merged(before: Mapping[K, V], changes: Mapping[K, V | None]) -> Mapping[K, V]:
    if not changes:
        return before
    after = dict(before)
    for key, value in changes.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = value
    return after
