"""The composition root: builds every part, starts them in order, stops them in reverse.

The order of the lines is the order of starting. Nobody is served before everything that was found
on disk is checked and durable; everything that was acknowledged is durable before anything closes.
"""

import asyncio
import os
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from penstock.broker.cluster import Cluster
from penstock.broker.connection import Shared
from penstock.broker.quotas import NoQuotas, Quotas
from penstock.broker.router import Router
from penstock.broker.routes import Parts, add_routes
from penstock.broker.server import Server
from penstock.broker.storage import Storage
from penstock.config.broker import BrokerConfig
from penstock.config.listeners import Listener
from penstock.controller.topics import Decision, bump_leader_epochs, register_broker
from penstock.errors import ConfigError, CorruptData, StorageFailed, StorageFull
from penstock.host.clock import Clock, SystemClock
from penstock.host.disk import Disk
from penstock.host.folder_lock import FolderLock
from penstock.host.metadata_store import Conflict, MetadataStore
from penstock.host.os_disk import OsDisk
from penstock.host.randomness import Randomness, SystemRandomness
from penstock.host.tasks import Tasks
from penstock.host.tls import TlsListener
from penstock.host.worker import Worker, WorkerPool
from penstock.limits import (
    COLD_READ_THREADS,
    DISK_RESERVE_BYTES,
    DISK_RESERVE_CHECK_MS,
    RECEIVE_BUFFER_BYTES,
    REPLY_BYTES_TOTAL_MAX,
    SHUTDOWN_MS_MAX,
    TLS_RELOAD_CHECK_MS,
)
from penstock.log.data_directory import DataDirectory, open_directory, refuse_strangers
from penstock.metadata.image import ClusterImage, Endpoint, apply, image_of
from penstock.metadata.keys import Keys
from penstock.metadata.sqlite import SqliteStore
from penstock.observability.logs import Log, Silence
from penstock.security.access import AllowEverything, Authorizer


@dataclass(frozen=True, slots=True)
class World:
    """Everything a broker takes from outside."""

    clock: Clock = field(default_factory=SystemClock)
    disk: Disk = field(default_factory=OsDisk)
    randomness: Randomness = field(default_factory=SystemRandomness)
    log: Log = field(default_factory=Silence)
    authorizer: Authorizer = field(default_factory=AllowEverything)
    quotas: Quotas = field(default_factory=NoQuotas)


class RunningBroker:
    """A broker that serves, as those who started it see it."""

    def __init__(self, cluster: Cluster, storage: Storage, server: Server) -> None:
        self.cluster = cluster
        self.storage = storage
        self.server = server
        self.listeners: tuple[Listener, ...] = ()
        """With their real ports."""
        self.failure: str | None = None

    def not_ready(self) -> str | None:
        """Why clients cannot be served; None when they can."""
        return self.failure or self.storage.partitions.failure


@asynccontextmanager
async def running_broker(config: BrokerConfig, world: World) -> AsyncIterator[RunningBroker]:
    """A broker that serves within the block and has stopped cleanly after it."""
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        directory, store = _open_directory(config, world, stack)
        image = _opening_image(directory, store, was_clean=directory.take_clean_mark())
        workers = [Worker(name, loop) for name in ("flush", "storage", "metadata")]
        pool = WorkerPool("read", COLD_READ_THREADS, loop)
        stack.callback(pool.stop)
        for worker in workers:
            stack.callback(worker.stop)
        cluster = Cluster(store, workers[2], image, config, directory.release_reserve)
        storage = Storage(directory, lambda: cluster.config, (workers[0], workers[1]), world.clock, world.log)
        storage.open(image)
        await storage.settle()
        stack.push_async_callback(storage.close)
        cluster.subscribe(storage.follow)

        router = Router((), world.authorizer, world.quotas, lambda: cluster.image)
        tasks = Tasks(_report_failure(world.log))
        network = config.network
        shared = Shared(
            router,
            tasks,
            bytearray(RECEIVE_BUFFER_BYTES),
            network.request_bytes_max,
            network.request_bytes_in_flight_max,
            _report_failure(world.log),
        )
        server = Server(shared, network, world.authorizer, world.log)
        broker = RunningBroker(cluster, storage, server)
        stack.callback(loop.set_exception_handler, loop.get_exception_handler())
        loop.set_exception_handler(_notice_bug(broker, world.log))
        parts = Parts(
            cluster=cluster,
            storage=storage,
            directory=directory,
            pool=pool,
            tasks=tasks,
            clock=world.clock,
            randomness=world.randomness,
            data_path=_absolute(directory.logs_path),
            reply_room=lambda: REPLY_BYTES_TOTAL_MAX - shared.reply_bytes_queued,
        )
        add_routes(router, parts)
        stack.push_async_callback(tasks.stop)
        writer = Tasks(_stop_on_failure(broker, world.log))
        stack.push_async_callback(writer.stop)

        tls = {name: TlsListener(name, setting) for name, setting in config.tls.items()}
        stack.push_async_callback(_stop_serving, server, storage, world.log)
        broker.listeners = await _listen(config, server, tls)
        await _register(cluster, config, broker.listeners, writer)
        background = Tasks(_stop_on_failure(broker, world.log))
        stack.push_async_callback(background.stop)
        background.start(storage.run(), "storage")
        background.start(storage.run_checkpoints(), "checkpoints")
        background.start(storage.run_retention(), "retention")
        background.start(_keep_reserve(directory, workers[1], world.log), "reserve")
        background.start(server.sweep(), "connections")
        if tls:
            background.start(_reload_certificates(tls, world.log), "certificates")
        await server.serve()
        yield broker


def _absolute(path: str) -> str:
    return os.path.abspath(path)


def _open_directory(
    config: BrokerConfig, world: World, stack: AsyncExitStack
) -> tuple[DataDirectory, MetadataStore]:
    path = config.node.data_dir
    refuse_strangers(world.disk, path)
    world.disk.make_folder(path)
    stack.callback(FolderLock(path).release)
    directory = open_directory(world.disk, path, config.node.node_id, world.randomness)
    if world.disk.space(path).usable_bytes < DISK_RESERVE_BYTES:
        directory.release_reserve()
    if not world.disk.exists(directory.metadata_path) and directory.partitions_on_disk():
        raise CorruptData(
            f"{directory.metadata_path} is missing although {directory.logs_path} holds records: "
            "restore it from a backup, or move the logs away to begin anew"
        )
    # SQLite would let everybody read it who the process lets read its files, not as the logs are.
    world.disk.open(directory.metadata_path, create=True).release()
    store = SqliteStore(directory.metadata_path)
    stack.callback(store.close)
    return directory, store


def _opening_image(directory: DataDirectory, store: MetadataStore, *, was_clean: bool) -> ClusterImage:
    """The cluster as it was left. After an unclean stop every partition begins a new epoch.

    Records that were shown and then lost (flush policy os) must be detectable by those who saw them.
    """
    cluster_id = directory.identity.cluster_id
    image = image_of(store.read(Keys(cluster_id).prefix), cluster_id)
    return image if was_clean else _commit(store, image, bump_leader_epochs(image))


def _commit(store: MetadataStore, image: ClusterImage, decision: Decision) -> ClusterImage:
    """For decisions at start, when nobody else can be deciding."""
    if not decision.changes:
        return image
    outcome = store.transact(decision.compares, decision.changes)
    if isinstance(outcome, Conflict):
        raise CorruptData("the metadata changed while only this broker had it open")
    return apply(image, decision.changes, outcome.revision)


async def _listen(config: BrokerConfig, server: Server, tls: dict[str, TlsListener]) -> tuple[Listener, ...]:
    bound = []
    for listener in config.listeners:
        context = tls[listener.name].context if listener.name in tls else None
        bound.append(await server.bind(listener, context))
    return tuple(bound)


async def _register(
    cluster: Cluster, config: BrokerConfig, listeners: tuple[Listener, ...], tasks: Tasks
) -> None:
    """Say where this broker listens, if that is not known already."""
    tasks.start(cluster.run(), "metadata")
    node = config.node
    endpoints = {
        listener.name: Endpoint(listener.advertised_host, listener.advertised_port) for listener in listeners
    }
    known = cluster.image.brokers.get(node.node_id)
    if known is None or known.rack != node.rack or dict(known.endpoints) != endpoints:
        await cluster.change(
            lambda image: register_broker(image, node.node_id, rack=node.rack, endpoints=endpoints)
        )


async def _stop_serving(server: Server, storage: Storage, log: Log) -> None:
    """Take no more requests, make what was accepted durable, answer it, and say goodbye."""
    server.stop_listening()
    ends_at = asyncio.get_running_loop().time() + SHUTDOWN_MS_MAX / 1000
    await _finish_inspections(storage, ends_at - SHUTDOWN_MS_MAX / 2000, log)
    targets = [
        (partition, partition.log.log_end_offset)
        for partition in storage.partitions
        if len(partition.produce_waits)
    ]
    try:
        if targets and storage.partitions.failure is None:
            async with asyncio.timeout_at(ends_at):
                await storage.flusher.flush_to(targets)
    except (TimeoutError, StorageFailed) as problem:
        log.error("broker.not_flushed", reason=str(problem) or "the disk did not answer in time")
    await server.stop()


async def _finish_inspections(storage: Storage, ends_at: float, log: Log) -> None:
    """Store what waits to be looked into, or say that there was no time for it."""
    try:
        async with asyncio.timeout_at(ends_at):
            await storage.inspections.drain()
    except TimeoutError:
        log.error("broker.batches_dropped", count=len(storage.inspections))


async def _keep_reserve(directory: DataDirectory, worker: Worker, log: Log) -> None:
    while True:
        await asyncio.sleep(DISK_RESERVE_CHECK_MS / 1000)
        try:
            await worker.run(directory.keep_reserve)
        except (StorageFull, StorageFailed) as problem:
            log.warning("storage.no_reserve", reason=str(problem))


async def _reload_certificates(tls: dict[str, TlsListener], log: Log) -> None:
    while True:
        await asyncio.sleep(TLS_RELOAD_CHECK_MS / 1000)
        for name, listener in tls.items():
            try:
                if listener.reload_if_changed():
                    log.info("tls.reloaded", listener=name)
            except ConfigError as problem:
                log.error("tls.not_reloaded", listener=name, reason=str(problem))


def _report_failure(log: Log) -> Callable[[str, BaseException], None]:
    """A request that failed is one client's trouble; it is said once, loudly."""

    def report(name: str, failure: BaseException) -> None:
        log.error("task.failed", task=name, reason=repr(failure), traceback=_traceback(failure))

    return report


def _stop_on_failure(broker: RunningBroker, log: Log) -> Callable[[str, BaseException], None]:
    """Without one of these tasks the broker would only seem to work."""

    def failed(name: str, failure: BaseException) -> None:
        log.error("task.failed", task=name, reason=repr(failure), traceback=_traceback(failure))
        broker.failure = f"the task {name!r} ended: {failure!r}"

    return failed


def _notice_bug(
    broker: RunningBroker, log: Log
) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """A callback that raised may have left something half done: the broker is no longer ready."""

    def notice(_: asyncio.AbstractEventLoop, details: dict[str, Any]) -> None:
        failure = details.get("exception")
        message = str(details.get("message"))
        if isinstance(failure, OSError):  # a peer's connection, not our state
            log.warning("connection.broken", reason=f"{message}: {failure}")
            return
        where = _traceback(failure) if failure is not None else ""
        log.error("callback.failed", reason=message, traceback=where)
        broker.failure = f"an internal error: {message} {failure!r}"

    return notice


def _traceback(failure: BaseException) -> str:
    return "".join(traceback.format_exception(failure))
