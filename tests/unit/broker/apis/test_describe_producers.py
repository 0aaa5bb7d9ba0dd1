"""DescribeProducers: who wrote to a partition, and what last."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.apis.describe_producers import DescribeProducers
from penstock.errors import ErrorCode
from penstock.protocol.messages.describe_producers import (
    DESCRIBE_PRODUCERS,
    DescribeProducersRequest,
    ProducerState,
    TopicRequest,
)
from penstock.security.access import AllowEverything, Authorizer
from tests.unit.broker.config_support import BrokerHarness, append, deny_everything, running


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[BrokerHarness]:
    async with running(tmp_path) as inside:
        yield inside


async def described(
    inside: BrokerHarness, *asked: tuple[str, list[int]], authorizer: Authorizer | None = None
) -> list[Any]:
    request = DescribeProducersRequest([TopicRequest(*topic) for topic in asked])
    handler = DescribeProducers(inside.partitions)
    reply = await inside.ask(DESCRIBE_PRODUCERS, handler, request, authorizer=authorizer or AllowEverything())
    return [entry for topic in reply.topics for entry in topic.partitions]


async def test_each_producer_is_listed_with_its_last_batch(inside: BrokerHarness) -> None:
    [partition] = await inside.topic("t")
    append(partition, 10, 20, 30, producer_id=7, producer_epoch=2, base_sequence=0)
    append(partition, 40, producer_id=7, producer_epoch=2, base_sequence=3)
    append(partition, 50, producer_id=8, producer_epoch=0, base_sequence=5)
    append(partition, 60)

    [entry] = await described(inside, ("t", [0]))
    assert (entry.partition_index, entry.error_code, entry.error_message) == (0, 0, None)
    assert entry.active_producers == [
        ProducerState(7, 2, 3, 40, coordinator_epoch=-1, current_txn_start_offset=-1),
        ProducerState(8, 0, 5, 50, coordinator_epoch=-1, current_txn_start_offset=-1),
    ]


async def test_a_partition_nobody_wrote_to_has_no_producers(inside: BrokerHarness) -> None:
    await inside.topic("t")

    [entry] = await described(inside, ("t", [0]))
    assert (entry.error_code, entry.active_producers) == (0, [])


async def test_a_partition_named_twice_is_listed_once(inside: BrokerHarness) -> None:
    await inside.topic("t", partitions=2)

    entries = await described(inside, ("t", [0, 1, 0]), ("t", [1]))
    assert [entry.partition_index for entry in entries] == [0, 1]


@pytest.mark.parametrize(
    ("topic", "index", "code"),
    [
        ("absent", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("bad name", 0, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("", 0, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
async def test_a_refusal_has_a_code_and_a_sentence(
    inside: BrokerHarness, topic: str, index: int, code: ErrorCode
) -> None:
    await inside.topic("t")

    [entry] = await described(inside, (topic, [index]))
    assert (entry.partition_index, entry.error_code, entry.active_producers) == (index, code, [])
    assert entry.error_message


async def test_an_offline_partition_is_a_storage_error(inside: BrokerHarness) -> None:
    [partition] = await inside.topic("t")
    partition.go_offline("the disk broke")

    [entry] = await described(inside, ("t", [0]))
    assert entry.error_code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_denied_topic_looks_the_same_whether_or_not_it_exists(inside: BrokerHarness) -> None:
    [partition] = await inside.topic("t")
    append(partition, 10, producer_id=7, producer_epoch=0, base_sequence=0)

    [there] = await described(inside, ("t", [0]), authorizer=deny_everything)
    [absent] = await described(inside, ("absent", [0]), authorizer=deny_everything)
    assert there == absent
    assert (there.error_code, there.active_producers) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, [])
