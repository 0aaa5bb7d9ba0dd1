"""Reading a range through the cluster client, from brokers in memory."""

import pickle
from typing import Any

import pytest

from penstock.errors import CorruptData, ErrorCode
from penstock.protocol.messages.fetch import (
    FETCH,
    AbortedTransaction,
    PartitionData,
)
from penstock.protocol.messages.list_offsets import (
    LIST_OFFSETS,
)
from penstock.protocol.messages.metadata import METADATA
from penstock.types import Offset, TopicId
from penstock.wire.cluster_client import ClusterClient, FetchedBatches, OffsetOutOfRange, WireError
from penstock.wire.errors import TopicReplaced
from penstock.wire.retry_policy import BACKOFF_S_MIN, GONE_AFTER_S
from tests.unit.wire.fake_cluster import (
    ORDERS,
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


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def client(cluster: FakeCluster) -> ClusterClient:
    return client_of(cluster)


def fetch(client: ClusterClient, start: int, end: int, **more: Any) -> list[FetchedBatches]:
    return list(client.fetch(ORDERS, Offset(start), Offset(end), **{"read_committed": False} | more))


def joined(fetched: list[FetchedBatches]) -> bytes:
    return b"".join(each.data for each in fetched)


def test_a_range_is_read_whole_and_in_order(client: ClusterClient, cluster: FakeCluster) -> None:
    log = Log(10)
    cluster.brokers[0].on(FETCH, log.serve)

    found = fetch(client, 15, 95)

    assert joined(found) == b"".join(log.batches[1:])
    assert log.asked == [15, 40, 70]
    assert {each.high_watermark for each in found} == {100}


def test_nothing_is_asked_for_an_empty_range(client: ClusterClient, cluster: FakeCluster) -> None:
    assert fetch(client, 5, 5) == []
    assert cluster.brokers[0].asked == []


def test_the_next_request_is_under_way_while_the_caller_has_the_answer(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    log = Log(10)
    cluster.brokers[0].on(FETCH, log.serve)
    reading = client.fetch(ORDERS, Offset(0), Offset(100), read_committed=False)

    next(reading)

    assert log.asked == [0, 30]


def test_two_ranges_may_be_read_in_turns(client: ClusterClient, cluster: FakeCluster) -> None:
    log = Log(9)
    cluster.brokers[0].on(FETCH, log.serve)
    readings = [client.fetch(ORDERS, Offset(0), Offset(90), read_committed=False) for _ in range(2)]

    pairs = list(zip(*readings, strict=True))

    for number in range(2):
        assert joined([pair[number] for pair in pairs]) == b"".join(log.batches)
    assert cluster.brokers[0].connections == 1


def test_an_abandoned_range_does_not_disturb_the_next_question(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    cluster.brokers[0].on(FETCH, Log(10).serve)
    cluster.brokers[0].on(LIST_OFFSETS, offsets_answer())
    reading = client.fetch(ORDERS, Offset(0), Offset(100), read_committed=False)
    next(reading)
    del reading

    assert ask_latest(client) == {ORDERS: 42}
    assert cluster.brokers[0].connections == 2, "the answer that nobody wants is not waited for"
    assert cluster.now == 0.0


@pytest.mark.parametrize("newest", [4, 12, 13, 17])
def test_topics_are_named_as_the_brokers_version_wants(
    client: ClusterClient, cluster: FakeCluster, newest: int
) -> None:
    log = Log(3)
    cluster.brokers[0].newest[FETCH.key] = newest
    cluster.brokers[0].on(FETCH, log.serve)

    assert joined(fetch(client, 0, 30)) == b"".join(log.batches)

    _, version, request = cluster.brokers[0].asked[-1]
    assert version == newest
    assert request.topics[0].topic_id == (TOPIC_ID if newest >= 13 else bytes(16))
    assert request.topics[0].topic == ("" if newest >= 13 else "orders")


def test_without_topic_ids_in_the_metadata_names_are_used(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    cluster.brokers[0].newest[METADATA.key] = 9
    cluster.brokers[0].on(FETCH, Log(3).serve)

    fetch(client, 0, 30)

    _, version, _ = cluster.brokers[0].asked[-1]
    assert version == 12


def test_reading_goes_on_at_the_new_leader(client: ClusterClient, cluster: FakeCluster) -> None:
    log = Log(10)
    moved = fetch_answer(PartitionData(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    cluster.brokers[0].on(FETCH, log.serve, moved)
    cluster.brokers[1].on(FETCH, log.serve)
    cluster.on_sleep = lambda: cluster.leaders.update({0: 1})

    assert joined(fetch(client, 0, 100)) == b"".join(log.batches)
    assert cluster.brokers[1].count(FETCH) == 3


def test_reading_goes_on_after_a_lost_connection(client: ClusterClient, cluster: FakeCluster) -> None:
    log = Log(10)
    cluster.brokers[0].on(FETCH, log.serve, Hangup(), log.serve, Hangup(), log.serve)

    assert joined(fetch(client, 0, 100)) == b"".join(log.batches)
    assert cluster.now == 2 * BACKOFF_S_MIN, "what got somewhere begins with short pauses again"


def test_the_leader_epoch_is_told_so_that_an_old_leader_refuses(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    cluster.brokers[0].on(FETCH, Log(3).serve)

    fetch(client, 0, 30)

    _, _, request = cluster.brokers[0].asked[-1]
    assert request.topics[0].partitions[0].current_leader_epoch == cluster.epoch


def test_an_offset_that_is_gone_is_told_with_what_is_there(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    log = Log(10)
    log.start = 50
    cluster.brokers[0].on(FETCH, log.serve)
    cluster.brokers[0].on(LIST_OFFSETS, offsets_answer(offset=50), offsets_answer(offset=100))

    with pytest.raises(
        OffsetOutOfRange, match="offset 20 of orders-0 is gone: retention removed it"
    ) as caught:
        fetch(client, 20, 100)

    copied = pickle.loads(pickle.dumps(caught.value))
    assert (copied.partition, copied.requested, copied.log_start, copied.log_end) == (ORDERS, 20, 50, 100)
    assert str(copied) == str(caught.value)


def test_a_leader_that_does_not_know_its_end_yet_is_asked_again(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    log = Log(3)
    unknown = fetch_answer(PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    cluster.brokers[0].on(FETCH, unknown, log.serve)
    cluster.brokers[0].on(LIST_OFFSETS, offsets_answer(offset=0), offsets_answer(offset=30))

    assert joined(fetch(client, 0, 30)) == b"".join(log.batches)


def test_an_end_that_is_never_written_is_given_up(client: ClusterClient, cluster: FakeCluster) -> None:
    cluster.brokers[0].on(FETCH, Log(3).serve)
    reading = client.fetch(ORDERS, Offset(0), Offset(31), read_committed=False)

    next(reading)
    with pytest.raises(WireError, match=r"at offset 30: nothing is there to be read; .* ends at offset 30"):
        next(reading)
    assert TIMEOUT_S - 1 <= cluster.now <= TIMEOUT_S


def test_the_callers_own_time_does_not_count(client: ClusterClient, cluster: FakeCluster) -> None:
    log = Log(9)
    cluster.brokers[0].on(FETCH, log.serve, Hangup(), log.serve)

    found = []
    for fetched in client.fetch(ORDERS, Offset(0), Offset(90), read_committed=False):
        found.append(fetched)
        cluster.now += 10 * TIMEOUT_S

    assert joined(found) == b"".join(log.batches)


def test_a_topic_made_anew_is_not_read_as_the_old_one(client: ClusterClient, cluster: FakeCluster) -> None:
    log = Log(10)
    gone = fetch_answer(PartitionData(error_code=ErrorCode.UNKNOWN_TOPIC_ID))
    cluster.brokers[0].on(FETCH, log.serve, gone, log.serve)

    def replace() -> None:
        cluster.topic_id = TopicId(b"another topic id")

    cluster.on_sleep = replace

    with pytest.raises(TopicReplaced, match="orders was deleted and made anew"):
        fetch(client, 0, 100)


def test_what_is_remembered_of_an_earlier_topic_is_no_reason_not_to_read(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    log = Log(10)
    gone = fetch_answer(PartitionData(error_code=ErrorCode.UNKNOWN_TOPIC_ID))
    cluster.brokers[0].on(FETCH, log.serve)
    assert joined(fetch(client, 0, 100)) == b"".join(log.batches)
    cluster.topic_id = TopicId(b"another topic id")
    cluster.brokers[0].on(FETCH, gone, log.serve)

    assert joined(fetch(client, 0, 100)) == b"".join(log.batches)


def test_a_topic_with_another_id_than_was_asked_for_is_not_read(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    cluster.brokers[0].on(FETCH, Log(3).serve)
    cluster.brokers[0].on(LIST_OFFSETS, offsets_answer())
    ask_latest(client)  # the client knows the topic as it was
    cluster.topic_id = TopicId(b"another topic...")
    assert joined(fetch(client, 0, 30, topic_id=cluster.topic_id))
    asked = cluster.brokers[0].count(FETCH)
    with pytest.raises(TopicReplaced, match="topic orders was deleted and made anew"):
        fetch(client, 0, 30, topic_id=TOPIC_ID)
    assert cluster.brokers[0].count(FETCH) == asked
    assert GONE_AFTER_S - 1 <= cluster.now <= GONE_AFTER_S


def test_a_batch_larger_than_was_asked_for_is_asked_for_again(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    (large,) = Log(1).batches
    cut = fetch_answer(PartitionData(records=large[:-1]))
    cluster.brokers[0].on(FETCH, cut, fetch_answer(PartitionData(records=large)))

    assert joined(fetch(client, 0, 10)) == large

    sizes = [request.max_bytes for name, _, request in cluster.brokers[0].asked if name == "Fetch"]
    assert sizes[1] == 2 * sizes[0]


def test_bytes_that_are_no_batches_are_corrupt(client: ClusterClient, cluster: FakeCluster) -> None:
    cluster.brokers[0].on(FETCH, fetch_answer(PartitionData(records=b"x" * 200)))

    with pytest.raises(CorruptData):
        fetch(client, 0, 10)


def test_aborted_transactions_are_told_to_those_who_read_committed(
    client: ClusterClient, cluster: FakeCluster
) -> None:
    log = Log(3)
    log.aborted = [AbortedTransaction(7, 12)]
    cluster.brokers[0].on(FETCH, log.serve)

    assert [each.aborted for each in fetch(client, 0, 30, read_committed=True)] == [((7, 12),)]
    assert cluster.brokers[0].asked[-1][2].isolation_level == 1
    assert [each.aborted for each in fetch(client, 0, 30)] == [()]
    assert cluster.brokers[0].asked[-1][2].isolation_level == 0
