"""Writing batches and committing offsets through the cluster client, with brokers in memory."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import ErrorCode
from penstock.protocol.batches import HEADER_BYTES, SEQUENCE_MAX, crc_matches, parse_only_header
from penstock.protocol.messages.find_coordinator import (
    FIND_COORDINATOR,
    Coordinator,
    FindCoordinatorResponse,
)
from penstock.protocol.messages.init_producer_id import INIT_PRODUCER_ID, InitProducerIdResponse
from penstock.protocol.messages.offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from penstock.protocol.messages.produce import (
    PRODUCE,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from penstock.types import Offset, TopicPartition
from penstock.wire.cluster_client import ClusterClient, WireError
from penstock.wire.errors import RecordsTooLarge, RequestRejected
from penstock.wire.sequence_numbers import sequence_after
from tests.unit.wire.fake_cluster import (
    ORDERS,
    OTHER,
    FakeBroker,
    FakeCluster,
    Hangup,
    Log,
    Silence,
    client_of,
)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def client(cluster: FakeCluster) -> ClusterClient:
    return client_of(cluster)


# Producing


def produce_answer(request: ProduceRequest) -> ProduceResponse:
    return produce_result(request)


def produce_result(request: ProduceRequest, **fields: Any) -> ProduceResponse:
    responses = [
        TopicProduceResponse(
            topic.name,
            partition_responses=[
                PartitionProduceResponse(data.index, **{"base_offset": 5} | fields)
                for data in topic.partition_data
            ],
        )
        for topic in request.topic_data
    ]
    return ProduceResponse(responses)


def written(broker: FakeBroker) -> list[bytes]:
    return [
        bytes(data.records)
        for name, _, request in broker.asked
        if name == "Produce"
        for topic in request.topic_data
        for data in topic.partition_data
    ]


def numbers(broker: FakeBroker) -> list[tuple[int, int, int]]:
    """Producer id, epoch and first sequence of every batch that was sent."""
    headers = [parse_only_header(batch) for batch in written(broker)]
    assert all(map(crc_matches, written(broker), headers))
    return [(each.producer_id, each.producer_epoch, each.base_sequence) for each in headers]


def contents(batches: list[bytes]) -> list[bytes]:
    return [batch[HEADER_BYTES:] for batch in batches]


def refusing(code: ErrorCode) -> Callable[[ProduceRequest], ProduceResponse]:
    return lambda request: produce_result(request, error_code=code, base_offset=-1)


def test_batches_are_written_in_order_one_to_a_request(client: ClusterClient, cluster: FakeCluster) -> None:
    batches = Log(3).batches
    later = [lambda request, base=base: produce_result(request, base_offset=base) for base in (5, 15, 25)]
    cluster.brokers[0].on(PRODUCE, *later)

    assert client.produce(ORDERS, batches) == 5
    assert contents(written(cluster.brokers[0])) == contents(batches)
    assert numbers(cluster.brokers[0]) == [(100, 3, 0), (100, 3, 10), (100, 3, 20)]
    assert cluster.brokers[0].count(PRODUCE) == 3


def test_partitions_of_one_leader_share_a_request(client: ClusterClient, cluster: FakeCluster) -> None:
    batches = Log(4).batches
    cluster.brokers[0].on(PRODUCE, produce_answer)

    found = client.produce_many({ORDERS: batches[:2], OTHER: batches[2:3], TopicPartition("none", 0): []})

    assert found == {ORDERS: 5, OTHER: 5}
    assert contents(written(cluster.brokers[0])) == contents([batches[0], batches[2], batches[1]])
    assert numbers(cluster.brokers[0]) == [(100, 3, 0), (100, 3, 0), (100, 3, 10)]
    assert cluster.brokers[0].count(PRODUCE) == 2


def test_a_batch_whose_answer_never_came_is_sent_with_the_same_number(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    cluster.brokers[0].on(PRODUCE, Hangup(), refusing(ErrorCode.NOT_ENOUGH_REPLICAS), produce_answer)

    client.produce(ORDERS, Log(2).batches)
    client.produce(ORDERS, Log(1).batches)

    first = (100, 3, 0)
    assert numbers(cluster.brokers[0]) == [first, first, first, (100, 3, 10), (100, 3, 20)]
    assert cluster.producers == 1


def test_a_duplicate_counts_as_written(client: ClusterClient, cluster: FakeCluster) -> None:
    duplicate = refusing(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    cluster.brokers[0].on(PRODUCE, Hangup(), duplicate, produce_answer)

    assert client.produce(ORDERS, Log(2).batches) == -1
    assert numbers(cluster.brokers[0])[-1] == (100, 3, 10)


def test_a_producer_that_a_broker_forgot_goes_on_with_a_new_id(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    """Only where it is forgotten: elsewhere an attempt may be under way with the old one."""
    batches = Log(1).batches
    cluster.brokers[0].on(PRODUCE, produce_answer)
    client.produce_many({ORDERS: batches, OTHER: batches})
    cluster.brokers[0].on(PRODUCE, refusing(ErrorCode.UNKNOWN_PRODUCER_ID), produce_answer)
    client.produce(ORDERS, batches)
    client.produce_many({ORDERS: batches, OTHER: batches})

    assert numbers(cluster.brokers[0])[2:] == [(100, 3, 10), (200, 3, 0), (200, 3, 10), (100, 3, 10)]


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "lacks records of this producer that were acknowledged"),
        (ErrorCode.INVALID_PRODUCER_EPOCH, "Another producer has this id"),
    ],
)
def test_a_gap_in_the_sequence_is_told_and_the_next_write_has_a_new_id(
    client: ClusterClient, cluster: FakeCluster, code: ErrorCode, advice: str
) -> None:
    cluster.brokers[0].on(PRODUCE, refusing(code), produce_answer)
    with pytest.raises(RequestRejected, match=f"orders-0: {code.name}.*{advice}"):
        client.produce(ORDERS, Log(1).batches)
    client.produce(ORDERS, Log(1).batches)
    assert numbers(cluster.brokers[0]) == [(100, 3, 0), (200, 3, 0)]


def test_a_write_that_failed_leaves_no_number_to_be_used_again(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    """The batch may be in the log under its number, and other records would be taken for it."""
    cluster.brokers[0].on(PRODUCE, Silence())
    with pytest.raises(WireError):
        client.produce(ORDERS, Log(1).batches)
    cluster.brokers[0].on(PRODUCE, produce_answer)
    client.produce(ORDERS, Log(1).batches)
    assert numbers(cluster.brokers[0])[-1] == (200, 3, 0)


def test_a_producer_id_is_asked_for_until_there_is_one(client: ClusterClient, cluster: FakeCluster) -> None:
    later = InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    cluster.brokers[0].on(INIT_PRODUCER_ID, later, Hangup(), InitProducerIdResponse(producer_id=9))
    cluster.brokers[0].on(PRODUCE, produce_answer)
    client.produce(ORDERS, Log(1).batches)
    assert numbers(cluster.brokers[0]) == [(9, 0, 0)]
    denied = InitProducerIdResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    cluster.brokers[0].on(INIT_PRODUCER_ID, denied)
    with pytest.raises(RequestRejected, match="asking for a producer id: CLUSTER_AUTHORIZATION_FAILED"):
        client_of(cluster).produce(ORDERS, Log(1).batches)


def test_without_idempotence_batches_have_no_number(client: ClusterClient, cluster: FakeCluster) -> None:
    batches = Log(1).batches
    cluster.brokers[0].on(PRODUCE, produce_answer)
    client.produce_many({ORDERS: batches}, acks=1, is_idempotent=False)
    assert written(cluster.brokers[0]) == batches
    assert cluster.producers == 0
    with pytest.raises(WireError, match="an idempotent producer needs acks=-1"):
        client.produce_many({ORDERS: batches}, acks=1)


def test_sequences_wrap_as_those_of_kafka() -> None:
    assert [sequence_after(SEQUENCE_MAX - 1, count) for count in (1, 2, 3)] == [SEQUENCE_MAX, 0, 1]


def test_a_batch_that_is_too_large_is_not_tried_again(client: ClusterClient, cluster: FakeCluster) -> None:
    def refuse(request: ProduceRequest) -> ProduceResponse:
        return produce_result(request, error_code=ErrorCode.MESSAGE_TOO_LARGE, error_message="2 MB")

    cluster.brokers[0].on(PRODUCE, refuse)

    with pytest.raises(RecordsTooLarge, match=r"orders-0: MESSAGE_TOO_LARGE \(2 MB\).*max.message.bytes"):
        client.produce(ORDERS, Log(1).batches)
    assert cluster.brokers[0].count(PRODUCE) == 1


def test_writing_without_an_acknowledgement_is_refused(client: ClusterClient) -> None:
    with pytest.raises(WireError, match="acks=0 is not supported"):
        client.produce_many({ORDERS: Log(1).batches}, acks=0)


# Groups


def coordinator_at(cluster: FakeCluster, number: int) -> FindCoordinatorResponse:
    address = cluster.brokers[number].address
    coordinator = Coordinator("g", number, address.host, address.port)
    return FindCoordinatorResponse(
        node_id=number, host=address.host, port=address.port, coordinators=[coordinator]
    )


def commit_answer(code: int = 0) -> OffsetCommitResponse:
    topic = OffsetCommitResponseTopic("orders", partitions=[OffsetCommitResponsePartition(0, code)])
    return OffsetCommitResponse(topics=[topic])


@pytest.mark.parametrize("version", [2, 6])
def test_a_coordinator_that_moved_is_found_again(
    client: ClusterClient, cluster: FakeCluster, version: int
) -> None:
    for broker in cluster.brokers:
        broker.newest[FIND_COORDINATOR.key] = version
    cluster.brokers[0].on(FIND_COORDINATOR, coordinator_at(cluster, 0), coordinator_at(cluster, 1))
    cluster.brokers[0].on(OFFSET_COMMIT, commit_answer(), commit_answer(ErrorCode.NOT_COORDINATOR))
    cluster.brokers[1].on(OFFSET_COMMIT, commit_answer())

    client.commit("g", {ORDERS: Offset(1)})
    client.commit("g", {ORDERS: Offset(2)})

    assert cluster.brokers[0].count(FIND_COORDINATOR) == 2
    _, _, request = cluster.brokers[1].asked[-1]
    assert request.topics[0].partitions[0].committed_offset == 2


def test_a_coordinator_that_died_is_found_again(client: ClusterClient, cluster: FakeCluster) -> None:
    cluster.brokers[0].on(FIND_COORDINATOR, coordinator_at(cluster, 1), coordinator_at(cluster, 0))
    cluster.brokers[0].on(OFFSET_COMMIT, commit_answer())
    cluster.brokers[1].is_up = False

    client.commit("g", {ORDERS: Offset(1)})

    assert cluster.brokers[0].count(OFFSET_COMMIT) == 1


def test_a_coordinator_that_loads_is_waited_for(client: ClusterClient, cluster: FakeCluster) -> None:
    loading = commit_answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    cluster.brokers[0].on(FIND_COORDINATOR, coordinator_at(cluster, 0))
    cluster.brokers[0].on(OFFSET_COMMIT, loading, loading, commit_answer())

    client.commit("g", {ORDERS: Offset(1)})

    assert cluster.brokers[0].count(FIND_COORDINATOR) == 1
    assert cluster.now > 0


def test_a_group_that_has_members_refuses_with_advice(client: ClusterClient, cluster: FakeCluster) -> None:
    cluster.brokers[0].on(FIND_COORDINATOR, coordinator_at(cluster, 0))
    cluster.brokers[0].on(OFFSET_COMMIT, commit_answer(ErrorCode.UNKNOWN_MEMBER_ID))

    with pytest.raises(RequestRejected, match=r"orders-0: UNKNOWN_MEMBER_ID.*The group has members"):
        client.commit("g", {ORDERS: Offset(1)})
