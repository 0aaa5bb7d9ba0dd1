"""WriteTxnMarkers: who may end transactions, which markers are taken, and when the reply comes."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.broker.apis.describe_producers import DescribeProducers
from penstock.broker.apis.write_txn_markers import WriteTxnMarkers
from penstock.broker.context import RequestContext
from penstock.broker.data.append import BatchAppender
from penstock.broker.router import DeferredReply
from penstock.errors import ErrorCode, ProtocolError, StorageFailed, StorageFull
from penstock.metadata.cluster_image import INTERNAL_TOPICS
from penstock.protocol.messages.describe_producers import (
    DESCRIBE_PRODUCERS,
    DescribeProducersRequest,
    ProducerState,
    TopicRequest,
)
from penstock.protocol.messages.write_txn_markers import (
    WRITE_TXN_MARKERS,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from penstock.replication.partition import Partition
from penstock.security.access import ANONYMOUS, AllowEverything, Authorizer
from tests.unit.broker.config_support import BrokerHarness, allow_everything, deny_everything, running
from tests.unit.broker.support import FixedClock
from tests.unit.log.log_support import new_disk
from tests.unit.replication.replica_support import LEADER, catch_up, follower_on, leader_on, new_log, sync
from tests.unit.replication.test_partition import partition_on
from tests.unit.replication.test_partition_transactions import write

PRODUCER = 7


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[BrokerHarness]:
    async with running(tmp_path) as inside:
        yield inside


def appender(problems: list[Exception] | None = None) -> BatchAppender:
    noted = [] if problems is None else problems
    return BatchAppender(noted.append, noted.append, lambda partition, claim: True)


def marker(
    *indexes: int,
    topic: str = "t",
    epoch: int = 0,
    commit: bool = True,
    coordinator: int = 0,
    version: int = 0,
) -> WritableTxnMarker:
    topics = [WritableTxnMarkerTopic(topic, list(indexes or (0,)))]
    return WritableTxnMarker(PRODUCER, epoch, commit, topics, coordinator, version)


async def asked(
    inside: BrokerHarness, *markers: WritableTxnMarker, authorizer: Authorizer = allow_everything
) -> list[int]:
    handler = WriteTxnMarkers(inside.partitions, appender(), FixedClock())
    request = WriteTxnMarkersRequest(list(markers))
    reply = await inside.ask(WRITE_TXN_MARKERS, handler, request, authorizer=authorizer)
    return [
        entry.error_code for result in reply.markers for each in result.topics for entry in each.partitions
    ]


async def test_a_marker_ends_the_transaction_in_each_partition(inside: BrokerHarness) -> None:
    partitions = await inside.topic("t", partitions=2)
    for partition in partitions:
        write(partition, 0)
        assert partition.last_stable_offset == 0
    assert await asked(inside, marker(0, 1, commit=False)) == [0, 0]
    assert [partition.last_stable_offset for partition in partitions] == [2, 2]
    assert [len(partition.log.transactions.aborted) for partition in partitions] == [1, 1]


async def test_a_repeated_request_succeeds_and_appends_nothing(inside: BrokerHarness) -> None:
    [partition] = await inside.topic("t")
    write(partition, 0)
    for _ in range(3):
        assert await asked(inside, marker(epoch=1, version=2)) == [0]
    assert partition.log.log_end_offset == 2


async def test_each_partition_has_an_error_of_its_own(inside: BrokerHarness) -> None:
    [first, second] = await inside.topic("t", partitions=2)
    write(first, 0, epoch=3)
    second.go_offline("the disk broke")
    found = await asked(inside, marker(0, 1, 9, epoch=2), marker(0, topic="absent"))
    assert found == [
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


async def test_an_older_coordinator_is_fenced(inside: BrokerHarness) -> None:
    [partition] = await inside.topic("t")
    write(partition, 0)
    assert await asked(inside, marker(coordinator=5)) == [0]
    write(partition, 1)
    assert await asked(inside, marker(coordinator=4)) == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
    assert partition.last_stable_offset == 2


@pytest.mark.parametrize(("version", "code"), [(0, 0), (1, 0), (2, ErrorCode.INVALID_PRODUCER_EPOCH)])
async def test_version_2_needs_a_newer_epoch(inside: BrokerHarness, version: int, code: int) -> None:
    [partition] = await inside.topic("t")
    write(partition, 0)
    assert await asked(inside, marker(version=version)) == [code]


async def test_only_a_broker_may_write_markers(inside: BrokerHarness) -> None:
    [partition] = await inside.topic("t")
    write(partition, 0)
    found = await asked(inside, marker(0, 9), authorizer=deny_everything)
    assert found == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * 2
    assert partition.log.log_end_offset == 1


async def test_internal_topics_take_no_marker(inside: BrokerHarness) -> None:
    name = next(iter(INTERNAL_TOPICS))
    await inside.topic(name, internal=True)
    assert await asked(inside, marker(topic=name)) == [ErrorCode.INVALID_TOPIC_EXCEPTION]


async def test_a_marker_without_a_producer_is_rejected(inside: BrokerHarness) -> None:
    await inside.topic("t")
    request = marker()
    request.producer_id = -1
    assert await asked(inside, request, marker(epoch=-1)) == [ErrorCode.INVALID_REQUEST] * 2


def test_too_many_markers_close_the_connection() -> None:
    handler = WriteTxnMarkers(cast(Any, None), appender(), FixedClock(), markers_max=2)
    handler.require_few_markers(WriteTxnMarkersRequest([marker(0), marker(1)]))
    with pytest.raises(ProtocolError):
        handler.require_few_markers(WriteTxnMarkersRequest([marker(0), marker(1, 2)]))


async def test_an_open_transaction_is_described(inside: BrokerHarness) -> None:
    [partition] = await inside.topic("t")
    write(partition, 0)
    write(partition, 1)

    async def described() -> list[ProducerState]:
        request = DescribeProducersRequest([TopicRequest("t", [0])])
        reply = await inside.ask(DESCRIBE_PRODUCERS, DescribeProducers(inside.partitions), request)
        return cast(list[ProducerState], reply.topics[0].partitions[0].active_producers)

    [state] = await described()
    assert (state.last_sequence, state.coordinator_epoch, state.current_txn_start_offset) == (1, -1, 0)
    await asked(inside, marker(epoch=1, coordinator=6, version=2))
    [state] = await described()
    assert (state.producer_epoch, state.last_sequence) == (1, -1)
    assert (state.coordinator_epoch, state.current_txn_start_offset) == (6, -1)


# The reply


class OnePartition:
    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    def find(self, topic: str, index: int) -> Partition:
        return self._partition


def begun(
    partition: Partition, *markers: WritableTxnMarker, problems: list[Exception] | None = None
) -> WriteTxnMarkersResponse | DeferredReply:
    handler = WriteTxnMarkers(cast(Any, OnePartition(partition)), appender(problems), FixedClock())
    context = RequestContext(ANONYMOUS, "PLAINTEXT", "here", AllowEverything()).undenied(1, None)
    return handler(WriteTxnMarkersRequest(list(markers)), context)


def answers_of(reply: WriteTxnMarkersResponse | DeferredReply) -> list[list[int]]:
    assert isinstance(reply, DeferredReply)
    answers: list[list[int]] = []
    reply.then(lambda response: answers.append(codes(response)))
    return answers


def codes(response: object) -> list[int]:
    assert isinstance(response, WriteTxnMarkersResponse)
    return [entry.error_code for each in response.markers for entry in each.topics[0].partitions]


def test_the_reply_waits_for_all_in_sync_replicas() -> None:
    leader, follower = leader_on(new_log()), follower_on(new_log())
    write(leader, 0)
    answers = answers_of(begun(leader, marker(), marker(epoch=1)))
    sync(leader)
    assert answers == []
    catch_up(leader, follower)
    assert answers == [[0, 0]]


def test_a_replica_that_does_not_catch_up_times_out() -> None:
    leader = leader_on(new_log())
    answers = answers_of(begun(leader, marker()))
    leader.expire_waits(29.0)
    assert answers == []
    leader.expire_waits(31.0)
    assert answers == [[ErrorCode.REQUEST_TIMED_OUT]]


def test_a_leader_that_resigns_says_so() -> None:
    leader = leader_on(new_log())
    answers = answers_of(begun(leader, marker()))
    leader.resign()
    assert answers == [[ErrorCode.NOT_LEADER_OR_FOLLOWER]]


def test_a_client_that_left_gets_no_reply() -> None:
    leader = leader_on(new_log())
    reply = begun(leader, marker())
    answers = answers_of(reply)
    assert isinstance(reply, DeferredReply)
    assert reply.abandon is not None
    reply.abandon()
    leader.resign()
    assert answers == []


def test_too_few_in_sync_replicas_take_no_marker() -> None:
    leader = leader_on(new_log(), isr=(LEADER,), min_isr=2)
    reply = begun(leader, marker())
    assert codes(reply) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert leader.log.log_end_offset == 0


def test_a_full_disk_is_reported_and_the_marker_is_not_in_the_log() -> None:
    disk, problems = new_disk(), list[Exception]()
    partition = partition_on(disk)
    write(partition, 0)
    disk.disk.room_bytes = 0
    assert codes(begun(partition, marker(), problems=problems)) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert [type(problem) for problem in problems] == [StorageFull]
    assert not any(isinstance(problem, StorageFailed) for problem in problems)
    assert partition.log.log_end_offset == 1
