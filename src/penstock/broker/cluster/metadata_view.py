"""Client view of brokers and topics, and a cache of pre-encoded topic entries of Metadata responses.

Strategy: clients request the same topics repeatedly, and a topic seldom changes. The cache makes a topic's
entry once and uses it until the image holds another `Topic` object or other brokers. The cache also keeps the
encoded bytes of an entry for the few versions in use: encoding a thousand partitions takes a millisecond.

Rule 1: responses share entries. Code that needs a different entry makes a copy.
Rule 2: everything that depends on the client (which topics, which operations) is decided per response and
        never cached.
Rule 3: the cache drops the entries of deleted topics before they outnumber the entries of existing topics.
"""

from collections.abc import Iterable, Mapping

import msgspec

from penstock.broker.context import RequestContext
from penstock.controller.topics import require_legal_name
from penstock.errors import ApiError, ErrorCode
from penstock.metadata.cluster_image import (
    INTERNAL_TOPICS,
    NO_NODE,
    BrokerRegistration,
    ClusterImage,
    PartitionState,
    Topic,
)
from penstock.metadata.documents import Endpoint
from penstock.protocol.compiler import encode
from penstock.protocol.messages.metadata import (
    METADATA,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    ReadyMetadataTopic,
)
from penstock.security.access import TOPIC_OPERATIONS, Operation, Resource, ResourceType
from penstock.types import NO_TOPIC_ID, TopicId

BrokersById = Mapping[int, BrokerRegistration]

VERSIONS_READY_MAX = 3
"""Number of versions whose bytes are kept: the clients of one cluster seldom use more."""
IDS_FROM = 12
"""First version of Metadata that accepts topic ids in place of names."""


def is_legal_name(name: str) -> bool:
    try:
        require_legal_name(name)
    except ApiError:
        return False
    return True


def may_describe(context: RequestContext, name: str) -> bool:
    return context.may(Operation.DESCRIBE, ResourceType.TOPIC, name)


def reachable_brokers(
    image: ClusterImage, listener: str, *, with_fenced: bool = False
) -> list[tuple[BrokerRegistration, Endpoint]]:
    """The live brokers, each with its endpoint for this listener.

    `with_fenced`: include registered brokers that are not alive.
    """
    return [
        (broker, broker.endpoints[listener])
        for broker in image.brokers.values()
        if (with_fenced or broker.is_alive) and listener in broker.endpoints
    ]


def brokers_at(image: ClusterImage, listener: str) -> list[MetadataResponseBroker]:
    return [
        MetadataResponseBroker(broker.id, endpoint.host, endpoint.port, broker.rack)
        for broker, endpoint in reachable_brokers(image, listener)
    ]


def advertised_controller(image: ClusterImage, asked: int, *, is_store_unavailable: bool) -> int:
    """The broker id to return as controller: the target for a client's admin requests.

    Every broker accepts admin requests, so the broker `asked` returns its own id: it is evidently alive,
    while the real controller may just have died, and clients cache the controller id.
    """
    broker = image.brokers.get(asked)
    can = broker is not None and broker.is_admitted and not is_store_unavailable
    return asked if can else image.controller_id


def leader_of(state: PartitionState, brokers: BrokersById) -> tuple[ErrorCode, int]:
    """The error code and the leader to return for a partition."""
    broker = brokers.get(state.leader)
    if broker is None or not broker.is_alive:
        return ErrorCode.LEADER_NOT_AVAILABLE, NO_NODE
    return ErrorCode.NONE, state.leader


def offline_replicas(state: PartitionState, brokers: BrokersById) -> list[int]:
    return [
        broker_id
        for broker_id in state.replicas
        if (broker := brokers.get(broker_id)) is None or not broker.is_alive
    ]


class MetadataTopicCache:
    def __init__(self) -> None:
        self._brokers: BrokersById = {}
        self.cached: dict[TopicId, tuple[Topic, MetadataResponseTopic]] = {}
        self.encoded_entries: dict[int, dict[TopicId, ReadyMetadataTopic]] = {}
        """Encoded entries by version and topic id, the most recently added version last. Each is made from
        the entry in `cached` with the same topic id."""

    def entries(self, topics: Iterable[Topic], image: ClusterImage) -> list[MetadataResponseTopic]:
        """Entries for topics of this image, without authorized operations."""
        # Entries hold the availability of leaders and replicas, which any change of the brokers may change.
        if image.brokers is not self._brokers:
            self.cached.clear()
            self.encoded_entries.clear()
            self._brokers = image.brokers
        answer = [self._entry(topic) for topic in topics]
        if len(self.cached) > 2 * len(image.topics):
            self.cached = {
                topic_id: known for topic_id, known in self.cached.items() if topic_id in image.topics_by_id
            }
            self.encoded_entries.clear()
        return answer

    def with_encoded_entries(
        self, entries: list[MetadataResponseTopic], version: int
    ) -> list[MetadataResponseTopic]:
        """The given entries, where cached topic entries are replaced by ones with bytes of this version."""
        ready = self.encoded_entries.get(version)
        if ready is None:
            ready = self.encoded_entries[version] = {}
            if len(self.encoded_entries) > VERSIONS_READY_MAX:
                del self.encoded_entries[next(iter(self.encoded_entries))]
        answer: list[MetadataResponseTopic] = []
        for entry in entries:
            known = ready.get(entry.topic_id)
            # Identical partitions prove that the bytes were made from this entry and not from an older one.
            if known is None or known.partitions is not entry.partitions:
                answer.append(self._with_encoded_entry(entry, ready, version))
            else:
                answer.append(known)
        return answer

    def _with_encoded_entry(
        self, entry: MetadataResponseTopic, ready: dict[TopicId, ReadyMetadataTopic], version: int
    ) -> MetadataResponseTopic:
        known = self.cached.get(entry.topic_id)
        if known is None or known[1] is not entry:
            return entry  # an error entry, or a copy for one client: not cached (Rule 2)
        (encoded,) = encode(MetadataResponseTopic, version, METADATA.is_flexible(version), entry)
        fields = msgspec.structs.asdict(entry)
        made = ready[entry.topic_id] = ReadyMetadataTopic(**fields, encoded=bytes(encoded))
        return made

    def _entry(self, topic: Topic) -> MetadataResponseTopic:
        known = self.cached.get(topic.id)
        if known is not None and known[0] is topic:
            return known[1]
        entry = MetadataResponseTopic(
            name=topic.name,
            topic_id=topic.id,
            is_internal=topic.internal,
            partitions=self._partitions(topic),
        )
        self.cached[topic.id] = topic, entry
        return entry

    def _partitions(self, topic: Topic) -> list[MetadataResponsePartition]:
        # The partitions of a topic share a few distinct replica lists: keep each list once to save memory.
        node_lists: dict[tuple[int, ...], list[int]] = {}
        partitions = []
        for state in topic.partitions:
            error_code, leader = leader_of(state, self._brokers)
            partitions.append(
                MetadataResponsePartition(
                    error_code=error_code,
                    partition_index=state.index,
                    leader_id=leader,
                    leader_epoch=state.leader_epoch,
                    replica_nodes=node_lists.setdefault(state.replicas, list(state.replicas)),
                    isr_nodes=node_lists.setdefault(state.isr, list(state.isr)),
                    offline_replicas=offline_replicas(state, self._brokers),
                )
            )
        return partitions


def whole_request_error(asked: Iterable[MetadataRequestTopic], version: int) -> ErrorCode | None:
    """The error for the whole request if one entry is invalid, with Kafka's codes; else None."""
    if version < IDS_FROM:
        if any(topic.name is None or topic.topic_id != NO_TOPIC_ID for topic in asked):
            return ErrorCode.INVALID_REQUEST
    elif any(topic.name is None and topic.topic_id == NO_TOPIC_ID for topic in asked):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return None


def reject_whole_request(asked: Iterable[MetadataRequestTopic], code: ErrorCode) -> MetadataResponse:
    return MetadataResponse(
        topics=[MetadataResponseTopic(code, topic.name or "", topic.topic_id) for topic in asked]
    )


def absent_topic(name: str, code: ErrorCode) -> MetadataResponseTopic:
    is_internal = name in INTERNAL_TOPICS and code != ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return MetadataResponseTopic(code, name, is_internal=is_internal)


def with_operations(topic: MetadataResponseTopic, context: RequestContext) -> MetadataResponseTopic:
    if topic.name is None or topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return topic
    bits = context.operations_bits(TOPIC_OPERATIONS, Resource(ResourceType.TOPIC, topic.name))
    return msgspec.structs.replace(topic, topic_authorized_operations=bits)
