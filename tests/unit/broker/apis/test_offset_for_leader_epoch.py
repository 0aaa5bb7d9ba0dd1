"""OffsetForLeaderEpoch: where an epoch ended, and who is told nothing."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.broker.apis.offset_for_leader_epoch import OffsetForLeaderEpoch
from penstock.errors import ErrorCode
from penstock.protocol.messages.offset_for_leader_epoch import (
    OFFSET_FOR_LEADER_EPOCH,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from penstock.security.access import AllowEverything, Authorizer
from penstock.types import Offset
from tests.unit.broker.config_support import BrokerHarness, append, deny_everything, running

UNDEFINED = (ErrorCode.NONE, -1, -1)

Answer = tuple[int, int, int]
"""Error code, epoch and end offset."""


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[BrokerHarness]:
    async with running(tmp_path) as inside:
        yield inside


async def end_of(
    inside: BrokerHarness,
    epoch: int,
    *,
    at: tuple[str, int] = ("t", 0),
    current: int = -1,
    authorizer: Authorizer | None = None,
) -> Answer:
    topic, index = at
    asked = OffsetForLeaderPartition(index, current_leader_epoch=current, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic, [asked])])
    handler = OffsetForLeaderEpoch(inside.partitions)
    reply = await inside.ask(
        OFFSET_FOR_LEADER_EPOCH, handler, request, authorizer=authorizer or AllowEverything()
    )
    [result] = reply.topics
    [entry] = result.partitions
    assert (result.topic, entry.partition) == at
    return entry.error_code, entry.leader_epoch, entry.end_offset


async def test_an_empty_partition_ends_its_epoch_at_zero(inside: BrokerHarness) -> None:
    await inside.topic("t")

    assert await end_of(inside, 0) == (0, 0, 0)


async def test_the_current_epoch_ends_where_the_log_ends(inside: BrokerHarness) -> None:
    [partition] = await inside.topic("t")
    append(partition, 10, 20, 30)

    assert await end_of(inside, 0) == (0, 0, 3)


async def test_an_earlier_epoch_ends_where_the_next_began(inside: BrokerHarness) -> None:
    [partition] = await inside.topic("t")
    append(partition, 10, 20)
    partition = await inside.begin_new_epoch(partition)
    assert await end_of(inside, 0) == (0, 0, 2)
    append(partition, 30)

    assert await end_of(inside, 0) == (0, 0, 2)
    assert await end_of(inside, 1) == (0, 1, 3)


async def test_an_epoch_that_wrote_nothing_is_answered_with_the_one_before_it(inside: BrokerHarness) -> None:
    [partition] = await inside.topic("t")
    append(partition, 10, 20)
    partition = await inside.begin_new_epoch(partition)
    partition = await inside.begin_new_epoch(partition)
    append(partition, 30)

    assert await end_of(inside, 1) == (0, 0, 2)


async def test_an_epoch_older_than_the_first_known_ends_at_the_start(inside: BrokerHarness) -> None:
    [partition] = await inside.topic("t")
    append(partition, 10, 20)
    partition = await inside.begin_new_epoch(partition)
    append(partition, 30, 40)
    partition.delete_before(Offset(3))

    assert await end_of(inside, 0) == (0, 0, 3)
    assert await end_of(inside, -2) == (0, -2, 3)


@pytest.mark.parametrize("epoch", [-1, 1, 1000])
async def test_an_epoch_that_never_was_is_undefined(inside: BrokerHarness, epoch: int) -> None:
    [partition] = await inside.topic("t")
    append(partition, 10)

    assert await end_of(inside, epoch) == UNDEFINED


@pytest.mark.parametrize(
    ("current", "code"),
    [
        (1, ErrorCode.NONE),
        (-2, ErrorCode.FENCED_LEADER_EPOCH),
        (0, ErrorCode.FENCED_LEADER_EPOCH),
        (5, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
async def test_a_client_with_another_leader_epoch_is_fenced(
    inside: BrokerHarness, current: int, code: ErrorCode
) -> None:
    [partition] = await inside.topic("t")
    partition = await inside.begin_new_epoch(partition)

    answer = await end_of(inside, 1, current=current)
    assert answer == ((0, 1, 0) if code == ErrorCode.NONE else (code, -1, -1))


@pytest.mark.parametrize("at", [("absent", 0), ("t", 9), ("t", -1)])
async def test_what_does_not_exist_is_unknown(inside: BrokerHarness, at: tuple[str, int]) -> None:
    await inside.topic("t")

    assert await end_of(inside, 0, at=at) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)


async def test_an_offline_partition_is_a_storage_error(inside: BrokerHarness) -> None:
    [partition] = await inside.topic("t")
    partition.go_offline("the disk broke")

    assert await end_of(inside, 0) == (ErrorCode.KAFKA_STORAGE_ERROR, -1, -1)


async def test_a_denied_topic_looks_the_same_whether_or_not_it_exists(inside: BrokerHarness) -> None:
    await inside.topic("t")

    for at in (("t", 0), ("t", 9), ("absent", 0)):
        refused = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1, -1)
        assert await end_of(inside, 0, at=at, authorizer=deny_everything) == refused
