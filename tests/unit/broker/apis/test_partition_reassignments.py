"""AlterPartitionReassignments and ListPartitionReassignments: moves, their end, and every refusal."""

from collections.abc import AsyncIterator

import pytest

from penstock.broker.apis.alter_partition_reassignments import AlterPartitionReassignments
from penstock.broker.apis.list_partition_reassignments import ListPartitionReassignments
from penstock.errors import ErrorCode
from penstock.limits import PARTITIONS_CHANGED_MAX
from penstock.metadata.facts import PartitionState
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
from tests.unit.broker.support import ALLOW_EVERYTHING, DENY_EVERYTHING, Asker, running_cluster


@pytest.fixture
async def asker() -> AsyncIterator[Asker]:
    """Brokers 1 to 3; topic t has two partitions with one replica each."""
    async with running_cluster() as asker:
        await asker.topic("t", partitions=2)
        yield asker


Wanted = tuple[str, int, list[int] | None]


async def alter(
    asker: Asker,
    *wanted: Wanted,
    version: int = 1,
    allow_factor_change: bool = True,
    authorizer: Authorizer = ALLOW_EVERYTHING,
) -> AlterPartitionReassignmentsResponse:
    topics = [ReassignableTopic(name, [ReassignablePartition(index, to)]) for name, index, to in wanted]
    request = AlterPartitionReassignmentsRequest(
        allow_replication_factor_change=allow_factor_change, topics=topics
    )
    handler = AlterPartitionReassignments(asker.cluster)
    return await asker.ask(ALTER_PARTITION_REASSIGNMENTS, handler, request, version, authorizer=authorizer)


def codes(reply: AlterPartitionReassignmentsResponse) -> dict[tuple[str, int], int]:
    assert reply.error_code == ErrorCode.NONE
    return {
        (topic.name, partition.partition_index): partition.error_code
        for topic in reply.responses
        for partition in topic.partitions
    }


async def listed(
    asker: Asker, *asked: tuple[str, list[int]], authorizer: Authorizer = ALLOW_EVERYTHING
) -> list[OngoingTopicReassignment]:
    topics = [ListPartitionReassignmentsTopics(name, indexes) for name, indexes in asked] or None
    request = ListPartitionReassignmentsRequest(topics=topics)
    handler = ListPartitionReassignments(asker.cluster)
    return (await asker.ask(LIST_PARTITION_REASSIGNMENTS, handler, request, authorizer=authorizer)).topics


def state(asker: Asker, index: int = 0) -> PartitionState:
    return asker.cluster.image.topics["t"].partitions[index]


@pytest.mark.parametrize("version", [0, 1])
async def test_a_move_begins_and_is_listed_until_it_is_called_off(asker: Asker, version: int) -> None:
    (old,) = state(asker).replicas
    new = [node for node in (1, 2, 3) if node != old]

    assert codes(await alter(asker, ("t", 0, new), version=version)) == {("t", 0): ErrorCode.NONE}
    moving = OngoingTopicReassignment("t", [OngoingPartitionReassignment(0, [*new, old], new, [old])])
    assert await listed(asker) == [moving]
    assert await listed(asker, ("t", [1, 0, 0, 7]), ("nothing", [0])) == [moving]
    assert await listed(asker, ("t", [1])) == []

    assert codes(await alter(asker, ("t", 0, None), version=version)) == {("t", 0): ErrorCode.NONE}
    assert state(asker).replicas == (old,)
    assert await listed(asker) == []


async def test_what_is_as_wanted_already_stays_so(asker: Asker) -> None:
    before = state(asker)
    assert codes(await alter(asker, ("t", 0, list(before.replicas)))) == {("t", 0): ErrorCode.NONE}
    assert state(asker) == before


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
    asker: Asker, name: str, index: int, replicas: list[int] | None, code: ErrorCode
) -> None:
    reply = await alter(asker, (name, index, replicas), ("t", 1, [1, 2, 3]))
    assert codes(reply) == {(name, index): code, ("t", 1): ErrorCode.NONE}
    assert set(state(asker, 1).replicas) == {1, 2, 3}
    assert len(state(asker, 0).replicas) == 1


async def test_the_number_of_replicas_can_be_held(asker: Asker) -> None:
    refused = await alter(asker, ("t", 0, [1, 2]), allow_factor_change=False)
    assert codes(refused) == {("t", 0): ErrorCode.INVALID_REPLICATION_FACTOR}
    assert not refused.allow_replication_factor_change


async def test_a_partition_that_is_named_twice_is_not_moved(asker: Asker) -> None:
    before = state(asker)
    reply = await alter(asker, ("t", 0, [1, 2]), ("t", 0, [2, 3]))
    assert codes(reply) == {("t", 0): ErrorCode.INVALID_REQUEST}
    assert state(asker) == before


async def test_more_than_a_transaction_holds_is_moved(asker: Asker) -> None:
    await asker.topic("many", partitions=60)
    reply = await alter(asker, *(("many", index, [1, 2, 3]) for index in range(60)))
    assert set(codes(reply).values()) == {ErrorCode.NONE}
    assert all(len(each.replicas) == 3 for each in asker.cluster.image.topics["many"].partitions)


async def test_too_many_at_once_are_refused(asker: Asker) -> None:
    partitions = [ReassignablePartition(index, [1]) for index in range(PARTITIONS_CHANGED_MAX + 1)]
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic("t", partitions)])
    handler = AlterPartitionReassignments(asker.cluster)
    reply = await asker.ask(ALTER_PARTITION_REASSIGNMENTS, handler, request)
    assert reply.error_code == ErrorCode.POLICY_VIOLATION


async def test_without_time_nothing_is_moved(asker: Asker) -> None:
    topics = [ReassignableTopic("t", [ReassignablePartition(0, [1, 2, 3])])]
    request = AlterPartitionReassignmentsRequest(timeout_ms=0, topics=topics)
    handler = AlterPartitionReassignments(asker.cluster)
    reply = await asker.ask(ALTER_PARTITION_REASSIGNMENTS, handler, request)
    assert reply.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert len(state(asker).replicas) == 1


async def test_who_may_not_alter_the_cluster_moves_and_sees_nothing(asker: Asker) -> None:
    reply = await alter(asker, ("t", 0, [1, 2]), authorizer=DENY_EVERYTHING)
    assert reply.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert reply.responses[0].partitions[0].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert len(state(asker).replicas) == 1
    await alter(asker, ("t", 0, [1, 2, 3]))
    assert await listed(asker, authorizer=DENY_EVERYTHING) == []
