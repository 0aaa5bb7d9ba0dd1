"""Brokers' views of one simulated metadata store, and changes for them to make."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import NamedTuple

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.config.broker import BrokerConfig
from penstock.controller.decision import Decision
from penstock.controller.producer_ids import next_producer_id_block
from penstock.controller.topics import NewTopicFacts, TopicDefaults, TopicRequest, create_topic
from penstock.host.metadata_store import Compare, Put
from penstock.metadata.cluster_image import ClusterImage
from penstock.metadata.documents import (
    BrokerSessionValue,
    BrokerValue,
    ControllerValue,
    OverridesValue,
    encode_document,
)
from penstock.metadata.image_builder import image_of
from penstock.metadata.keys import ClusterKeys
from penstock.sim.scheduler import VirtualTimeLoop
from penstock.sim.store import SimStore, SimStoreClient, StoreFaults
from penstock.types import TopicId

KEYS = ClusterKeys("c")


class Node(NamedTuple):
    cluster: MetadataService
    client: SimStoreClient
    running: "asyncio.Task[None]"


Scene = Callable[[SimStore], Awaitable[None]]


def play(scene: Scene, faults: StoreFaults | None = None, seed: int = 1) -> None:
    loop = VirtualTimeLoop(Random(seed))
    store = SimStore(loop, Random(seed), faults or StoreFaults(delay_seconds=(0.001, 0.01)))

    async def run() -> None:
        await scene(store)

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()


@asynccontextmanager
async def nodes(store: SimStore, count: int) -> AsyncIterator[list[Node]]:
    started = []
    for _ in range(count):
        client = store.client()
        cluster = MetadataService(client, image_of(store.read(KEYS.prefix), "c"), BrokerConfig.of())
        started.append(Node(cluster, client, asyncio.ensure_future(cluster.run())))
    try:
        yield started
    finally:
        for node in started:
            node.running.cancel()
        await asyncio.wait([node.running for node in started])


def more_ids(image: ClusterImage) -> Decision:
    return next_producer_id_block(image).decision


def group(image: ClusterImage, name: str, text: str = "1") -> Decision:
    key = KEYS.group_config(name)
    put = Put(key, encode_document(OverridesValue({"consumer.session.timeout.ms": text})))
    return Decision((Compare(key, image.overrides_of_group(name).revision),), (put,))


def new_topic(image: ClusterImage, name: str, topic_id: TopicId) -> Decision:
    request, new = TopicRequest(name=name, partitions=1), NewTopicFacts(topic_id, 0)
    return create_topic(image, request, new, defaults=TopicDefaults(1, 1))


# A cluster, where it matters that there is one


def somebody_controls(store: SimStore) -> None:
    store.transact([], [Put(KEYS.controller, encode_document(ControllerValue(1)))])


def admit(store: SimStore, broker_id: int) -> None:
    store.transact([], [Put(KEYS.live(broker_id), encode_document(BrokerSessionValue("one", "disk")))])
    admitted = BrokerValue(None, {}, incarnation="one", admitted_epoch=store.revision)
    store.transact([], [Put(KEYS.broker(broker_id), encode_document(admitted))])
