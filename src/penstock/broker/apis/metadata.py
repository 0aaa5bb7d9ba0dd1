"""Metadata: api key 3, versions 0 to 13.

Returns the brokers' addresses for this listener's clients, the topics, and the leaders of partitions.

Behaviour
    Null (version 0: an empty list) requests all topics that the client may describe. Topics are requested by
    name or by id; if one entry has an id, entries with only a name are ignored.
    A name that is legal and missing is created, if both auto.create.topics.enable and the client want it, and
    if the client may create it. A name that occurs twice gets one reply.
    Existing topics come first. For a denied topic only the requested name or id is returned.
Versions
    4   creating is the client's choice; before, it is always requested
    8   authorised operations       10  topic ids       12  topics may be requested by id
Differs from Kafka
    An auto-created topic is in the reply; Kafka's first reply is UNKNOWN_TOPIC_OR_PARTITION.
    Kafka's internal topics are not auto-created: they need settings of their own.
"""

from collections.abc import Coroutine, Iterable, Sequence

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.cluster.metadata_view import (
    MetadataTopicCache,
    absent_topic,
    advertised_controller,
    brokers_at,
    is_legal_name,
    may_describe,
    reject_whole_request,
    whole_request_error,
    with_operations,
)
from penstock.broker.cluster.topic_creation import TopicCreation, may_create_topic
from penstock.broker.context import RequestContext
from penstock.broker.served_api import TOPIC, ServedApi, topics_named
from penstock.errors import ErrorCode
from penstock.metadata.cluster_image import INTERNAL_TOPICS, Topic
from penstock.protocol.messages.metadata import (
    METADATA,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from penstock.protocol.schema import OPERATIONS_NOT_REQUESTED
from penstock.security.access import CLUSTER, CLUSTER_OPERATIONS, Operation
from penstock.types import NO_TOPIC_ID

Rejections = dict[str, ErrorCode]


class Metadata:
    api = ServedApi(METADATA, Operation.DESCRIBE, TOPIC, topics_named("topics", "name"))

    def __init__(self, cluster: MetadataService, creation: TopicCreation) -> None:
        self._cluster = cluster
        self._creation = creation
        self.topics = MetadataTopicCache()

    def __call__(
        self, request: MetadataRequest, context: RequestContext
    ) -> MetadataResponse | Coroutine[object, object, MetadataResponse]:
        asked = request.topics
        if asked is None or (context.version == 0 and not asked):
            return self._reply(self._all(context), request, context)
        problem = whole_request_error(asked, context.version)
        if problem is not None:
            return reject_whole_request(asked, problem)
        if any(topic.topic_id != NO_TOPIC_ID for topic in asked):
            return self._reply(self._by_id(asked, context), request, context)
        names = list(dict.fromkeys(topic.name or "" for topic in asked))
        rejections, missing = self._rejected_and_missing(names, request, context)
        if missing:
            return self._create_and_reply(names, rejections, missing, request, context)
        return self._reply(self._by_name(names, rejections), request, context)

    def _all(self, context: RequestContext) -> list[MetadataResponseTopic]:
        image = self._cluster.client_view
        client_view: Iterable[Topic] = image.topics.values()
        if not context.may_everything:
            client_view = [topic for topic in client_view if may_describe(context, topic.name)]
        return self.topics.entries(client_view, image)

    def _by_id(
        self, asked: Sequence[MetadataRequestTopic], context: RequestContext
    ) -> list[MetadataResponseTopic]:
        image = self._cluster.client_view
        found, others = [], []
        for topic_id in dict.fromkeys(topic.topic_id for topic in asked if topic.topic_id != NO_TOPIC_ID):
            topic = image.topics_by_id.get(topic_id)
            if topic is None:
                others.append(MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id))
            # Access was checked for the names in the request, which need not match the id.
            elif not may_describe(context, topic.name):
                others.append(MetadataResponseTopic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, topic_id))
            else:
                found.append(topic)
        return self.topics.entries(found, image) + others

    def _by_name(self, names: Iterable[str], rejections: Rejections) -> list[MetadataResponseTopic]:
        image = self._cluster.client_view
        found, others = [], []
        for name in names:
            topic = None if name in rejections else image.topics.get(name)
            if topic is not None:
                found.append(topic)
            else:
                others.append(absent_topic(name, rejections.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)))
        return self.topics.entries(found, image) + others

    def _rejected_and_missing(
        self, names: Iterable[str], request: MetadataRequest, context: RequestContext
    ) -> tuple[Rejections, list[str]]:
        """The names that are rejected, and the names to be created."""
        topics, auto_create = self._cluster.image.topics, self._cluster.config.topic_creation.auto_create
        creating = auto_create and request.allow_auto_topic_creation
        rejections: Rejections = {}
        missing: list[str] = []
        for name in names:
            if name in context.denied:
                rejections[name] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif name in topics:
                continue
            elif not is_legal_name(name):
                rejections[name] = ErrorCode.INVALID_TOPIC_EXCEPTION
            elif creating and not may_create_topic(context, name):
                rejections[name] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif creating and name not in INTERNAL_TOPICS:
                missing.append(name)
        return rejections, missing

    async def _create_and_reply(
        self,
        names: Sequence[str],
        rejections: Rejections,
        missing: Sequence[str],
        request: MetadataRequest,
        context: RequestContext,
    ) -> MetadataResponse:
        rejections |= await self._creation.create_missing(missing)
        return self._reply(self._by_name(names, rejections), request, context)

    def _reply(
        self, topics: list[MetadataResponseTopic], request: MetadataRequest, context: RequestContext
    ) -> MetadataResponse:
        image = self._cluster.client_view
        operations = OPERATIONS_NOT_REQUESTED
        if request.include_cluster_authorized_operations:
            operations = context.operations_bits(CLUSTER_OPERATIONS, CLUSTER)
        if request.include_topic_authorized_operations:
            topics = [with_operations(topic, context) for topic in topics]
        else:
            topics = self.topics.with_encoded_entries(topics, context.version)
        is_store_unavailable = self._cluster.store_unavailable_since is not None
        return MetadataResponse(
            brokers=brokers_at(image, context.listener),
            cluster_id=image.cluster_id,
            controller_id=advertised_controller(
                image, self._cluster.config.node.node_id, is_store_unavailable=is_store_unavailable
            ),
            topics=topics,
            cluster_authorized_operations=operations,
        )
