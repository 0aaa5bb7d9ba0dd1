"""The composition root: builds every part, starts them in order, stops them in reverse.

The order of the lines is the order of starting. Nobody is served before everything that was found
on disk is checked and durable; everything that was acknowledged is durable before anything closes.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock.broker.cluster.cluster_member import Place, SharedStore, opening_image, way_between_brokers
from penstock.broker.cluster.membership import agree_on_cluster
from penstock.broker.cluster.metadata_service import Cluster
from penstock.broker.cluster.peer_requests import PeerQuestions
from penstock.broker.cluster.topic_creation import TopicCreation
from penstock.broker.data.fetch_reader import NO_FOLLOWERS
from penstock.broker.data.pending_produce import PRODUCE_LIMITS, ProduceLimits
from penstock.broker.data.timestamp_lookup import TimeLookups
from penstock.broker.failures import leave_on_failure, notice_bug, report_failure, stop_on_failure
from penstock.broker.groups.cluster_groups import ClusterGroups
from penstock.broker.groups.coordinator_runtime import Means
from penstock.broker.groups.group_coordinator import GroupCoordinator, group_shards
from penstock.broker.groups.group_lag import GroupReports
from penstock.broker.groups.log_positions import LogPositions
from penstock.broker.groups.record_timestamps import RecordTimes
from penstock.broker.network.connection import CONNECTION_LIMITS, ConnectionLimits, Shared
from penstock.broker.network.server import SERVER_LIMITS, Server, ServerLimits
from penstock.broker.quotas import NoQuotas, Quotas
from penstock.broker.router import Router
from penstock.broker.routes import Parts, add_routes
from penstock.broker.storage.cleaner_process import ProcessCleaner
from penstock.broker.storage.cold_reads import ColdReads
from penstock.broker.storage.compaction import Cleaner, Compaction
from penstock.broker.storage.compaction import Means as CleaningMeans
from penstock.broker.storage.storage import STORAGE_LIMITS, Storage, StorageLimits
from penstock.config.broker import BrokerConfig
from penstock.config.listeners import Listener
from penstock.controller.decision import NOTHING_TO_DO, Decision, pieces
from penstock.controller.topics import bump_leader_epochs, register_broker
from penstock.errors import ConfigError, CorruptData, StorageFailed, StorageFull
from penstock.host.clock import Clock, SystemClock
from penstock.host.disk import Disk
from penstock.host.folder_lock import FolderLock, Lock
from penstock.host.metadata_store import Conflict, MetadataStore
from penstock.host.os_disk import OsDisk
from penstock.host.randomness import Randomness, SystemRandomness
from penstock.host.tasks import Tasks
from penstock.host.tls import TlsListener
from penstock.host.worker import NewWorker, Worker, WorkerPool
from penstock.limits import (
    COLD_READ_THREADS,
    DISK_RESERVE_BYTES,
    DISK_RESERVE_CHECK_MS,
    RECEIVE_BUFFER_BYTES,
    REPLY_BYTES_TOTAL_MAX,
    SHUTDOWN_MS_MAX,
    TLS_RELOAD_CHECK_MS,
)
from penstock.log.data_directory import (
    DataDirectory,
    cluster_of,
    new_id,
    open_directory,
    refuse_other_store,
    refuse_strangers,
)
from penstock.metadata import levels
from penstock.metadata.embedded import EmbeddedStore
from penstock.metadata.facts import ClusterImage, Endpoint
from penstock.metadata.image import image_of
from penstock.metadata.keys import Keys
from penstock.metadata.sqlite import SqliteStore
from penstock.observability.logs import Log, Silence
from penstock.replication.roles import Admission
from penstock.security.access import AllowEverything, Authorizer


def etcd_store(address: str) -> MetadataStore:
    # A broker that is alone never loads them.
    from penstock.metadata.etcd.etcd_store import EtcdStore
    from penstock.metadata.etcd.url import parse_etcd_url

    return EtcdStore(parse_etcd_url(address))


@dataclass(frozen=True, slots=True)
class World:
    """Everything a broker takes from outside."""

    clock: Clock = field(default_factory=SystemClock)
    disk: Disk = field(default_factory=OsDisk)
    randomness: Randomness = field(default_factory=SystemRandomness)
    log: Log = field(default_factory=Silence)
    authorizer: Authorizer = field(default_factory=AllowEverything)
    quotas: Quotas = field(default_factory=NoQuotas)
    open_store: Callable[[str], MetadataStore] = etcd_store
    """The store that the brokers of a cluster share, from the text of `metadata.store`."""
    new_worker: NewWorker = Worker
    new_cleaner: Callable[[], Cleaner] = ProcessCleaner
    lock_folder: Callable[[str], Lock] = FolderLock
    on_serving: Callable[["RunningBroker"], None] = lambda broker: None
    """Told of a broker from when clients reach it, which is before it is a member of its cluster."""


class BrokerLimits(NamedTuple):
    """The limits of a broker's parts that no setting changes. Tests make some of them small."""

    server: ServerLimits = SERVER_LIMITS
    connection: ConnectionLimits = CONNECTION_LIMITS
    produce: ProduceLimits = PRODUCE_LIMITS
    storage: StorageLimits = STORAGE_LIMITS
    disk_reserve_check_ms: int = DISK_RESERVE_CHECK_MS
    tls_reload_check_ms: int = TLS_RELOAD_CHECK_MS
    shutdown_ms_max: int = SHUTDOWN_MS_MAX


BROKER_LIMITS: Final = BrokerLimits()


class RunningBroker:
    """A broker that serves, as those who started it see it."""

    def __init__(self, cluster: Cluster, storage: Storage, server: Server) -> None:
        self.cluster = cluster
        self.storage = storage
        self.server = server
        self.compaction: Compaction
        self.groups: ClusterGroups
        """All groups of the cluster."""
        self.own_groups: GroupReports
        """Those that this broker coordinates."""
        self.listeners: tuple[Listener, ...] = ()
        """With their real ports."""
        self.failure: str | None = None
        self.place: Place | None = None
        """In its cluster; None if it is alone."""
        self.has_given_up = False
        self.on_giving_up: Callable[[], None] = lambda: None

    def not_ready(self) -> str | None:
        """Why clients cannot be served; None when they can."""
        outside = self.place.not_admitted() if self.place is not None else None
        return self.failure or self.storage.partitions.failure or outside

    def give_up(self) -> None:
        """It can no longer be a member of its cluster. Whoever started it is to stop it."""
        self.has_given_up = True
        if self.place is not None:
            self.place.give_up()
        self.on_giving_up()


class _Foundation(NamedTuple):
    """What everything else stands on: the data directory, opened and recovered."""

    directory: DataDirectory
    cluster: Cluster
    storage: Storage
    pool: WorkerPool
    cold_reads: ColdReads
    lookup_reads: ColdReads
    """For lookups by time, which may take long: no other read waits behind them."""
    storage_worker: Worker
    shared: SharedStore | None
    """None: this broker is alone."""
    limits: BrokerLimits


def _warn_of_settings(cluster: Cluster, static: BrokerConfig, log: Log) -> None:
    """Log which settings have no effect: those that were stored, and those stored later."""

    def warn(config: BrokerConfig) -> None:
        for warning in config.warnings:
            log.warning("config.warning", reason=warning)

    async def follow(before: ClusterImage, after: ClusterImage) -> None:
        if before.broker_overrides is not after.broker_overrides and cluster.config is not static:
            warn(cluster.config)

    if cluster.config is not static:
        warn(cluster.config)
    cluster.subscribe(follow)


@asynccontextmanager
async def running_broker(
    config: BrokerConfig, world: World, limits: BrokerLimits = BROKER_LIMITS
) -> AsyncIterator[RunningBroker]:
    """A broker that serves within the block and has stopped cleanly after it."""
    loop = asyncio.get_running_loop()
    for warning in config.warnings:
        world.log.warning("config.warning", reason=warning)
    async with AsyncExitStack() as stack:
        found = await _open_storage(config, world, stack, limits)
        cluster, storage = found.cluster, found.storage
        _warn_of_settings(cluster, config, world.log)
        router = Router((), world.authorizer, world.quotas, lambda: cluster.image)
        tasks = Tasks(report_failure(world.log))
        shared = _shared(config, router, tasks, world, limits.connection)
        server = Server(shared, config.network, world.authorizer, world.log, limits.server)
        broker = RunningBroker(cluster, storage, server)
        stack.callback(loop.set_exception_handler, loop.get_exception_handler())
        loop.set_exception_handler(notice_bug(broker, world.log))
        groups = _coordinate_groups(broker, found, world, stack)
        positions = _report_groups(broker, groups, found, world)
        broker.place = place = None if found.shared is None else Place(broker, found.shared, config, world)
        parts = Parts(
            cluster=cluster,
            storage=storage,
            groups=groups,
            creation=TopicCreation(cluster, world.clock, world.randomness),
            directory=found.directory,
            pool=found.pool,
            cold_reads=found.cold_reads,
            lookups=TimeLookups(found.lookup_reads, tasks, world.clock),
            tasks=tasks,
            clock=world.clock,
            randomness=world.randomness,
            data_path=_absolute(found.directory.logs_path),
            reply_room=lambda: REPLY_BYTES_TOTAL_MAX - shared.reply_bytes_queued,
            group_reports=broker.own_groups,
            log_positions=positions,
            followers=NO_FOLLOWERS if place is None else place.followers,
            produce_limits=limits.produce,
        )
        add_routes(router, parts)
        stack.push_async_callback(tasks.stop)
        await _start_serving(config, broker, found, world, stack, place)
        yield broker


async def _open_storage(
    config: BrokerConfig, world: World, stack: AsyncExitStack, limits: BrokerLimits
) -> _Foundation:
    loop = asyncio.get_running_loop()
    shared = None if config.node.is_alone else await _open_shared_store(config, world, stack)
    directory = _open_directory(config, world, stack, shared)
    workers = [world.new_worker(name, loop) for name in ("flush", "storage", "metadata")]
    pool = WorkerPool("read", COLD_READ_THREADS, loop, world.new_worker)
    lookup_pool = WorkerPool("lookup", 1, loop, world.new_worker)
    stack.callback(pool.stop)
    stack.callback(lookup_pool.stop)
    for worker in workers:
        stack.callback(worker.stop)
    if shared is None:
        store: MetadataStore = EmbeddedStore(SqliteStore(directory.metadata_path), workers[2])
        stack.push_async_callback(store.close)
        image = await _opening_image(directory, store, was_clean=directory.take_clean_mark())
    else:
        store = shared.store
        image = await opening_image(shared, directory)
    cluster = Cluster(store, image, config, directory.release_reserve, report_failure(world.log))
    pair = workers[0], workers[1]
    storage = Storage(
        directory, lambda: cluster.config, pair, world.clock, world.log, world.new_worker, limits.storage
    )
    if shared is not None:
        storage.partitions.may_lead = shared.admission
        storage.partitions.others_may_have_it = True
    storage.open(image)
    await storage.settle()
    stack.push_async_callback(storage.close)
    cluster.subscribe(storage.follow)
    return _Foundation(
        directory=directory,
        cluster=cluster,
        storage=storage,
        pool=pool,
        cold_reads=ColdReads(pool, storage.read_failed),
        lookup_reads=ColdReads(lookup_pool, storage.read_failed),
        storage_worker=workers[1],
        shared=shared,
        limits=limits,
    )


async def _open_shared_store(config: BrokerConfig, world: World, stack: AsyncExitStack) -> SharedStore:
    node = config.node
    store = world.open_store(node.metadata_store)
    stack.push_async_callback(store.close)
    known = cluster_of(world.disk, node.data_dir, node.node_id)
    cluster_id = await agree_on_cluster(store, known, lambda: new_id(world.randomness))
    return SharedStore(store, cluster_id, Admission(node.node_id))


def _shared(
    config: BrokerConfig, router: Router, tasks: Tasks, world: World, limits: ConnectionLimits
) -> Shared:
    return Shared(
        router,
        tasks,
        bytearray(RECEIVE_BUFFER_BYTES),
        config.network.request_bytes_max,
        config.network.request_bytes_in_flight_max,
        report_failure(world.log),
        limits,
    )


def _coordinate_groups(
    broker: RunningBroker, found: _Foundation, world: World, stack: AsyncExitStack
) -> GroupCoordinator:
    cluster, storage = broker.cluster, broker.storage
    loaders = Tasks(stop_on_failure(broker, world.log))
    means = Means(
        partitions=storage.partitions,
        pool=found.pool,
        cold_reads=found.cold_reads,
        tasks=loaders,
        clock=world.clock,
        log=world.log,
        on_full=storage.note_full,
        on_failed=storage.fail,
        turn=asyncio.Lock(),
    )
    shards = group_shards(cluster, means, world.randomness)
    stack.callback(shards.close)
    stack.push_async_callback(loaders.stop)
    return GroupCoordinator(shards, cluster, TopicCreation(cluster, world.clock, world.randomness))


def _report_groups(
    broker: RunningBroker, groups: GroupCoordinator, found: _Foundation, world: World
) -> LogPositions:
    """What brokers tell each other, and those who watch them, about groups."""
    cluster, storage = broker.cluster, broker.storage
    peers = None
    if found.shared is not None:
        peers = PeerQuestions(cluster, way_between_brokers(cluster.config))
    times = RecordTimes(found.lookup_reads, world.clock)
    node_id = cluster.config.node.node_id
    positions = LogPositions(node_id, lambda: cluster.image, storage.partitions, times, peers)
    broker.own_groups = GroupReports(groups, cluster, positions, world.clock)
    broker.groups = ClusterGroups(broker.own_groups, cluster, peers)
    return positions


async def _start_serving(
    config: BrokerConfig,
    broker: RunningBroker,
    found: _Foundation,
    world: World,
    stack: AsyncExitStack,
    place: "Place | None",
) -> None:
    server, storage, limits = broker.server, broker.storage, found.limits
    # A broker that is alone has nobody who would take over: it serves what it still can.
    as_member = stop_on_failure if place is None else leave_on_failure
    writer = Tasks(as_member(broker, world.log))
    stack.push_async_callback(writer.stop)
    tls = {name: TlsListener(name, setting) for name, setting in config.tls.items()}
    stack.push_async_callback(_stop_serving, server, storage, world.log, limits.shutdown_ms_max)
    broker.listeners = await _listen(config, server, tls)
    writer.start(broker.cluster.run(), "metadata")
    background = Tasks(stop_on_failure(broker, world.log))
    if place is None:
        await _register(broker.cluster, config, broker.listeners)
    broker.compaction = _compaction(broker, found.directory, found.storage_worker, world)
    stack.push_async_callback(broker.compaction.cleaner.rest)
    stack.push_async_callback(background.stop)
    background.start(broker.compaction.run(), "compaction")
    background.start(storage.run(), "storage")
    background.start(storage.run_checkpoints(), "checkpoints")
    background.start(storage.starts.run(), "log starts")
    background.start(storage.run_retention(), "retention")
    background.start(_keep_reserve(found, limits.disk_reserve_check_ms, world.log), "reserve")
    background.start(server.sweep(), "connections")
    if tls:
        background.start(_reload_certificates(tls, limits.tls_reload_check_ms, world.log), "certificates")
    world.on_serving(broker)
    await server.serve()
    if place is not None:
        # Others look whether somebody listens where a broker says it does.
        await place.join(found.directory)
        members = Tasks(as_member(broker, world.log))
        stack.push_async_callback(members.stop)
        place.start(members)
        stack.push_async_callback(place.leave)
        await place.until_admitted()


def _compaction(broker: RunningBroker, directory: DataDirectory, worker: Worker, world: World) -> Compaction:
    means = CleaningMeans(directory, worker, world.clock, world.log)
    compaction = Compaction(broker.storage, lambda: broker.cluster.config.cleaner, world.new_cleaner(), means)
    compaction.open()
    broker.cluster.subscribe(compaction.follow)
    return compaction


def _absolute(path: str) -> str:
    return os.path.abspath(path)


def _open_directory(
    config: BrokerConfig, world: World, stack: AsyncExitStack, shared: SharedStore | None
) -> DataDirectory:
    path, cluster_id = config.node.data_dir, None if shared is None else shared.cluster_id
    refuse_strangers(world.disk, path)
    world.disk.make_folder(path)
    lock = world.lock_folder(path)
    stack.callback(lock.release)
    refuse_other_store(world.disk, path, alone=shared is None)
    directory = open_directory(world.disk, path, config.node.node_id, world.randomness, cluster_id)
    if world.disk.space(path).usable_bytes < DISK_RESERVE_BYTES:
        directory.release_reserve()
    directory.lock_mark = lock.mark
    if shared is not None:
        return directory
    if not world.disk.exists(directory.metadata_path) and directory.partitions_on_disk():
        raise CorruptData(
            f"{directory.metadata_path} is missing although {directory.logs_path} holds records: "
            "restore it from a backup, or move the logs away to begin anew"
        )
    # SQLite would let everybody read it who the process lets read its files, not as the logs are.
    world.disk.open(directory.metadata_path, create=True).release()
    return directory


async def _opening_image(directory: DataDirectory, store: MetadataStore, *, was_clean: bool) -> ClusterImage:
    """The cluster as it was left. After an unclean stop every partition begins a new epoch.

    Records that were shown and then lost (flush policy os) must be detectable by those who saw them.
    """
    cluster_id = directory.identity.cluster_id
    prefix = Keys(cluster_id).prefix
    image = image_of(await store.read(prefix), cluster_id)
    decision = NOTHING_TO_DO if was_clean else bump_leader_epochs(image)
    if not decision.everything:
        return image
    await _commit(store, decision)
    return image_of(await store.read(prefix), cluster_id)


async def _commit(store: MetadataStore, decision: Decision) -> None:
    """For decisions at start, when nobody else can be deciding."""
    for piece in pieces(decision, store.changes_max):
        outcome = await store.transact(piece.compares, piece.changes)
        if isinstance(outcome, Conflict):
            raise CorruptData("the metadata changed while only this broker had it open")


async def _listen(config: BrokerConfig, server: Server, tls: dict[str, TlsListener]) -> tuple[Listener, ...]:
    bound = []
    for listener in config.listeners:
        context = tls[listener.name].context if listener.name in tls else None
        bound.append(await server.bind(listener, context))
    return tuple(bound)


async def _register(cluster: Cluster, config: BrokerConfig, listeners: tuple[Listener, ...]) -> None:
    """Say where this broker listens, if that is not known already."""
    node = config.node
    endpoints = {
        listener.name: Endpoint(listener.advertised_host, listener.advertised_port) for listener in listeners
    }
    known = cluster.image.brokers.get(node.node_id)
    if (
        known is None
        or known.rack != node.rack
        or dict(known.endpoints) != endpoints
        or known.level_max != levels.NEWEST
    ):
        await cluster.change(
            lambda image: register_broker(image, node.node_id, rack=node.rack, endpoints=endpoints)
        )


async def _stop_serving(server: Server, storage: Storage, log: Log, ms_max: int) -> None:
    """Take no more requests, make what was accepted durable, answer it, and say goodbye."""
    server.stop_listening()
    ends_at = asyncio.get_running_loop().time() + ms_max / 1000
    await _finish_inspections(storage, ends_at - ms_max / 2000, log)
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


async def _keep_reserve(found: _Foundation, check_ms: int, log: Log) -> None:
    while True:
        await asyncio.sleep(check_ms / 1000)
        try:
            await found.storage_worker.run(found.directory.keep_reserve)
        except (StorageFull, StorageFailed) as problem:
            log.warning("storage.no_reserve", reason=str(problem))


async def _reload_certificates(tls: dict[str, TlsListener], check_ms: int, log: Log) -> None:
    while True:
        await asyncio.sleep(check_ms / 1000)
        for name, listener in tls.items():
            try:
                if listener.reload_if_changed():
                    log.info("tls.reloaded", listener=name)
            except ConfigError as problem:
                log.error("tls.not_reloaded", listener=name, reason=str(problem))
