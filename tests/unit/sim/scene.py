"""A simulated cluster without chance faults in which a test does something of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from penstock.broker.broker import RunningBroker
from penstock.broker.cluster.cluster_member import ClusterMember
from penstock.metadata.cluster_image import ClusterImage
from penstock.sim.cluster.clients.administrator import Administrator
from penstock.sim.cluster.clients.client import KafkaClient
from penstock.sim.cluster.clients.partition_reader import PartitionReader
from penstock.sim.cluster.cluster import START_SECONDS_MAX, SimCluster
from penstock.sim.cluster.extras import Extras
from penstock.sim.cluster.node import BUG_EVENTS
from penstock.sim.cluster.plan import draw_plan

TOPIC = "topic-1"


class Scene(SimCluster):
    """Three brokers, and one producer that writes to one partition all the time."""

    def __init__(self, scene: Callable[["Scene"], Awaitable[None]], *, extras: Extras | None = None) -> None:
        """`extras`: those of the plan, if they are not to be those that its seed draws."""
        calm = draw_plan(1, brokers=3)._replace(
            topics=1,
            partitions=1,
            idempotent=1,
            careless=0,
            readers=0,
            members=0,
            repeats=0.0,
            cold_reads=0.0,
            lag_ms=10_000,
            store_seconds=0.003,
            changes_topics=False,
            changes_minimum=False,
            changes_leaders=False,
            faults=(),
        )
        super().__init__(calm if extras is None else calm._replace(extras=extras))
        self._scene = scene
        self.breaks_brokers = False
        """The test makes parts of brokers fail: that a broker says so is no mistake."""

    def violate(self, message: str, cause: BaseException | None = None) -> None:
        if not (self.breaks_brokers and any(said in message for said in BUG_EVENTS)):
            super().violate(message, cause)

    async def run_phases(self) -> None:
        for node in self.nodes.values():
            node.start()
        await self.until(lambda image: image.admitted == set(self.nodes), START_SECONDS_MAX)
        administrator = Administrator(self)
        await administrator.retry(partial(administrator.create_topic, TOPIC, 1))
        self._start_clients()
        await self.write()
        await self._scene(self)
        self._ended.set_result(None)

    async def until(self, holds: Callable[[ClusterImage], bool], seconds: float = 30.0) -> None:
        await self._wait_until(lambda: holds(self.truth.image), seconds, "what the scene waits for")

    async def write(self) -> None:
        """Until something more is acknowledged."""
        (producer,) = self.producers
        before = producer.acknowledged
        await self._wait_until(lambda: producer.acknowledged > before, 30, "a batch is acknowledged")

    async def read_everything(self) -> None:
        """Whatever is committed now."""
        topic = self.truth.image.topics[TOPIC]
        async with asyncio.timeout(30):
            await PartitionReader(KafkaClient(self, "reads"), TOPIC, 0).until(
                self.ledger(topic.id, TOPIC, 0).end
            )

    def broker(self, node_id: int) -> RunningBroker:
        running = self.nodes[node_id].running
        assert running is not None
        return running

    def cluster_member(self, node_id: int) -> ClusterMember:
        cluster_member = self.broker(node_id).cluster_member
        assert cluster_member is not None
        return cluster_member
