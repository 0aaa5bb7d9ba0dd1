"""AlterPartitionReassignments and ListPartitionReassignments: moves, their end, and every refusal."""

from collections.abc import AsyncIterator

import pytest

from penstock.broker.apis.alter_partition_reassignments import AlterPartitionReassignments
from penstock.broker.apis.list_partition_reassignments import ListPartitionReassignments
from penstock.errors import ErrorCode
from penstock.limits import PARTITIONS_CHANGED_MAX
from penstock.metadata.cluster_image import PartitionState
from penstock.protocol.messages.alter_partition_reassignments import (
    ALTER_PARTITION_REASSIGNMENTS,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.protocol.messages.list_partition_reassignments import (
    LIST_PARTITION_REASSIGNMENTS,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from penstock.security.access import Authorizer
from tests.unit.broker.support import ALLOW_EVERYTHING, DENY_EVERYTHING, HandlerHarness, running_cluster


@pytest.fixture
async def harness() -> AsyncIterator[HandlerHarness]:
    """Brokers 1 to 3; topic t has two partitions with one replica each."""
    async with running_cluster() as harness:
        await harness.topic("t", partitions=2)
        yield harness


NewReplicas = tuple[str, int, list[int] | None]


async def alter(
    harness: HandlerHarness,
    *wanted: NewReplicas,
    version: int = 1,
    allow_factor_change: bool = True,
    authorizer: Authorizer = ALLOW_EVERYTHING,
) -> AlterPartitionReassignmentsResponse:
    topics = [ReassignableTopic(name, [ReassignablePartition(index, to)]) for name, index, to in wanted]
    request = AlterPartitionReassignmentsRequest(
        allow_replication_factor_change=allow_factor_change, topics=topics
    )
    handler = AlterPartitionReassignments(harness.cluster)
    return await harness.ask(ALTER_PARTITION_REASSIGNMENTS, handler, request, version, authorizer=authorizer)


def codes(reply: AlterPartitionReassignmentsResponse) -> dict[tuple[str, int], int]:
    assert reply.error_code == ErrorCode.NONE
    return {
        (topic.name, partition.partition_index): partition.error_code
        for topic in reply.responses
        for partition in topic.partitions
    }


async def listed(
    harness: HandlerHarness, *asked: tuple[str, list[int]], authorizer: Authorizer = ALLOW_EVERYTHING
) -> list[OngoingTopicReassignment]:
    topics = [ListPartitionReassignmentsTopics(name, indexes) for name, indexes in asked] or None
    request = ListPartitionReassignmentsRequest(topics=topics)
    handler = ListPartitionReassignments(harness.cluster)
    return (await harness.ask(LIST_PARTITION_REASSIGNMENTS, handler, request, authorizer=authorizer)).topics


def state(harness: HandlerHarness, index: int = 0) -> PartitionState:
    return harness.cluster.image.topics["t"].partitions[index]


@pytest.mark.parametrize("version", [0, 1])
async def test_a_move_begins_and_is_listed_until_it_is_called_off(
    harness: HandlerHarness, version: int
) -> None:
    (old,) = state(harness).replicas
    new = [node for node in (1, 2, 3) if node != old]

    assert codes(await alter(harness, ("t", 0, new), version=version)) == {("t", 0): ErrorCode.NONE}
    moving = OngoingTopicReassignment("t", [OngoingPartitionReassignment(0, [*new, old], new, [old])])
    assert await listed(harness) == [moving]
    assert await listed(harness, ("t", [1, 0, 0, 7]), ("nothing", [0])) == [moving]
    assert await listed(harness, ("t", [1])) == []

    assert codes(await alter(harness, ("t", 0, None), version=version)) == {("t", 0): ErrorCode.NONE}
    assert state(harness).replicas == (old,)
    assert await listed(harness) == []


async def test_what_is_as_wanted_already_stays_so(harness: HandlerHarness) -> None:
    before = state(harness)
    assert codes(await alter(harness, ("t", 0, list(before.replicas)))) == {("t", 0): ErrorCode.NONE}
    assert state(harness) == before


@pytest.mark.parametrize(
    ("name", "index", "replicas", "code"),
    [
        ("t", 0, [9], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 0, [-1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 0, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 0, [1, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 2, [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", -1, [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("nothing", 0, [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("nothing", 0, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    ],
)
async def test_a_refusal_leaves_the_others_alone(
    harness: HandlerHarness, name: str, index: int, replicas: list[int] | None, code: ErrorCode
) -> None:
    reply = await alter(harness, (name, index, replicas), ("t", 1, [1, 2, 3]))
    assert codes(reply) == {(name, index): code, ("t", 1): ErrorCode.NONE}
    assert set(state(harness, 1).replicas) == {1, 2, 3}
    assert len(state(harness, 0).replicas) == 1


async def test_the_number_of_replicas_can_be_held(harness: HandlerHarness) -> None:
    refused = await alter(harness, ("t", 0, [1, 2]), allow_factor_change=False)
    assert codes(refused) == {("t", 0): ErrorCode.INVALID_REPLICATION_FACTOR}
    assert not refused.allow_replication_factor_change


async def test_a_partition_that_is_named_twice_is_not_moved(harness: HandlerHarness) -> None:
    before = state(harness)
    reply = await alter(harness, ("t", 0, [1, 2]), ("t", 0, [2, 3]))
    assert codes(reply) == {("t", 0): ErrorCode.INVALID_REQUEST}
    assert state(harness) == before


async def test_more_than_a_transaction_holds_is_moved(harness: HandlerHarness) -> None:
    await harness.topic("many", partitions=60)
    reply = await alter(harness, *(("many", index, [1, 2, 3]) for index in range(60)))
    assert set(codes(reply).values()) == {ErrorCode.NONE}
    assert all(len(each.replicas) == 3 for each in harness.cluster.image.topics["many"].partitions)


async def test_too_many_at_once_are_refused(harness: HandlerHarness) -> None:
    partitions = [ReassignablePartition(index, [1]) for index in range(PARTITIONS_CHANGED_MAX + 1)]
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic("t", partitions)])
    handler = AlterPartitionReassignments(harness.cluster)
    reply = await harness.ask(ALTER_PARTITION_REASSIGNMENTS, handler, request)
    assert reply.error_code == ErrorCode.POLICY_VIOLATION


async def test_without_time_nothing_is_moved(harness: HandlerHarness) -> None:
    topics = [ReassignableTopic("t", [ReassignablePartition(0, [1, 2, 3])])]
    request = AlterPartitionReassignmentsRequest(timeout_ms=0, topics=topics)
    handler = AlterPartitionReassignments(harness.cluster)
    reply = await harness.ask(ALTER_PARTITION_REASSIGNMENTS, handler, request)
    assert reply.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert len(state(harness).replicas) == 1


async def test_who_may_not_alter_the_cluster_moves_and_sees_nothing(harness: HandlerHarness) -> None:
    reply = await alter(harness, ("t", 0, [1, 2]), authorizer=DENY_EVERYTHING)
    assert reply.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert reply.responses[0].partitions[0].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert len(state(harness).replicas) == 1
    await alter(harness, ("t", 0, [1, 2, 3]))
    assert await listed(harness, authorizer=DENY_EVERYTHING) == []
