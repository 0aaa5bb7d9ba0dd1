"""CreatePartitions: growth, every refusal, and trials."""

from collections.abc import AsyncIterator

import pytest

from penstock.broker.apis.create_partitions import CreatePartitions
from penstock.errors import ErrorCode
from penstock.limits import PARTITIONS_PER_TOPIC_MAX
from penstock.protocol.messages.create_partitions import (
    CREATE_PARTITIONS,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from penstock.security.access import Authorizer
from tests.unit.broker.support import ALLOW_EVERYTHING, DENY_EVERYTHING, HandlerHarness, running_cluster


@pytest.fixture
async def harness() -> AsyncIterator[HandlerHarness]:
    async with running_cluster() as harness:
        await harness.topic("t", partitions=2)
        yield harness


def growth(name: str, count: int, *replicas: list[int]) -> CreatePartitionsTopic:
    assignments = [CreatePartitionsAssignment(nodes) for nodes in replicas] or None
    return CreatePartitionsTopic(name, count, assignments)


async def grow(
    harness: HandlerHarness,
    *topics: CreatePartitionsTopic,
    version: int = 3,
    timeout_ms: int = 1,
    validate_only: bool = False,
    authorizer: Authorizer = ALLOW_EVERYTHING,
) -> list[CreatePartitionsTopicResult]:
    request = CreatePartitionsRequest(list(topics), timeout_ms, validate_only)
    handler = CreatePartitions(harness.cluster)
    return (await harness.ask(CREATE_PARTITIONS, handler, request, version, authorizer=authorizer)).results


def partitions_of(harness: HandlerHarness, name: str = "t") -> int:
    return len(harness.cluster.image.topics[name].partitions)


@pytest.mark.parametrize("version", range(4))
async def test_partitions_are_added(harness: HandlerHarness, version: int) -> None:
    assert await grow(harness, growth("t", 5), version=version) == [CreatePartitionsTopicResult("t")]
    assert partitions_of(harness) == 5


async def test_the_topic_of_groups_does_not_grow_for_groups_would_not_be_found(
    harness: HandlerHarness,
) -> None:
    await harness.topic("__consumer_offsets", 3)

    [result] = await grow(harness, growth("__consumer_offsets", 5))
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert partitions_of(harness, "__consumer_offsets") == 3


async def test_replicas_may_be_assigned_by_hand(harness: HandlerHarness) -> None:
    assert await grow(harness, growth("t", 4, [3], [1])) == [CreatePartitionsTopicResult("t")]
    assert [state.replicas for state in harness.cluster.image.topics["t"].partitions[2:]] == [(3,), (1,)]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (growth("t", 2), ErrorCode.INVALID_PARTITIONS),
        (growth("t", 1), ErrorCode.INVALID_PARTITIONS),
        (growth("t", -1), ErrorCode.INVALID_PARTITIONS),
        (growth("t", 4, [1]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (CreatePartitionsTopic("t", 3, []), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (growth("t", 3, [9]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (growth("t", 3, [1, 1]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (growth("t", 3, []), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (growth("t", PARTITIONS_PER_TOPIC_MAX + 1), ErrorCode.POLICY_VIOLATION),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
async def test_each_refusal_has_its_code_and_adds_nothing(
    harness: HandlerHarness, asked: CreatePartitionsTopic, code: ErrorCode, validate_only: bool
) -> None:
    (result,) = await grow(harness, asked, validate_only=validate_only)

    assert result.error_message
    assert result.error_code == code
    assert partitions_of(harness) == 2


@pytest.mark.parametrize("name", ["missing", "bad name", ""])
async def test_a_topic_that_is_not_there_is_unknown_without_a_word(
    harness: HandlerHarness, name: str
) -> None:
    assert await grow(harness, growth(name, 3)) == [CreatePartitionsTopicResult(name, 3, None)]


async def test_a_topic_that_occurs_twice_is_refused_and_the_others_grow(harness: HandlerHarness) -> None:
    await harness.topic("u")
    results = await grow(harness, growth("t", 3), growth("u", 2), growth("t", 4))

    assert [(result.name, result.error_code) for result in results] == [
        ("u", 0),
        ("t", ErrorCode.INVALID_REQUEST),
    ]
    assert (partitions_of(harness, "t"), partitions_of(harness, "u")) == (2, 2)


@pytest.mark.parametrize("timeout_ms", [0, -1])
async def test_without_time_nothing_is_added(harness: HandlerHarness, timeout_ms: int) -> None:
    results = await grow(harness, growth("t", 3), timeout_ms=timeout_ms)

    assert results == [CreatePartitionsTopicResult("t", ErrorCode.REQUEST_TIMED_OUT, None)]
    assert partitions_of(harness) == 2


async def test_a_trial_says_what_would_be_and_adds_nothing(harness: HandlerHarness) -> None:
    assert await grow(harness, growth("t", 3), validate_only=True) == [CreatePartitionsTopicResult("t")]
    assert partitions_of(harness) == 2


async def test_more_partitions_than_one_request_may_add_are_refused_together(harness: HandlerHarness) -> None:
    await harness.topic("u")
    half = PARTITIONS_PER_TOPIC_MAX // 2
    results = await grow(harness, growth("t", half + 2), growth("u", half + 2))

    assert [result.error_code for result in results] == [ErrorCode.POLICY_VIOLATION] * 2
    assert harness.cluster.image.partition_count == 3


async def test_who_may_alter_nothing_learns_nothing(harness: HandlerHarness) -> None:
    too_many = growth("also missing", PARTITIONS_PER_TOPIC_MAX + 1)
    results = await grow(harness, growth("t", 3), growth("missing", 3), too_many, authorizer=DENY_EVERYTHING)

    denied = [(result.error_code, result.error_message) for result in results]
    assert denied == [(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Access is denied.")] * 3
    assert partitions_of(harness) == 2
