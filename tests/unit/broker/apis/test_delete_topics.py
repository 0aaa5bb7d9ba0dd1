"""DeleteTopics: by name, by id, and every way to ask for it wrongly."""

from collections.abc import AsyncIterator

import pytest

from penstock.broker.apis.delete_topics import DeleteTopics
from penstock.errors import ErrorCode
from penstock.limits import TOPICS_PER_REQUEST_MAX
from penstock.protocol.messages.delete_topics import (
    DELETE_TOPICS,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from penstock.security.access import Authorizer
from penstock.types import NO_TOPIC_ID, TopicId
from tests.unit.broker.support import (
    ALLOW_EVERYTHING,
    DENY_EVERYTHING,
    HandlerHarness,
    denying,
    running_cluster,
)

UNKNOWN_ID = TopicId(b"u" * 16)
Answer = tuple[str | None, TopicId, int]


@pytest.fixture
async def harness() -> AsyncIterator[HandlerHarness]:
    async with running_cluster() as harness:
        yield harness


async def ask(
    harness: HandlerHarness,
    request: DeleteTopicsRequest,
    version: int,
    authorizer: Authorizer = ALLOW_EVERYTHING,
) -> list[DeletableTopicResult]:
    handler = DeleteTopics(harness.cluster)
    return (await harness.ask(DELETE_TOPICS, handler, request, version, authorizer=authorizer)).responses


async def delete(
    harness: HandlerHarness,
    *topics: tuple[str | None, TopicId],
    timeout_ms: int = 1,
    authorizer: Authorizer = ALLOW_EVERYTHING,
) -> list[Answer]:
    request = DeleteTopicsRequest([DeleteTopicState(*topic) for topic in topics], timeout_ms=timeout_ms)
    results = await ask(harness, request, 6, authorizer)
    return [(result.name, result.topic_id, result.error_code) for result in results]


@pytest.mark.parametrize("version", range(1, 6))
async def test_topics_are_deleted_by_name(harness: HandlerHarness, version: int) -> None:
    for name in ("a", "b", "c"):
        await harness.topic(name, partitions=2)
    request = DeleteTopicsRequest(topic_names=["a", "missing", "c"], timeout_ms=1)
    results = await ask(harness, request, version)

    assert [(result.name, result.error_code) for result in results] == [("a", 0), ("missing", 3), ("c", 0)]
    assert list(harness.cluster.image.topics) == ["b"]
    assert harness.cluster.image.partition_count == 2
    assert results[0].error_message is None
    assert results[1].error_message


async def test_a_deleted_topic_is_answered_with_its_name_and_its_id(harness: HandlerHarness) -> None:
    a, b = await harness.topic("a"), await harness.topic("b")

    assert await delete(harness, ("a", NO_TOPIC_ID), (None, b.id)) == [("a", a.id, 0), ("b", b.id, 0)]
    assert not harness.cluster.image.topics


async def test_what_is_not_there_is_unknown_by_name_or_by_id(harness: HandlerHarness) -> None:
    assert await delete(harness, ("no", NO_TOPIC_ID), ("a b", NO_TOPIC_ID), (None, UNKNOWN_ID)) == [
        ("no", NO_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("a b", NO_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (None, UNKNOWN_ID, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


async def test_an_entry_needs_a_name_or_an_id_and_not_both(harness: HandlerHarness) -> None:
    topic = await harness.topic("t")

    assert await delete(harness, ("t", topic.id), (None, NO_TOPIC_ID)) == [
        ("t", topic.id, ErrorCode.INVALID_REQUEST),
        (None, NO_TOPIC_ID, ErrorCode.INVALID_REQUEST),
    ]
    assert "t" in harness.cluster.image.topics


async def test_a_topic_that_occurs_twice_is_answered_once_and_stays(harness: HandlerHarness) -> None:
    topic = await harness.topic("t")
    by_name, by_id, unknown = ("t", NO_TOPIC_ID), (None, topic.id), (None, UNKNOWN_ID)
    invalid = ErrorCode.INVALID_REQUEST

    assert await delete(harness, by_name, by_name) == [("t", NO_TOPIC_ID, invalid)]
    assert await delete(harness, by_id, by_id) == [(None, topic.id, invalid)]
    assert await delete(harness, unknown, unknown) == [(None, UNKNOWN_ID, invalid)]
    for both in ([by_name, by_id], [by_id, by_name]):
        assert await delete(harness, *both) == [("t", topic.id, invalid)]
    assert await delete(harness, by_name, by_name, by_id) == [("t", NO_TOPIC_ID, invalid)]
    assert "t" in harness.cluster.image.topics


@pytest.mark.parametrize("timeout_ms", [0, -1])
async def test_without_time_nothing_is_deleted(harness: HandlerHarness, timeout_ms: int) -> None:
    await harness.topic("t")
    request = DeleteTopicsRequest(topic_names=["t"], timeout_ms=timeout_ms)
    (result,) = await ask(harness, request, 5)

    assert (result.error_code, result.error_message) == (ErrorCode.REQUEST_TIMED_OUT, None)
    assert "t" in harness.cluster.image.topics


@pytest.mark.parametrize(
    ("version", "code"), [(1, 42), (2, 42), (3, ErrorCode.TOPIC_DELETION_DISABLED), (5, 73)]
)
async def test_deletion_can_be_switched_off(version: int, code: int) -> None:
    async with running_cluster({"delete.topic.enable": "false"}) as harness:
        await harness.topic("t")
        (result,) = await ask(harness, DeleteTopicsRequest(topic_names=["t"], timeout_ms=1), version)

        assert result.error_code == code
        assert "t" in harness.cluster.image.topics


async def test_more_topics_than_one_request_may_delete_are_refused(harness: HandlerHarness) -> None:
    names = [f"t{number}" for number in range(TOPICS_PER_REQUEST_MAX + 1)]
    results = await ask(harness, DeleteTopicsRequest(topic_names=names, timeout_ms=1), 5)

    assert {result.error_code for result in results} == {ErrorCode.POLICY_VIOLATION}


async def test_the_brokers_own_topics_are_kept(harness: HandlerHarness) -> None:
    topic = await harness.topic("__consumer_offsets")
    code = ErrorCode.INVALID_TOPIC_EXCEPTION

    assert await delete(harness, (None, topic.id)) == [(None, topic.id, code)]
    assert await delete(harness, (topic.name, NO_TOPIC_ID)) == [(topic.name, NO_TOPIC_ID, code)]
    assert topic.name in harness.cluster.image.topics


async def test_who_may_delete_nothing_learns_nothing(harness: HandlerHarness) -> None:
    topic = await harness.topic("t")
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED

    answers = await delete(
        harness, ("t", NO_TOPIC_ID), ("missing", NO_TOPIC_ID), (None, topic.id), authorizer=DENY_EVERYTHING
    )
    assert answers == [("t", NO_TOPIC_ID, denied), ("missing", NO_TOPIC_ID, denied), (None, topic.id, denied)]
    assert "t" in harness.cluster.image.topics


async def test_only_what_is_allowed_is_deleted(harness: HandlerHarness) -> None:
    mine, theirs = await harness.topic("mine"), await harness.topic("theirs")
    answers = await delete(harness, (None, theirs.id), (None, mine.id), authorizer=denying("theirs"))

    assert answers == [(None, theirs.id, ErrorCode.TOPIC_AUTHORIZATION_FAILED), ("mine", mine.id, 0)]
    assert list(harness.cluster.image.topics) == ["theirs"]
