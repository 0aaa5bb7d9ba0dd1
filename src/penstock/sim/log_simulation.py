"""The simulation of one broker's log from one seed, from the first write to the last check.

A simulation is a disk, some partitions and their clients. It runs several lives of a broker. Each life ends
with a clean stop, a killed process or a power failure, and each begins with the recovery from that. The
last life has no faults, and everything that was in flight must be completed.

The code that runs is the production code of `broker/storage/partition_storage.py` and below: flusher,
checkpoints, retention, partitions, log, recovery; and that of `broker/storage/compaction.py`, with a
simulated cleaner.
"""

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from random import Random
from typing import Any

from penstock.broker.storage.compaction import Compaction, CompactionDependencies
from penstock.broker.storage.partition_storage import Storage
from penstock.config.broker import BrokerConfig
from penstock.errors import StorageFailed, StorageFull
from penstock.host.tasks import Tasks
from penstock.log.compaction.swap import SWAP_SUFFIX
from penstock.log.data_directory import DataDirectory, open_directory
from penstock.metadata.cluster_image import ClusterImage, PartitionState, Topic
from penstock.observability.logs import NullLog
from penstock.replication.partition import Partition
from penstock.sim.choices import Choices
from penstock.sim.clock import WALL_BEGINS_MS, SimClock
from penstock.sim.compacted_history import CompactedHistory, CompactionContext, SimCleaner
from penstock.sim.disk import UNLIMITED_BYTES, PowerLost, SimDisk
from penstock.sim.history import History, InvariantViolation
from penstock.sim.scheduler import Deadlock, VirtualTimeLoop
from penstock.sim.worker import SimWorker
from penstock.sim.workload import SimAdministrator, SimProducer, SimReader
from penstock.types import NodeId, TopicId

DATA_PATH = "disk/data"
NODE = NodeId(1)
FAULT_FREE_SECONDS_MAX = 60
DESCRIPTORS_LEFT_MAX = 8
CALLS_PER_SWAP_MAX = 40
"""The most disk calls from the moment a cleaned segment exists to the moment the log has it, if little else
happens meanwhile.
"""
DECIDED_CALLS_MAX = 20
"""The most disk calls from the moment a swap is decided to the moment the log has the cleaned segment."""


class LogSimulation:
    def __init__(self, seed: int, *, on_trace: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.choices = Choices.draw(self.random("choices"))
        self.disk = SimDisk(self.random("disk"))
        self.disk.open_files_max = self.choices.open_files_max
        self.events = 0
        self._on_trace = on_trace
        self._hash = blake2b(digest_size=16)
        self._now = 0.0
        self._life = 0
        self._fate = self.random("fate")
        topics = [f"topic{number}" for number in range(self.choices.partitions)]
        self.histories = {topic: self._history(number, topic) for number, topic in enumerate(topics)}
        self.producers = [
            SimProducer(
                10 * number + kind,
                topic,
                self.random(f"producer {topic} {kind}"),
                idempotent=kind < 2,
                keyed=self.choices.is_compacted(number),
            )
            for number, topic in enumerate(topics)
            for kind in range(3)
        ]
        self.readers = [SimReader(topic, self.random(f"reader {topic}")) for topic in topics]
        self.administrators = [
            SimAdministrator(topic, self.random(f"administrator {topic}"))
            for topic in topics
            if self.choices.deletes
        ]
        self.disk.mount().make_folder("disk")
        self.disk.root.sync()

    def _history(self, number: int, topic: str) -> History:
        if not self.choices.is_compacted(number):
            return History(topic)
        return CompactedHistory(
            topic, CompactionContext(self.disk, self.wall_ms, self.choices.delete_retention_ms)
        )

    def wall_ms(self) -> int:
        """The wall time of the last event."""
        return WALL_BEGINS_MS + int(self._now * 1000)

    def random(self, purpose: str) -> Random:
        """A random stream for this purpose.

        Each purpose has its own, so that one more draw does not change the others.
        """
        return Random(f"{self.seed} {purpose}")

    def bytes(self, count: int) -> bytes:
        return self._fate.randbytes(count)

    def trace(self, line: str) -> None:
        text = f"{self._now:.6f} {self.disk.calls} {line}"
        self._hash.update(text.encode())
        if self._on_trace is not None:
            self._on_trace(text)

    @property
    def trace_hash(self) -> str:
        """A hash of the trace. It must be equal for two runs of one seed."""
        return self._hash.hexdigest()

    # Lives

    def run(self) -> "LogSimulation":
        """Run all lives. Raises InvariantViolation if an invariant is broken."""
        power_was_lost = False
        for number in range(self.choices.lives_in_all):
            ending = self._fate.choice(("power", "power", "call", "kill", "stop"))
            self.trace(f"life {number} ends by {ending}")
            self._life = number
            power_was_lost = self._run_broker(ending, power_was_lost=power_was_lost)
        self.trace("peace")
        self._life = self.choices.lives_in_all
        self._run_broker("peace", power_was_lost=power_was_lost)
        return self

    def _run_broker(self, ending: str, *, power_was_lost: bool) -> bool:
        """Run one life. Returns whether the power was lost."""
        loop = VirtualTimeLoop(self.random(f"ties {self._now}"), self._now)
        broker_run = BrokerRun(self, loop, ending)
        asyncio.set_event_loop(None)
        try:
            loop.run_until_complete(broker_run.run(power_was_lost=power_was_lost))
        except Deadlock as deadlock:
            if not broker_run.power_is_lost:  # jobs on a disk without power may never complete
                raise broker_run.failure or deadlock from deadlock
        finally:
            self._now = loop.time()
            self.events += loop.events
            loop.close()
        if broker_run.power_is_lost:
            self.disk.lose_power()
        return broker_run.power_is_lost

    def set_now(self, seconds: float) -> None:
        self._now = seconds

    def image(self) -> ClusterImage:
        topics = {}
        for number, name in enumerate(self.histories):
            state = PartitionState((NODE,), NODE, 1, (NODE,), 0, index=0, revision=1)
            topic_id = TopicId(bytes([number + 1]) * 16)
            overrides = self.choices.overrides(number)
            topics[name] = Topic(name, topic_id, False, WALL_BEGINS_MS, overrides, (state,), 1)
        return ClusterImage(
            cluster_id="simulated",
            revision=1,
            topics=topics,
            topics_by_id={topic.id: topic for topic in topics.values()},
            partition_count=len(topics),
        )

    def config(self) -> BrokerConfig:
        base, choices = BrokerConfig.of(), self.choices
        return base._replace(
            log=base.log._replace(retention_check_ms=1_500),
            cleaner=base.cleaner._replace(backoff_ms=300),
            topic_defaults=base.topic_defaults._replace(
                flush_policy=choices.policy,
                flush_ms=1_000,
                flush_messages=20,
                segment_bytes=choices.segment_bytes_in(self._life),
                max_message_bytes=choices.segment_bytes,
                index_interval_bytes=choices.index_interval_bytes,
                retention_ms=choices.retention_ms,
                retention_bytes=choices.retention_bytes,
            ),
        )


class BrokerRun:
    """One broker process, from its recovery to its end."""

    def __init__(self, world: LogSimulation, loop: VirtualTimeLoop, ending: str) -> None:
        self.world = world
        self.clock = SimClock(loop)
        self.power_is_lost = False
        self.storage: Storage
        self._loop = loop
        self._ending = ending
        self._random = world.random(f"life {loop.time()}")
        self._mount = world.disk.mount()
        self._ended: asyncio.Future[None] = loop.create_future()
        self.failure: BaseException | None = None
        self._tasks = Tasks(lambda _, failure: self._record_failure(failure))
        self._partitions: dict[str, Partition] = {}
        loop.set_exception_handler(self._failed_in_callback)
        loop.after_each = self._after_each

    def partition(self, topic: str) -> Partition:
        return self._partitions[topic]

    async def run(self, *, power_was_lost: bool) -> None:
        disk = self.world.disk
        disk.room_bytes, disk.sync_fails, disk.descriptors = UNLIMITED_BYTES, False, None
        disk.cold_reads = self.world.choices.cold_reads
        disk.on_power_lost = self._lose_power
        disk.on_create = lambda path: None
        disk.power_fails_at = None  # the last life may have ended before that call
        if self._ending == "call":
            disk.power_fails_at = disk.calls + self._random.choice((20, 100, 500, 3_000))
        try:
            await self._open(power_was_lost=power_was_lost)
            self._start()
            await (self._run_without_faults() if self._ending == "peace" else self._ended)
            if self._ending in ("stop", "peace"):
                await self._tasks.stop()
                await self.storage.close()
        except PowerLost:
            self.world.trace("the power was lost")
        except (StorageFull, StorageFailed) as failure:
            self.world.trace(f"the process gives up: {failure}")
        self._mount.is_dead = True
        await self._tasks.stop()
        if self.failure is not None:
            raise self.failure

    async def _open(self, *, power_was_lost: bool) -> None:
        world = self.world
        directory = open_directory(self._mount, DATA_PATH, NODE, world)
        workers = (SimWorker(self._loop, self._delay), SimWorker(self._loop, self._delay))
        self.storage = Storage(directory, world.config, workers, self.clock, NullLog())
        self.storage.open(world.image())
        self._compaction = self._make_compaction(directory, workers[1])
        opened = {topic: self.storage.partitions.find(topic, 0) for topic in world.histories}
        self._partitions = {topic: found for topic, found in opened.items() if found is not None}
        for topic, history in world.histories.items():
            history.check_reopened(self._partitions[topic], power_was_lost=power_was_lost)
            world.trace(f"opened {self._partitions[topic]}")
        await self.storage.checkpoint_recovered()
        for topic, history in world.histories.items():
            settled = self._partitions[topic]
            history.require(
                settled.high_watermark == settled.log.log_end_offset, "recovery left a part unsafe"
            )

    def _make_compaction(self, directory: DataDirectory, worker: SimWorker) -> Compaction:
        random = self.world.random(f"cleaner {self._loop.time()}")
        cleaner = SimCleaner(self._mount, SimWorker(self._loop, self._delay), random, self)
        means = CompactionDependencies(directory, worker, self.clock, NullLog())
        return Compaction(self.storage, lambda: self.world.config().cleaner, cleaner, means)

    def before_swap(self) -> None:
        """Let many lives end during a swap, because chance alone seldom does.

        Some of them end after the swap was decided, when some names may still be the old ones. Clients use
        the disk while a swap waits for a worker, so those calls are counted from the decision on.
        """
        disk = self.world.disk
        if self._ending == "peace" or self._random.random() > 0.35:
            return
        if self._ending == "kill":
            self._loop.call_later(2 * self._delay(), self._end)
        elif self._ending != "stop" and self._random.random() < 0.5:
            disk.power_fails_at = disk.calls + self._random.randrange(1, CALLS_PER_SWAP_MAX)
        elif self._ending != "stop":
            disk.on_create = self._end_in_swap

    def _end_in_swap(self, path: str) -> None:
        if path.endswith(SWAP_SUFFIX):
            disk = self.world.disk
            disk.power_fails_at = disk.calls + self._random.randrange(1, DECIDED_CALLS_MAX)

    def after_swap(self) -> None:
        for topic, history in self.world.histories.items():
            if isinstance(history, CompactedHistory):
                history.observe()
                self.world.trace(f"cleaned {self._partitions[topic].log}")

    def _delay(self) -> float:
        return self._random.random() * self.world.choices.sync_seconds

    def _start(self) -> None:
        self._tasks.start(self.storage.run(), "storage")
        self._tasks.start(self.storage.run_checkpoints(), "checkpoints")
        self._tasks.start(self.storage.run_retention(), "retention")
        if self.world.choices.compacts:
            self._tasks.start(self._compaction.run(), "compaction")
        for producer in self.world.producers:
            producer.reconnect()
            if self._ending != "peace":
                self._tasks.start(self._repeat(0.05, _as_async(producer.step)), "client")
        for reader in self.world.readers:
            self._tasks.start(self._repeat(0.1, reader.step), "client")
            self._tasks.start(self._repeat(0.5, _as_async(reader.look_up)), "client")
        if self._ending == "peace":
            return
        for administrator in self.world.administrators:
            self._tasks.start(self._repeat(2.0, administrator.step), "client")
        self._tasks.start(self._inject_disk_faults(), "client")
        life_seconds = self.world.choices.life_seconds_mean * self._random.uniform(0.5, 1.5)
        self._loop.call_later(life_seconds, self._end)

    async def _repeat(self, seconds: float, step: Callable[["BrokerRun"], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(self._random.expovariate(1 / seconds))
            await step(self)

    async def _inject_disk_faults(self) -> None:
        """Inject disk faults: a failed sync; for a while few descriptors, or an almost full disk."""
        disk, choices = self.world.disk, self.world.choices
        while True:
            await asyncio.sleep(self._random.uniform(0, choices.life_seconds))
            if choices.sync_fails and self._random.random() < 0.7:
                disk.sync_fails = True
            if choices.runs_out_of_files:
                disk.descriptors = self._random.randrange(DESCRIPTORS_LEFT_MAX)
                await asyncio.sleep(self._random.uniform(0, choices.life_seconds))
                disk.descriptors = None
            if choices.fills_up:
                disk.room_bytes = self._random.randrange(2_000)
                await asyncio.sleep(self._random.uniform(0, choices.life_seconds))
                disk.room_bytes = UNLIMITED_BYTES

    async def _run_without_faults(self) -> None:
        """Run without faults: everything that is in flight must be acknowledged."""
        ends_at = self._loop.time() + FAULT_FREE_SECONDS_MAX
        while any(producer.in_flight for producer in self.world.producers):
            if self._loop.time() > ends_at:
                raise InvariantViolation("a producer waits for ever although nothing is wrong")
            await asyncio.sleep(0.05)
            for producer in self.world.producers:
                producer.step(self, may_begin=False)
        for topic, history in self.world.histories.items():
            history.validate(self._partitions[topic])

    # Endings

    def _end(self) -> None:
        if self._ending == "power":
            self._lose_power()
        elif not self._ended.done():
            self._ended.set_result(None)

    def _lose_power(self) -> None:
        self.power_is_lost = self._mount.is_dead = True
        if not self._ended.done():
            self._ended.set_result(None)

    # Failing

    def _after_each(self) -> None:
        self.world.set_now(self._loop.time())
        if self._mount.is_dead or self.failure is not None:
            return
        try:
            for topic, partition in self._partitions.items():
                self.world.histories[topic].check(partition)
        except InvariantViolation as violation:
            self._record_failure(violation)

    def _failed_in_callback(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        failure = context.get("exception")
        self._record_failure(
            failure if failure is not None else InvariantViolation(str(context.get("message")))
        )

    def _record_failure(self, failure: BaseException) -> None:
        """Record the first failure. Errors of a dying process do not count."""
        if self.failure is None and not isinstance(failure, PowerLost) and not self._mount.is_dead:
            self.failure = failure
        if not self._ended.done():
            self._ended.set_result(None)


def _as_async(step: Callable[["BrokerRun"], None]) -> Callable[["BrokerRun"], Awaitable[None]]:
    async def awaited(broker_run: "BrokerRun") -> None:
        step(broker_run)

    return awaited
