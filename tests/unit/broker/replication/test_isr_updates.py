"""A leader's changes of its in-sync set, over a store that loses answers. On virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from penstock.broker.data.fetch_reader import FetchParams
from penstock.broker.replication.cluster_followers import ClusterFollowers
from penstock.config.broker import BrokerConfig
from penstock.controller.broker_lifecycle import drain
from penstock.controller.reachability import PeerReport, report_unreachable
from penstock.controller.topics import (
    NewTopicFacts,
    ReplicaAssignment,
    TopicDefaults,
    TopicRequest,
    create_topic,
)
from penstock.host.metadata_store import Put
from penstock.host.tasks import Tasks
from penstock.limits import FOLLOWER_SILENCE_MS_MAX, REPLICA_LAG_MS_MAX
from penstock.metadata.cluster_image import ClusterImage, PartitionState
from penstock.observability.logs import NullLog
from penstock.protocol.messages.fetch import FetchPartition
from penstock.replication.partition import Partition
from penstock.replication.replica_manager import ReplicaManager
from penstock.sim.scheduler import VirtualTimeLoop
from penstock.sim.store import SimStore, StoreFaults
from penstock.types import TopicId
from tests.unit.broker.cluster.test_membership import KEYS, Node, nodes
from tests.unit.log.log_support import NOW_MS, batch_of, new_disk
from tests.unit.replication.replica_support import sync
from tests.unit.replication.test_replica_manager import directory_on

CONFIG = BrokerConfig.of()


class LoopClock:
    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_ms(self) -> int:
        return NOW_MS


class Leader:
    """Broker 1, which leads the only partition; broker 2 follows."""

    def __init__(self, one: Node, two: Node) -> None:
        self.node, self.two = one, two
        clock = LoopClock()
        self.partitions = ReplicaManager(
            directory_on(new_disk()), CONFIG, lambda partition: None, None, clock.monotonic
        )
        self.failures: list[BaseException] = []
        self.tasks = Tasks(lambda name, failure: self.failures.append(failure))
        self.followers = ClusterFollowers(
            one.cluster,
            self.partitions,
            lambda: one.membership.epoch,
            self.tasks,
            clock,
            NullLog(),
        )
        assert list(self.partitions.open_all(one.cluster.image)) == []
        one.cluster.subscribe(self._follow)
        self.tasks.start(self.followers.run(), "followers")

    async def _follow(self, before: ClusterImage, after: ClusterImage) -> None:
        self.partitions.follow(before, after, CONFIG)

    async def create(self, name: str = "orders", partitions: int = 1) -> None:
        """Every other one is led by broker 2, or the controller would see to it."""
        sides = ((1, 2), (2, 1))
        request = TopicRequest(
            name=name, assignments=[ReplicaAssignment(index, sides[index % 2]) for index in range(partitions)]
        )
        await self.node.cluster.change(
            lambda image: create_topic(
                image,
                request,
                NewTopicFacts(TopicId(name.ljust(16, "-").encode()), NOW_MS),
                defaults=TopicDefaults(1, 1),
            )
        )

    @property
    def partition(self) -> Partition:
        found = self.partitions.find("orders", 0)
        assert found is not None
        return found

    def isr(self) -> tuple[int, ...]:
        state = self.node.cluster.image.partition("orders", 0)
        assert state is not None
        return state.isr

    def write(self, to: Partition | None = None) -> None:
        partition = to or self.partition
        partition.append_now(memoryview(bytearray(batch_of([b"x"]))), NOW_MS)
        sync(partition)

    def fetched(self, offset: int, of: Partition | None = None) -> None:
        partition = of or self.partition
        limits = FetchParams(1, 0, 2, self.two.membership.epoch)
        params = FetchPartition(partition.name.partition, partition.leader_epoch, offset)
        assert self.followers.fetched(partition, params, limits) is None


Scene = Callable[[SimStore, Leader], Awaitable[None]]


def play(scene: Scene, seed: int = 1) -> None:
    loop = VirtualTimeLoop(Random(seed))
    store = SimStore(loop, Random(seed), StoreFaults(delay_seconds=(0.001, 0.01)))

    async def run() -> None:
        async with nodes(store, 1, 2) as (one, two):
            leader = Leader(one, two)
            await leader.create()
            leader.write()
            leader.fetched(1)
            assert leader.partition.high_watermark == 1
            await scene(store, leader)
            await leader.tasks.stop()
            assert not leader.failures

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()


async def fall_behind(leader: Leader) -> None:
    leader.write()
    await asyncio.sleep(REPLICA_LAG_MS_MAX / 1000 + 2)


def test_a_follower_leaves_when_it_is_behind_and_joins_when_it_is_not() -> None:
    async def scene(store: SimStore, leader: Leader) -> None:
        await fall_behind(leader)
        assert leader.isr() == (1,)
        assert leader.partition.high_watermark == 2
        leader.fetched(2)
        await asyncio.sleep(1)
        assert leader.isr() == (1, 2)
        leader.write()
        assert leader.partition.high_watermark == 2, "it counts again"
        leader.fetched(3)
        assert leader.partition.high_watermark == 3

    play(scene)


async def report(leader: Leader) -> None:
    """Broker 2 cannot reach broker 1."""
    cluster, session = leader.two.cluster, leader.two.membership.session
    assert session is not None
    unreachable = PeerReport([(1, leader.node.membership.epoch)])
    await cluster.commit_once(report_unreachable(cluster.image, 2, session, unreachable))


def test_a_follower_leaves_soon_when_it_reports_its_leader() -> None:
    """Although it has every record: the next write would wait for it."""

    async def scene(store: SimStore, leader: Leader) -> None:
        await asyncio.sleep(FOLLOWER_SILENCE_MS_MAX / 1000)
        await report(leader)
        await asyncio.sleep(2)
        assert leader.isr() == (1,)
        leader.write()
        assert leader.partition.high_watermark == 2

    play(scene)


def test_a_follower_that_fetches_on_stays_whatever_it_reports() -> None:
    async def scene(store: SimStore, leader: Leader) -> None:
        await report(leader)
        for _ in range(20):
            leader.followers.require_session(FetchParams(1, 0, 2, leader.two.membership.epoch))
            await asyncio.sleep(1)
        assert leader.isr() == (1, 2)

    play(scene)


def test_while_the_store_is_away_a_report_has_no_effect() -> None:
    async def scene(store: SimStore, leader: Leader) -> None:
        await report(leader)
        store.become_unavailable()
        await asyncio.sleep(20)
        assert leader.isr() == (1, 2)
        leader.write()
        assert leader.partition.high_watermark == 1, "it counts until the store has said otherwise"

    play(scene)


def test_a_change_that_met_a_full_store_is_made_when_there_is_room() -> None:
    async def scene(store: SimStore, leader: Leader) -> None:
        store.is_full = True
        await fall_behind(leader)
        assert leader.isr() == (1, 2)
        leading = leader.partition.leading
        assert leading is not None
        assert leading.proposal is not None, "it has been proposed"
        store.is_full = False
        await asyncio.sleep(5)
        assert leader.isr() == (1,)
        assert leading.proposal is None
        assert leader.partition.high_watermark == 2

    play(scene)


def test_while_the_store_is_away_nobody_leaves() -> None:
    async def scene(store: SimStore, leader: Leader) -> None:
        store.become_unavailable()
        await fall_behind(leader)
        assert leader.partition.high_watermark == 1
        assert leader.isr() == (1, 2)
        store.become_available()
        await asyncio.sleep(20)
        assert leader.isr() == (1,)
        assert leader.partition.high_watermark == 2

    play(scene)


@pytest.mark.parametrize("seed", range(5))
def test_an_answer_that_is_lost_is_asked_for_until_it_is_known(seed: int) -> None:
    async def scene(store: SimStore, leader: Leader) -> None:
        await fall_behind(leader)
        assert leader.isr() == (1,)
        leader.fetched(2)  # the proposal is on its way
        await asyncio.sleep(0.002 * seed)
        store.become_unavailable()
        leader.write()
        await asyncio.sleep(10)
        assert leader.partition.high_watermark == 2, "it may have joined"
        store.become_available()
        await asyncio.sleep(10)
        assert leader.partition.leading is not None
        assert leader.partition.leading.proposal is None
        leader.fetched(3)
        await asyncio.sleep(1)
        assert leader.isr() == (1, 2)
        assert leader.partition.high_watermark == 3

    play(scene, seed)


def test_who_is_being_drained_is_not_proposed() -> None:
    async def scene(store: SimStore, leader: Leader) -> None:
        await fall_behind(leader)
        await leader.two.cluster.change(lambda image: drain(image, 2))
        await asyncio.sleep(1)
        leader.fetched(2)
        await asyncio.sleep(1)
        assert leader.isr() == (1,)

    play(scene)


MANY = 300


def led(leader: Leader) -> tuple[PartitionState, ...]:
    return leader.node.cluster.image.topics["many"].partitions[::2]


async def all_fall_behind_and_catch_up(leader: Leader) -> list[Partition]:
    """Make a topic of many partitions, each of which has a follower that may join its ISR at once."""
    await leader.create("many", 2 * MANY)
    found = [leader.partitions.find("many", index) for index in range(0, 2 * MANY, 2)]
    partitions = [partition for partition in found if partition is not None]
    for partition in partitions:
        leader.write(partition)
    await asyncio.sleep(REPLICA_LAG_MS_MAX / 1000 + 2)
    assert {state.isr for state in led(leader)} == {(1,)}
    for partition in partitions:
        leader.fetched(1, partition)
    return partitions


def test_changes_that_come_together_go_together() -> None:
    async def scene(store: SimStore, leader: Leader) -> None:
        before = leader.node.cluster.image.revision
        await all_fall_behind_and_catch_up(leader)
        await asyncio.sleep(1)
        assert {state.isr for state in led(leader)} == {(1, 2)}
        # Each left and each joined: two changes of 300 partitions, and a few that made the topic.
        assert leader.node.cluster.image.revision - before < MANY / 5

    play(scene)


def test_a_conflict_about_one_does_not_keep_the_others_out() -> None:
    async def scene(store: SimStore, leader: Leader) -> None:
        partitions = await all_fall_behind_and_catch_up(leader)
        # Somebody else writes one of them before the leader's changes arrive.
        key = KEYS.partition(partitions[7].topic_id, 14)
        store.transact([], [Put(key, store.read(key).entries[key].value)])
        await asyncio.sleep(2)
        assert {state.index for state in led(leader) if state.isr != (1, 2)} <= {14}
        leader.fetched(1, partitions[7])
        await asyncio.sleep(1)
        assert led(leader)[7].isr == (1, 2)

    play(scene)
