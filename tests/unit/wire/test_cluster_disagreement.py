"""Brokers that describe a topic differently: one is cut off from the metadata store, or has just started."""

from collections.abc import Callable

import pytest

from penstock.errors import ErrorCode
from penstock.protocol.messages.fetch import FETCH, PartitionData
from penstock.protocol.messages.list_offsets import LIST_OFFSETS
from penstock.protocol.messages.metadata import METADATA
from penstock.protocol.messages.produce import PRODUCE
from penstock.types import Offset, TopicId
from penstock.wire.cluster_client import ClusterClient, WireError
from penstock.wire.errors import TopicReplaced, TopicUnknown
from penstock.wire.retry_policy import GONE_AFTER_S, UNKNOWN_TOPIC_S_MAX
from tests.unit.wire.fake_cluster import (
    ORDERS,
    OTHER,
    TIMEOUT_S,
    TOPIC_ID,
    FakeCluster,
    Hangup,
    Log,
    ask_latest,
    client_of,
    fetch_answer,
    offsets_answer,
)
from tests.unit.wire.test_cluster_writing import produce_answer, refusing

OTHER_ID = TopicId(b"another topic...")
END = 100


@pytest.fixture
def cluster() -> FakeCluster:
    """Three brokers. Broker 2 leads, and is the last that a client asks who leads."""
    made = FakeCluster(3)
    made.leaders = {0: 2, 1: 2}
    made.brokers[2].on(FETCH, Log(END // 10).serve)
    made.brokers[2].on(LIST_OFFSETS, offsets_answer(offset=END))
    made.brokers[2].on(PRODUCE, produce_answer)
    return made


@pytest.fixture
def client(cluster: FakeCluster) -> ClusterClient:
    return client_of(cluster)


def read(client: ClusterClient, topic_id: TopicId = TOPIC_ID) -> None:
    found = client.fetch(ORDERS, Offset(0), Offset(END), read_committed=False, topic_id=topic_id)
    assert sum(len(each.data) for each in found) == sum(map(len, Log(END // 10).batches))


def ask(client: ClusterClient) -> None:
    assert ask_latest(client) == {ORDERS: END}


def write(client: ClusterClient) -> None:
    assert client.produce(ORDERS, Log(1).batches) == 5


CALLS = [read, ask, write]


def asked_for_metadata(cluster: FakeCluster) -> list[int]:
    return [broker.count(METADATA) for broker in cluster.brokers]


def test_a_range_is_read_by_its_id_though_one_broker_has_another(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    cluster.mislead(0, topic_id=OTHER_ID)
    read(client)
    assert asked_for_metadata(cluster) == [1, 1, 0]
    assert cluster.now == 0.0


@pytest.mark.parametrize("call", CALLS)
def test_a_topic_that_one_broker_does_not_know_is_used(
    client: ClusterClient, cluster: FakeCluster, call: Callable[[ClusterClient], None]
) -> None:
    cluster.mislead(0, existing=set())
    call(client)
    assert asked_for_metadata(cluster) == [1, 1, 0]
    assert cluster.now == 0.0


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("facts", [{"existing": set()}, {"topic_id": OTHER_ID}])
def test_leadership_is_followed_though_one_broker_is_behind(
    client: ClusterClient,
    cluster: FakeCluster,
    call: Callable[[ClusterClient], None],
    facts: dict[str, object],
) -> None:
    call(client)
    old, new = cluster.brokers[2], cluster.brokers[1]
    new.handlers |= {api.key: old.handlers[api.key] for api in (FETCH, LIST_OFFSETS, PRODUCE)}
    old.is_up = False
    cluster.leaders = {0: 1, 1: 1}
    cluster.mislead(0, leaders={0: 2, 1: 2}, **facts)
    call(client)
    assert cluster.now < 1.0


def test_leadership_is_followed_though_one_broker_names_the_leader_before(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    cluster.brokers[1].on(LIST_OFFSETS, offsets_answer(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    cluster.mislead(0, leaders={0: 1, 1: 1})
    ask(client)
    assert cluster.now < 1.0


def test_reading_goes_on_though_one_broker_has_another_id_in_its_midst(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    log = Log(END // 10)
    moved = fetch_answer(PartitionData(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    cluster.brokers[2].on(FETCH, log.serve, moved, log.serve)
    reading = client.fetch(ORDERS, Offset(0), Offset(END), read_committed=False)
    found = [next(reading)]
    cluster.mislead(0, topic_id=OTHER_ID)
    found += reading
    assert b"".join(each.data for each in found) == b"".join(log.batches)


@pytest.mark.parametrize("facts", [{"existing": set()}, {"topic_id": OTHER_ID}])
def test_one_broker_of_many_that_has_the_topic_is_found(facts: dict[str, object]) -> None:
    cluster = FakeCluster(6)
    cluster.leaders = {0: 5, 1: 5}
    cluster.brokers[5].on(FETCH, Log(END // 10).serve)
    for number in range(5):
        cluster.mislead(number, **facts)
    client = client_of(cluster)
    read(client)
    assert cluster.now < 1.0
    assert sum(asked_for_metadata(cluster)) <= 3 * 3


def test_a_broker_that_has_just_started_and_knows_no_other_does_not_hide_them(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    cluster.mislead(0, existing=set(), brokers=cluster.brokers[:1])
    read(client)
    assert cluster.now == 0.0


def test_questions_about_a_topic_that_no_broker_has_are_bounded(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    cluster.topic_id = OTHER_ID
    with pytest.raises(TopicReplaced, match=r"orders-0.*was deleted and made anew"):
        read(client)
    assert GONE_AFTER_S - 1 <= cluster.now <= GONE_AFTER_S
    assert sum(asked_for_metadata(cluster)) <= 3 * 36
    assert max(asked_for_metadata(cluster)) <= 36
    assert [broker.count(FETCH) for broker in cluster.brokers] == [0, 0, 0]


@pytest.mark.parametrize("facts", [{"existing": set()}, {"topic_id": OTHER_ID}])
def test_brokers_that_all_lack_the_topic_for_seconds_are_waited_for(
    client: ClusterClient, cluster: FakeCluster, facts: dict[str, object]
) -> None:
    for number in range(3):
        cluster.mislead(number, **facts)

    def heal() -> None:
        if cluster.now > GONE_AFTER_S - 3:
            cluster.mislead(1)

    cluster.on_sleep = heal
    read(client)
    assert cluster.now > UNKNOWN_TOPIC_S_MAX


def test_time_without_an_answer_does_not_make_a_topic_gone(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    """All brokers are away for longer than a topic has; when they come back they are behind for a second."""
    cluster.topic_id = OTHER_ID

    def pass_by() -> None:
        for broker in cluster.brokers:
            broker.is_up = cluster.now > GONE_AFTER_S
        if cluster.now > GONE_AFTER_S + 2:
            cluster.topic_id = TOPIC_ID

    for broker in cluster.brokers:
        broker.is_up = False
    cluster.on_sleep = pass_by
    read(client)
    assert cluster.now > GONE_AFTER_S + 2


def test_a_call_that_ends_before_brokers_agree_does_not_say_the_topic_is_gone(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    cluster.topic_id = OTHER_ID
    for broker in cluster.brokers:
        broker.is_up = False

    def come_back() -> None:
        for broker in cluster.brokers:
            broker.is_up = cluster.now > TIMEOUT_S - 10

    cluster.on_sleep = come_back
    with pytest.raises(WireError) as caught:
        read(client)
    assert type(caught.value) is WireError


@pytest.mark.parametrize("call", CALLS)
def test_a_leader_that_has_just_started_is_waited_for(
    client: ClusterClient, cluster: FakeCluster, call: Callable[[ClusterClient], None]
) -> None:
    leader = cluster.brokers[2]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    ready = dict(leader.handlers)
    leader.on(FETCH, fetch_answer(PartitionData(error_code=ErrorCode.UNKNOWN_TOPIC_ID)))
    leader.on(LIST_OFFSETS, offsets_answer(unknown))
    leader.on(PRODUCE, refusing(unknown))

    def catch_up() -> None:
        if cluster.now > 2 * UNKNOWN_TOPIC_S_MAX:
            leader.handlers.update(ready)

    cluster.on_sleep = catch_up
    call(client)
    assert 2 * UNKNOWN_TOPIC_S_MAX < cluster.now < GONE_AFTER_S


def test_a_broker_that_has_the_wanted_id_keeps_a_range_from_being_lost(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    """Its leader lacks the topic, and in the end only a broker that is behind can be asked."""
    for number in range(2):
        cluster.mislead(number, topic_id=OTHER_ID)
    cluster.brokers[2].on(FETCH, fetch_answer(PartitionData(error_code=ErrorCode.UNKNOWN_TOPIC_ID)))

    def leave() -> None:
        cluster.brokers[2].is_up = cluster.now < GONE_AFTER_S - 5

    cluster.on_sleep = leave
    with pytest.raises((TopicReplaced, TopicUnknown)) as caught:
        read(client)
    assert isinstance(caught.value, TopicReplaced)
    assert cluster.now > 2 * GONE_AFTER_S - 8


def test_a_misspelt_name_is_told_after_seconds(client: ClusterClient, cluster: FakeCluster) -> None:
    cluster.existing = set()
    with pytest.raises(TopicUnknown):
        ask(client)
    assert cluster.now <= UNKNOWN_TOPIC_S_MAX


def test_topics_are_described_under_the_id_that_is_wanted_if_one_broker_has_it(cluster: FakeCluster) -> None:
    cluster.mislead(0, topic_id=OTHER_ID)
    found = [client_of(cluster).topics(["orders"], {"orders": TOPIC_ID})["orders"].id]
    cluster.topic_id = OTHER_ID
    found.append(client_of(cluster).topics(["orders"], {"orders": TOPIC_ID})["orders"].id)
    cluster.mislead(2, existing=set())
    found.append(client_of(cluster).topics(["orders"], {"orders": TOPIC_ID})["orders"].id)
    assert found == [TOPIC_ID, OTHER_ID, OTHER_ID]


def test_a_second_opinion_that_was_wrong_is_not_asked_for_again_first(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    cluster.mislead(0, existing=set())
    cluster.mislead(1, leaders={0: 1, 1: 1})
    cluster.brokers[1].on(LIST_OFFSETS, offsets_answer(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    ask(client)
    assert cluster.brokers[1].count(LIST_OFFSETS) == 1


def test_a_broker_that_fails_is_not_asked_before_those_that_answer(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    cluster.brokers[2].on(LIST_OFFSETS, Hangup())
    cluster.brokers[1].on(LIST_OFFSETS, offsets_answer(offset=END))

    def move() -> None:
        if cluster.now > 3:
            cluster.leaders = {0: 1, 1: 1}

    cluster.on_sleep = move
    ask(client)
    assert cluster.brokers[2].count(METADATA) == 0


def test_a_topic_that_a_leader_knew_meanwhile_has_its_time_again(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    answer = {"now": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    cluster.brokers[2].on(LIST_OFFSETS, lambda request: offsets_answer(answer["now"], END)(request))

    def change() -> None:
        if 20 < cluster.now < 22:
            answer["now"] = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif cluster.now > 42:
            answer["now"] = ErrorCode.NONE
        else:
            answer["now"] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    cluster.on_sleep = change
    ask(client)
    assert cluster.now > 42


def test_time_in_which_one_partition_was_unknown_does_not_count_for_another(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    unknown = offsets_answer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    cluster.leaders = {0: 1, 1: 2}
    cluster.brokers[1].on(LIST_OFFSETS, unknown)
    cluster.brokers[2].on(LIST_OFFSETS, Hangup())

    def change() -> None:
        if cluster.now > 20:
            cluster.brokers[1].on(LIST_OFFSETS, offsets_answer(offset=END))
            cluster.brokers[2].on(LIST_OFFSETS, unknown)
        if cluster.now > 40:
            cluster.brokers[2].on(LIST_OFFSETS, offsets_answer(offset=END))

    cluster.on_sleep = change
    assert ask_latest(client, ORDERS, OTHER) == {ORDERS: END, OTHER: END}
    assert cluster.now > 40


def test_a_broker_that_still_has_a_deleted_topic_saves_its_range(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    """The topic was made anew, and one broker does not know that: the brokers do not agree."""
    cluster.topic_id = OTHER_ID
    cluster.mislead(0, topic_id=TOPIC_ID)
    cluster.brokers[2].on(FETCH, fetch_answer(PartitionData(error_code=ErrorCode.UNKNOWN_TOPIC_ID)))
    with pytest.raises(TopicUnknown):
        read(client)
    assert GONE_AFTER_S - 1 <= cluster.now <= GONE_AFTER_S
