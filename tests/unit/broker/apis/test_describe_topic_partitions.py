"""DescribeTopicPartitions: pages, cursors, and what spoils a request."""

from collections.abc import AsyncIterator

import pytest

from penstock.broker.apis.describe_topic_partitions import PARTITIONS_PER_PAGE_MAX, DescribeTopicPartitions
from penstock.errors import ErrorCode
from penstock.protocol.messages.describe_topic_partitions import (
    DESCRIBE_TOPIC_PARTITIONS,
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    TopicRequest,
)
from penstock.security.access import Authorizer
from tests.unit.broker.support import (
    ALL_TOPIC_OPERATIONS,
    ALLOW_EVERYTHING,
    DENY_EVERYTHING,
    HandlerHarness,
    denying,
    running_cluster,
)

Page = tuple[list[tuple[str | None, list[int]]], Cursor | None]
"""Topics with the partitions that were described, and where the next page begins."""


@pytest.fixture
async def harness() -> AsyncIterator[HandlerHarness]:
    async with running_cluster() as harness:
        await harness.topic("b", partitions=3)
        await harness.topic("a", partitions=3)
        yield harness


async def ask(
    harness: HandlerHarness,
    *names: str,
    limit: int = 100,
    cursor: Cursor | None = None,
    authorizer: Authorizer = ALLOW_EVERYTHING,
) -> DescribeTopicPartitionsResponse:
    request = DescribeTopicPartitionsRequest([TopicRequest(name) for name in names], limit, cursor)
    handler = DescribeTopicPartitions(harness.cluster)
    return await harness.ask(DESCRIBE_TOPIC_PARTITIONS, handler, request, authorizer=authorizer)


async def page(harness: HandlerHarness, *names: str, limit: int = 100, cursor: Cursor | None = None) -> Page:
    reply = await ask(harness, *names, limit=limit, cursor=cursor)
    topics = [(topic.name, [part.partition_index for part in topic.partitions]) for topic in reply.topics]
    return topics, reply.next_cursor


async def test_topics_come_in_the_order_of_their_names_and_each_once(harness: HandlerHarness) -> None:
    expected: Page = ([("a", [0, 1, 2]), ("b", [0, 1, 2]), ("no", [])], None)

    assert await page(harness, "no", "b", "a", "b") == expected


async def test_a_topic_is_described_in_full(harness: HandlerHarness) -> None:
    topic = harness.cluster.image.topics["a"]
    reply = await ask(harness, "a")

    assert reply.topics == [
        DescribeTopicPartitionsResponseTopic(
            name="a",
            topic_id=topic.id,
            partitions=[
                DescribeTopicPartitionsResponsePartition(
                    partition_index=state.index,
                    leader_id=state.leader,
                    leader_epoch=0,
                    replica_nodes=[state.leader],
                    isr_nodes=[state.leader],
                    eligible_leader_replicas=[],
                    last_known_elr=[],
                )
                for state in topic.partitions
            ],
            topic_authorized_operations=ALL_TOPIC_OPERATIONS,
        )
    ]


async def test_a_missing_topic_is_unknown_and_not_created(harness: HandlerHarness) -> None:
    reply = await ask(harness, "no")

    missing = DescribeTopicPartitionsResponseTopic(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no", topic_authorized_operations=ALL_TOPIC_OPERATIONS
    )
    assert reply.topics == [missing]
    assert "no" not in harness.cluster.image.topics


async def test_an_empty_list_asks_for_all_topics(harness: HandlerHarness) -> None:
    await harness.topic("__consumer_offsets")
    reply = await ask(harness)

    names = [(topic.name, topic.is_internal) for topic in reply.topics]
    assert names == [("__consumer_offsets", True), ("a", False), ("b", False)]


@pytest.mark.parametrize(
    ("limit", "topics", "cursor"),
    [
        (-1, [("a", [0])], Cursor("a", 1)),
        (0, [("a", [0])], Cursor("a", 1)),
        (2, [("a", [0, 1])], Cursor("a", 2)),
        (3, [("a", [0, 1, 2])], Cursor("b", 0)),
        (4, [("a", [0, 1, 2]), ("b", [0])], Cursor("b", 1)),
        (6, [("a", [0, 1, 2]), ("b", [0, 1, 2])], None),
    ],
)
@pytest.mark.parametrize("names", [[], ["a", "b"]])
async def test_a_page_holds_as_many_partitions_as_wanted(
    harness: HandlerHarness,
    names: list[str],
    limit: int,
    topics: list[tuple[str, list[int]]],
    cursor: Cursor | None,
) -> None:
    assert await page(harness, *names, limit=limit) == (topics, cursor)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
async def test_following_the_cursor_shows_every_partition_once(harness: HandlerHarness, limit: int) -> None:
    shown: list[tuple[str | None, int]] = []
    cursor: Cursor | None = None
    while True:
        topics, cursor = await page(harness, limit=limit, cursor=cursor)
        shown += [(name, index) for name, indexes in topics for index in indexes]
        if cursor is None:
            break

    assert shown == [(name, index) for name in ("a", "b") for index in range(3)]


async def test_no_page_is_larger_than_the_broker_allows(harness: HandlerHarness) -> None:
    await harness.topic("large", partitions=PARTITIONS_PER_PAGE_MAX + 1)
    reply = await ask(harness, "large", limit=1_000_000)

    assert len(reply.topics[0].partitions) == PARTITIONS_PER_PAGE_MAX
    assert reply.next_cursor == Cursor("large", PARTITIONS_PER_PAGE_MAX)


@pytest.mark.parametrize("index", [3, 99])
async def test_a_cursor_behind_the_last_partition_goes_on_with_the_next_topic(
    harness: HandlerHarness, index: int
) -> None:
    assert await page(harness, cursor=Cursor("a", index)) == ([("a", []), ("b", [0, 1, 2])], None)


async def test_a_cursor_at_a_topic_that_went_away_goes_on_behind_it(harness: HandlerHarness) -> None:
    assert await page(harness, cursor=Cursor("aa", 2)) == ([("b", [0, 1, 2])], None)


@pytest.mark.parametrize("cursor", [Cursor("a", -1), Cursor("c", 0)])
async def test_a_cursor_without_sense_spoils_the_request(harness: HandlerHarness, cursor: Cursor) -> None:
    reply = await ask(harness, "b", "a", cursor=cursor)

    invalid = ErrorCode.INVALID_REQUEST
    assert reply.topics == [DescribeTopicPartitionsResponseTopic(invalid, name) for name in ("a", "b")]
    assert reply.next_cursor is None


async def test_an_empty_name_spoils_the_request(harness: HandlerHarness) -> None:
    reply = await ask(harness, "a", "")

    refused = [(topic.error_code, topic.name) for topic in reply.topics]
    assert sorted(refused) == sorted([(-1, "a"), (-1, "")])
    assert all(not topic.partitions for topic in reply.topics)


@pytest.mark.parametrize("bad", ["bad name", "x" * 250])
async def test_an_illegal_name_is_refused_by_itself(harness: HandlerHarness, bad: str) -> None:
    codes = {topic.name: topic.error_code for topic in (await ask(harness, "a", bad)).topics}

    assert codes == {"a": ErrorCode.NONE, bad: ErrorCode.INVALID_TOPIC_EXCEPTION}


async def test_who_may_describe_nothing_learns_nothing(harness: HandlerHarness) -> None:
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    some = await ask(harness, "a", "missing", authorizer=DENY_EVERYTHING)
    all_topics = await ask(harness, authorizer=DENY_EVERYTHING)

    assert some.topics == [DescribeTopicPartitionsResponseTopic(denied, name) for name in ("a", "missing")]
    assert (all_topics.topics, all_topics.next_cursor) == ([], None)


async def test_a_cursor_does_not_name_a_topic_that_is_denied(harness: HandlerHarness) -> None:
    await harness.topic("c")
    reply = await ask(harness, limit=3, authorizer=denying("b"))

    assert reply.next_cursor == Cursor("c", 0)
