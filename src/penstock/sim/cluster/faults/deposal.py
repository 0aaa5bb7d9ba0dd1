"""A fault in which a leader is deposed and reinstated in one leader epoch while it changes the ISR.

Chance alone seldom combines that much, so the fault arranges it step by step, from events that may happen
anyway:

    1. One broker, the stale broker, receives events of the metadata store late. The leader's session ends,
       and the leader registers again with a new broker epoch, which the stale broker does not know yet.
    2. The leader leads again, under leader epoch E. A follower is cut off, leaves the ISR, reconnects and
       catches up: the leader proposes to add it to the ISR.
    3. The network delays this proposal on its way to the store. It also loses all replies of the store to
       the leader, but not the leader's requests, so the leader's session stays alive. Without replies the
       leader asks the other brokers whether they know its session. The stale broker does not, so the leader
       is deposed.
    4. The follower is cut off again. Replies of the store reach the leader again, and it is reinstated,
       still under leader epoch E. Now the delayed proposal reaches the store and is committed; the leader
       receives the store's event about it late.

Rule: the usual checks decide whether a result is wrong: an acknowledged record is on the platter of every
      replica that is in the ISR according to the metadata store.
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.host.metadata_store import StoreChange
from penstock.metadata.cluster_image import PartitionState, Topic
from penstock.metadata.keys import ClusterKeys
from penstock.sim.cluster.faults.ambush import requested_changes
from penstock.sim.cluster.node import SimNode
from penstock.sim.store import RequestFault

if TYPE_CHECKING:
    from penstock.sim.cluster.cluster import SimCluster

STEP_SECONDS_MAX: Final = 15.0
POLL_SECONDS: Final = 0.05
LATE_SECONDS: Final = 1.5


class _DeposalPlan(NamedTuple):
    topic: Topic
    partition: int
    leader: SimNode
    follower: SimNode
    stale_broker: SimNode


class Deposal:
    def __init__(self, cluster: "SimCluster", random: Random, is_over: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._random = random
        self._is_over = is_over

    async def inject(self) -> bool:
        """Run the steps. Whether a leader was deposed and leads again."""
        chosen = self._choose_partition()
        if chosen is None or self._cluster.store.ambush is not None:
            return False
        # With three brokers the stale one follows nothing meanwhile, so the leader is alone in sync.
        if not await self._cluster.administrator.set_minimum(chosen.topic.name, 1):
            return False
        released: asyncio.Future[None] = self._cluster.loop.create_future()
        chosen.stale_broker.delay_watch_events(True)
        try:
            return await self._depose(chosen, released)
        finally:
            if not released.done():
                released.set_result(None)
            for node in (chosen.leader, chosen.stale_broker):
                node.drop_store_replies(False)
                node.delay_watch_events(False)
            self._restore(chosen)

    def _choose_partition(self) -> _DeposalPlan | None:
        """Choose a partition that is led by its preferred leader, so that the leadership returns to it."""
        cluster = self._cluster
        nodes, image = cluster.nodes, cluster.truth.image
        topics = [image.topics[name] for name in sorted(cluster.topics)]
        found = [
            (topic, state)
            for topic in topics
            for state in topic.partitions
            if state.leader == state.replicas[0] and set(state.isr) == set(state.replicas)
        ]
        if not found or not all(node.is_up for node in nodes.values()):
            return None
        topic, state = self._random.choice(found)
        leader, follower = nodes[state.replicas[0]], nodes[state.replicas[1]]
        stale_broker = self._random.choice(
            [node for node in nodes.values() if node not in (leader, follower)]
        )
        return _DeposalPlan(topic, state.index, leader, follower, stale_broker)

    async def _depose(self, chosen: _DeposalPlan, released: "asyncio.Future[None]") -> bool:
        leader, store = chosen.leader, self._cluster.store
        session = store.session_of(ClusterKeys(self._cluster.truth.image.cluster_id).live(leader.id))
        if session is None or store.is_unavailable:
            return False
        epoch = self._state(chosen).leader_epoch
        store.end_session(session)
        if not await self._wait_until(
            lambda: self._leads(chosen) and self._state(chosen).leader_epoch > epoch
        ):
            return False
        caught = self._intercept_join(chosen, released)
        self._cut(chosen)
        if not await self._wait_until(lambda: chosen.follower.id not in self._state(chosen).isr):
            return False
        self._restore(chosen)
        if not await self._wait_until(lambda: bool(caught)):
            return False
        deposals = leader.deposals
        leader.drop_store_replies(True)
        leader.delay_watch_events(True)
        if not await self._wait_until(lambda: leader.deposals > deposals):
            return False
        self._cut(chosen)
        leader.drop_store_replies(False)
        if not await self._wait_until(lambda: self._leads(chosen)):
            return False
        released.set_result(None)
        await asyncio.sleep(LATE_SECONDS)
        return True

    def _intercept_join(self, chosen: _DeposalPlan, released: "asyncio.Future[None]") -> list[int]:
        """Intercept the request that adds the follower to the ISR. The list is not empty once it was sent."""
        store, caught = self._cluster.store, list[int]()

        def intercept(changes: Sequence[StoreChange]) -> RequestFault | None:
            for topic, was, now in requested_changes(self._cluster.truth.image, changes):
                is_it = topic.id == chosen.topic.id and now is not None and now.index == chosen.partition
                if is_it and was is not None and now is not None and set(was.isr) < set(now.isr):
                    store.ambush = None
                    caught.append(now.index)
                    return RequestFault(0.0, loses_reply=True, released=released)
            return None

        store.ambush = intercept
        released.add_done_callback(lambda _: self._remove_interceptor(intercept))
        return caught

    def _remove_interceptor(self, intercept: Callable[[Sequence[StoreChange]], RequestFault | None]) -> None:
        if self._cluster.store.ambush is intercept:
            self._cluster.store.ambush = None

    def _cut(self, chosen: _DeposalPlan) -> None:
        self._cluster.network.cut(chosen.leader.host, chosen.follower.host)
        self._cluster.network.cut(chosen.follower.host, chosen.leader.host)

    def _restore(self, chosen: _DeposalPlan) -> None:
        self._cluster.network.restore(chosen.leader.host, chosen.follower.host)
        self._cluster.network.restore(chosen.follower.host, chosen.leader.host)

    def _state(self, chosen: _DeposalPlan) -> PartitionState:
        return self._cluster.truth.image.topics[chosen.topic.name].partitions[chosen.partition]

    def _leads(self, chosen: _DeposalPlan) -> bool:
        """Whether the broker leads, both in the metadata store and in its own state."""
        serving = chosen.leader.serving
        if serving is None or self._state(chosen).leader != chosen.leader.id:
            return False
        partition = serving.storage.partitions.find_by_id(chosen.topic.id, chosen.partition)
        return partition is not None and partition.leading is not None

    async def _wait_until(self, holds: Callable[[], bool]) -> bool:
        ends_at = self._cluster.loop.now + STEP_SECONDS_MAX
        while not holds():
            if self._cluster.loop.now > ends_at or self._is_over():
                return False
            await asyncio.sleep(POLL_SECONDS)
        return not self._is_over()
