"""The cluster client against brokers in memory: where it goes, what it tries again, when it gives up."""

import pytest

from penstock.config.listeners import Address
from penstock.errors import ErrorCode
from penstock.protocol.messages.create_topics import (
    CREATE_TOPICS,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.protocol.messages.list_offsets import (
    LIST_OFFSETS,
)
from penstock.protocol.messages.metadata import (
    METADATA,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)
from penstock.types import TopicPartition
from penstock.wire.cluster_client import EARLIEST, ClusterClient, WireError
from penstock.wire.errors import RequestRejected, TopicUnknown, Unreachable
from penstock.wire.retry_policy import UNKNOWN_TOPIC_S_MAX
from tests.unit.wire.fake_cluster import (
    ORDERS,
    OTHER,
    TIMEOUT_S,
    TOPIC_ID,
    FakeCluster,
    Hangup,
    Silence,
    ask_latest,
    client_of,
    offsets_answer,
)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def client(cluster: FakeCluster) -> ClusterClient:
    return client_of(cluster)


# Where questions go


def test_each_leader_is_asked_for_its_own_partitions(client: ClusterClient, cluster: FakeCluster) -> None:
    cluster.leaders = {0: 0, 1: 1}
    cluster.brokers[0].on(LIST_OFFSETS, offsets_answer(offset=10))
    cluster.brokers[1].on(LIST_OFFSETS, offsets_answer(offset=20))

    assert ask_latest(client, ORDERS, OTHER) == {ORDERS: 10, OTHER: 20}
    assert [broker.count(LIST_OFFSETS) for broker in cluster.brokers] == [1, 1]
    assert cluster.now == 0.0


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
)
def test_a_leader_that_moved_is_followed(
    client: ClusterClient, cluster: FakeCluster, code: ErrorCode
) -> None:
    cluster.brokers[0].on(LIST_OFFSETS, offsets_answer(code))
    cluster.brokers[1].on(LIST_OFFSETS, offsets_answer(offset=20))
    cluster.on_sleep = lambda: cluster.leaders.update({0: 1})

    assert ask_latest(client) == {ORDERS: 20}


def test_what_succeeded_is_not_asked_again(client: ClusterClient, cluster: FakeCluster) -> None:
    cluster.leaders = {0: 0, 1: 1}
    cluster.brokers[0].on(LIST_OFFSETS, offsets_answer(offset=10))
    cluster.brokers[1].on(LIST_OFFSETS, Hangup(), offsets_answer(offset=20))

    assert ask_latest(client, ORDERS, OTHER) == {ORDERS: 10, OTHER: 20}
    assert [broker.count(LIST_OFFSETS) for broker in cluster.brokers] == [1, 2]


def test_a_dead_broker_is_passed_over_at_the_start(client: ClusterClient, cluster: FakeCluster) -> None:
    cluster.brokers[0].is_up = False

    assert client.topics(["orders"])["orders"].partitions == 2


def test_a_broker_that_comes_back_is_waited_for(client: ClusterClient, cluster: FakeCluster) -> None:
    for broker in cluster.brokers:
        broker.is_up = False
        broker.on(LIST_OFFSETS, offsets_answer())

    def start_later() -> None:
        cluster.brokers[0].is_up = cluster.now > 20

    cluster.on_sleep = start_later

    assert ask_latest(client) == {ORDERS: 42}
    assert 20 < cluster.now < 23


def test_a_cluster_that_is_gone_is_given_up_in_time(client: ClusterClient, cluster: FakeCluster) -> None:
    for broker in cluster.brokers:
        broker.is_up = False

    with pytest.raises(
        Unreachable,
        match=r"asking for topics failed: cannot reach a broker at broker-0:9092: nothing listens",
    ):
        client.topics()
    assert TIMEOUT_S - 1 <= cluster.now <= TIMEOUT_S


def test_a_broker_that_falls_silent_does_not_keep_the_others_from_being_asked(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    client.topics()
    cluster.brokers[0].on(METADATA, Silence())

    assert list(client.topics()) == ["orders"]
    assert list(client.topics()) == ["orders"]

    assert cluster.brokers[0].count(METADATA) == 2, "once when it answered, once when it did not"
    assert cluster.now < TIMEOUT_S


def test_one_topic_that_cannot_be_used_does_not_hide_the_others(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    broken = MetadataResponseTopic(ErrorCode.LEADER_NOT_AVAILABLE, "broken")

    def answer(request: MetadataRequest) -> MetadataResponse:
        found = cluster.metadata(request, 13)
        return MetadataResponse(brokers=found.brokers, topics=[*found.topics, broken])

    cluster.brokers[0].on(METADATA, answer)

    assert list(client.topics()) == ["orders"]
    with pytest.raises(WireError, match="topic broken: LEADER_NOT_AVAILABLE"):
        client.topics(["broken"])


def test_an_address_that_is_no_broker_is_told_at_once(cluster: FakeCluster, client: ClusterClient) -> None:
    for broker in cluster.brokers:
        broker.answer = lambda frame: b"HTTP/1.1 400 Bad Request"  # type: ignore[method-assign]

    with pytest.raises(WireError, match="does not speak Kafka's protocol"):
        client.topics()
    assert cluster.now == 0.0


def test_a_connection_closed_while_idle_is_replaced_without_a_failure(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    client.topics()
    cluster.streams[-1].is_hung_up = True
    client.topics()

    assert cluster.brokers[0].connections == 2
    assert cluster.now == 0.0


# Topics


def test_topics_that_do_not_exist_are_absent(client: ClusterClient, cluster: FakeCluster) -> None:
    assert client.topics(["orders", "none"]) == {"orders": ("orders", TOPIC_ID, 2, False)}
    assert list(client.topics()) == ["orders"]
    assert client.topics([]) == {}
    assert cluster.now == 0.0


def test_a_topic_that_one_broker_does_not_know_is_looked_for_at_others(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    unknown = MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "orders")
    behind = cluster.metadata(MetadataRequest([]), 0)
    behind.topics = [unknown]
    cluster.brokers[0].on(METADATA, behind)
    assert client.topics(["orders"])["orders"].id == cluster.topic_id
    cluster.brokers[1].is_up = False
    cluster.streams[-1].close()
    assert client.topics(["orders"]) == {}  # the second opinion is not to be had


def test_a_topic_that_is_forgotten_for_a_moment_is_asked_for_again(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    cluster.existing = set()
    cluster.on_sleep = lambda: cluster.existing.add("orders") if cluster.now > 1 else None
    assert client.topic("orders").partitions == 2
    with pytest.raises(TopicUnknown, match="asking for topic odrers failed"):
        client.topic("odrers")
    assert cluster.now <= 2 + UNKNOWN_TOPIC_S_MAX


def test_a_topic_just_created_is_waited_for_and_a_misspelt_one_not_long(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    cluster.brokers[0].on(LIST_OFFSETS, offsets_answer())
    cluster.existing = set()
    cluster.on_sleep = lambda: cluster.existing.update({"orders"} if cluster.now > 1 else ())
    assert ask_latest(client) == {ORDERS: 42}

    begun = cluster.now
    with pytest.raises(TopicUnknown, match=r"none-0: UNKNOWN_TOPIC_OR_PARTITION.*Check the name"):
        ask_latest(client, TopicPartition("none", 0))
    assert UNKNOWN_TOPIC_S_MAX - 1 <= cluster.now - begun <= UNKNOWN_TOPIC_S_MAX


def test_a_partition_that_does_not_exist_is_told_with_the_number_there_are(client: ClusterClient) -> None:
    with pytest.raises(TopicUnknown, match=r"orders-9: .*the topic has 2 partitions"):
        ask_latest(client, TopicPartition("orders", 9))


def test_creating_waits_until_the_topic_is_led(client: ClusterClient, cluster: FakeCluster) -> None:
    cluster.existing = set()
    cluster.leaders = {0: -1}

    def create(request: CreateTopicsRequest) -> CreateTopicsResponse:
        cluster.existing.add("orders")
        return CreateTopicsResponse(topics=[CreatableTopicResult("orders")])

    cluster.brokers[0].on(CREATE_TOPICS, create)
    cluster.on_sleep = lambda: cluster.leaders.update({0: 0})

    client.create_topic("orders", 1, {"retention.ms": "1000"})

    _, _, request = next(each for each in cluster.brokers[0].asked if each[0] == "CreateTopics")
    assert request.topics[0].configs[0].name == "retention.ms"
    assert cluster.now > 0.0


def test_creating_a_topic_that_exists_is_fine(client: ClusterClient, cluster: FakeCluster) -> None:
    result = CreatableTopicResult("orders", error_code=ErrorCode.TOPIC_ALREADY_EXISTS)
    cluster.brokers[0].on(CREATE_TOPICS, CreateTopicsResponse(topics=[result]))

    client.create_topic("orders", 1)


def test_a_refused_creation_says_why(client: ClusterClient, cluster: FakeCluster) -> None:
    result = CreatableTopicResult("orders", error_code=ErrorCode.INVALID_CONFIG, error_message="no such key.")
    cluster.brokers[0].on(CREATE_TOPICS, CreateTopicsResponse(topics=[result]))

    with pytest.raises(
        RequestRejected, match=r"creating topic orders failed: INVALID_CONFIG \(no such key\)"
    ):
        client.create_topic("orders", 1, {"x": "y"})


# What cannot be asked for


def test_sasl_is_named_as_missing() -> None:
    with pytest.raises(WireError, match=r"SASL \(SCRAM-SHA-256\) is not supported yet"):
        ClusterClient([Address("h", 1)], client_id="test", sasl_mechanism="SCRAM-SHA-256")


def test_a_client_needs_an_address() -> None:
    with pytest.raises(WireError, match="no broker is named"):
        ClusterClient([], client_id="test")


def test_offsets_are_asked_for_by_time_and_place(client: ClusterClient, cluster: FakeCluster) -> None:
    cluster.brokers[0].on(LIST_OFFSETS, offsets_answer(offset=3))

    assert client.offsets({ORDERS: EARLIEST, OTHER: 1_700}, read_committed=True) == {
        ORDERS: (3, 5),
        OTHER: (3, 5),
    }

    _, _, request = cluster.brokers[0].asked[-1]
    assert [each.timestamp for each in request.topics[0].partitions] == [EARLIEST, 1_700]
    assert request.isolation_level == 1
