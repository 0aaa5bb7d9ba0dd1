"""Who is in the cluster, as a shared store sees it. On virtual time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random

import pytest
from msgspec.structs import replace

from penstock.broker.cluster.controller_loop import ControllerLoop
from penstock.broker.cluster.membership import ClusterMembership, agree_on_cluster, registration
from penstock.broker.cluster.metadata_service import MetadataService
from penstock.config.broker import BrokerConfig
from penstock.controller.broker_lifecycle import RegistrationRequest, fence
from penstock.errors import ConfigError, CorruptData
from penstock.host.metadata_store import (
    CommittedTransaction,
    Compare,
    Conflict,
    SessionId,
    StoreChange,
    StoreRejected,
)
from penstock.limits import BROKER_JOIN_MS_MAX, BROKER_SESSION_MS, LOST_PARTITIONS_NAMED_MAX
from penstock.log.data_directory import DataDirectory, DirectoryIdentity
from penstock.metadata.cluster_image import ClusterImage
from penstock.metadata.documents import Endpoint
from penstock.metadata.image_builder import image_of
from penstock.metadata.keys import ClusterKeys, topic_id_text
from penstock.observability.logs import NullLog
from penstock.replication.roles import Admission
from penstock.sim.scheduler import VirtualTimeLoop
from penstock.sim.store import SimStore, SimStoreClient, StoreFaults
from penstock.types import TopicId
from tests.unit.log.log_support import new_disk

KEYS = ClusterKeys("c")
SESSION_S = BROKER_SESSION_MS / 1000


def play(scene: Callable[[SimStore], Awaitable[None]], seed: int = 1) -> None:
    loop = VirtualTimeLoop(Random(seed))
    store = SimStore(loop, Random(seed), StoreFaults(delay_seconds=(0.001, 0.01)))

    async def run() -> None:
        await scene(store)

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()


class Warnings(NullLog):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warning(self, event: str, **fields: object) -> None:
        self.warnings.append(event)


class Node:
    """What of a broker knows that it is in a cluster."""

    def __init__(self, store: SimStore, broker_id: int, directory: str = "") -> None:
        self.client: SimStoreClient = store.client()
        self.cluster = MetadataService(self.client, image_of(store.read(KEYS.prefix), "c"), BrokerConfig.of())
        self.admission = Admission(broker_id)
        self.drawn = 0
        self.name = directory or f"disk-{broker_id}"
        self.own = RegistrationRequest(
            broker_id=broker_id,
            incarnation="",
            directory_id=self.name,
            start_ids=(self.name,),
            lock=f"the lock on {self.name}",
            endpoints={"PLAINTEXT": Endpoint("host", 9092 + broker_id)},
        )
        self.log = Warnings()
        self.membership = ClusterMembership(self.client, self.cluster, self.admission, self._draw, self.log)
        self.controlling = ControllerLoop(
            self.cluster,
            broker_id,
            self._session,
            lambda: self.cluster.config.replication,
            self.client.changes_max,
            NullLog(),
        )
        self.cluster.subscribe(self._follow)
        self.tasks = [asyncio.ensure_future(self.cluster.run())]

    def _session(self) -> SessionId | None:
        return self.membership.session

    def _draw(self) -> str:
        self.drawn += 1
        return f"{id(self)}-{self.drawn}"

    async def _follow(self, before: ClusterImage, after: ClusterImage) -> None:
        self.admission.may_lead(after)

    async def join(self) -> None:
        await self.membership.join(self.own)
        self.tasks += [
            asyncio.ensure_future(self.membership.run()),
            asyncio.ensure_future(self.controlling.run()),
        ]

    async def die(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)


@asynccontextmanager
async def nodes(store: SimStore, *broker_ids: int) -> AsyncIterator[list[Node]]:
    started = [Node(store, broker_id) for broker_id in broker_ids]
    try:
        for node in started:
            await node.join()
        await asyncio.sleep(0.5)
        yield started
    finally:
        for node in started:
            await node.die()


def test_brokers_that_come_first_together_agree_on_one_cluster() -> None:
    async def scene(store: SimStore) -> None:
        drawn = iter(range(5))
        ids = await asyncio.gather(
            *(agree_on_cluster(store.client(), None, lambda: f"id-{next(drawn)}") for _ in range(5))
        )
        assert len(set(ids)) == 1
        assert await agree_on_cluster(store.client(), ids[0], lambda: "another") == ids[0]
        with pytest.raises(CorruptData, match="belongs to cluster other"):
            await agree_on_cluster(store.client(), "other", lambda: "another")

    play(scene)


def test_an_empty_store_is_not_given_the_cluster_of_a_data_directory() -> None:
    async def scene(store: SimStore) -> None:
        with pytest.raises(CorruptData, match="knows no cluster"):
            await agree_on_cluster(store.client(), "mine", lambda: "another")
        assert not store.read("/penstock").entries

    play(scene)


def test_one_of_them_becomes_the_controller_and_admits_all() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 1, 2, 3) as (one, two, three):
            image = one.cluster.image
            assert image.admitted == {1, 2, 3}
            assert image.controller_id == 1
            assert [n.admission.epoch for n in (one, two, three)] == [
                image.brokers[n].broker_epoch for n in (1, 2, 3)
            ]
            await one.die()
            await asyncio.sleep(SESSION_S + 1)
            image = two.cluster.image
            assert image.admitted == {2, 3}
            assert image.controller_id in (2, 3)

    play(scene)


def test_a_broker_that_slept_is_silent_until_it_has_seen_what_became_of_it() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 1, 2) as (one, two):
            assert two.membership.store_silence_ms() <= BROKER_SESSION_MS
            for task in two.tasks:
                task.cancel()
            await asyncio.sleep(2 * SESSION_S)
            assert 2 not in one.cluster.image.admitted
            assert await two.membership.is_over()
            assert 2 in two.cluster.image.admitted  # as it was when it fell asleep
            assert two.membership.store_silence_ms() > BROKER_SESSION_MS

    play(scene)


def test_a_session_is_kept_for_as_long_as_the_broker_lives() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 1) as (one,):
            epoch = one.membership.epoch
            await asyncio.sleep(10 * SESSION_S)
            assert one.cluster.image.brokers[1].broker_epoch == epoch
            assert one.drawn == 1

    play(scene)


def test_a_broker_whose_session_was_lost_registers_with_a_new_epoch() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 1, 2) as (one, two):
            epoch, session = two.membership.epoch, two.membership.session
            assert session is not None
            store.end_session(session)
            await asyncio.sleep(1)
            again = one.cluster.image.brokers[2]
            assert again.broker_epoch == two.membership.epoch > epoch
            assert again.is_admitted
            assert again.live is not None
            assert again.live.clean_epoch == epoch, "a process that goes on has lost nothing"

    play(scene)


def test_a_broker_that_was_fenced_comes_back() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 1, 2) as (one, two):
            epoch = two.membership.epoch
            await one.cluster.change(lambda image: fence(image, 2, epoch))
            await asyncio.sleep(1)
            assert two.membership.epoch > epoch
            assert one.cluster.image.admitted == {1, 2}

    play(scene)


def test_while_the_store_is_away_nothing_is_given_up() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 1, 2) as (one, two):
            before = two.cluster.image.brokers
            store.become_unavailable()
            await asyncio.sleep(5 * SESSION_S)
            assert two.cluster.image.brokers is before
            assert two.membership.session is not None
            store.become_available()
            await asyncio.sleep(2 * SESSION_S)
            assert one.cluster.image.admitted == two.cluster.image.admitted == {1, 2}

    play(scene)


def test_who_died_while_the_store_was_full_is_replaced_when_it_has_room() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 1, 2, 3) as (one, two, three):
            store.is_full = True
            session = three.membership.session
            assert session is not None
            store.end_session(session)  # and it cannot begin another
            await one.die()  # the controller
            await asyncio.sleep(5 * SESSION_S)
            assert two.cluster.image.controller is None
            assert two.membership.session is not None
            store.is_full = False
            await asyncio.sleep(5)
            assert two.cluster.image.controller_id in (2, 3)
            assert two.cluster.image.admitted == {2, 3}

    play(scene)


def test_a_broker_that_cannot_register_tries_less_and_less_often() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 1, 2) as (one, two):
            session = two.membership.session
            assert session is not None
            drawn = two.drawn
            await two.membership.end_session(session)
            transact, store.transact = store.transact, refusing  # type: ignore[method-assign]
            await asyncio.sleep(60)
            assert 20 < two.drawn - drawn < 40, "each of them is a lease that the store has to keep"
            store.transact = transact  # type: ignore[method-assign]
            await asyncio.sleep(5)
            assert one.cluster.image.admitted == {1, 2}

    def refusing(
        compares: Sequence[Compare], changes: Sequence[StoreChange]
    ) -> CommittedTransaction | Conflict:
        raise StoreRejected("not today")

    play(scene)


def test_an_id_that_is_kept_by_another_process_is_refused_with_where_it_is() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 1):
            twin = Node(store, 1, "another disk")
            began = asyncio.get_running_loop().time()
            with pytest.raises(ConfigError, match="node id 1 is taken: a broker at host:9093"):
                await twin.join()
            assert asyncio.get_running_loop().time() - began >= BROKER_JOIN_MS_MAX / 1000
            await twin.die()

    play(scene)


def test_the_process_before_this_one_is_not_waited_for() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 1, 2) as (one, two):
            await two.die()
            again = Node(store, 2)
            began = asyncio.get_running_loop().time()
            await again.join()
            assert asyncio.get_running_loop().time() - began < 1
            await asyncio.sleep(1)
            assert one.cluster.image.brokers[2].broker_epoch == again.membership.epoch
            assert one.cluster.image.admitted == {1, 2}
            await again.die()

    play(scene)


def test_what_is_lost_is_said_until_the_broker_is_admitted() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 1, 2) as (one, two):
            await two.die()
            again = Node(store, 2)
            lost = {topic_id_text(TopicId(bytes(16))): (3,)}
            again.own = replace(again.own, start_ids=(two.name, "again"), lost=lost)
            await again.join()
            live = again.cluster.image.brokers[2].live
            assert live is not None
            assert live.lost == lost
            assert not live.has_lost_all
            await asyncio.sleep(1)
            assert again.cluster.image.brokers[2].start_id == "again"
            session = again.membership.session
            assert session is not None
            store.end_session(session)
            await asyncio.sleep(1)
            live = one.cluster.image.brokers[2].live
            assert live is not None
            assert live.epoch == again.membership.epoch
            assert (live.lost, live.has_lost_all) == ({}, False), "it goes on with what it has fetched"
            await again.die()

    play(scene)


def test_a_disk_that_does_not_know_who_was_admitted_last_is_an_older_copy() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 1, 2) as (one, two):
            await two.die()
            again = Node(store, 2)
            again.own = replace(again.own, start_ids=("before", "again"))
            await again.join()
            live = one.cluster.image.brokers[2].live
            assert live is not None
            assert live.has_lost_all
            assert again.log.warnings == ["broker.older_copy"]
            await again.die()

    play(scene)


def test_more_losses_than_can_be_named_count_as_a_lost_disk() -> None:
    config = BrokerConfig.of()
    identity = DirectoryIdentity(format=1, cluster_id="c", node_id=1, directory_id="d")
    directory = DataDirectory(new_disk(), "data", identity)
    few = {"one": [0, 1], "two": list(range(LOST_PARTITIONS_NAMED_MAX - 2))}
    own = registration(config, directory, (), clean_epoch=0, start_ids=("s",), lost=few)
    assert (own.lost["one"], own.has_lost_all) == ((0, 1), False)
    own = registration(config, directory, (), clean_epoch=0, start_ids=("s",), lost=few | {"three": [0]})
    assert (own.lost, own.has_lost_all) == ({}, True)


def test_whoever_has_left_does_not_come_back() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 1, 2) as (one, two):
            await two.membership.leave()
            await asyncio.sleep(2 * SESSION_S)
            assert one.cluster.image.admitted == {1}
            assert two.membership.session is None

    play(scene)
