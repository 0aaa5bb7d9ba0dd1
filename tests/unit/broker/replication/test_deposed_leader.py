"""A leader that is deposed by mistake, while its session lives, and reinstated under the same leader epoch.

Production classes over the simulated metadata store, on virtual time. Only the question to another broker is
replaced: the answer is that of a broker whose image is older than the leader's last registration.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random

import pytest

from penstock.broker.cluster.peer_lease_check import PeerLeaseCheck
from penstock.broker.data.fetch_reader import FetchParams
from penstock.broker.replication.replica_fetchers import InterBrokerLink
from penstock.config.broker import BrokerConfig
from penstock.config.layers import GivenSettings
from penstock.controller.configs import alter_topic_config
from penstock.host.metadata_store import Put, SessionId, StoreChange, StoreUnavailable
from penstock.limits import ETCD_REQUEST_MS_MAX
from penstock.metadata.cluster_image import ClusterImage
from penstock.metadata.documents import PartitionValue, decode_document
from penstock.observability.logs import NullLog
from penstock.protocol.messages.fetch import FetchPartition, PartitionData
from penstock.replication.partition import Partition
from penstock.replication.replica_manager import ReplicaManager
from penstock.sim.scheduler import VirtualTimeLoop
from penstock.sim.store import RequestFault, SimStore, StoreFaults
from tests.unit.broker.cluster.test_membership import KEYS, Node, nodes
from tests.unit.broker.replication.test_isr_updates import Leader, LoopClock, fall_behind
from tests.unit.log.log_support import new_disk, read
from tests.unit.replication.replica_support import sync
from tests.unit.replication.test_replica_manager import directory_on

LATE_SECONDS = 4.2
SECOND_BROKER = BrokerConfig.of(GivenSettings({"node.id": "2"}))


class Replica:
    """Broker 2, which follows until it is elected."""

    def __init__(self, node: Node, leader: Leader) -> None:
        self._node, self._leader = node, leader
        self._partitions = ReplicaManager(
            directory_on(new_disk()), SECOND_BROKER, lambda partition: None, None, LoopClock().monotonic
        )
        self._partitions.may_lead = node.admission.may_lead
        assert list(self._partitions.open_all(node.cluster.image)) == []
        node.cluster.subscribe(self._follow)

    async def _follow(self, before: ClusterImage, after: ClusterImage) -> None:
        self._partitions.follow(before, after, SECOND_BROKER)

    @property
    def partition(self) -> Partition:
        found = self._partitions.find("orders", 0)
        assert found is not None
        return found

    def fetch(self) -> None:
        """Fetch what the leader has, store it, and acknowledge it with the next fetch."""
        for _ in range(2):
            fetch_position, leader = self.partition.fetch_position(), self._leader.partition
            assert fetch_position is not None
            params = FetchPartition(
                0,
                fetch_position.leader_epoch,
                fetch_position.offset,
                fetch_position.last_fetched_epoch,
                fetch_position.log_start_offset,
            )
            limits = FetchParams(1, 0, 2, self._node.membership.epoch)
            assert self._leader.followers.fetched(leader, params, limits) is None
            records = bytes(read(leader.log, fetch_position.offset).data)
            high, start = leader.high_watermark, leader.log.log_start_offset
            self.partition.handle_fetch_response(
                fetch_position, PartitionData(0, 0, high, high, start, records=records)
            )
            sync(self.partition)


class Scene:
    """Broker 1 leads alone; broker 2 has caught up, and the change that takes it in is under way."""

    def __init__(self, store: SimStore, leader: Leader, replica: Replica) -> None:
        self.store, self.leader, self.replica = store, leader, replica
        node = leader.node
        self.witnesses = PeerLeaseCheck(
            node.cluster,
            node.membership,
            node.admission,
            leader.partitions,
            InterBrokerLink("PLAINTEXT"),
            NullLog(),
        )

    async def lose_the_answer(self) -> None:
        """The change arrives late, its answer is lost, and the watch of broker 1 shows nothing meanwhile."""

        def ambush(changes: Sequence[StoreChange]) -> RequestFault | None:
            if not any(isinstance(change, Put) and b'"isr"' in change.value for change in changes):
                return None
            self.store.ambush = None
            return RequestFault(LATE_SECONDS, loses_reply=True)

        self.store.ambush = ambush
        self.replica.fetch()
        leading = self.leader.partition.leading
        assert leading is not None
        assert leading.maximal_isr == {1, 2}
        self.leader.node.client.watch_events_flow.clear()

    async def depose(self) -> None:
        """Answers to keep-alives are lost, and another broker takes the session for ended."""
        node = self.leader.node
        keep, is_lost = node.client.renew_session, True

        async def renew_session(session: SessionId) -> bool:
            if not is_lost:
                return await keep(session)
            self.store.renew_session(session)
            await asyncio.sleep(ETCD_REQUEST_MS_MAX / 1000)
            raise StoreUnavailable("no answer in time")

        node.client.renew_session = renew_session  # type: ignore[method-assign]
        self.leader.tasks.start(self.witnesses.run(1), "witnesses")
        await until(lambda: node.admission.is_deposed)
        is_lost = False

    async def until_committed(self) -> None:
        key = KEYS.partition(self.leader.partition.topic_id, 0)
        await until(lambda: decode_document(PartitionValue, key, self.store.entries[key].value).isr == (1, 2))

    async def kill_the_leader(self) -> None:
        node = self.leader.node
        session = node.membership.session
        assert session is not None
        await self.leader.tasks.stop()
        await node.die()
        self.store.end_session(session)


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it never came")


def play(monkeypatch: pytest.MonkeyPatch, scene: Callable[[Scene], Awaitable[None]]) -> None:
    async def refused(self: PeerLeaseCheck, broker_id: int, node_id: int) -> bool:
        return True

    monkeypatch.setattr(PeerLeaseCheck, "is_rejected_by", refused)
    loop = VirtualTimeLoop(Random(3))
    faults = StoreFaults(delay_seconds=(0.001, 0.01))
    store = SimStore(loop, Random(3), faults, timeout_seconds=ETCD_REQUEST_MS_MAX / 1000)

    async def run() -> None:
        async with nodes(store, 2, 1) as (two, one):
            leader = Leader(one, two)
            leader.partitions.may_lead = one.admission.may_lead
            replica = Replica(two, leader)
            await leader.create()
            leader.write()
            replica.fetch()
            await fall_behind(leader)
            assert leader.isr() == (1,)
            assert leader.partition.high_watermark == 2
            await scene(Scene(store, leader, replica))
            await leader.tasks.stop()
            assert not leader.failures

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()


def test_what_a_reinstated_leader_acknowledges_is_on_whoever_is_elected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(scene: Scene) -> None:
        leader, replica = scene.leader, scene.replica
        await scene.lose_the_answer()
        await scene.depose()
        assert leader.partition.following is not None
        await until(lambda: leader.partition.leading is not None)
        assert leader.partition.leader_epoch == 0
        await scene.until_committed()
        assert leader.isr() == (1,), "the watch has not shown it yet"
        leader.write()
        acknowledged = leader.partition.high_watermark
        await scene.kill_the_leader()
        await until(lambda: replica.partition.leading is not None)
        assert replica.partition.log.log_end_offset >= acknowledged

    play(monkeypatch, scene)


def test_a_reinstated_leader_learns_what_became_of_its_proposal(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(scene: Scene) -> None:
        leader, replica = scene.leader, scene.replica
        await scene.lose_the_answer()
        await scene.depose()
        await until(lambda: leader.partition.leading is not None)
        leader.write()
        assert leader.partition.high_watermark == 2, "broker 2 may be in sync, and has not got it"
        leader.node.client.watch_events_flow.set()
        await until(lambda: leader.isr() == (1, 2))
        leading = leader.partition.leading
        assert leading is not None
        await until(lambda: leading.proposal is None)
        replica.fetch()
        assert leader.partition.high_watermark == 3

    play(monkeypatch, scene)


def test_a_proposal_is_settled_while_its_leader_is_deposed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(scene: Scene) -> None:
        leader = scene.leader
        await scene.lose_the_answer()
        leading = leader.partition.leading
        assert leading is not None
        scene.witnesses.depose(1)
        leader.partitions.may_lead = lambda image: False
        assert leader.partition.leading is None
        leader.node.client.watch_events_flow.set()
        await until(lambda: leading.proposal is None)
        assert leading.isr == (1, 2)
        leader.partitions.may_lead = lambda image: True
        leader.partitions.recheck_leadership()
        assert leader.partition.leading is leading

    play(monkeypatch, scene)


def test_a_proposal_that_is_rejected_while_its_leader_is_deposed_does_not_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The partition stays as it is, so that no image settles the proposal."""

    async def scene(scene: Scene) -> None:
        leader = scene.leader
        await scene.lose_the_answer()
        leading = leader.partition.leading
        assert leading is not None
        leader.partitions.may_lead = lambda image: False
        leader.partitions.recheck_leadership()
        assert leader.partition.leading is None
        await leader.two.cluster.change(
            lambda image: alter_topic_config(image, "orders", {"min.insync.replicas": "1"})
        )
        leader.node.client.watch_events_flow.set()
        await until(lambda: leading.proposal is None)
        assert leading.isr == (1,)

    play(monkeypatch, scene)
