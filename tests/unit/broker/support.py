"""A cluster's metadata, really stored, and a way to ask a handler as the router would.

Three brokers by default, each reached at two listeners. No partition exists on any disk: for
handlers that read or write records see `config_support`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from inspect import isawaitable
from typing import Any, TypeVar

from penstock.broker.cluster.metadata_service import (
    METADATA_SERVICE_LIMITS,
    MetadataService,
    MetadataServiceLimits,
)
from penstock.broker.cluster.topic_creation import RequestedTopic, TopicCreation
from penstock.broker.context import RequestContext
from penstock.broker.routes import ServingHandler
from penstock.config.broker import BrokerConfig
from penstock.config.layers import GivenSettings
from penstock.controller.broker_lifecycle import register_standalone
from penstock.controller.topics import TopicRequest
from penstock.errors import StorageFull
from penstock.host.metadata_store import (
    CommittedTransaction,
    Compare,
    Conflict,
    Event,
    StoreChange,
    StoreUnavailable,
)
from penstock.host.worker import Worker
from penstock.metadata.cluster_image import ClusterImage, Topic
from penstock.metadata.documents import Endpoint
from penstock.metadata.embedded_store import EmbeddedStore
from penstock.metadata.sqlite_store import MEMORY, SqliteStore
from penstock.protocol.frames import encode_response
from penstock.protocol.schema import Api, Struct
from penstock.security.access import ANONYMOUS, AllowEverything, Authorizer, Operation, Principal, Resource

NOW_MS = 1_700_000_000_000
LISTENER = "PLAINTEXT"
OTHER_LISTENER = "TLS"
ALL_TOPIC_OPERATIONS, ALL_CLUSTER_OPERATIONS = 3576, 8096
"""Kafka's own bit sets for somebody who may do everything."""

Response = TypeVar("Response", bound=Struct)


class CallbackAuthorizer:
    """Allows what `allows` says, and nothing else."""

    allows_everything = False

    def __init__(self, allows: Callable[[Operation, Resource], bool]) -> None:
        self._allows = allows

    def authorise(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        return self._allows(operation, resource)


ALLOW_EVERYTHING = AllowEverything()
DENY_EVERYTHING = CallbackAuthorizer(lambda operation, resource: False)


def denying(*names: str) -> CallbackAuthorizer:
    return CallbackAuthorizer(lambda operation, resource: resource.name not in names)


class FixedClock:
    def wall_ms(self) -> int:
        return NOW_MS

    def monotonic(self) -> float:
        return 0.0


class CountingRandomness:
    """Sixteen bytes that count up: as different as random ones, and foreseeable."""

    def __init__(self, first: int = 0) -> None:
        self._next = first

    def bytes(self, count: int) -> bytes:
        self._next += 1
        return (self._next - 1).to_bytes(count, "big")


class FaultyStore(EmbeddedStore):
    """A store in memory that counts its commits, and can be full or be changed by another."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(SqliteStore(MEMORY), worker)
        self.is_full = False
        self.is_away = False
        """Whether the watch breaks at its next event."""
        self.commits = 0
        self.before_commit: Sequence[StoreChange] = ()
        """Somebody else does this just before the next transaction."""

    async def transact(
        self, compares: Sequence[Compare], changes: Sequence[StoreChange]
    ) -> CommittedTransaction | Conflict:
        if self.is_full:
            raise StorageFull("no space left")
        if self.before_commit:
            before_commit, self.before_commit = self.before_commit, ()
            await super().transact((), before_commit)
        self.commits += 1
        return await super().transact(tuple(compares), tuple(changes))

    async def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[Event, None]:
        async with aclosing(super().watch(prefix, after_revision)) as events:
            async for event in events:
                if self.is_away:
                    raise StoreUnavailable("nobody answers")
                yield event


class HandlerHarness:
    def __init__(self, cluster: MetadataService, store: FaultyStore) -> None:
        self.cluster = cluster
        self.store = store
        self.randomness = CountingRandomness()
        self.creation = TopicCreation(cluster, FixedClock(), self.randomness)

    async def topic(self, name: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> Topic:
        request = TopicRequest(name=name, partitions=partitions)
        (topic,) = await self.creation.create([RequestedTopic(request, dict(settings or {}))])
        assert isinstance(topic, Topic), topic
        return topic

    def answer(
        self,
        api: Api[Struct, Struct],
        handler: ServingHandler,
        request: Struct,
        version: int,
        *,
        authorizer: Authorizer = ALLOW_EVERYTHING,
        listener: str = LISTENER,
    ) -> Any:
        """What the handler returns: a reply, or a coroutine for one."""
        denied = handler.api.denied_names(request, self.cluster.image, ANONYMOUS, authorizer)
        connection = RequestContext(ANONYMOUS, listener, "127.0.0.1", authorizer)
        return handler(request, connection.for_request(version, "tests", denied))

    async def ask(
        self,
        api: Api[Struct, Response],
        handler: ServingHandler,
        request: Struct,
        version: int | None = None,
        *,
        authorizer: Authorizer = ALLOW_EVERYTHING,
        listener: str = LISTENER,
    ) -> Response:
        """The reply, which must also be one that this version can carry."""
        version = api.versions[1] if version is None else version
        reply = self.answer(api, handler, request, version, authorizer=authorizer, listener=listener)
        if isawaitable(reply):
            reply = await reply
        assert isinstance(reply, api.response)
        assert encode_response(api, version, 1, reply)
        return reply


@asynccontextmanager
async def running_cluster(
    static: Mapping[str, str] | None = None,
    broker_ids: Iterable[int] = (1, 2, 3),
    limits: MetadataServiceLimits = METADATA_SERVICE_LIMITS,
) -> AsyncIterator[HandlerHarness]:
    worker = Worker("metadata", asyncio.get_running_loop())
    store = FaultyStore(worker)
    config = BrokerConfig.of(GivenSettings(static or {}), insecure=True)
    cluster = MetadataService(store, ClusterImage(cluster_id="c"), config, limits=limits)
    task = asyncio.create_task(cluster.run())
    for broker_id in broker_ids:
        await add_broker(cluster, broker_id)
    store.commits = 0
    try:
        yield HandlerHarness(cluster, store)
    finally:
        task.cancel()
        await asyncio.wait([task])
        await store.close()
        worker.stop()


async def add_broker(cluster: MetadataService, broker_id: int) -> None:
    endpoints = {
        LISTENER: Endpoint(f"plain{broker_id}", 9000 + broker_id),
        OTHER_LISTENER: Endpoint(f"tls{broker_id}", 9100 + broker_id),
    }
    rack = f"rack{broker_id}"
    await cluster.change(lambda image: register_standalone(image, broker_id, rack=rack, endpoints=endpoints))
