"""CreateTopics: api key 19, versions 2 to 7.

Creates topics, each with a count of partitions or with replicas assigned by the client.

Behaviour
    Allowed to clients that may create on the cluster, or on the topic. When the reply arrives, the topic
    exists and its partitions accept records. Rejected topics do not affect the others.
    A name that occurs twice gets one reply, last, with INVALID_REQUEST. A setting that occurs twice has its
    last value. A timeout of zero or less creates nothing: REQUEST_TIMED_OUT.
    More than 10,000 topics or partitions in one request: POLICY_VIOLATION for all of them.
    validate_only sends the same reply, including an id, and creates nothing.
    Replicas may be on registered brokers that are down: see controller/placement.py.
Versions
    5  the reply has the counts and settings of the new topic       7  and its id
Differs from Kafka
    Internal topics (__consumer_offsets and the like) are rejected: INVALID_TOPIC_EXCEPTION.
    Values of settings are returned in one spelling ("true", "compact,delete"), not as they were given.
    Three settings that Kafka 4 removed are accepted and dropped: see config/topic_settings.py.
    An invalid count of partitions is reported before an invalid replication factor.
    Running brokers are preferred to spreading over racks: Kafka uses a broker that is down if its rack has no
    other.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.cluster.topic_creation import RequestedTopic, TopicCreation
from penstock.broker.context import RequestContext
from penstock.broker.served_api import TOPIC, ServedApi, names_at
from penstock.config.describe import describe_topic
from penstock.controller.internal_topics import internal_topic_error
from penstock.controller.topics import BROKER_DEFAULT, ReplicaAssignment, TopicRequest
from penstock.errors import ApiError, ErrorCode
from penstock.limits import PARTITIONS_PER_TOPIC_MAX, TOPICS_PER_REQUEST_MAX
from penstock.metadata.cluster_image import Topic
from penstock.protocol.messages.create_topics import (
    CREATE_TOPICS,
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.security.access import CLUSTER, Operation, ResourceType

SETTINGS_ANSWERED_FROM = 5
METADATA_LOG = "__cluster_metadata"


class CreateTopics:
    api = ServedApi(CREATE_TOPICS, Operation.CREATE, TOPIC, names_at("topics", "name"))

    def __init__(self, cluster: MetadataService, creation: TopicCreation) -> None:
        self._cluster = cluster
        self._creation = creation

    async def __call__(self, request: CreateTopicsRequest, context: RequestContext) -> CreateTopicsResponse:
        occurrences = Counter(topic.name for topic in request.topics)
        once = [topic for topic in request.topics if occurrences[topic.name] == 1]
        rejections = _rejections(once, context)
        accepted = [topic for topic in once if topic.name not in rejections]
        problem = self._whole_request_error(accepted, request.timeout_ms)
        if problem is not None:
            rejections.update((topic.name, problem) for topic in accepted)
            accepted = []
        outcomes = await self._creation.create(
            [_wanted(topic) for topic in accepted], validate_only=request.validate_only
        )
        created = dict(zip((topic.name for topic in accepted), outcomes, strict=True))
        results = await self._results({**rejections, **created}, [topic.name for topic in once], context)
        twice = ApiError(ErrorCode.INVALID_REQUEST, "The topic is named twice in one request.")
        results += [_rejected(name, twice) for name, count in occurrences.items() if count > 1]
        return CreateTopicsResponse(topics=results)

    def _whole_request_error(self, accepted: Sequence[CreatableTopic], timeout_ms: int) -> ApiError | None:
        default = self._cluster.config.topic_creation.partitions_default
        partitions = sum(_partitions_asked(topic, default) for topic in accepted)
        if partitions > PARTITIONS_PER_TOPIC_MAX or len(accepted) > TOPICS_PER_REQUEST_MAX:
            detail = f"One request creates at most {PARTITIONS_PER_TOPIC_MAX} partitions."
            if len(accepted) == 1:
                most = f"A topic has at most {PARTITIONS_PER_TOPIC_MAX} partitions"
                detail = f"{most}; {partitions} were asked for."
            return ApiError(ErrorCode.POLICY_VIOLATION, detail)
        return ApiError(ErrorCode.REQUEST_TIMED_OUT) if timeout_ms <= 0 else None

    async def _results(
        self, outcomes: dict[str, Topic | ApiError], names: Sequence[str], context: RequestContext
    ) -> list[CreatableTopicResult]:
        # Topics of one request mostly have the same settings, and there are many of each: describe each set
        # once.
        described: dict[frozenset[tuple[str, str]], list[CreatableTopicConfigs]] = {}
        results = []
        for name in names:
            outcome = outcomes[name]
            if isinstance(outcome, ApiError):
                results.append(_rejected(name, outcome))
            elif context.version < SETTINGS_ANSWERED_FROM:
                results.append(CreatableTopicResult(name))
            elif not context.may(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, name):
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                results.append(CreatableTopicResult(name, outcome.id, topic_config_error_code=code))
            else:
                key = frozenset(outcome.overrides.items())
                if key not in described:
                    described[key] = self._settings(outcome)
                    await asyncio.sleep(0)  # thousands take a while: let other requests run
                results.append(_created(outcome, described[key]))
        return results

    def _settings(self, topic: Topic) -> list[CreatableTopicConfigs]:
        entries = describe_topic(topic.overrides, self._cluster.config)
        return [
            CreatableTopicConfigs(entry.name, entry.value, entry.read_only, entry.source, entry.sensitive)
            for entry in sorted(entries, key=lambda entry: entry.name)
        ]


def _rejections(topics: Sequence[CreatableTopic], context: RequestContext) -> dict[str, Topic | ApiError]:
    """Topics rejected before their existence is checked, so that nothing is revealed about them."""
    rejections: dict[str, Topic | ApiError] = {}
    denied = context.denied
    if denied and context.may(Operation.CREATE, CLUSTER.type, CLUSTER.name):
        denied = frozenset()
    for topic in topics:
        if topic.name in denied:
            rejections[topic.name] = ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Access is denied.")
        elif topic.name == METADATA_LOG:
            rejections[topic.name] = ApiError(ErrorCode.INVALID_REQUEST, f"{METADATA_LOG} cannot be created.")
        elif (problem := internal_topic_error(topic.name)) is not None:
            rejections[topic.name] = problem
    return rejections


def _partitions_asked(topic: CreatableTopic, default: int) -> int:
    if topic.assignments:
        return len(topic.assignments)
    return default if topic.num_partitions == BROKER_DEFAULT else max(0, topic.num_partitions)


def _wanted(topic: CreatableTopic) -> RequestedTopic:
    request = TopicRequest(
        name=topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=[
            ReplicaAssignment(given.partition_index, tuple(given.broker_ids)) for given in topic.assignments
        ],
    )
    return RequestedTopic(request, {config.name: config.value for config in topic.configs})


def _created(topic: Topic, settings: list[CreatableTopicConfigs]) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic.id,
        num_partitions=len(topic.partitions),
        replication_factor=len(topic.partitions[0].replicas),
        configs=settings,
    )


def _rejected(name: str, problem: ApiError) -> CreatableTopicResult:
    return CreatableTopicResult(name, error_code=problem.code, error_message=problem.detail or None)
