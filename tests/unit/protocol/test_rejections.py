"""Which replies count as rejections of everything that was asked for."""

import pytest

from penstock.errors import ErrorCode
from penstock.protocol.apis import ALL
from penstock.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from penstock.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from penstock.protocol.messages.heartbeat import HeartbeatResponse
from penstock.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from penstock.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from penstock.protocol.rejections import is_rejection
from penstock.protocol.schema import Api, Struct

BAD = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def produced(*codes: int) -> ProduceResponse:
    parts = [PartitionProduceResponse(error_code=code) for code in codes]
    return ProduceResponse([TopicProduceResponse("a", partition_responses=[part]) for part in parts])


def fetched(*codes: int, whole: int = 0) -> FetchResponse:
    partitions = [PartitionData(error_code=code) for code in codes]
    return FetchResponse(error_code=whole, responses=[FetchableTopicResponse("a", partitions=partitions)])


@pytest.mark.parametrize("api", ALL, ids=lambda api: api.name)
def test_an_empty_reply_of_any_api_is_no_rejection(api: Api[Struct, Struct]) -> None:
    assert not is_rejection(api.response())


@pytest.mark.parametrize(
    "reply",
    [
        HeartbeatResponse(error_code=BAD),
        FindCoordinatorResponse(error_code=BAD),
        FindCoordinatorResponse(coordinators=[Coordinator(error_code=BAD)]),
        MetadataResponse(topics=[MetadataResponseTopic(error_code=BAD), MetadataResponseTopic(BAD)]),
        produced(BAD),
        produced(BAD, BAD),
        fetched(BAD, BAD),
        fetched(whole=BAD),
        fetched(0, whole=BAD),
    ],
)
def test_a_code_for_all_or_for_each_part_is_a_rejection(reply: Struct) -> None:
    assert is_rejection(reply)


@pytest.mark.parametrize(
    "reply",
    [
        HeartbeatResponse(),
        FindCoordinatorResponse(coordinators=[Coordinator(error_code=BAD), Coordinator()]),
        MetadataResponse(topics=[MetadataResponseTopic()]),
        produced(0),
        produced(BAD, 0),
        fetched(),
        fetched(BAD, 0),
    ],
)
def test_a_reply_that_grants_a_part_is_no_rejection(reply: Struct) -> None:
    assert not is_rejection(reply)
