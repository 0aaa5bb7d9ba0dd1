"""A fault in which all power fails while a follower may not have stored a log start offset yet.

A deletion is confirmed, and a replica joins the ISR, only when the replica has the new start on its disk. It
stores a start within milliseconds, so chance alone seldom has a crash in between. The fault arranges that:

    1. In one variant a follower is cut off from the other brokers, leaves the ISR and misses the next
       deletion, which is confirmed without it. In the other variant it follows all the time.
    2. The storage workers are slow, as if they had to delete many files: a start waits while flushes go on.
    3. All brokers lose power in the instant when a deletion is confirmed to its client; if the follower
       was cut off, when it is reconnected and joins the ISR again.
    4. The other brokers start at once, and leave the ISR by that. Then the follower starts. The leader starts
       last, when another broker leads, so it cannot tell them the start.

Rule: the usual checks decide whether a result is wrong: no later leader starts before what was confirmed as
      deleted.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.metadata.cluster_image import NO_NODE, PartitionState
from penstock.sim.cluster.clients.administrator import ConfirmedDeletion
from penstock.sim.cluster.node import SimNode

if TYPE_CHECKING:
    from penstock.sim.cluster.cluster import SimCluster

STEP_SECONDS_MAX: Final = 15.0
POLL_SECONDS: Final = 0.001
STORAGE_SECONDS: Final = (0.2, 0.6, 1.5)


class _Victims(NamedTuple):
    deletion: ConfirmedDeletion
    leader: SimNode
    follower: SimNode


class DeletionCrash:
    def __init__(
        self, cluster: "SimCluster", random: Random, follower: SimNode, is_over: Callable[[], bool]
    ) -> None:
        """`follower`: the broker that may be cut off."""
        self._cluster = cluster
        self._random = random
        self._follower = follower
        self._is_over = is_over

    async def inject(self) -> bool:
        """Run the steps. Whether the power failed."""
        is_cut_off = self._random.random() < 0.5
        try:
            victims = await (self._joined() if is_cut_off else self._confirmed())
        finally:
            self._restore()
        if victims is None or self._is_over():
            return False
        self._cluster.trace(f"power fails {'at a join' if is_cut_off else 'at once'}: {victims.deletion}")
        await self._crash(victims)
        return True

    async def _confirmed(self) -> _Victims | None:
        """The brokers of the next deletion, at the moment when it is confirmed."""
        self._slow_down()
        deletion = await self._next_deletion(lambda state: len(state.isr) > 1)
        if deletion is None:
            return None
        state = self._state(deletion)
        others = [node for node in state.isr if node != state.leader]
        return self._victims(deletion, self._random.choice(others))

    async def _joined(self) -> _Victims | None:
        """The brokers of a deletion that the follower missed, at the moment when the follower joins."""
        cut_off = self._follower.id
        self._cut_off()
        deletion = await self._next_deletion(
            lambda state: cut_off in state.replicas and cut_off not in state.isr
        )
        if deletion is None:
            return None
        self._slow_down()
        self._rejoin()
        if not await self._wait_until(lambda: cut_off in self._state(deletion).isr):
            return None
        return self._victims(deletion, cut_off)

    def _victims(self, deletion: ConfirmedDeletion, follower: int) -> _Victims | None:
        leader = self._cluster.nodes.get(self._state(deletion).leader)
        if leader is None or leader.id == follower or not leader.is_up:
            return None
        return _Victims(deletion, leader, self._cluster.nodes[follower])

    async def _next_deletion(self, fits: Callable[[PartitionState], bool]) -> ConfirmedDeletion | None:
        """The next confirmed deletion from a partition that fits."""
        try:
            async with asyncio.timeout(STEP_SECONDS_MAX):
                while True:
                    deletion = await self._cluster.administrator.next_deletion()
                    if fits(self._state(deletion)):
                        return deletion
        except TimeoutError:
            return None

    async def _crash(self, victims: _Victims) -> None:
        leader, follower = victims.leader, victims.follower
        others = [node for node in self._cluster.nodes.values() if node not in (leader, follower)]
        for node in self._cluster.nodes.values():
            if node.is_up:
                await node.kill()
                node.lose_power()
        for node in others:
            _start_if_down(node)
        replicas = {node.id for node in others}.intersection(self._state(victims.deletion).replicas)
        await self._wait_until(lambda: replicas.isdisjoint(self._state(victims.deletion).isr))
        _start_if_down(follower)
        await self._wait_until(lambda: self._state(victims.deletion).leader not in (NO_NODE, leader.id))
        _start_if_down(leader)

    def _slow_down(self) -> None:
        seconds = self._random.choice(STORAGE_SECONDS)
        for node in self._cluster.nodes.values():
            node.storage_job_seconds_max = seconds

    def _cut_off(self) -> None:
        for node in self._others():
            self._cluster.network.cut(node.host, self._follower.host)
            self._cluster.network.cut(self._follower.host, node.host)

    def _rejoin(self) -> None:
        for node in self._others():
            self._cluster.network.restore(node.host, self._follower.host)
            self._cluster.network.restore(self._follower.host, node.host)

    def _others(self) -> list[SimNode]:
        return [node for node in self._cluster.nodes.values() if node is not self._follower]

    def _restore(self) -> None:
        self._rejoin()
        for node in self._cluster.nodes.values():
            node.storage_job_seconds_max = 0.0

    def _state(self, deletion: ConfirmedDeletion) -> PartitionState:
        return self._cluster.truth.image.topics[deletion.topic].partitions[deletion.partition]

    async def _wait_until(self, holds: Callable[[], bool]) -> bool:
        ends_at = self._cluster.loop.now + STEP_SECONDS_MAX
        while not holds():
            if self._cluster.loop.now > ends_at or self._is_over():
                return False
            await asyncio.sleep(POLL_SECONDS)
        return not self._is_over()


def _start_if_down(node: SimNode) -> None:
    if not node.is_up:
        node.start()
