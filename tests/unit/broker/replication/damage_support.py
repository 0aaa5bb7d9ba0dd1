"""A broker of a cluster with damaged copies, over a simulated store and disk. On virtual time."""

from collections.abc import Awaitable, Callable
from random import Random

from penstock.broker.replication.damaged_replicas import DamagedReplicas
from penstock.broker.storage.flusher import Flusher
from penstock.broker.storage.partition_storage import Storage
from penstock.controller.topics import (
    NewTopicFacts,
    ReplicaAssignment,
    TopicDefaults,
    TopicRequest,
    create_topic,
)
from penstock.errors import CorruptData
from penstock.host.file_sync import ThreadSync
from penstock.host.syscalls.short_timer import LoopTimer
from penstock.host.tasks import Tasks
from penstock.log.data_directory import DataDirectory
from penstock.metadata.cluster_image import PartitionState
from penstock.observability.logs import NullLog
from penstock.replication.fetch_session_handler import Replica
from penstock.replication.partition import Partition
from penstock.sim.disk import Mount
from penstock.sim.scheduler import VirtualTimeLoop
from penstock.sim.store import SimStore, StoreFaults
from penstock.sim.worker import SimWorker
from penstock.types import TopicId, TopicPartition
from tests.unit.broker.cluster.test_membership import Node, nodes
from tests.unit.broker.replication.test_isr_updates import CONFIG, LoopClock
from tests.unit.log.log_support import NOW_MS, append, new_disk
from tests.unit.replication.replica_support import sync
from tests.unit.replication.test_replica_manager import directory_on

ORDERS = TopicPartition("orders", 0)
TOPIC_ID = TopicId(b"orders----------")
NOTE = "data/logs/orders-0/damaged"
SECONDS_OF_CONFLICTS = 600
"""Virtual ones: a change is decided a hundred times before it is given up, first with others, then alone."""
DAMAGE = CorruptData("the checksum of the batch at offset 0 does not match")


class Events(NullLog):
    def __init__(self) -> None:
        self.said: list[str] = []
        self.fields: list[dict[str, object]] = []

    def info(self, event: str, **fields: object) -> None:
        self.said.append(event)
        self.fields.append(fields)

    def told(self, event: str) -> list[dict[str, object]]:
        """What was said beside this event, each time."""
        return [fields for said, fields in zip(self.said, self.fields, strict=True) if said == event]

    warning = error = info


class Damaged:
    """Broker 1, which has a replica of each partition that there is; brokers 2 and 3 have one too."""

    def __init__(self, loop: VirtualTimeLoop, one: Node, disk: Mount | None = None) -> None:
        self.node = one
        self._loop = loop
        self.disk: Mount = disk or new_disk()
        self.directory: DataDirectory = directory_on(self.disk)
        self.log = Events()
        self.job_seconds = 0.01
        """Time of a job of the thread that writes small files and moves folders."""
        log_sync = ThreadSync(self.directory.disk, SimWorker(loop, lambda: 0.01))
        worker = SimWorker(loop, lambda: self.job_seconds)
        self.storage = Storage(
            self.directory,
            lambda: CONFIG,
            Flusher(log_sync, LoopTimer(loop), LoopClock()),
            worker,
            LoopClock(),
            self.log,
            lambda name, _: SimWorker(loop, lambda: 0.01),
        )
        self.storage.partitions.may_lead = one.admission.may_lead
        self.storage.partitions.is_in_cluster = True
        self.storage.open(one.cluster.image)
        one.cluster.subscribe(self.storage.follow)
        self.looked_at: list[Replica] = []
        self.is_replaced = False
        """Another process was admitted under the same id."""
        self.damaged = DamagedReplicas(
            one.cluster,
            self.storage,
            lambda: one.membership.epoch - self.is_replaced,
            self.looked_at.append,
            self.log,
        )
        self.failures: list[BaseException] = []
        self.tasks = Tasks(lambda name, failure: self.failures.append(failure))
        self.damaged.open()
        self.tasks.start(self.damaged.run(), "damaged replicas")
        self.tasks.start(self.damaged.replace(), "replacements of damaged replicas")

    async def create(self, *replicas: int) -> None:
        """Two partitions, led by the first and the second of these. The first partition is written to."""
        others_first = (*replicas[1:], *replicas[:1])
        assignments = [ReplicaAssignment(0, replicas), ReplicaAssignment(1, others_first)]
        request = TopicRequest(name="orders", assignments=assignments)
        await self.node.cluster.change(
            lambda image: create_topic(
                image, request, NewTopicFacts(TOPIC_ID, NOW_MS), defaults=TopicDefaults(1, 1)
            )
        )
        append(self.partition.log, [b"x"], epoch=0)
        sync(self.partition)

    async def restarted(self) -> "Damaged":
        """What a process finds on this disk. Its session is that of the one before it, for brevity."""
        await self.tasks.stop()
        return Damaged(self._loop, self.node, self.disk)

    @property
    def partition(self) -> Partition:
        found = self.storage.partitions.find("orders", 0)
        assert found is not None
        return found

    def folder_bytes(self, index: int) -> int:
        folder = f"data/logs/orders-{index}"
        return sum(self.disk.size_of(f"{folder}/{name}") for name in self.disk.list_folder(folder))

    @property
    def state(self) -> PartitionState:
        state = self.node.cluster.image.partition("orders", 0)
        assert state is not None
        return state

    def require_copied_anew(self, *, has_fetched: bool = True) -> None:
        """`has_fetched`: this process did, before it found the damage."""
        partition = self.partition
        assert not partition.is_damaged
        assert (partition.offline_error, partition.log.log_end_offset) == (None, 0)
        assert partition.following is not None
        assert partition.leader_epoch == self.state.leader_epoch
        assert self.disk.list_folder("data/strays") == ["orders-0.damaged"]
        assert not self.disk.exists("data/logs/orders-0")
        expected = [Replica(TOPIC_ID, 0)] * (1 + has_fetched)
        assert self.looked_at == expected, "fetched no more, and again"


Scene = Callable[[SimStore, Damaged, list[Node]], Awaitable[None]]


def play(scene: Scene, *, replicas: tuple[int, ...] = (1, 2, 3)) -> None:
    loop = VirtualTimeLoop(Random(1))
    store = SimStore(loop, Random(1), StoreFaults(delay_seconds=(0.001, 0.01)))

    async def run() -> None:
        async with nodes(store, 1, 2, 3) as (one, two, three):
            broker = Damaged(loop, one)
            await broker.create(*replicas)
            await scene(store, broker, [two, three])
            await broker.tasks.stop()
            assert not broker.failures

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
