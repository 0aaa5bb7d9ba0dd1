"""CreatePartitions: api key 37, versions 0 to 3.

Adds partitions to topics. `count` is the topic's number of partitions afterwards.

Behaviour
    Rejected topics do not affect the others. A topic that occurs twice gets one reply, last, with
    INVALID_REQUEST. A timeout of zero or less adds nothing: REQUEST_TIMED_OUT.
    More than 10,000 partitions of one topic, or added by one request: POLICY_VIOLATION.
    validate_only sends the same reply and adds nothing.
    Replicas may be on registered brokers that are down: see controller/placement.py.
Versions
    no differences here
Differs from Kafka
    Internal topics are rejected: a group's coordinator is found by the number of partitions.
    Kafka replies UNKNOWN_SERVER_ERROR to more than 10,000 and still adds some.
"""

from collections import Counter
from collections.abc import Sequence

from penstock.broker.cluster.metadata_changes import MetadataChange
from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.context import RequestContext
from penstock.broker.served_api import TOPIC, ServedApi, names_at
from penstock.controller.decision import Decide
from penstock.controller.internal_topics import internal_topic_error
from penstock.controller.topics import grow_topic
from penstock.errors import ApiError, ErrorCode
from penstock.limits import PARTITIONS_PER_TOPIC_MAX, TOPICS_PER_REQUEST_MAX
from penstock.protocol.messages.create_partitions import (
    CREATE_PARTITIONS,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from penstock.security.access import Operation


class CreatePartitions:
    api = ServedApi(CREATE_PARTITIONS, Operation.ALTER, TOPIC, names_at("topics", "name"))

    def __init__(self, cluster: MetadataService) -> None:
        self._cluster = cluster

    async def __call__(
        self, request: CreatePartitionsRequest, context: RequestContext
    ) -> CreatePartitionsResponse:
        occurrences = Counter(topic.name for topic in request.topics)
        once = [topic for topic in request.topics if occurrences[topic.name] == 1]
        outcomes: dict[str, ApiError | None] = {
            topic.name: rejection for topic in once if (rejection := _rejection(topic, context)) is not None
        }
        accepted = [topic for topic in once if topic.name not in outcomes]
        problem = self._whole_request_error(accepted, request.timeout_ms)
        if problem is not None:
            outcomes.update((topic.name, problem) for topic in accepted)
            accepted = []
        metadata_change, growths = MetadataChange(self._cluster), [_growth(topic) for topic in accepted]
        commit_each = metadata_change.validate_each if request.validate_only else metadata_change.commit_each
        grown = await commit_each(growths)
        for topic, outcome in zip(accepted, grown, strict=True):
            outcomes[topic.name] = outcome if isinstance(outcome, ApiError) else None
        results = [_result(topic.name, outcomes[topic.name]) for topic in once]
        twice = ApiError(ErrorCode.INVALID_REQUEST, "The topic is named twice in one request.")
        results += [_result(name, twice) for name, count in occurrences.items() if count > 1]
        return CreatePartitionsResponse(results=results)

    def _whole_request_error(
        self, accepted: Sequence[CreatePartitionsTopic], timeout_ms: int
    ) -> ApiError | None:
        topics = self._cluster.image.topics
        added = sum(
            max(0, topic.count - len(topics[topic.name].partitions))
            for topic in accepted
            if topic.name in topics
        )
        if added > PARTITIONS_PER_TOPIC_MAX or len(accepted) > TOPICS_PER_REQUEST_MAX:
            detail = f"One request adds at most {PARTITIONS_PER_TOPIC_MAX} partitions."
            return ApiError(ErrorCode.POLICY_VIOLATION, detail)
        return ApiError(ErrorCode.REQUEST_TIMED_OUT) if timeout_ms <= 0 else None


def _rejection(topic: CreatePartitionsTopic, context: RequestContext) -> ApiError | None:
    if topic.name in context.denied:
        return ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Access is denied.")
    if topic.count > PARTITIONS_PER_TOPIC_MAX:
        detail = f"A topic has at most {PARTITIONS_PER_TOPIC_MAX} partitions; {topic.count} were asked for."
        return ApiError(ErrorCode.POLICY_VIOLATION, detail)
    return internal_topic_error(topic.name)


def _growth(topic: CreatePartitionsTopic) -> Decide:
    assignments = None
    if topic.assignments is not None:
        assignments = [tuple(given.broker_ids) for given in topic.assignments]
    return lambda image: grow_topic(image, topic.name, topic.count, assignments)


def _result(name: str, problem: ApiError | None) -> CreatePartitionsTopicResult:
    if problem is None:
        return CreatePartitionsTopicResult(name)
    # As Kafka, send no message with the code if the topic does not exist.
    is_missing = problem.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return CreatePartitionsTopicResult(name, problem.code, None if is_missing else problem.detail or None)
