"""What a stream does when brokers describe its topics differently from one moment to the next."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from penstock.errors import ErrorCode
from penstock.protocol.messages.list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.protocol.messages.offset_for_leader_epoch import (
    OFFSET_FOR_LEADER_EPOCH,
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from penstock.spark.options.options import stream_read_settings
from penstock.spark.source.discovery import DataLost
from penstock.spark.source.offsets import (
    PartitionOffsets,
    StreamPosition,
    parse_stream_position,
    stream_position_document,
)
from penstock.spark.source.planner import StreamPlanner
from penstock.spark.source.source import OffsetRangePartition
from penstock.types import NO_TOPIC_ID, TopicId, TopicPartition
from penstock.wire.cluster_client import EARLIEST, ClusterClient
from penstock.wire.errors import TopicUnknown
from penstock.wire.retry_policy import GONE_AFTER_S
from tests.unit.wire.fake_cluster import ORDERS, OTHER, TOPIC_ID, FakeCluster, client_of

NEW_ID = TopicId(b"another topic...")
SUBSCRIPTIONS = [{"subscribe": "orders"}, {"subscribePattern": "ord.*"}]


class World:
    """A cluster of two brokers whose topic `orders` has partitions that begin at 0 and end at `ends`."""

    def __init__(self, count: int = 2) -> None:
        self.cluster = FakeCluster(count)
        self.ends = {ORDERS: 100, OTHER: 200}
        self.stable: dict[TopicPartition, int] = {}
        self.epochs: dict[TopicPartition, int] = {}
        self.epoch_ends: dict[tuple[TopicPartition, int], int] = {}
        for broker in self.cluster.brokers:
            broker.on(LIST_OFFSETS, self._offsets)
            broker.on(OFFSET_FOR_LEADER_EPOCH, self._epoch_ends)
        self._client = client_of(self.cluster)

    def _offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        def end(partition: TopicPartition) -> int:
            return self.stable.get(partition, 10**9) if request.isolation_level else 10**9

        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    topic.name,
                    [
                        ListOffsetsPartitionResponse(
                            each.partition_index,
                            ErrorCode.NONE,
                            offset=0
                            if each.timestamp == EARLIEST
                            else min(
                                self.ends[TopicPartition(topic.name, each.partition_index)],
                                end(TopicPartition(topic.name, each.partition_index)),
                            ),
                            leader_epoch=self.epochs.get(
                                TopicPartition(topic.name, each.partition_index), -1
                            ),
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _epoch_ends(self, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        def end(topic: str, number: int, epoch: int) -> EpochEndOffset:
            found = self.epoch_ends[TopicPartition(topic, number), epoch]
            return EpochEndOffset(partition=number, leader_epoch=epoch, end_offset=found)

        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic.topic,
                    [end(topic.topic, each.partition, each.leader_epoch) for each in topic.partitions],
                )
                for topic in request.topics
            ]
        )

    def questions_about_epochs(self) -> int:
        return sum(broker.count(OFFSET_FOR_LEADER_EPOCH) for broker in self.cluster.brokers)

    @contextmanager
    def borrowed_client(self) -> Iterator[ClusterClient]:
        yield self._client

    def planner(self, **options: str) -> StreamPlanner:
        needed = {"bootstrap": "broker-0:9092", "partition.metadata.cache.ttl.ms": "0"}
        offset_range = {**needed, "mirrorOffsets": "false", **options}
        return StreamPlanner(
            stream_read_settings(offset_range),
            self.borrowed_client,
            self.cluster.monotonic,
            self.cluster.sleep,
        )

    def forget(self) -> None:
        self.cluster.existing = set()

    def check_and_save_schema(self) -> None:
        self.cluster.existing = {"orders"}


def at(position: PartitionOffsets, topic_id: TopicId = TOPIC_ID) -> StreamPosition:
    return StreamPosition(position, {"orders": topic_id})


def ranges(
    planner: StreamPlanner, start: StreamPosition, end: StreamPosition
) -> list[tuple[TopicPartition, int, int]]:
    offset_range = [
        task.offset_range for task in planner.tasks(start, end) if isinstance(task, OffsetRangePartition)
    ]
    return [(each.partition, each.start, each.end) for each in offset_range]


def lenient(more: dict[str, str]) -> dict[str, str]:
    return {**more, "failOnDataLoss": "false"}


@pytest.mark.parametrize("subscription", SUBSCRIPTIONS)
@pytest.mark.parametrize("loss", ["true", "false"])
def test_a_topic_that_brokers_forget_for_a_moment_keeps_its_position(
    subscription: dict[str, str], loss: str
) -> None:
    world = World()
    planner = world.planner(**subscription, failOnDataLoss=loss)
    start = planner.next_end(at({ORDERS: 50, OTHER: 60}), takes_all=True)
    assert start == at({ORDERS: 100, OTHER: 200})
    world.forget()
    world.ends = {ORDERS: 110, OTHER: 210}
    assert planner.next_end(start, takes_all=True) == start
    world.cluster.sleep(1.0)
    world.check_and_save_schema()
    end = planner.next_end(start, takes_all=True)
    assert ranges(planner, start, end) == [(ORDERS, 100, 110), (OTHER, 200, 210)]


@pytest.mark.parametrize("subscription", SUBSCRIPTIONS)
def test_a_topic_that_one_broker_does_not_know_is_there(subscription: dict[str, str]) -> None:
    world = World()
    planner = world.planner(**subscription)
    start = planner.next_end(at({ORDERS: 50, OTHER: 60}), takes_all=True)
    world.cluster.mislead(0, existing=set())
    world.ends = {ORDERS: 101, OTHER: 201}
    assert planner.next_end(start, takes_all=True) == at({ORDERS: 101, OTHER: 201})
    world.cluster.sleep(GONE_AFTER_S)
    world.ends = {ORDERS: 102, OTHER: 202}
    assert planner.next_end(start, takes_all=True) == at({ORDERS: 102, OTHER: 202})


@pytest.mark.parametrize("subscription", SUBSCRIPTIONS)
@pytest.mark.parametrize("loss", ["true", "false"])
def test_a_topic_that_one_broker_has_under_another_id_is_there(
    subscription: dict[str, str], loss: str
) -> None:
    world = World()
    planner = world.planner(**subscription, failOnDataLoss=loss)
    start = planner.next_end(at({ORDERS: 50, OTHER: 60}), takes_all=True)
    world.cluster.mislead(0, topic_id=NEW_ID)
    for _ in range(3):
        world.ends = {partition: end + 1 for partition, end in world.ends.items()}
        assert planner.next_end(start, takes_all=True) == at(world.ends)
        world.cluster.sleep(GONE_AFTER_S)
    assert ranges(planner, start, at(world.ends)) == [(ORDERS, 100, 103), (OTHER, 200, 203)]


@pytest.mark.parametrize("subscription", SUBSCRIPTIONS)
def test_a_topic_is_deleted_when_no_broker_has_known_it_for_long(subscription: dict[str, str]) -> None:
    world = World()
    strict, allowing = world.planner(**subscription), world.planner(**lenient(subscription))
    start = at({ORDERS: 100, OTHER: 200})
    world.forget()
    assert strict.next_end(start, takes_all=True) == allowing.next_end(start, takes_all=True) == start
    world.cluster.sleep(GONE_AFTER_S - 0.1)
    assert strict.next_end(start, takes_all=True) == start
    world.cluster.sleep(0.2)
    with pytest.raises(DataLost, match="topic orders has been deleted"):
        strict.next_end(start, takes_all=True)
    assert allowing.next_end(start, takes_all=True) == start
    assert ranges(allowing, start, start) == []


def test_one_answer_does_not_delete_a_topic_however_long_ago_it_was() -> None:
    world = World()
    planner = world.planner(subscribe="orders", **{"partition.metadata.cache.ttl.ms": "3600000"})
    start = at({ORDERS: 100, OTHER: 200})
    world.forget()
    assert planner.next_end(start, takes_all=True) == start
    world.check_and_save_schema()
    world.ends = {ORDERS: 101, OTHER: 201}
    world.cluster.sleep(2 * GONE_AFTER_S)
    assert planner.next_end(start, takes_all=True) == at({ORDERS: 101, OTHER: 201})


@pytest.mark.parametrize("subscription", SUBSCRIPTIONS)
def test_a_topic_made_anew_is_read_from_its_beginning_also_after_a_restart(
    subscription: dict[str, str],
) -> None:
    world = World()
    start = at({ORDERS: 100, OTHER: 200})
    world.cluster.topic_id = NEW_ID
    world.ends = {ORDERS: 150, OTHER: 20}
    strict, allowing = world.planner(**subscription), world.planner(**lenient(subscription))
    for planner in (strict, allowing):
        assert planner.next_end(start, takes_all=True) == start
    world.cluster.sleep(GONE_AFTER_S)
    with pytest.raises(DataLost, match="topic orders has been deleted and made anew"):
        strict.next_end(start, takes_all=True)
    end = allowing.next_end(start, takes_all=True)
    assert end == at({ORDERS: 150, OTHER: 20}, NEW_ID)
    # Whoever runs the batch again after a crash knows what the checkpoint has, and no more.
    for planner in (allowing, world.planner(**lenient(subscription))):
        assert ranges(planner, start, parse_stream_position(stream_position_document(end))) == [
            (ORDERS, 0, 150),
            (OTHER, 0, 20),
        ]
    assert allowing.next_end(end, takes_all=True) == end


def test_a_stream_goes_on_when_topics_get_ids() -> None:
    """The brokers were upgraded, or one of them answers that does not know ids."""
    world = World()
    planner = world.planner(subscribe="orders")
    world.cluster.topic_id = NO_TOPIC_ID
    end = planner.next_end(StreamPosition({ORDERS: 1, OTHER: 1}), takes_all=True)
    assert end == StreamPosition({ORDERS: 100, OTHER: 200}, {})
    for known in (TOPIC_ID, NO_TOPIC_ID, TOPIC_ID):
        world.cluster.topic_id = known
        end = planner.next_end(end, takes_all=True)
        assert end == at({ORDERS: 100, OTHER: 200})
        world.cluster.sleep(GONE_AFTER_S)


def test_an_answer_with_the_id_of_a_deleted_topic_changes_nothing() -> None:
    world = World()
    planner = world.planner(subscribe="orders", failOnDataLoss="false")
    start = planner.next_end(at({ORDERS: 0, OTHER: 0}), takes_all=True)
    world.cluster.topic_id = NEW_ID
    assert planner.next_end(start, takes_all=True) == start
    world.cluster.topic_id = TOPIC_ID
    world.cluster.sleep(GONE_AFTER_S)
    assert planner.next_end(start, takes_all=True) == start


def test_the_query_goes_on_at_an_end_that_went_back_under_one_id() -> None:
    world = World()
    start = at({ORDERS: 100, OTHER: 200})
    world.ends = {ORDERS: 70, OTHER: 205}
    with pytest.raises(DataLost, match="read up to offset 100 and its log was truncated to offset 70"):
        world.planner(subscribe="orders").next_end(start, takes_all=True)
    planner = world.planner(subscribe="orders", failOnDataLoss="false")
    end = planner.next_end(start, takes_all=True)
    assert end == at({ORDERS: 70, OTHER: 205})
    assert ranges(planner, start, end) == [(OTHER, 200, 205)]
    world.ends = {ORDERS: 80, OTHER: 205}
    assert ranges(planner, end, planner.next_end(end, takes_all=True)) == [(ORDERS, 70, 80)]


def test_a_log_that_was_truncated_and_has_grown_again_is_noticed() -> None:
    world = World()
    world.epochs = {ORDERS: 7, OTHER: 7}
    start = world.planner(subscribe="orders").next_end(at({ORDERS: 50, OTHER: 60}), takes_all=True)
    # The checkpoint has the epochs, so a restart does not matter.
    start = parse_stream_position(stream_position_document(start))
    world.epochs = {ORDERS: 8, OTHER: 8}
    world.epoch_ends = {(ORDERS, 7): 80, (OTHER, 7): 200}
    world.ends = {ORDERS: 130, OTHER: 205}
    with pytest.raises(DataLost, match="read up to offset 100 and its log was truncated to offset 80"):
        world.planner(subscribe="orders").next_end(start, takes_all=True)
    planner = world.planner(subscribe="orders", failOnDataLoss="false")
    end = planner.next_end(start, takes_all=True)
    assert end.offsets == {ORDERS: 80, OTHER: 205}
    assert ranges(planner, start, end) == [(OTHER, 200, 205)]
    assert ranges(planner, end, planner.next_end(end, takes_all=True)) == [(ORDERS, 80, 130)]


def test_a_run_to_the_end_notices_a_log_that_was_truncated_and_has_grown_again() -> None:
    world = World()
    world.epochs = {ORDERS: 8, OTHER: 7}
    world.epoch_ends = {(ORDERS, 7): 80}
    start = at({ORDERS: 90, OTHER: 200})._replace(epochs={ORDERS: 7, OTHER: 7})
    planner = world.planner(subscribe="orders", failOnDataLoss="false")
    planner.bound_to_available()
    reached = [start]
    while len(reached) < 2 or reached[-1] != reached[-2]:
        reached.append(planner.next_end(reached[-1], takes_all=True))
    assert [position.offsets[ORDERS] for position in reached] == [90, 80, 100, 100]


def test_an_election_without_loss_is_no_batch_and_is_asked_about_once() -> None:
    world = World()
    world.epochs = {ORDERS: 7, OTHER: 7}
    planner = world.planner(subscribe="orders")
    start = planner.next_end(at({ORDERS: 50, OTHER: 60}), takes_all=True)
    world.epochs = {ORDERS: 9, OTHER: 7}
    world.epoch_ends = {(ORDERS, 7): 100}
    for _ in range(3):
        assert planner.next_end(start, takes_all=True) == start
    assert world.questions_about_epochs() == 1
    world.ends = {ORDERS: 101, OTHER: 200}
    end = planner.next_end(start, takes_all=True)
    assert end == at({ORDERS: 101, OTHER: 200})._replace(epochs={ORDERS: 9, OTHER: 7})


def test_a_leader_that_does_not_know_the_epoch_proves_no_loss() -> None:
    world = World()
    world.epochs = {ORDERS: 9, OTHER: 9}
    world.epoch_ends = {(ORDERS, 7): -1}
    start = at({ORDERS: 50, OTHER: 60})._replace(epochs={ORDERS: 7})
    end = world.planner(subscribe="orders").next_end(start, takes_all=True)
    assert end.offsets == {ORDERS: 100, OTHER: 200}


@pytest.mark.parametrize("loss", ["true", "false"])
def test_the_end_of_a_deposed_leader_does_not_set_the_query_back(loss: str) -> None:
    world = World()
    planner = world.planner(subscribe="orders", failOnDataLoss=loss)
    start = at({ORDERS: 100, OTHER: 200})._replace(epochs={ORDERS: 8, OTHER: 8})
    world.epochs, world.ends = {ORDERS: 7, OTHER: 8}, {ORDERS: 70, OTHER: 200}
    assert planner.next_end(start, takes_all=True) == start
    world.epochs, world.ends = {ORDERS: 8, OTHER: 8}, {ORDERS: 110, OTHER: 200}
    end = planner.next_end(start, takes_all=True)
    assert ranges(planner, start, end) == [(ORDERS, 100, 110)]


def test_a_run_to_the_end_waits_for_the_successor_of_a_deposed_leader() -> None:
    world = World()
    planner = world.planner(subscribe="orders")
    start = at({ORDERS: 100, OTHER: 200})._replace(epochs={ORDERS: 8, OTHER: 8})
    world.epochs, world.ends = {ORDERS: 7, OTHER: 8}, {ORDERS: 70, OTHER: 200}
    planner.bound_to_available()

    def succeed() -> None:
        world.epochs, world.ends = {ORDERS: 8, OTHER: 8}, {ORDERS: 110, OTHER: 200}

    world.cluster.on_sleep = after(3, succeed)
    end = planner.next_end(start, takes_all=True)
    assert ranges(planner, start, end) == [(ORDERS, 100, 110)]


def test_a_run_to_the_end_tells_of_a_cluster_that_was_set_back() -> None:
    world = World()
    planner = world.planner(subscribe="orders")
    start = at({ORDERS: 100, OTHER: 200})._replace(epochs={ORDERS: 8, OTHER: 8})
    world.epochs, world.ends = {ORDERS: 7, OTHER: 8}, {ORDERS: 70, OTHER: 200}
    planner.bound_to_available()
    with pytest.raises(DataLost, match="truncated to offset 70"):
        planner.next_end(start, takes_all=True)


def test_a_cluster_that_was_set_back_to_an_older_epoch_is_told_of() -> None:
    world = World()
    planner = world.planner(subscribe="orders")
    start = at({ORDERS: 100, OTHER: 200})._replace(epochs={ORDERS: 8, OTHER: 8})
    world.epochs, world.ends = {ORDERS: 7, OTHER: 8}, {ORDERS: 70, OTHER: 200}
    assert planner.next_end(start, takes_all=True) == start
    world.cluster.sleep(GONE_AFTER_S)
    with pytest.raises(DataLost, match="truncated to offset 70"):
        planner.next_end(start, takes_all=True)


def test_an_open_transaction_below_the_position_is_waited_for() -> None:
    world = World()
    options = {"subscribe": "orders", "kafka.isolation.level": "read_committed"}
    planner = world.planner(**options)
    start = at({ORDERS: 100, OTHER: 200})
    world.stable = {ORDERS: 40}
    world.ends = {ORDERS: 120, OTHER: 200}
    assert planner.next_end(start, takes_all=True) == start
    world.stable = {}
    assert planner.next_end(start, takes_all=True) == at({ORDERS: 120, OTHER: 200})


def test_a_batch_waits_for_a_topic_that_is_absent_when_it_is_planned() -> None:
    world = World()
    planner = world.planner(subscribe="orders")
    start, end = at({ORDERS: 100, OTHER: 200}), at({ORDERS: 110, OTHER: 200})
    world.forget()
    world.cluster.on_sleep = after(5, world.check_and_save_schema)
    assert ranges(planner, start, end) == [(ORDERS, 100, 110)]
    world.forget()
    world.cluster.on_sleep = lambda: None
    with pytest.raises(DataLost, match="topic orders has been deleted"):
        planner.tasks(start, end)
    assert ranges(world.planner(subscribe="orders", failOnDataLoss="false"), start, end) == []


def test_a_partition_that_an_answer_lacks_is_not_left_out_of_a_batch() -> None:
    """It came to the topic just before the batch was planned, and a broker is behind."""
    world = World()
    planner = world.planner(subscribe="orders", failOnDataLoss="false")
    start, end = at({ORDERS: 100}), at({ORDERS: 100, OTHER: 200})
    del world.cluster.leaders[1]
    assert planner.next_end(end, takes_all=True) == end
    with pytest.raises(TopicUnknown, match="orders-1"):
        planner.tasks(start, end)
    world.cluster.leaders[1] = 0
    assert ranges(planner, start, end) == [(OTHER, 0, 200)]


def test_a_run_to_the_end_waits_for_a_topic_that_is_absent() -> None:
    world = World()
    planner = world.planner(subscribe="orders")
    world.forget()
    planner.bound_to_available()
    world.cluster.on_sleep = after(3, world.check_and_save_schema)
    start = at({ORDERS: 100, OTHER: 150})
    end = planner.next_end(start, takes_all=True)
    assert end == at({ORDERS: 100, OTHER: 200})
    world.ends = {ORDERS: 500, OTHER: 500}
    assert planner.next_end(end, takes_all=True) == end


def test_limits_count_a_topic_made_anew_from_its_beginning() -> None:
    world = World()
    planner = world.planner(subscribe="orders", failOnDataLoss="false", maxOffsetsPerTrigger="10")
    start = at({ORDERS: 100, OTHER: 200})
    planner.next_end(start, takes_all=False)
    world.cluster.topic_id = NEW_ID
    world.ends = {ORDERS: 50, OTHER: 250}
    planner.next_end(start, takes_all=False)
    world.cluster.sleep(GONE_AFTER_S)
    end = planner.next_end(start, takes_all=False)
    found = ranges(planner, start, end)
    assert [start for _, start, _ in found] == [0, 0]
    assert sum(end - start for _, start, end in found) == 10


def after(times: int, act: Callable[[], None]) -> Callable[[], None]:
    """Calls `act` at that call of it."""
    calls = iter(range(1, times))

    def count() -> None:
        if next(calls, None) is None:
            act()

    return count


def test_ids_of_topics_in_a_position_are_no_partitions() -> None:
    mark = at({ORDERS: 5, OTHER: 7})
    document = stream_position_document(mark)
    assert document == {"orders": {"0": 5, "1": 7}, f"orders#id={TOPIC_ID.hex()}": {}}
    assert parse_stream_position(document) == mark
    assert parse_stream_position({"orders": {"0": 5}}) == StreamPosition({ORDERS: 5}, {})
    with_epochs = mark._replace(epochs={ORDERS: 3, OTHER: 4})
    document = stream_position_document(with_epochs)
    assert document["orders#epochs=0:3,1:4"] == {}
    assert parse_stream_position(document) == with_epochs
