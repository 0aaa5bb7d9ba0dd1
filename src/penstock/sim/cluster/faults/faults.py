"""Execution of the faults of a plan, and the healing at its end.

Rule 1: A fault ends by itself after its duration. Its effects on a process end with that process.
Rule 2: A fault that does not apply, for example because the node is already down, does nothing and is not
        counted.
Rule 3: Each fault has its own random numbers: it does the same when others are left out.
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Final

from penstock.log.compaction.swap import SWAP_SUFFIX
from penstock.log.segment import LOG_SUFFIX, segment_name
from penstock.metadata.keys import ClusterKeys
from penstock.sim.cluster.clients.client import KafkaClient
from penstock.sim.cluster.faults.ambush import Ambush
from penstock.sim.cluster.faults.deletion_crash import DeletionCrash
from penstock.sim.cluster.faults.deposal import Deposal
from penstock.sim.cluster.faults.isolation import Isolation
from penstock.sim.cluster.node import SimNode
from penstock.sim.cluster.plan import Fault, FaultKind
from penstock.sim.disk import UNLIMITED_BYTES
from penstock.sim.network import NetworkConditions
from penstock.sim.store import StoreFaults
from penstock.types import Offset

if TYPE_CHECKING:
    from penstock.sim.cluster.cluster import SimCluster

STOP_SECONDS_MAX: Final = 10.0
CLOCK_OFF_MS_MAX: Final = 100_000
HOUR_MS: Final = 3_600_000
CLOCK_RATES: Final = (0.8, 0.95, 1.05, 1.25)
HostPair = tuple[str, str]
"""Sender and receiver."""
DYING_SECONDS_MIN: Final = 1.0
AMBUSH_FAULT_SECONDS: Final = 8.0
"""At least as long as an intercepted change may take."""

DISK_CALLS: Final = (20, 100, 500, 3_000)
EVENT_SECONDS_MAX: Final = 8.0
"""How long a fault waits for the moment that it is meant for."""
SWAP_CALLS_MAX: Final = 40
"""The most disk calls from the moment a cleaned segment exists to the moment the log has it, if little else
happens meanwhile.
"""
DECIDED_CALLS_MAX: Final = 20
"""The most disk calls from the moment a swap is decided to the moment the log has the cleaned segment."""
FILES_LEFT_MAX: Final = 8


class Faults:
    def __init__(self, cluster: "SimCluster") -> None:
        self._cluster = cluster
        self._is_wiped = False
        self.is_over = False
        """Whether all faults have ended and no fault may begin."""
        self.begun = 0
        """The number of faults that have begun."""
        self.active = 0
        """The number of faults that have begun and not ended."""

    async def inject(self, fault: Fault) -> None:
        self._cluster.trace(f"fault {fault}")
        self.begun, self.active = self.begun + 1, self.active + 1
        await _InjectedFault(self, self._cluster, fault).inject()
        self.active -= 1

    def may_wipe(self, node: SimNode) -> bool:
        """Whether the node's disk may be wiped: at most once in a run, and only if other brokers have all
        its records.
        """
        if self._is_wiped or not node.is_up or not self._cluster.can_lose_data(node.id):
            return False
        self._is_wiped = True
        return True

    async def heal(self) -> None:
        """End all faults and restart failed brokers."""
        cluster, self.is_over = self._cluster, True
        cluster.network.heal()
        cluster.network.conditions = NetworkConditions()
        cluster.store.faults = StoreFaults(self._cluster.plan.store_delay)
        cluster.store.ambush = None
        if cluster.store.is_unavailable:
            cluster.store.become_available()
        for node in cluster.nodes.values():
            node.disconnect_from_store(False)
            node.delay_watch_events(False)
            node.drift(1.0)
            node.disk.room_bytes, node.disk.sync_fails = UNLIMITED_BYTES, False
            node.disk.power_fails_at = node.disk.descriptors = None
            node.disk_job_seconds_max = self._cluster.plan.disk_seconds
            node.storage_job_seconds_max = 0.0
            if node.process.is_paused and node.is_up:
                cluster.loop.go_on(node.process)
            if has_failed(node):
                await node.kill()
            start_if_down(node)
            cluster.bit_rot.require_reason(node)

    async def restart_damaged(self) -> None:
        """Restart damaged brokers, as an operator does some time after others have taken over."""
        for node in {flip.node.id: flip.node for flip in self._cluster.bit_rot.present()}.values():
            await node.kill()
            start_if_down(node)


class _InjectedFault:
    """The execution of one fault."""

    def __init__(self, faults: Faults, cluster: "SimCluster", fault: Fault) -> None:
        self._faults = faults
        self._cluster = cluster
        self._fault = fault
        self._seconds = fault.seconds
        self._nodes = [cluster.nodes[number] for number in fault.nodes]
        self._node = self._nodes[0]
        self._random: Random = cluster.random(f"fault {fault.number}")

    async def inject(self) -> None:
        await {
            FaultKind.KILL: self._kill,
            FaultKind.POWER: self._power,
            FaultKind.BLACKOUT: self._blackout,
            FaultKind.DYING: self._dying,
            FaultKind.WIPE: self._wipe,
            FaultKind.STOP: self._stop,
            FaultKind.PAUSE: self._pause,
            FaultKind.CLOCK: self._clock,
            FaultKind.DRIFT: self._drift,
            FaultKind.CUT: self._cut,
            FaultKind.HALF_CUT: self._half_cut,
            FaultKind.CUT_CLIENTS: self._cut_clients,
            FaultKind.RESET: self._reset,
            FaultKind.SLOW_NETWORK: self._slow_network,
            FaultKind.LOSS: self._loss,
            FaultKind.STORE_UNAVAILABLE: self._store_unavailable,
            FaultKind.STORE_CUT: self._store_cut,
            FaultKind.STORE_LOSES: self._store_loses,
            FaultKind.STALE: self._stale,
            FaultKind.AMBUSH: self._ambush,
            FaultKind.EXPIRE: self._expire,
            FaultKind.COMPACT: self._compact,
            FaultKind.DISK_FULL: self._disk_full,
            FaultKind.SLOW_DISK: self._slow_disk,
            FaultKind.SYNC_FAILS: self._sync_fails,
            FaultKind.ROT: self._rot,
            FaultKind.DEPOSE: self._depose,
            FaultKind.DELETION_CRASH: self._deletion_crash,
            FaultKind.ISOLATE: self._isolate,
            FaultKind.POWER_AT_CALL: self._power_at_call,
            FaultKind.SWAP: self._swap,
            FaultKind.NEW_LOG: self._new_log,
            FaultKind.FEW_FILES: self._few_files,
        }[self._fault.kind]()

    def _count_fault(self) -> None:
        self._cluster.fault_counts[self._fault.kind] += 1

    # Processes and machines

    async def _kill(self) -> None:
        await self._crash(self._nodes, self._seconds, loses_power=False)

    async def _power(self) -> None:
        await self._crash(self._nodes, self._seconds, loses_power=True)

    async def _blackout(self) -> None:
        await self._crash(list(self._cluster.nodes.values()), self._seconds, loses_power=True)

    async def _crash(self, nodes: list[SimNode], seconds: float, *, loses_power: bool) -> None:
        down = [node for node in nodes if node.is_up]
        if not down or self._faults.is_over:
            return
        self._count_fault()
        await self._crash_and_restart(down, seconds, loses_power=loses_power)

    async def _crash_and_restart(self, nodes: list[SimNode], seconds: float, *, loses_power: bool) -> None:
        down = [node for node in nodes if self._cluster.may_end_process(node.id)]
        if loses_power and not self._cluster.plan.extras.flushes_before_ack:
            down = down[:1]  # the other brokers must keep their memory
        for node in down:
            may_lose = self._cluster.may_lose_power(node.id)
            await node.kill()
            if loses_power and may_lose:
                node.lose_power()
        await asyncio.sleep(seconds)
        for node in down:
            await asyncio.sleep(self._random.choice((0.0, 0.0, 1.0)))
            start_if_down(node)

    async def _power_at_call(self) -> None:
        """Let the power fail during a disk call. Half of the time the process has just started then."""
        node = self._node
        if not node.is_up:
            return
        if self._random.random() < 0.5:
            await node.kill()
            node.start()
        self._fail_at_call(DISK_CALLS)
        await self._await_power_failure()

    async def _swap(self) -> None:
        """End the process during a swap. Some swaps are interrupted after they were decided, when some names
        may still be the old ones.
        """
        node, disk = self._node, self._node.disk
        if not node.is_up:
            return
        how = self._random.choice(("kill", "prepared", "decided", "decided"))
        swap = asyncio.Event()

        def on_create(path: str) -> None:
            if path.endswith(SWAP_SUFFIX):
                disk.on_create = lambda _: None
                self._fail_at_call(range(1, DECIDED_CALLS_MAX))

        def on_swap() -> None:
            node.on_swap = lambda: None
            swap.set()
            if how == "prepared":
                self._fail_at_call(range(1, SWAP_CALLS_MAX))
            elif how == "decided":
                disk.on_create = on_create

        node.on_swap = on_swap
        has_begun = await _happens(swap, EVENT_SECONDS_MAX)
        node.on_swap = lambda: None
        if has_begun and how == "kill":
            await asyncio.sleep(self._random.uniform(0, 2) * node.disk_job_seconds_max)
            await self._crash([node], self._seconds, loses_power=False)
        elif has_begun:
            await self._await_power_failure()
        disk.on_create = lambda _: None

    async def _new_log(self) -> None:
        node, disk, created = self._node, self._node.disk, asyncio.Event()

        def on_create(path: str) -> None:
            if path.endswith(f"/{segment_name(Offset(0))}{LOG_SUFFIX}"):
                created.set()

        disk.on_create = on_create
        is_created = await _happens(created, EVENT_SECONDS_MAX)
        disk.on_create = lambda _: None
        if is_created:
            await asyncio.sleep(self._random.uniform(0, 1) * node.disk_job_seconds_max)
            await self._crash([node], 0.0, loses_power=False)
            await asyncio.sleep(self._random.uniform(0, 2))
            await self._crash([node], self._seconds, loses_power=True)

    def _fail_at_call(self, calls: Sequence[int]) -> None:
        disk, at_call = self._node.disk, self._random.choice(calls)
        if not self._faults.is_over:
            disk.power_fails_at = disk.calls + at_call

    async def _await_power_failure(self) -> None:
        """Wait until the power fails during the chosen disk call, and start the broker again after it."""
        node = self._node
        if not await _happens(node.power_failure, EVENT_SECONDS_MAX):
            node.disk.power_fails_at = None
            return
        node.power_failure.clear()
        self._count_fault()
        await node.kill()
        node.lose_power()
        await asyncio.sleep(self._seconds)
        start_if_down(node)

    async def _dying(self) -> None:
        out, into = self._links_of(self._node)
        await self._cut_links(out + into, max(self._seconds, DYING_SECONDS_MIN))
        if self._node.is_up and not self._faults.is_over:
            seconds = self._random.choice((0.1, 3.0, 9.0))
            await self._crash_and_restart([self._node], seconds, loses_power=True)

    async def _wipe(self) -> None:
        node = self._node
        if not self._faults.may_wipe(node):
            return
        self._count_fault()
        await node.kill()
        node.wipe()
        await asyncio.sleep(self._seconds)
        start_if_down(node)

    async def _stop(self) -> None:
        node = self._node
        if not node.is_up or node.running is None or node.process.is_paused:
            return
        if not self._cluster.may_end_process(node.id):
            return
        self._count_fault()
        await node.stop(STOP_SECONDS_MAX)
        await asyncio.sleep(self._seconds)
        start_if_down(node)

    async def _pause(self) -> None:
        await self._pause_for([node for node in self._nodes if node.is_up], self._seconds)

    async def _pause_for(self, nodes: list[SimNode], seconds: float) -> None:
        if not nodes:
            return
        self._count_fault()
        ends = [node.pause() for node in nodes]
        await asyncio.sleep(seconds)
        for go_on in ends:
            go_on()

    async def _clock(self) -> None:
        self._count_fault()
        for node in self._nodes:
            off_ms = self._random.randint(-CLOCK_OFF_MS_MAX, CLOCK_OFF_MS_MAX)
            node.clock_offset_ms = self._random.choice((off_ms, HOUR_MS, -HOUR_MS))

    async def _drift(self) -> None:
        self._count_fault()
        for node in self._nodes:
            node.drift(self._random.choice(CLOCK_RATES))

    # Network

    async def _cut(self) -> None:
        """Partition one node from all other nodes."""
        out, into = self._links_of(self._node)
        await self._cut_links(out + into, self._seconds)

    async def _half_cut(self) -> None:
        """Drop only what the node sends, or only what it receives."""
        await self._cut_links(self._random.choice(self._links_of(self._node)), self._seconds)

    def _links_of(self, node: SimNode) -> tuple[list[HostPair], list[HostPair]]:
        others = [other for other in self._cluster.nodes.values() if other is not node]
        return [(node.host, other.host) for other in others], [(other.host, node.host) for other in others]

    async def _cut_clients(self) -> None:
        node = self._node
        hosts = [client.name for client in self._cluster.clients if self._random.random() < 0.5]
        links = [(host, node.host) for host in hosts]
        if self._random.random() < 0.5:
            links = [(node.host, host) for host in hosts]
        if links:
            await self._cut_links(links, self._seconds)

    async def _cut_links(self, links: list[HostPair], seconds: float) -> None:
        self._count_fault()
        for link in links:
            self._cluster.network.cut(*link)
        await asyncio.sleep(seconds)
        for link in links:
            self._cluster.network.restore(*link)

    async def _reset(self) -> None:
        self._count_fault()
        self._cluster.network.reset(share=self._random.choice((0.2, 1.0)))

    async def _slow_network(self) -> None:
        await self._degrade_network(NetworkConditions(slow_share=self._random.choice((0.02, 0.3))))

    async def _loss(self) -> None:
        await self._degrade_network(NetworkConditions(lost_share=self._random.choice((0.02, 0.3))))

    async def _degrade_network(self, conditions: NetworkConditions) -> None:
        self._count_fault()
        self._cluster.network.conditions = conditions
        await asyncio.sleep(self._seconds)
        self._cluster.network.conditions = NetworkConditions()

    # The metadata store

    async def _store_unavailable(self) -> None:
        store = self._cluster.store
        if store.is_unavailable:
            return
        self._count_fault()
        store.become_unavailable()
        await asyncio.sleep(self._seconds)
        if store.is_unavailable:
            store.become_available()

    async def _store_cut(self) -> None:
        await self._switch_on(SimNode.disconnect_from_store)

    async def _switch_on(self, switch: Callable[[SimNode, bool], None]) -> None:
        self._count_fault()
        for node in self._nodes:
            switch(node, True)
        await asyncio.sleep(self._seconds)
        for node in self._nodes:
            switch(node, False)

    async def _store_loses(self) -> None:
        self._count_fault()
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
        await self._switch_on(SimNode.delay_watch_events)

    async def _ambush(self) -> None:
        target = await Ambush(self._cluster, self._random).target()
        if target is None:
            return
        victim = self._cluster.nodes[target.victim]
        out, into = self._links_of(victim)
        leader = self._cluster.nodes[target.leader]
        fault_kind = self._random.choice(
            ("cut", "cut off leader", "cut off leader", "half-cut", "pause", "kill")
        )
        self._cluster.trace(f"ambush of {victim}, led by {leader}: {fault_kind}")
        if fault_kind == "cut off leader" and leader is not victim:
            links = [(leader.host, victim.host), (victim.host, leader.host)]
            await self._cut_links(links, AMBUSH_FAULT_SECONDS)
        elif fault_kind == "pause" and victim.is_up:
            await self._pause_for([victim], self._seconds)
        elif fault_kind == "kill" and victim.is_up:
            await self._crash([victim], self._seconds, loses_power=False)
        else:
            await self._cut_links(out if fault_kind == "half-cut" else out + into, AMBUSH_FAULT_SECONDS)

    async def _depose(self) -> None:
        if await Deposal(self._cluster, self._random, lambda: self._faults.is_over).inject():
            self._count_fault()

    async def _deletion_crash(self) -> None:
        crash = DeletionCrash(self._cluster, self._random, self._node, lambda: self._faults.is_over)
        if await crash.inject():
            self._count_fault()

    async def _isolate(self) -> None:
        if await Isolation(self._cluster, self._random, self._faults).inject():
            self._count_fault()

    async def _expire(self) -> None:
        """End a session in the store although its owner renews it."""
        store, keys = self._cluster.store, ClusterKeys(self._cluster.truth.image.cluster_id)
        for node in self._nodes:
            session = store.session_of(keys.live(node.id))
            if session is not None and not store.is_unavailable:
                self._count_fault()
                store.end_session(session)

    async def _compact(self) -> None:
        self._count_fault()
        self._cluster.store.compact()

    # Disks

    async def _disk_full(self) -> None:
        self._count_fault()
        for node in self._nodes:
            node.disk.room_bytes = self._random.choice((0, 500, 5_000))
        await asyncio.sleep(self._seconds)
        for node in self._nodes:
            node.disk.room_bytes = UNLIMITED_BYTES

    async def _few_files(self) -> None:
        self._count_fault()
        self._node.disk.descriptors = self._random.randrange(FILES_LEFT_MAX)
        await asyncio.sleep(self._seconds)
        self._node.disk.descriptors = None

    async def _slow_disk(self) -> None:
        self._count_fault()
        for node in self._nodes:
            node.disk_job_seconds_max = self._random.choice((0.05, 0.5, 3.0))
        await asyncio.sleep(self._seconds)
        for node in self._nodes:
            node.disk_job_seconds_max = self._cluster.plan.disk_seconds

    async def _sync_fails(self) -> None:
        """Make one sync fail. The broker then stops writing until an operator restarts it."""
        if not self._cluster.may_end_process(self._node.id):
            return
        disk = self._node.disk
        disk.sync_fails = True
        await asyncio.sleep(self._seconds)
        if not disk.sync_fails:
            self._count_fault()
        disk.sync_fails = False
        if has_failed(self._node):
            await self._node.kill()
            await asyncio.sleep(0.5)
            start_if_down(self._node)

    async def _rot(self) -> None:
        """Flip a bit. Sometimes it is read at once, and sometimes the leader then dies."""
        cluster = self._cluster
        flip = cluster.bit_rot.flip(self._node, self._random)
        if flip is None:
            return
        self._count_fault()
        what = self._random.choice(("nothing", "read", "read", "time", "leader dies", "read, leader dies"))
        cluster.trace(f"rot of {flip.name} at {flip.batch.base_offset} on {self._node}: {what}")
        reader = KafkaClient(cluster, f"prober-{self._fault.number}")
        if what.startswith("read"):
            await cluster.bit_rot.read(reader, flip)
        if what == "time":
            await cluster.bit_rot.look_up(reader, flip)
        if what.endswith("leader dies"):
            await asyncio.sleep(1.0)
            state = cluster.truth.image.topics_by_id[flip.partition_id[0]].partitions[flip.partition_id[1]]
            leader = cluster.nodes.get(state.leader)
            can_die = leader is not None and leader.is_up and not self._faults.is_over
            if leader is not None and leader is not self._node and can_die:
                await self._crash_and_restart([leader], self._seconds, loses_power=False)


async def _happens(event: asyncio.Event, seconds_max: float) -> bool:
    try:
        async with asyncio.timeout(seconds_max):
            await event.wait()
    except TimeoutError:
        return False
    return True


def start_if_down(node: SimNode) -> None:
    if not node.is_up:
        node.start()


def has_failed(node: SimNode) -> bool:
    """Whether the broker has stopped writing after a disk failure.

    A damaged partition alone needs no restart.
    """
    if not node.is_up or node.running is None:
        return False
    return node.running.storage.partitions.failure is not None
