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
from tests.unit.broker.support import ALLOW_EVERYTHING, DENY_EVERYTHING, Asker, denying, running_cluster

UNKNOWN_ID = TopicId(b"u" * 16)
Answer = tuple[str | None, TopicId, int]


@pytest.fixture
async def asker() -> AsyncIterator[Asker]:
    async with running_cluster() as asker:
        yield asker


async def ask(
    asker: Asker, request: DeleteTopicsRequest, version: int, authorizer: Authorizer = ALLOW_EVERYTHING
) -> list[DeletableTopicResult]:
    handler = DeleteTopics(asker.cluster)
    return (await asker.ask(DELETE_TOPICS, handler, request, version, authorizer=authorizer)).responses


async def delete(
    asker: Asker,
    *topics: tuple[str | None, TopicId],
    timeout_ms: int = 1,
    authorizer: Authorizer = ALLOW_EVERYTHING,
) -> list[Answer]:
    request = DeleteTopicsRequest([DeleteTopicState(*topic) for topic in topics], timeout_ms=timeout_ms)
    results = await ask(asker, request, 6, authorizer)
    return [(result.name, result.topic_id, result.error_code) for result in results]


@pytest.mark.parametrize("version", range(1, 6))
async def test_topics_are_deleted_by_name(asker: Asker, version: int) -> None:
    for name in ("a", "b", "c"):
        await asker.topic(name, partitions=2)
    request = DeleteTopicsRequest(topic_names=["a", "missing", "c"], timeout_ms=1)
    results = await ask(asker, request, version)

    assert [(result.name, result.error_code) for result in results] == [("a", 0), ("missing", 3), ("c", 0)]
    assert list(asker.cluster.image.topics) == ["b"]
    assert asker.cluster.image.partition_count == 2
    assert results[0].error_message is None
    assert results[1].error_message


async def test_a_deleted_topic_is_answered_with_its_name_and_its_id(asker: Asker) -> None:
    a, b = await asker.topic("a"), await asker.topic("b")

    assert await delete(asker, ("a", NO_TOPIC_ID), (None, b.id)) == [("a", a.id, 0), ("b", b.id, 0)]
    assert not asker.cluster.image.topics


async def test_what_is_not_there_is_unknown_by_name_or_by_id(asker: Asker) -> None:
    assert await delete(asker, ("no", NO_TOPIC_ID), ("a b", NO_TOPIC_ID), (None, UNKNOWN_ID)) == [
        ("no", NO_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("a b", NO_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (None, UNKNOWN_ID, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


async def test_an_entry_needs_a_name_or_an_id_and_not_both(asker: Asker) -> None:
    topic = await asker.topic("t")

    assert await delete(asker, ("t", topic.id), (None, NO_TOPIC_ID)) == [
        ("t", topic.id, ErrorCode.INVALID_REQUEST),
        (None, NO_TOPIC_ID, ErrorCode.INVALID_REQUEST),
    ]
    assert "t" in asker.cluster.image.topics


async def test_a_topic_that_occurs_twice_is_answered_once_and_stays(asker: Asker) -> None:
    topic = await asker.topic("t")
    by_name, by_id, unknown = ("t", NO_TOPIC_ID), (None, topic.id), (None, UNKNOWN_ID)
    invalid = ErrorCode.INVALID_REQUEST

    assert await delete(asker, by_name, by_name) == [("t", NO_TOPIC_ID, invalid)]
    assert await delete(asker, by_id, by_id) == [(None, topic.id, invalid)]
    assert await delete(asker, unknown, unknown) == [(None, UNKNOWN_ID, invalid)]
    for both in ([by_name, by_id], [by_id, by_name]):
        assert await delete(asker, *both) == [("t", topic.id, invalid)]
    assert await delete(asker, by_name, by_name, by_id) == [("t", NO_TOPIC_ID, invalid)]
    assert "t" in asker.cluster.image.topics


@pytest.mark.parametrize("timeout_ms", [0, -1])
async def test_without_time_nothing_is_deleted(asker: Asker, timeout_ms: int) -> None:
    await asker.topic("t")
    request = DeleteTopicsRequest(topic_names=["t"], timeout_ms=timeout_ms)
    (result,) = await ask(asker, request, 5)

    assert (result.error_code, result.error_message) == (ErrorCode.REQUEST_TIMED_OUT, None)
    assert "t" in asker.cluster.image.topics


@pytest.mark.parametrize(
    ("version", "code"), [(1, 42), (2, 42), (3, ErrorCode.TOPIC_DELETION_DISABLED), (5, 73)]
)
async def test_deletion_can_be_switched_off(version: int, code: int) -> None:
    async with running_cluster({"delete.topic.enable": "false"}) as asker:
        await asker.topic("t")
        (result,) = await ask(asker, DeleteTopicsRequest(topic_names=["t"], timeout_ms=1), version)

        assert result.error_code == code
        assert "t" in asker.cluster.image.topics


async def test_more_topics_than_one_request_may_delete_are_refused(asker: Asker) -> None:
    names = [f"t{number}" for number in range(TOPICS_PER_REQUEST_MAX + 1)]
    results = await ask(asker, DeleteTopicsRequest(topic_names=names, timeout_ms=1), 5)

    assert {result.error_code for result in results} == {ErrorCode.POLICY_VIOLATION}


async def test_the_brokers_own_topics_are_kept(asker: Asker) -> None:
    topic = await asker.topic("__consumer_offsets")
    code = ErrorCode.INVALID_TOPIC_EXCEPTION

    assert await delete(asker, (None, topic.id)) == [(None, topic.id, code)]
    assert await delete(asker, (topic.name, NO_TOPIC_ID)) == [(topic.name, NO_TOPIC_ID, code)]
    assert topic.name in asker.cluster.image.topics


async def test_who_may_delete_nothing_learns_nothing(asker: Asker) -> None:
    topic = await asker.topic("t")
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED

    answers = await delete(
        asker, ("t", NO_TOPIC_ID), ("missing", NO_TOPIC_ID), (None, topic.id), authorizer=DENY_EVERYTHING
    )
    assert answers == [("t", NO_TOPIC_ID, denied), ("missing", NO_TOPIC_ID, denied), (None, topic.id, denied)]
    assert "t" in asker.cluster.image.topics


async def test_only_what_is_allowed_is_deleted(asker: Asker) -> None:
    mine, theirs = await asker.topic("mine"), await asker.topic("theirs")
    answers = await delete(asker, (None, theirs.id), (None, mine.id), authorizer=denying("theirs"))

    assert answers == [(None, theirs.id, ErrorCode.TOPIC_AUTHORIZATION_FAILED), ("mine", mine.id, 0)]
    assert list(asker.cluster.image.topics) == ["theirs"]
