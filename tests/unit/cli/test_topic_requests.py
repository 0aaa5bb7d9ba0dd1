"""Requests about topics reach leaders and the controller, and name what is wrong if they do not."""

from typing import Any

import pytest

from penstock.cli.broker_connector import BrokerConnector
from penstock.cli.positions import PositionKind, PositionSpec
from penstock.cli.topic_requests import create_topic, delete_records, find_offsets, log_bounds
from penstock.errors import CommandFailed, ErrorCode
from penstock.protocol.messages.create_topics import (
    CREATE_TOPICS,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.protocol.messages.delete_records import (
    DELETE_RECORDS,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from penstock.protocol.messages.list_offsets import LIST_OFFSETS
from penstock.protocol.messages.metadata import METADATA
from penstock.types import TopicPartition
from tests.unit.wire.fake_cluster import ORDERS, OTHER, FakeCluster, Hangup, offsets_answer

TIMEOUT_S = 10.0
NOBODY = -1
END = PositionSpec(PositionKind.LATEST)


def reached(cluster: FakeCluster) -> BrokerConnector:
    return BrokerConnector(tuple(cluster.addresses), TIMEOUT_S, network=cluster)


def asked(cluster: FakeCluster) -> int | None:
    return find_offsets(reached(cluster), [ORDERS], END)[ORDERS].offset


def test_another_leader_is_looked_for() -> None:
    cluster = FakeCluster()
    cluster.leaders = {0: 1}
    moved = [
        offsets_answer(code) for code in (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    ]
    cluster.brokers[1].on(LIST_OFFSETS, *moved, offsets_answer(offset=7))
    assert asked(cluster) == 7
    assert sum(broker.count(METADATA) for broker in cluster.brokers) == 3


def test_a_leader_that_has_just_died_is_replaced() -> None:
    cluster = FakeCluster()
    cluster.leaders = {0: 1}
    cluster.brokers[1].is_up = False
    cluster.brokers[0].on(LIST_OFFSETS, offsets_answer(offset=7))
    cluster.on_sleep = lambda: cluster.leaders.update({0: 0})
    assert asked(cluster) == 7


def test_not_for_ever() -> None:
    cluster = FakeCluster()
    cluster.brokers[0].on(LIST_OFFSETS, offsets_answer(ErrorCode.FENCED_LEADER_EPOCH))
    with pytest.raises(CommandFailed, match=r"^the offsets of topic orders cannot be read: .* FENCED_LEADER"):
        asked(cluster)
    assert cluster.now == pytest.approx(TIMEOUT_S, abs=1)


@pytest.mark.parametrize("code", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.KAFKA_STORAGE_ERROR])
def test_what_a_user_must_mend_is_told_at_once(code: ErrorCode) -> None:
    cluster = FakeCluster()
    cluster.brokers[0].on(LIST_OFFSETS, offsets_answer(code))
    with pytest.raises(CommandFailed, match=r"the offsets of topic orders cannot be read: .* for orders-0"):
        asked(cluster)
    assert cluster.now == 0


def test_all_partitions_without_a_leader_are_named() -> None:
    cluster = FakeCluster()
    cluster.leaders = {0: 0, 1: NOBODY, 2: NOBODY}
    cluster.brokers[0].on(LIST_OFFSETS, offsets_answer())
    with pytest.raises(CommandFailed) as failed:
        log_bounds(reached(cluster), [ORDERS, OTHER, TopicPartition("orders", 2)])
    assert str(failed.value) == (
        "the offsets of topic orders cannot be read: no broker leads orders-1, orders-2: "
        "`penstock cluster status` shows which brokers are away."
    )


def test_records_are_deleted_by_the_leader_of_each_partition() -> None:
    cluster = FakeCluster()
    cluster.leaders = {0: 0, 1: 1}

    def deleted(request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        results = [
            DeleteRecordsPartitionResult(entry.partition_index, entry.offset)
            for entry in request.topics[0].partitions
        ]
        return DeleteRecordsResponse(topics=[DeleteRecordsTopicResult("orders", results)])

    for broker in cluster.brokers:
        broker.on(DELETE_RECORDS, deleted)
    assert delete_records(reached(cluster), {ORDERS: 5, OTHER: 6}) == {ORDERS: 5, OTHER: 6}
    assert [broker.count(DELETE_RECORDS) for broker in cluster.brokers] == [1, 1]


def created(code: ErrorCode) -> Any:
    def answer(request: CreateTopicsRequest) -> CreateTopicsResponse:
        return CreateTopicsResponse(topics=[CreatableTopicResult(request.topics[0].name, error_code=code)])

    return answer


def test_a_controller_that_has_just_lost_that_role_is_asked_again() -> None:
    cluster = FakeCluster()
    cluster.brokers[0].on(CREATE_TOPICS, created(ErrorCode.NOT_CONTROLLER), created(ErrorCode.NONE))
    assert create_topic(reached(cluster), "new", 1, 1, {})


def test_a_change_is_not_sent_again_when_its_reply_was_lost() -> None:
    cluster = FakeCluster()
    cluster.brokers[0].on(CREATE_TOPICS, Hangup(), created(ErrorCode.TOPIC_ALREADY_EXISTS))
    with pytest.raises(CommandFailed, match="cannot reach a broker at broker-0:9092: "):
        create_topic(reached(cluster), "new", 1, 1, {})
