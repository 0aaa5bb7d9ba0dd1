"""One node of a simulated cluster: a machine with a disk, and its broker, one process after another.

A process that ends because it could not start, for example because its metadata store is unavailable or its
disk is full, is restarted after a while, as by a supervisor.

Rule: A broker that ends for any other reason, or one of whose tasks ends so, is a bug.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.broker import Environment, RunningBroker, running_broker
from penstock.config.broker import BrokerConfig
from penstock.config.sources import load
from penstock.errors import ConfigError, StorageFailed, StorageFull
from penstock.host.syscalls.short_timer import LoopTimer
from penstock.host.tasks import Tasks
from penstock.sim.cleaner import SimCleaner
from penstock.sim.cluster.plan import ClusterPlan
from penstock.sim.disk import Mount, SimDisk
from penstock.sim.interruptible_jobs import SteppingWorker
from penstock.sim.processes import SimProcess
from penstock.sim.store import SimStoreClient
from penstock.sim.worker import SimWorker

if TYPE_CHECKING:
    from penstock.sim.cluster.cluster import SimCluster

PORT: Final = 9092
DATA: Final = "/data"
LOGS: Final = f"{DATA}/logs"
WALL_BEGINS_MS: Final = 1_700_000_000_000
"""The wall clock at the beginning of a run, in 2023."""
RESTART_SECONDS: Final = 1.0
OPEN_FILES_MAX: Final = 30
RETENTION_CHECK_MS: Final = 500
CLEANER_PAUSE_MS: Final = 300
BUG_EVENTS: Final = frozenset({"task.failed", "callback.failed", "replica.damaged_answer"})
"""Log events of a broker that always mean a bug."""
DAMAGE_EVENT: Final = "partition.damaged"
"""A log event that is allowed only for a partition with a flipped bit, or after a failed sync."""
COMPACTION_FAILED_EVENT: Final = "compaction.failed"
"""A log event that is allowed only after a failed sync: a flipped bit that the cleaner finds is damage."""


class NoLock:
    def __init__(self, path: str) -> None:
        """No lock is needed: the node runs one process on a disk at a time."""
        self.mark = f"the lock on {path}"

    def release(self) -> None:
        pass


class SimRandomness:
    def __init__(self, random: Random) -> None:
        self._random = random

    def bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)


class NodeClock:
    """The clocks of a node, as its process reads them. The wall clock may be wrong."""

    def __init__(self, node: "SimNode") -> None:
        self._node = node

    def wall_ms(self) -> int:
        return self._node.wall_ms()

    def monotonic(self) -> float:
        return self._node.cluster.loop.time()


class RunEndingLog:
    """Log of a node. It writes events to the trace, and ends the run at an event that means a bug."""

    def __init__(self, node: "SimNode") -> None:
        self._node = node
        self._process = node.process
        self._mount = node.mount

    def info(self, event: str, **fields: object) -> None:
        self._trace(event, fields)

    def warning(self, event: str, **fields: object) -> None:
        if event == "broker.deposed":
            self._node.deposals += 1
            self._node.cluster.fault_counts["deposed"] += 1
        self._trace(event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._trace(event, fields)
        is_over = self._process.is_dead or self._node.cluster.has_violation
        if not is_over and self._is_bug(event, fields):
            self._node.cluster.violate(f"{self._node}: {event} {fields}")

    def _is_bug(self, event: str, fields: dict[str, object]) -> bool:
        if event == COMPACTION_FAILED_EVENT:
            return not self._mount.has_failed_sync
        if event == DAMAGE_EVENT:
            is_damaged = self._node.cluster.bit_rot.is_damaged(self._node.id, str(fields["partition"]))
            return not is_damaged and not self._mount.has_failed_sync
        return event in BUG_EVENTS

    def _trace(self, event: str, fields: dict[str, Any]) -> None:
        cluster = self._node.cluster
        if cluster.traces:
            words = " ".join(f"{name}={value}" for name, value in fields.items())
            cluster.trace(f"{self._node} {event} {words}")


class SimNode:
    def __init__(self, cluster: "SimCluster", node_id: int) -> None:
        self.cluster = cluster
        self.id = node_id
        self.host = f"node-{node_id}"
        self.disk = self._new_disk(0)
        self.disks = 1
        self.data_lost_at_revision: int | None = None
        """The store revision at which the node lost acknowledged records. None once the cluster has
        admitted a process that began after it.
        """
        self.last_loss_at_revision: int | None = None
        """The store revision at the latest of these losses, whether the cluster has noticed it or not."""
        self.deposals = 0
        """How often a process of this node was deposed by other brokers."""
        self.disk_job_seconds_max = cluster.plan.disk_seconds
        """The longest time that the disk takes for a job."""
        self.storage_job_seconds_max = 0.0
        """The same for jobs of the storage worker, if longer: it stores log starts. Flushes have another."""
        self.clock_offset_ms = 0
        self.clock_rate = 1.0
        self.is_disconnected_from_store = False
        self.delays_watch_events = False
        """Whether it receives events of the store late."""
        self.running: RunningBroker | None = None
        self.serving: RunningBroker | None = None
        """The same, from when clients reach it. A broker that lost a reply of the store may lead before
        `running` is set.
        """
        self.process = SimProcess(self.host)
        self.process.is_dead = self.process.has_ended = True
        self.mount: Mount
        self._store: SimStoreClient | None = None
        self._stop: asyncio.Event
        self._ended: asyncio.Event
        self._starts = 0
        self._workers: list[SteppingWorker] = []
        """Workers of the process whose jobs are interrupted."""
        self.power_failure = asyncio.Event()
        """Set when the power fails during a disk call."""
        self.on_swap: Callable[[], None] = lambda: None
        """Called before cleaned segments replace others."""

    def _new_disk(self, number: int) -> SimDisk:
        disk = SimDisk(Random(f"disk {self.cluster.plan.seed} {self.id} {number}"))
        plan = self.cluster.plan
        disk.open_files_max = OPEN_FILES_MAX if plan.log is None else plan.log.open_files_max
        disk.cold_reads = max(plan.cold_reads, plan.extras.cold_reads)
        disk.on_power_lost = self._power_lost
        return disk

    @property
    def is_up(self) -> bool:
        return not self.process.is_dead

    @property
    def is_about_to_end(self) -> bool:
        """Whether the process is stopping, or will be restarted because a sync has failed or will fail."""
        if not self.is_up:
            return False
        return self._stop.is_set() or self.disk.sync_fails or self.mount.has_failed_sync

    @property
    def has_lost_data(self) -> bool:
        """Whether it lost acknowledged records, and the cluster has not noticed that yet."""
        return self.data_lost_at_revision is not None

    def wall_ms(self) -> int:
        """The wall clock as the process on this machine reads it."""
        own = (
            self.process.local_time(self.cluster.loop.now)
            if self.process.has_drifted
            else self.cluster.loop.now
        )
        return WALL_BEGINS_MS + int(own * 1000) + self.clock_offset_ms

    # Life of a process

    def start(self) -> None:
        assert not self.is_up
        self.process = SimProcess(self.host)
        self._set_clock()
        self.mount = self.disk.mount()
        if self.cluster.plan.extras.job_steps:
            self.mount.on_call = self.cluster.hands.before_disk_call
        self._stop, self._ended = asyncio.Event(), asyncio.Event()
        self._starts += 1
        self.process.run(Tasks(self._failed).start, self._run_broker(), self.host)

    def _failed(self, name: str, failure: BaseException) -> None:
        if self.is_up:
            self.cluster.violate(f"{self} ends: {failure!r}", failure)

    async def _run_broker(self) -> None:
        process = self.process
        try:
            async with running_broker(self._config(), self._environment()) as running:
                self.running = running
                await self._stop.wait()
        except (ConfigError, StorageFull, StorageFailed) as problem:
            if process.is_dead:
                return
            self.cluster.trace(f"{self} ends: {problem}")
            self.cluster.loop.call_later(RESTART_SECONDS, self._restart, process, context=self.cluster.world)
        finally:
            if process is self.process:
                self.running = self.serving = None
                self._ended.set()

    def _restart(self, process: SimProcess) -> None:
        if process is self.process and not process.is_dead and self._ended.is_set():
            self._end_process()
            self.start()

    def _config(self) -> BrokerConfig:
        plan = self.cluster.plan
        flags: dict[str, str | int | bool | None] = {
            "node_id": str(self.id),
            "data_dir": DATA,
            "kafka": f"{self.host}:{PORT}",
            "metadata": "etcd://simulated:2379",
            "insecure": True,
        }
        config = load(flags, _settings_of(plan))
        segment_bytes = plan.segment_bytes_of_start(self._starts)
        if segment_bytes is None:
            return config
        # Smaller than an operator may choose.
        return config._replace(topic_defaults=config.topic_defaults._replace(segment_bytes=segment_bytes))

    def _environment(self) -> Environment:
        cluster, random = self.cluster, Random(f"broker {self.cluster.plan.seed} {self.id} {self._starts}")

        def new_worker(name: str, _: asyncio.AbstractEventLoop) -> SimWorker:
            return self._new_worker(random, is_storage=name == "storage")

        def new_cleaner() -> SimCleaner:
            own = Random(f"cleaner {cluster.plan.seed} {self.id} {self._starts}")
            return SimCleaner(self.mount, self._new_worker(own), own, self._before_swap, self._after_swap)

        def open_store(address: str) -> SimStoreClient:
            self._store = cluster.store.client()
            self._store.is_disconnected = self.is_disconnected_from_store
            self.delay_watch_events(self.delays_watch_events)
            return self._store

        def on_serving(broker: RunningBroker) -> None:
            self.serving = broker

        return Environment(
            clock=NodeClock(self),
            disk=self.mount,
            randomness=SimRandomness(random),
            log=RunEndingLog(self),
            open_store=open_store,
            new_worker=new_worker,
            new_timer=LoopTimer,
            new_cleaner=new_cleaner,
            lock_folder=NoLock,
            on_serving=on_serving,
        )

    def _new_worker(self, random: Random, *, is_storage: bool = False) -> SimWorker:
        def delay() -> float:
            own_seconds_max = self.storage_job_seconds_max if is_storage else 0.0
            return random.uniform(0.05, 1.0) * max(self.disk_job_seconds_max, own_seconds_max)

        if not self.cluster.plan.extras.job_steps:
            return SimWorker(self.cluster.loop, delay)
        worker = SteppingWorker(self.cluster.loop, delay, self.cluster.hands)
        self._workers.append(worker)
        return worker

    def _before_swap(self) -> None:
        self.cluster.fault_counts["cleaned"] += 1
        self.on_swap()

    def _after_swap(self) -> None:
        if self.serving is not None:
            self.cluster.cleaned(self.serving)

    # End of a process

    def _end_process(self) -> None:
        # The disk, store and network are cut off first, because cancelled tasks still run their cleanup.
        self.process.is_dead = self.mount.is_dead = True
        for worker in self._workers:
            worker.abandon()
        self._workers.clear()
        if self._store is not None:
            self._store.is_dead = True
        self.cluster.network.kill(self.process)
        self.running = self.serving = None

    async def kill(self) -> None:
        """Crash the process: its disk, store and connections are cut off before its tasks are cancelled."""
        process = self.process
        self._end_process()
        await self.cluster.loop.cancel_tasks(process)

    async def stop(self, seconds_max: float) -> None:
        """Stop the process as an operator does, and kill it after `seconds_max`."""
        process = self.process
        self._stop.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                await self._ended.wait()
        if process is self.process and self.is_up:
            await self.kill()

    def _power_lost(self) -> None:
        # The caller is in the middle of a disk call: the rest of the process is ended by the fault.
        self.process.is_dead = True
        self.power_failure.set()

    def wipe(self) -> None:
        assert not self.is_up
        self.disk = self._new_disk(self.disks)
        self.disks += 1
        self.mark_data_lost()

    def lose_power(self) -> None:
        """Lose power. The process was killed before."""
        self.disk.lose_power()
        if self.cluster.plan.log is not None:
            self.cluster.watching.power_lost()
        elif not self.cluster.plan.extras.flushes_before_ack:
            self.mark_data_lost()

    def mark_data_lost(self) -> None:
        self.data_lost_at_revision = self.last_loss_at_revision = self.cluster.store.revision

    # Other faults

    def pause(self) -> Callable[[], None]:
        """Pause the process. Returns a function that ends the pause."""
        process = self.process
        self.cluster.loop.pause(process)

        def go_on() -> None:
            if process.is_paused:
                self.cluster.loop.go_on(process)

        return go_on

    def drift(self, rate: float) -> None:
        """Let its clocks run at this rate from now on."""
        self.clock_rate = rate
        self._set_clock()

    def _set_clock(self) -> None:
        if self.clock_rate != self.process.rate:
            self.process.drift(self.clock_rate, self.cluster.loop.now)

    def delay_watch_events(self, delays_watch_events: bool) -> None:
        self.delays_watch_events = delays_watch_events
        if self._store is None:
            return
        if delays_watch_events:
            self._store.watch_events_flow.clear()
        else:
            self._store.watch_events_flow.set()

    def drop_store_replies(self, drops_replies: bool) -> None:
        if self._store is not None:
            self._store.drops_replies = drops_replies

    def disconnect_from_store(self, is_disconnected: bool) -> None:
        self.is_disconnected_from_store = is_disconnected
        if self._store is not None:
            self._store.is_disconnected = is_disconnected

    def __str__(self) -> str:
        return self.host


def _settings_of(plan: ClusterPlan) -> list[str]:
    """The broker settings of a plan."""
    extras = plan.extras
    settings = [
        f"replica.lag.time.max.ms={plan.lag_ms}",
        "offsets.topic.num.partitions=2",
        "group.consumer.min.session.timeout.ms=3000",
        "group.consumer.session.timeout.ms=4000",
        f"log.flush.policy={plan.flush_policy}",
    ]
    if extras.classic:
        settings += ["group.min.session.timeout.ms=3000", "group.initial.rebalance.delay.ms=200"]
    if extras.has_retention:
        settings.append(f"log.retention.check.interval.ms={RETENTION_CHECK_MS}")
    if extras.compacts:
        settings.append(f"log.cleaner.backoff.ms={CLEANER_PAUSE_MS}")
    if plan.log is not None:
        settings += [
            f"log.index.interval.bytes={plan.log.index_interval_bytes}",
            "log.flush.interval.ms=1000",
            "log.flush.interval.messages=20",
        ]
    return settings
