"""DeleteTopics: api key 20, versions 1 to 6.

Deletes topics by name or, from version 6 on, by id.

Behaviour
    Rejected topics do not affect the others. An entry with both a name and an id, or with neither, is
    INVALID_REQUEST; so is a topic that occurs twice, also once by name and once by id: it gets one reply and
    is not deleted. A timeout of zero or less deletes nothing: REQUEST_TIMED_OUT. With
    delete.topic.enable=false: TOPIC_DELETION_DISABLED (before version 3 INVALID_REQUEST). More than 10,000
    topics in one request: POLICY_VIOLATION.
    A topic that a client may not delete is TOPIC_AUTHORIZATION_FAILED, whether or not it exists.
Versions
    5  error message       6  ids; the reply for a deleted topic has both its name and its id
Differs from Kafka
    Internal topics are rejected: INVALID_TOPIC_EXCEPTION.
    Replies come in the order of the request, rejected topics first.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.broker.cluster.metadata_changes import MetadataChange
from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.context import RequestContext
from penstock.broker.served_api import TOPIC, ServedApi, topics_named
from penstock.controller.decision import Decide, Decision
from penstock.controller.internal_topics import internal_topic_error
from penstock.controller.topics import delete_topic, unknown_topic_id
from penstock.errors import ApiError, ErrorCode
from penstock.limits import TOPICS_PER_REQUEST_MAX
from penstock.metadata.cluster_image import ClusterImage, Topic
from penstock.protocol.messages.delete_topics import (
    DELETE_TOPICS,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from penstock.security.access import Operation, ResourceType
from penstock.types import NO_TOPIC_ID, TopicId

IDS_FROM = 6
DISABLED_SAID_FROM = 3


class _TopicReference(NamedTuple):
    name: str | None
    topic_id: TopicId


def _deleted_topics(request: DeleteTopicsRequest, image: ClusterImage) -> Iterable[str]:
    return [*request.topic_names, *topics_named("topics", "name")(request, image)]


class DeleteTopics:
    api = ServedApi(DELETE_TOPICS, Operation.DELETE, TOPIC, _deleted_topics)

    def __init__(self, cluster: MetadataService) -> None:
        self._cluster = cluster

    async def __call__(self, request: DeleteTopicsRequest, context: RequestContext) -> DeleteTopicsResponse:
        asked = [_TopicReference(name, NO_TOPIC_ID) for name in request.topic_names]
        if context.version >= IDS_FROM:
            asked = [_TopicReference(topic.name, topic.topic_id) for topic in request.topics]
        metadata_change, image = MetadataChange(self._cluster), self._cluster.image
        results, accepted = _reject_invalid(asked, image, context)
        problem = self._whole_request_error(len(accepted), request.timeout_ms, context.version)
        if problem is None and any(_name_of(topic, image) is None for topic in accepted):
            # This broker's image may be stale. Access can be checked only once the name of the topic is
            # known.
            try:
                image = await metadata_change.image()
                results, accepted = _reject_invalid(asked, image, context)
            except ApiError as away:
                problem = away
        if problem is not None:
            results += [_rejected(topic, problem) for topic in accepted]
            return DeleteTopicsResponse(responses=results)
        found: dict[_TopicReference, Topic] = {}
        decides = [_deletion(topic, found, image) for topic in accepted]
        outcomes = await metadata_change.commit_each(decides, independent=True)
        for topic, outcome in zip(accepted, outcomes, strict=True):
            if isinstance(outcome, ApiError):
                results.append(_rejected(topic, outcome))
            else:
                results.append(DeletableTopicResult(found[topic].name, found[topic].id))
        return DeleteTopicsResponse(responses=results)

    def _whole_request_error(self, count: int, timeout_ms: int, version: int) -> ApiError | None:
        if not self._cluster.config.topic_creation.delete_enabled:
            is_said = version >= DISABLED_SAID_FROM
            code = ErrorCode.TOPIC_DELETION_DISABLED if is_said else ErrorCode.INVALID_REQUEST
            return ApiError(code, "delete.topic.enable is false on this broker.")
        if count > TOPICS_PER_REQUEST_MAX:
            detail = f"One request deletes at most {TOPICS_PER_REQUEST_MAX} topics."
            return ApiError(ErrorCode.POLICY_VIOLATION, detail)
        return ApiError(ErrorCode.REQUEST_TIMED_OUT) if timeout_ms <= 0 else None


def _reject_invalid(
    asked: Sequence[_TopicReference], image: ClusterImage, context: RequestContext
) -> tuple[list[DeletableTopicResult], list[_TopicReference]]:
    """Replies for invalid entries, and the remaining entries."""
    results: list[DeletableTopicResult] = []
    accepted: list[_TopicReference] = []
    by_name = {topic.name for topic in asked if topic.topic_id == NO_TOPIC_ID}
    by_id = {_name_of(topic, image) for topic in asked if topic.name is None}
    for topic, count in Counter(asked).items():
        name = _name_of(topic, image)
        problem = _problem_of(topic, count) or internal_topic_error(name or "")
        if problem is None and name is not None and _is_denied(topic, name, context):
            problem = ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Access is denied.")
        elif problem is None and name is not None and name in by_name and name in by_id:
            if topic.name is None:
                # The entry with the name gets the reply for both.
                continue
            problem = ApiError(ErrorCode.INVALID_REQUEST, "The topic is given by its name and by its id.")
            topic = _TopicReference(name, image.topics[name].id)
        if problem is not None:
            results.append(_rejected(topic, problem))
        else:
            accepted.append(topic)
    return results, accepted


def _is_denied(topic: _TopicReference, name: str, context: RequestContext) -> bool:
    if topic.name is not None:
        return name in context.denied
    # The topic's name may not have been known here when access was checked.
    return not context.may(Operation.DELETE, ResourceType.TOPIC, name)


def _problem_of(topic: _TopicReference, count: int) -> ApiError | None:
    if (topic.name is None) == (topic.topic_id == NO_TOPIC_ID):
        return ApiError(ErrorCode.INVALID_REQUEST, "Give either the name or the id of a topic.")
    if count > 1:
        return ApiError(ErrorCode.INVALID_REQUEST, "The topic is given twice in one request.")
    return None


def _name_of(topic: _TopicReference, image: ClusterImage) -> str | None:
    if topic.name is not None:
        return topic.name
    known = image.topics_by_id.get(topic.topic_id)
    return known.name if known else None


def _deletion(topic: _TopicReference, found: dict[_TopicReference, Topic], looked_at: ClusterImage) -> Decide:
    """The deletion of one topic. It records the topic in `found`, because the new image no longer has it.

    `looked_at` is the image in which names were resolved and access was checked.
    """

    def decide(image: ClusterImage) -> Decision:
        if topic.name is not None:
            decision = delete_topic(image, name=topic.name)
            found[topic] = image.topics[topic.name]
        else:
            # An id that only a newer image has was not checked for access.
            if topic.topic_id not in looked_at.topics_by_id:
                raise unknown_topic_id(topic.topic_id)
            decision = delete_topic(image, topic_id=topic.topic_id)
            found[topic] = image.topics_by_id[topic.topic_id]
        return decision

    return decide


def _rejected(topic: _TopicReference, problem: ApiError) -> DeletableTopicResult:
    return DeletableTopicResult(topic.name, topic.topic_id, problem.code, problem.detail or None)
