"""Carries out the faults of a plan, and puts everything right at the end.

Rule 1: a fault ends by itself after its time. What it did to a process that has ended meanwhile is over.
Rule 2: a fault that does not apply, because the node is down already, does nothing, and is not counted.
Rule 3: each fault has random numbers of its own: it does the same if others are left out.
"""

import asyncio
from random import Random
from typing import TYPE_CHECKING, Final

from penstock.metadata.keys import Keys
from penstock.sim.cluster.clients.client import Client
from penstock.sim.cluster.faults.ambush import Ambush
from penstock.sim.cluster.faults.deposing import Deposal
from penstock.sim.cluster.node import SimNode
from penstock.sim.cluster.plan import Fault, Kind
from penstock.sim.disk import BOUNDLESS_BYTES
from penstock.sim.network import Weather
from penstock.sim.store import StoreFaults

if TYPE_CHECKING:
    from penstock.sim.cluster.cluster import SimCluster

STOP_SECONDS_MAX: Final = 10.0
CLOCK_OFF_MS_MAX: Final = 100_000
HOUR_MS: Final = 3_600_000
RATES: Final = (0.8, 0.95, 1.05, 1.25)
Way = tuple[str, str]
"""From one host to another."""
DYING_SECONDS_MIN: Final = 1.0
TROUBLE_SECONDS: Final = 8.0
"""As long as what was ambushed may take, or longer."""


class Faults:
    def __init__(self, cluster: "SimCluster") -> None:
        self._cluster = cluster
        self._is_wiped = False
        self.is_over = False
        """Everything was put right: nothing begins any more."""

    async def happen(self, fault: Fault) -> None:
        self._cluster.trace(f"fault {fault}")
        await _Happening(self, self._cluster, fault).deed()

    def may_wipe(self, node: SimNode) -> bool:
        """At most once, and only what others have too."""
        if self._is_wiped or not node.is_up or not self._cluster.can_lose(node.id):
            return False
        self._is_wiped = True
        return True

    async def heal(self) -> None:
        """Put everything right."""
        cluster, self.is_over = self._cluster, True
        cluster.network.heal()
        cluster.network.weather = Weather()
        cluster.store.faults = StoreFaults(self._cluster.plan.store_delay)
        cluster.store.ambush = None
        if cluster.store.is_away:
            cluster.store.come_back()
        for node in cluster.nodes.values():
            node.cut_off_store(False)
            node.hold_back(False)
            node.drift(1.0)
            node.disk.room_bytes, node.disk.sync_fails = BOUNDLESS_BYTES, False
            node.slowness_seconds = self._cluster.plan.disk_seconds
            if node.process.is_paused and node.is_up:
                cluster.loop.go_on(node.process)
            if has_failed(node):
                await node.kill()
            up(node)
            cluster.rot.require_reason(node)

    async def restart_damaged(self) -> None:
        """As an operator does, some time after others have taken over."""
        for node in {flip.node.id: flip.node for flip in self._cluster.rot.present()}.values():
            await node.kill()
            up(node)


class _Happening:
    """Of one fault."""

    def __init__(self, faults: Faults, cluster: "SimCluster", fault: Fault) -> None:
        self._faults = faults
        self._cluster = cluster
        self._fault = fault
        self._seconds = fault.seconds
        self._nodes = [cluster.nodes[number] for number in fault.nodes]
        self._node = self._nodes[0]
        self._random: Random = cluster.random(f"fault {fault.number}")

    async def deed(self) -> None:
        await {
            Kind.KILL: self._kill,
            Kind.POWER: self._power,
            Kind.BLACKOUT: self._blackout,
            Kind.DYING: self._dying,
            Kind.WIPE: self._wipe,
            Kind.STOP: self._stop,
            Kind.PAUSE: self._pause,
            Kind.CLOCK: self._clock,
            Kind.DRIFT: self._drift,
            Kind.CUT: self._cut,
            Kind.HALF_CUT: self._half_cut,
            Kind.CUT_CLIENTS: self._cut_clients,
            Kind.RESET: self._reset,
            Kind.SLOW_NETWORK: self._slow_network,
            Kind.LOSS: self._loss,
            Kind.STORE_AWAY: self._store_away,
            Kind.STORE_CUT: self._store_cut,
            Kind.STORE_LOSES: self._store_loses,
            Kind.STALE: self._stale,
            Kind.AMBUSH: self._ambush,
            Kind.EXPIRE: self._expire,
            Kind.COMPACT: self._compact,
            Kind.DISK_FULL: self._disk_full,
            Kind.SLOW_DISK: self._slow_disk,
            Kind.SYNC_FAILS: self._sync_fails,
            Kind.ROT: self._rot,
            Kind.DEPOSE: self._depose,
        }[self._fault.kind]()

    def _strikes(self) -> None:
        self._cluster.struck[self._fault.kind] += 1

    # Processes and machines

    async def _kill(self) -> None:
        await self._down(self._nodes, self._seconds, loses_power=False)

    async def _power(self) -> None:
        await self._down(self._nodes, self._seconds, loses_power=True)

    async def _blackout(self) -> None:
        await self._down(list(self._cluster.nodes.values()), self._seconds, loses_power=True)

    async def _down(self, nodes: list[SimNode], seconds: float, *, loses_power: bool) -> None:
        down = [node for node in nodes if node.is_up]
        if not down:
            return
        self._strikes()
        await self._take_down(down, seconds, loses_power=loses_power)

    async def _take_down(self, nodes: list[SimNode], seconds: float, *, loses_power: bool) -> None:
        down = [node for node in nodes if self._cluster.may_crash(node.id)]
        if loses_power and not self._cluster.plan.extras.flushes_before_ack:
            down = down[:1]  # what the others have in memory must stay there
        for node in down:
            may_lose = self._cluster.may_lose_power(node.id)
            await node.kill()
            if loses_power and may_lose:
                node.lose_power()
        await asyncio.sleep(seconds)
        for node in down:
            await asyncio.sleep(self._random.choice((0.0, 0.0, 1.0)))
            up(node)

    async def _dying(self) -> None:
        out, into = self._ways(self._node)
        await self._cut_ways(out + into, max(self._seconds, DYING_SECONDS_MIN))
        if self._node.is_up and not self._faults.is_over:
            seconds = self._random.choice((0.1, 3.0, 9.0))
            await self._take_down([self._node], seconds, loses_power=True)

    async def _wipe(self) -> None:
        node = self._node
        if not self._faults.may_wipe(node):
            return
        self._strikes()
        await node.kill()
        node.wipe()
        await asyncio.sleep(self._seconds)
        up(node)

    async def _stop(self) -> None:
        node = self._node
        if not node.is_up or node.running is None or node.process.is_paused:
            return
        self._strikes()
        await node.stop(STOP_SECONDS_MAX)
        await asyncio.sleep(self._seconds)
        up(node)

    async def _pause(self) -> None:
        await self._pause_for([node for node in self._nodes if node.is_up], self._seconds)

    async def _pause_for(self, nodes: list[SimNode], seconds: float) -> None:
        if not nodes:
            return
        self._strikes()
        ends = [node.pause() for node in nodes]
        await asyncio.sleep(seconds)
        for go_on in ends:
            go_on()

    async def _clock(self) -> None:
        self._strikes()
        for node in self._nodes:
            off_ms = self._random.randint(-CLOCK_OFF_MS_MAX, CLOCK_OFF_MS_MAX)
            node.clock_is_off_ms = self._random.choice((off_ms, HOUR_MS, -HOUR_MS))

    async def _drift(self) -> None:
        self._strikes()
        for node in self._nodes:
            node.drift(self._random.choice(RATES))

    # Network

    async def _cut(self) -> None:
        """Between one node and all others."""
        out, into = self._ways(self._node)
        await self._cut_ways(out + into, self._seconds)

    async def _half_cut(self) -> None:
        """Only what it sends, or only what it is sent."""
        await self._cut_ways(self._random.choice(self._ways(self._node)), self._seconds)

    def _ways(self, node: SimNode) -> tuple[list[Way], list[Way]]:
        others = [other for other in self._cluster.nodes.values() if other is not node]
        return [(node.host, other.host) for other in others], [(other.host, node.host) for other in others]

    async def _cut_clients(self) -> None:
        node = self._node
        hosts = [client.name for client in self._cluster.clients if self._random.random() < 0.5]
        ways = [(host, node.host) for host in hosts]
        if self._random.random() < 0.5:
            ways = [(node.host, host) for host in hosts]
        if ways:
            await self._cut_ways(ways, self._seconds)

    async def _cut_ways(self, ways: list[Way], seconds: float) -> None:
        self._strikes()
        for way in ways:
            self._cluster.network.cut(*way)
        await asyncio.sleep(seconds)
        for way in ways:
            self._cluster.network.mend(*way)

    async def _reset(self) -> None:
        self._strikes()
        self._cluster.network.reset(share=self._random.choice((0.2, 1.0)))

    async def _slow_network(self) -> None:
        await self._storm(Weather(slow_share=self._random.choice((0.02, 0.3))))

    async def _loss(self) -> None:
        await self._storm(Weather(lost_share=self._random.choice((0.02, 0.3))))

    async def _storm(self, weather: Weather) -> None:
        self._strikes()
        self._cluster.network.weather = weather
        await asyncio.sleep(self._seconds)
        self._cluster.network.weather = Weather()

    # The metadata store

    async def _store_away(self) -> None:
        store = self._cluster.store
        if store.is_away:
            return
        self._strikes()
        store.go_away()
        await asyncio.sleep(self._seconds)
        if store.is_away:
            store.come_back()

    async def _store_cut(self) -> None:
        self._strikes()
        for node in self._nodes:
            node.cut_off_store(True)
        await asyncio.sleep(self._seconds)
        for node in self._nodes:
            node.cut_off_store(False)

    async def _store_loses(self) -> None:
        self._strikes()
        self._cluster.store.faults = StoreFaults(
            delay_seconds=self._cluster.plan.store_delay,
            stalls=self._random.choice((0.0, 0.1)),
            lost_requests=self._random.choice((0.0, 0.1)),
            lost_replies=self._random.choice((0.1, 0.4)),
            broken_watches=self._random.choice((0.0, 0.1)),
            foreign_changes=self._random.choice((0.0, 0.3)),
        )
        await asyncio.sleep(self._seconds)
        self._cluster.store.faults = StoreFaults(self._cluster.plan.store_delay)

    async def _stale(self) -> None:
        self._strikes()
        for node in self._nodes:
            node.hold_back(True)
        await asyncio.sleep(self._seconds)
        for node in self._nodes:
            node.hold_back(False)

    async def _ambush(self) -> None:
        prey = await Ambush(self._cluster, self._random).prey()
        if prey is None:
            return
        victim = self._cluster.nodes[prey.victim]
        out, into = self._ways(victim)
        leader = self._cluster.nodes[prey.leader]
        trouble = self._random.choice(
            ("cut", "cut off leader", "cut off leader", "half-cut", "pause", "kill")
        )
        self._cluster.trace(f"ambush of {victim}, led by {leader}: {trouble}")
        if trouble == "cut off leader" and leader is not victim:
            ways = [(leader.host, victim.host), (victim.host, leader.host)]
            await self._cut_ways(ways, TROUBLE_SECONDS)
        elif trouble == "pause" and victim.is_up:
            await self._pause_for([victim], self._seconds)
        elif trouble == "kill" and victim.is_up:
            await self._down([victim], self._seconds, loses_power=False)
        else:
            await self._cut_ways(out if trouble == "half-cut" else out + into, TROUBLE_SECONDS)

    async def _depose(self) -> None:
        if await Deposal(self._cluster, self._random, lambda: self._faults.is_over).happen():
            self._strikes()

    async def _expire(self) -> None:
        """The store ends a session although its owner keeps it."""
        store, keys = self._cluster.store, Keys(self._cluster.truth.image.cluster_id)
        for node in self._nodes:
            session = store.session_of(keys.live(node.id))
            if session is not None and not store.is_away:
                self._strikes()
                store.end_session(session)

    async def _compact(self) -> None:
        self._strikes()
        self._cluster.store.compact()

    # Disks

    async def _disk_full(self) -> None:
        self._strikes()
        for node in self._nodes:
            node.disk.room_bytes = self._random.choice((0, 500, 5_000))
        await asyncio.sleep(self._seconds)
        for node in self._nodes:
            node.disk.room_bytes = BOUNDLESS_BYTES

    async def _slow_disk(self) -> None:
        self._strikes()
        for node in self._nodes:
            node.slowness_seconds = self._random.choice((0.05, 0.5, 3.0))
        await asyncio.sleep(self._seconds)
        for node in self._nodes:
            node.slowness_seconds = self._cluster.plan.disk_seconds

    async def _sync_fails(self) -> None:
        """Once. The broker no longer writes then, until an operator starts it again."""
        disk = self._node.disk
        disk.sync_fails = True
        await asyncio.sleep(self._seconds)
        if not disk.sync_fails:
            self._strikes()
        disk.sync_fails = False
        if has_failed(self._node):
            await self._restart(self._node)

    async def _rot(self) -> None:
        """Sometimes somebody reads it at once, and sometimes who leads dies then."""
        cluster = self._cluster
        flip = cluster.rot.flip(self._node, self._random)
        if flip is None:
            return
        self._strikes()
        what = self._random.choice(("nothing", "read", "read", "time", "leader dies", "read, leader dies"))
        cluster.trace(f"rot of {flip.name} at {flip.batch.base_offset} on {self._node}: {what}")
        reader = Client(cluster, f"prober-{self._fault.number}")
        if what.startswith("read"):
            await cluster.rot.read(reader, flip)
        if what == "time":
            await cluster.rot.look_up(reader, flip)
        if what.endswith("leader dies"):
            await asyncio.sleep(1.0)
            state = cluster.truth.image.topics_by_id[flip.place[0]].partitions[flip.place[1]]
            leader = cluster.nodes.get(state.leader)
            can_die = leader is not None and leader.is_up and not self._faults.is_over
            if leader is not None and leader is not self._node and can_die:
                await self._take_down([leader], self._seconds, loses_power=False)

    async def _restart(self, node: SimNode) -> None:
        await node.kill()
        await asyncio.sleep(0.5)
        up(node)


def up(node: SimNode) -> None:
    if not node.is_up:
        node.start()


def has_failed(node: SimNode) -> bool:
    """Its disk has broken a promise, and it no longer writes. A damaged partition needs no restart."""
    if not node.is_up or node.running is None:
        return False
    return node.running.storage.partitions.failure is not None
