"""Metadata: api key 3, versions 0 to 13.

Tells where this listener's clients find the brokers, which topics there are, and who leads what.

Behaviour
    Null (version 0: an empty list) asks for all topics that the client may describe. Topics are
    asked for by name or by id; where one entry has an id, those with a name only are passed over.
    A name that is legal and missing is created, if both auto.create.topics.enable and the client
    want it, and if the client may create it. A name that occurs twice is answered once.
    Topics that are there come first. Of a denied topic only the name or id asked for is answered.
Versions
    4   creating is the client's choice; before, it is always wanted
    8   authorised operations       10  topic ids       12  topics may be asked for by id
Differs from Kafka
    A topic created on the way is in the answer; Kafka's first answer is UNKNOWN_TOPIC_OR_PARTITION.
    Kafka's internal topics are not created on the way: they need settings of their own.
"""

from collections.abc import Coroutine, Iterable, Sequence

from penstock.broker.cluster.metadata_service import Cluster
from penstock.broker.cluster.metadata_view import (
    MetadataTopics,
    absent_topic,
    brokers_at,
    is_legal_name,
    may_describe,
    problem_of_all,
    refused_whole,
    takes_changes,
    with_operations,
)
from penstock.broker.cluster.topic_creation import TopicCreation, may_create_topic
from penstock.broker.context import RequestContext
from penstock.broker.served_api import TOPIC, ServedApi, topics
from penstock.errors import ErrorCode
from penstock.metadata.facts import INTERNAL_TOPICS, Topic
from penstock.protocol.messages.metadata import (
    METADATA,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from penstock.protocol.schema import OPERATIONS_NOT_ASKED_FOR
from penstock.security.access import CLUSTER, CLUSTER_OPERATIONS, Operation
from penstock.types import NO_TOPIC_ID

Refusals = dict[str, ErrorCode]


class Metadata:
    api = ServedApi(METADATA, Operation.DESCRIBE, TOPIC, topics("topics", "name"))

    def __init__(self, cluster: Cluster, creation: TopicCreation) -> None:
        self._cluster = cluster
        self._creation = creation
        self._topics = MetadataTopics()

    def __call__(
        self, request: MetadataRequest, context: RequestContext
    ) -> MetadataResponse | Coroutine[object, object, MetadataResponse]:
        asked = request.topics
        if asked is None or (context.version == 0 and not asked):
            return self._reply(self._all(context), request, context)
        problem = problem_of_all(asked, context.version)
        if problem is not None:
            return refused_whole(asked, problem)
        if any(topic.topic_id != NO_TOPIC_ID for topic in asked):
            return self._reply(self._by_id(asked, context), request, context)
        names = list(dict.fromkeys(topic.name or "" for topic in asked))
        refusals, wanted = self._sorted_out(names, request, context)
        if wanted:
            return self._create_and_reply(names, refusals, wanted, request, context)
        return self._reply(self._by_name(names, refusals), request, context)

    def _all(self, context: RequestContext) -> list[MetadataResponseTopic]:
        image = self._cluster.shown
        shown: Iterable[Topic] = image.topics.values()
        if not context.may_everything:
            shown = [topic for topic in shown if may_describe(context, topic.name)]
        return self._topics.entries(shown, image)

    def _by_id(
        self, asked: Sequence[MetadataRequestTopic], context: RequestContext
    ) -> list[MetadataResponseTopic]:
        image = self._cluster.shown
        found, others = [], []
        for topic_id in dict.fromkeys(topic.topic_id for topic in asked if topic.topic_id != NO_TOPIC_ID):
            topic = image.topics_by_id.get(topic_id)
            if topic is None:
                others.append(MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id))
            # The names that were checked already are those in the request, which may be wrong.
            elif not may_describe(context, topic.name):
                others.append(MetadataResponseTopic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, topic_id))
            else:
                found.append(topic)
        return self._topics.entries(found, image) + others

    def _by_name(self, names: Iterable[str], refusals: Refusals) -> list[MetadataResponseTopic]:
        image = self._cluster.shown
        found, others = [], []
        for name in names:
            topic = None if name in refusals else image.topics.get(name)
            if topic is not None:
                found.append(topic)
            else:
                others.append(absent_topic(name, refusals.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)))
        return self._topics.entries(found, image) + others

    def _sorted_out(
        self, names: Iterable[str], request: MetadataRequest, context: RequestContext
    ) -> tuple[Refusals, list[str]]:
        """Which names are refused, and which are to be created."""
        topics, auto_create = self._cluster.image.topics, self._cluster.config.topic_creation.auto_create
        creating = auto_create and request.allow_auto_topic_creation
        refusals: Refusals = {}
        wanted: list[str] = []
        for name in names:
            if name in context.denied:
                refusals[name] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif name in topics:
                continue
            elif not is_legal_name(name):
                refusals[name] = ErrorCode.INVALID_TOPIC_EXCEPTION
            elif creating and not may_create_topic(context, name):
                refusals[name] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif creating and name not in INTERNAL_TOPICS:
                wanted.append(name)
        return refusals, wanted

    async def _create_and_reply(
        self,
        names: Sequence[str],
        refusals: Refusals,
        wanted: Sequence[str],
        request: MetadataRequest,
        context: RequestContext,
    ) -> MetadataResponse:
        refusals |= await self._creation.create_missing(wanted)
        return self._reply(self._by_name(names, refusals), request, context)

    def _reply(
        self, topics: list[MetadataResponseTopic], request: MetadataRequest, context: RequestContext
    ) -> MetadataResponse:
        image = self._cluster.shown
        operations = OPERATIONS_NOT_ASKED_FOR
        if request.include_cluster_authorized_operations:
            operations = context.operations_bits(CLUSTER_OPERATIONS, CLUSTER)
        if request.include_topic_authorized_operations:
            topics = [with_operations(topic, context) for topic in topics]
        else:
            topics = self._topics.made_ready(topics, context.version)
        is_store_away = self._cluster.store_away_since is not None
        return MetadataResponse(
            brokers=brokers_at(image, context.listener),
            cluster_id=image.cluster_id,
            controller_id=takes_changes(
                image, self._cluster.config.node.node_id, is_store_away=is_store_away
            ),
            topics=topics,
            cluster_authorized_operations=operations,
        )
