"""A broker's inside without its network: real metadata, real logs, and a way to ask a handler.

Records count as soon as they are appended (log.flush.policy os), unless a test says otherwise.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from inspect import isawaitable
from pathlib import Path
from typing import Any, NamedTuple

from penstock.broker.cluster.metadata_service import (
    METADATA_SERVICE_LIMITS,
    MetadataService,
    MetadataServiceLimits,
)
from penstock.broker.context import RequestContext
from penstock.broker.router import DeferredReply
from penstock.broker.routes import ServingHandler
from penstock.config.broker import BrokerConfig
from penstock.config.layers import GivenSettings
from penstock.controller.broker_lifecycle import bump_leader_epochs, register_standalone
from penstock.controller.topics import NewTopicFacts, TopicDefaults, TopicRequest, create_topic
from penstock.host.os_disk import OsDisk
from penstock.host.randomness import SystemRandomness
from penstock.host.worker import Worker, WorkerPool
from penstock.log.data_directory import DataDirectory, open_directory
from penstock.metadata.cluster_image import ClusterImage
from penstock.metadata.embedded_store import EmbeddedStore
from penstock.metadata.sqlite_store import MEMORY, SqliteStore
from penstock.protocol.frames import encode_response
from penstock.protocol.records import BatchOptions, Record, build_batch
from penstock.protocol.schema import Api, Struct
from penstock.replication.partition import Partition
from penstock.replication.replica_manager import ReplicaManager
from penstock.security.access import ANONYMOUS, AllowEverything, Authorizer, Operation, Principal, Resource
from penstock.types import NodeId, Offset, TopicId

NODE_ID = 1
NOW_MS = 1_700_000_000_000
AT_ONCE = {"log.flush.policy": "os"}

allow_everything = AllowEverything()


class DenyEverything:
    allows_everything = False

    def authorise(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        return False


deny_everything = DenyEverything()


class BrokerHarness(NamedTuple):
    cluster: MetadataService
    partitions: ReplicaManager
    pool: WorkerPool
    directory: DataDirectory

    async def topic(
        self,
        name: str,
        partitions: int = 1,
        overrides: Mapping[str, str] | None = None,
        *,
        internal: bool = False,
    ) -> list[Partition]:
        request = TopicRequest(name=name, partitions=partitions, overrides=overrides or {}, internal=internal)
        new = NewTopicFacts(TopicId(name.encode().ljust(16, b"*")[:16]), NOW_MS)
        await self.cluster.change(
            lambda image: create_topic(image, request, new, defaults=TopicDefaults(1, 1))
        )
        return self.partitions.of_topic(name)

    async def ask(
        self,
        api: Api[Struct, Struct],
        handler: ServingHandler,
        request: Struct,
        *,
        version: int | None = None,
        authorizer: Authorizer = allow_everything,
    ) -> Any:
        """The handler's reply, which must also be one that can be sent."""
        version = api.versions[1] if version is None else version
        denied = handler.api.denied_names(request, self.cluster.image, ANONYMOUS, authorizer)
        connection = RequestContext(ANONYMOUS, "PLAINTEXT", "127.0.0.1", authorizer)
        reply = handler(request, connection.for_request(version, "tests", denied))
        if isawaitable(reply):
            reply = await reply
        elif isinstance(reply, DeferredReply):
            finished: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            reply.then(finished.set_result)
            reply = await finished
        assert encode_response(api, version, 1, reply)
        return reply

    async def begin_new_epoch(self, partition: Partition) -> Partition:
        """What a start after a crash does. Returns who leads from now on."""
        await self.cluster.change(bump_leader_epochs)
        found = self.partitions.find(*partition.name)
        assert found is not None
        return found


@asynccontextmanager
async def running(
    folder: Path,
    static: Mapping[str, str] | None = None,
    limits: MetadataServiceLimits = METADATA_SERVICE_LIMITS,
) -> AsyncIterator[BrokerHarness]:
    loop = asyncio.get_running_loop()
    worker, pool = Worker("metadata", loop), WorkerPool("reads", 1, loop)
    store = EmbeddedStore(SqliteStore(MEMORY), worker)
    directory = open_directory(OsDisk(), str(folder / "data"), NodeId(NODE_ID), SystemRandomness())
    config = BrokerConfig.of(GivenSettings(AT_ONCE if static is None else static), insecure=True)
    cluster = MetadataService(store, ClusterImage(cluster_id="c"), config, limits=limits)
    partitions = ReplicaManager(directory, config, lambda _: None)

    async def follow(before: ClusterImage, after: ClusterImage) -> None:
        partitions.follow(before, after, cluster.config)

    cluster.subscribe(follow)
    task = asyncio.create_task(cluster.run())
    await cluster.change(lambda image: register_standalone(image, NODE_ID, rack=None, endpoints={}))
    try:
        yield BrokerHarness(cluster, partitions, pool, directory)
    finally:
        task.cancel()
        await asyncio.wait([task])
        await store.close()
        pool.stop()
        worker.stop()
        for partition in partitions:
            for segment in partition.log.segments:
                segment.abandon_file()


def append(partition: Partition, *times_ms: int, **options: Any) -> Offset:
    """One batch with a record for each time; returns its first offset."""
    given: BatchOptions = options  # type: ignore[assignment]
    records = [Record(Offset(index), time, b"k", b"v") for index, time in enumerate(times_ms)]
    batch = build_batch(records, **given)
    return partition.append_now(memoryview(bytearray(batch)), NOW_MS).base_offset
