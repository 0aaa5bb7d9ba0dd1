"""DeleteTopics: api key 20, versions 1 to 6, flexible from 4.

Deletes topics by name or by id.
"""

from __future__ import annotations

from typing import Annotated

from penstock.protocol.schema import Api, Int16, Int32, String, Struct, TopicUuid, nullable, versions
from penstock.types import NO_TOPIC_ID


class DeleteTopicState(Struct):
    name: String | None = None
    topic_id: TopicUuid = NO_TOPIC_ID


class DeleteTopicsRequest(Struct):
    topics: Annotated[list[DeleteTopicState], versions(6)] = []
    topic_names: Annotated[list[String], versions(1, 5)] = []
    timeout_ms: Int32 = 0


class DeletableTopicResult(Struct):
    name: Annotated[String | None, nullable(6)] = ""
    topic_id: Annotated[TopicUuid, versions(6)] = NO_TOPIC_ID
    error_code: Int16 = 0
    error_message: Annotated[String | None, versions(5)] = None


class DeleteTopicsResponse(Struct):
    throttle_time_ms: Int32 = 0
    responses: list[DeletableTopicResult] = []


DELETE_TOPICS = Api(
    key=20,
    versions=(1, 6),
    flexible=4,
    request=DeleteTopicsRequest,
    response=DeleteTopicsResponse,
)
