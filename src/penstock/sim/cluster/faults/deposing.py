"""A leader that is deposed and reinstated in one epoch while a change of its in-sync replicas is under way.

By chance alone this needs too much at once, so it is arranged step by step, with what may happen anyway:

    1. One broker, the witness, is shown late what happens in the store. Then the leader's session ends, and
       it registers anew: the witness does not know its new epoch.
    2. The leader leads again. A follower is cut off, leaves the in-sync replicas, comes back and has caught
       up: the leader proposes to take it in.
    3. That request is delayed. Answers of the store no longer reach the leader; what it asks still arrives,
       so its session lives. It asks the others, the witness does not know it, and it leads nothing.
    4. The follower is cut off again. The store answers again, and the leader leads again in the same epoch.
       Now the delayed request arrives, and the leader hears of it late.

Rule: what is wrong with that say the same checks as always: whatever is acknowledged is on the platter of
      everybody who is in sync as the store has it.
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.host.metadata_store import Change, Put
from penstock.metadata.facts import PartitionState, Topic
from penstock.metadata.image import apply
from penstock.metadata.image_changes import changed_partitions
from penstock.metadata.keys import Keys
from penstock.sim.cluster.node import SimNode
from penstock.sim.store import Fate

if TYPE_CHECKING:
    from penstock.sim.cluster.cluster import SimCluster

STEP_SECONDS_MAX: Final = 15.0
LOOK_SECONDS: Final = 0.05
LATE_SECONDS: Final = 1.5


class _Scene(NamedTuple):
    topic: Topic
    partition: int
    leader: SimNode
    follower: SimNode
    witness: SimNode


class Deposal:
    def __init__(self, cluster: "SimCluster", random: Random, is_over: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._random = random
        self._is_over = is_over

    async def happen(self) -> bool:
        """Whether a leader was deposed and leads again."""
        scene = self._chosen()
        if scene is None or self._cluster.store.ambush is not None:
            return False
        # With three brokers the witness follows nothing meanwhile: the leader goes on alone.
        if not await self._cluster.administrator.set_minimum(scene.topic.name, 1):
            return False
        released: asyncio.Future[None] = self._cluster.loop.create_future()
        scene.witness.hold_back(True)
        try:
            return await self._depose(scene, released)
        finally:
            if not released.done():
                released.set_result(None)
            for node in (scene.leader, scene.witness):
                node.mute_store(False)
                node.hold_back(False)
            self._mend(scene)

    def _chosen(self) -> _Scene | None:
        """A partition that its preferred leader leads, so that it gets that back."""
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
        witness = self._random.choice([node for node in nodes.values() if node not in (leader, follower)])
        return _Scene(topic, state.index, leader, follower, witness)

    async def _depose(self, scene: _Scene, released: "asyncio.Future[None]") -> bool:
        leader, store = scene.leader, self._cluster.store
        session = store.session_of(Keys(self._cluster.truth.image.cluster_id).live(leader.id))
        if session is None or store.is_away:
            return False
        epoch = self._state(scene).leader_epoch
        store.end_session(session)
        if not await self._until(lambda: self._leads(scene) and self._state(scene).leader_epoch > epoch):
            return False
        caught = self._lie_in_wait(scene, released)
        self._cut(scene)
        if not await self._until(lambda: scene.follower.id not in self._state(scene).isr):
            return False
        self._mend(scene)
        if not await self._until(lambda: bool(caught)):
            return False
        deposals = leader.deposals
        leader.mute_store(True)
        leader.hold_back(True)
        if not await self._until(lambda: leader.deposals > deposals):
            return False
        self._cut(scene)
        leader.mute_store(False)
        if not await self._until(lambda: self._leads(scene)):
            return False
        released.set_result(None)
        await asyncio.sleep(LATE_SECONDS)
        return True

    def _lie_in_wait(self, scene: _Scene, released: "asyncio.Future[None]") -> list[int]:
        """For the request that takes the follower in. Not empty when it was sent."""
        store, caught = self._cluster.store, list[int]()

        def look(changes: Sequence[Change]) -> Fate | None:
            image = self._cluster.truth.image
            prefix = f"{Keys(image.cluster_id).prefix}partitions/"
            puts = [change for change in changes if isinstance(change, Put) and change.key.startswith(prefix)]
            after = apply(image, puts, image.revision + 1)
            for topic, was, now in changed_partitions(image, after):
                is_it = topic.id == scene.topic.id and now is not None and now.index == scene.partition
                if is_it and was is not None and now is not None and set(was.isr) < set(now.isr):
                    store.ambush = None
                    caught.append(now.index)
                    return Fate(0.0, loses_reply=True, released=released)
            return None

        store.ambush = look
        released.add_done_callback(lambda _: self._stop_waiting(look))
        return caught

    def _stop_waiting(self, look: Callable[[Sequence[Change]], Fate | None]) -> None:
        if self._cluster.store.ambush is look:
            self._cluster.store.ambush = None

    def _cut(self, scene: _Scene) -> None:
        self._cluster.network.cut(scene.leader.host, scene.follower.host)
        self._cluster.network.cut(scene.follower.host, scene.leader.host)

    def _mend(self, scene: _Scene) -> None:
        self._cluster.network.mend(scene.leader.host, scene.follower.host)
        self._cluster.network.mend(scene.follower.host, scene.leader.host)

    def _state(self, scene: _Scene) -> PartitionState:
        return self._cluster.truth.image.topics[scene.topic.name].partitions[scene.partition]

    def _leads(self, scene: _Scene) -> bool:
        """As the store has it, and as the broker itself does."""
        serving = scene.leader.serving
        if serving is None or self._state(scene).leader != scene.leader.id:
            return False
        partition = serving.storage.partitions.find_by_id(scene.topic.id, scene.partition)
        return partition is not None and partition.leading is not None

    async def _until(self, holds: Callable[[], bool]) -> bool:
        ends_at = self._cluster.loop.now + STEP_SECONDS_MAX
        while not holds():
            if self._cluster.loop.now > ends_at or self._is_over():
                return False
            await asyncio.sleep(LOOK_SECONDS)
        return not self._is_over()
