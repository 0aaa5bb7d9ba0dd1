"""The composition root: builds every part of a broker, starts them in order, and stops them in reverse.

The order of the lines is the order of starting. The broker serves no client before everything found on disk
is checked and durable. Everything that was acknowledged is durable before anything closes.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock.broker.cluster.cluster_member import (
    ClusterMember,
    SharedStore,
    inter_broker_link,
    opening_image,
)
from penstock.broker.cluster.membership import agree_on_cluster
from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.cluster.peer_requests import PeerRequests
from penstock.broker.cluster.topic_creation import TopicCreation
from penstock.broker.data.fetch_reader import NO_FOLLOWERS
from penstock.broker.data.pending_produce import PRODUCE_LIMITS, ProduceLimits
from penstock.broker.data.timestamp_lookups import TimeLookups
from penstock.broker.groups.cluster_groups import ClusterGroups
from penstock.broker.groups.coordinator_runtime import CoordinatorDependencies
from penstock.broker.groups.group_coordinator import GroupCoordinator, group_coordinator_runtime
from penstock.broker.groups.group_lag import GroupLagReporter
from penstock.broker.groups.log_positions import LogPositionLookup
from penstock.broker.groups.record_timestamps import RecordTimestamps
from penstock.broker.network.connection import CONNECTION_LIMITS, ConnectionLimits, ConnectionResources
from penstock.broker.network.server import SERVER_LIMITS, Server, ServerLimits
from penstock.broker.quotas import NoQuotas, Quotas
from penstock.broker.router import Router
from penstock.broker.routes import HandlerDependencies, add_routes
from penstock.broker.storage.cleaner_process import ProcessCleaner
from penstock.broker.storage.cold_reads import ColdReads
from penstock.broker.storage.compaction import Cleaner, Compaction, CompactionDependencies
from penstock.broker.storage.partition_storage import STORAGE_LIMITS, Storage, StorageLimits
from penstock.broker.task_failures import (
    leave_on_failure,
    loop_exception_handler,
    report_failure,
    stop_on_failure,
)
from penstock.config.broker import BrokerConfig
from penstock.config.listeners import Listener
from penstock.controller.decision import NOTHING_TO_DO, Decision, transactions_of
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
    reject_foreign_folder,
    reject_other_metadata_store,
)
from penstock.metadata import levels
from penstock.metadata.cluster_image import ClusterImage, Endpoint
from penstock.metadata.embedded_store import EmbeddedStore
from penstock.metadata.image_builder import image_of
from penstock.metadata.keys import ClusterKeys
from penstock.metadata.sqlite_store import SqliteStore
from penstock.observability.logs import Log, NullLog
from penstock.replication.roles import Admission
from penstock.security.access import AllowEverything, Authorizer


def etcd_store(address: str) -> MetadataStore:
    # Imported here, so that a standalone broker never loads the etcd client.
    from penstock.metadata.etcd.etcd_store import EtcdStore
    from penstock.metadata.etcd.url import parse_etcd_url

    return EtcdStore(parse_etcd_url(address))


@dataclass(frozen=True, slots=True)
class Environment:
    """What a broker takes from outside: clock, disk, randomness, log and replaceable parts."""

    clock: Clock = field(default_factory=SystemClock)
    disk: Disk = field(default_factory=OsDisk)
    randomness: Randomness = field(default_factory=SystemRandomness)
    log: Log = field(default_factory=NullLog)
    authorizer: Authorizer = field(default_factory=AllowEverything)
    quotas: Quotas = field(default_factory=NoQuotas)
    open_store: Callable[[str], MetadataStore] = etcd_store
    """Opens the metadata store that the brokers of a cluster share, given the value of `metadata.store`."""
    new_worker: NewWorker = Worker
    new_cleaner: Callable[[], Cleaner] = ProcessCleaner
    lock_folder: Callable[[str], Lock] = FolderLock
    on_serving: Callable[["RunningBroker"], None] = lambda broker: None
    """Called with the broker as soon as clients can connect, which is before it joins its cluster."""


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
    """A running broker, as its starter uses it."""

    def __init__(self, cluster: MetadataService, storage: Storage, server: Server) -> None:
        self.cluster = cluster
        self.storage = storage
        self.server = server
        self.compaction: Compaction
        self.groups: ClusterGroups
        """All groups of the cluster."""
        self.own_groups: GroupLagReporter
        """The groups that this broker coordinates."""
        self.listeners: tuple[Listener, ...] = ()
        """The listeners, with their real ports."""
        self.failure: str | None = None
        self.cluster_member: ClusterMember | None = None
        """This broker's membership in its cluster; None if it is standalone."""
        self.has_ended_membership = False
        self.on_membership_ended: Callable[[], None] = lambda: None

    def not_ready(self) -> str | None:
        """Why clients cannot be served; None when they can."""
        outside = self.cluster_member.not_admitted() if self.cluster_member is not None else None
        return self.failure or self.storage.partitions.failure or outside

    def end_membership(self) -> None:
        """End the cluster membership for good. The process that started the broker must then stop it."""
        self.has_ended_membership = True
        if self.cluster_member is not None:
            self.cluster_member.end_membership()
        self.on_membership_ended()


class _Foundation(NamedTuple):
    """The parts that all others use: the data directory, opened and recovered, and its storage."""

    directory: DataDirectory
    cluster: MetadataService
    storage: Storage
    pool: WorkerPool
    cold_reads: ColdReads
    lookup_reads: ColdReads
    """Reads for lookups by timestamp, which may take long: no other read waits behind them."""
    storage_worker: Worker
    shared: SharedStore | None
    """The shared metadata store; None: this broker is standalone."""
    limits: BrokerLimits


def _warn_of_settings(cluster: MetadataService, static: BrokerConfig, log: Log) -> None:
    """Log which settings have no effect: the stored ones at start, and each later change."""

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
    config: BrokerConfig, environment: Environment, limits: BrokerLimits = BROKER_LIMITS
) -> AsyncIterator[RunningBroker]:
    """Run a broker within the block. It has stopped cleanly after the block."""
    loop = asyncio.get_running_loop()
    for warning in config.warnings:
        environment.log.warning("config.warning", reason=warning)
    async with AsyncExitStack() as stack:
        found = await _open_storage(config, environment, stack, limits)
        cluster, storage = found.cluster, found.storage
        _warn_of_settings(cluster, config, environment.log)
        router = Router((), environment.authorizer, environment.quotas, lambda: cluster.image)
        tasks = Tasks(report_failure(environment.log))
        shared = _shared(config, router, tasks, environment, limits.connection)
        server = Server(shared, config.network, environment.authorizer, environment.log, limits.server)
        broker = RunningBroker(cluster, storage, server)
        stack.callback(loop.set_exception_handler, loop.get_exception_handler())
        loop.set_exception_handler(loop_exception_handler(broker, environment.log))
        groups = _coordinate_groups(broker, found, environment, stack)
        positions = _report_groups(broker, groups, found, environment)
        broker.cluster_member = cluster_member = (
            None if found.shared is None else ClusterMember(broker, found.shared, config, environment)
        )
        parts = HandlerDependencies(
            cluster=cluster,
            storage=storage,
            groups=groups,
            creation=TopicCreation(cluster, environment.clock, environment.randomness),
            directory=found.directory,
            pool=found.pool,
            cold_reads=found.cold_reads,
            lookups=TimeLookups(found.lookup_reads, tasks, environment.clock),
            tasks=tasks,
            clock=environment.clock,
            randomness=environment.randomness,
            data_path=_absolute(found.directory.logs_path),
            free_reply_bytes=lambda: REPLY_BYTES_TOTAL_MAX - shared.reply_bytes_queued,
            group_reports=broker.own_groups,
            log_positions=positions,
            followers=NO_FOLLOWERS if cluster_member is None else cluster_member.followers,
            produce_limits=limits.produce,
        )
        add_routes(router, parts)
        stack.push_async_callback(tasks.stop)
        await _start_serving(config, broker, found, environment, stack, cluster_member)
        yield broker


async def _open_storage(
    config: BrokerConfig, environment: Environment, stack: AsyncExitStack, limits: BrokerLimits
) -> _Foundation:
    loop = asyncio.get_running_loop()
    shared = None if config.node.is_standalone else await _open_shared_store(config, environment, stack)
    directory = _open_directory(config, environment, stack, shared)
    workers = [environment.new_worker(name, loop) for name in ("flush", "storage", "metadata")]
    pool = WorkerPool("read", COLD_READ_THREADS, loop, environment.new_worker)
    lookup_pool = WorkerPool("lookup", 1, loop, environment.new_worker)
    # Pushed before the storage's callback, so they run after it: closing the storage needs its workers.
    stack.callback(pool.stop)
    stack.callback(lookup_pool.stop)
    for worker in workers:
        stack.callback(worker.stop)
    if shared is None:
        store: MetadataStore = EmbeddedStore(SqliteStore(directory.metadata_path), workers[2])
        stack.push_async_callback(store.close)
        # Reading the mark removes it: a crash from now on leaves no mark.
        image = await _opening_image(directory, store, was_clean=directory.consume_clean_shutdown_mark())
    else:
        store = shared.store
        image = await opening_image(shared, directory)
    cluster = MetadataService(
        store, image, config, directory.release_reserve, report_failure(environment.log)
    )
    pair = workers[0], workers[1]
    storage = Storage(
        directory,
        lambda: cluster.config,
        pair,
        environment.clock,
        environment.log,
        environment.new_worker,
        limits.storage,
    )
    # Set before the logs are opened: a member of a cluster leads no partition before it is admitted.
    if shared is not None:
        storage.partitions.may_lead = shared.admission
        storage.partitions.is_in_cluster = True
    storage.open(image)
    await storage.checkpoint_recovered()
    # Pushed only after recovery: a start that failed during recovery must not write a clean shutdown mark.
    stack.push_async_callback(storage.close)
    # The first subscriber: the others see the partitions of the new image.
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


async def _open_shared_store(
    config: BrokerConfig, environment: Environment, stack: AsyncExitStack
) -> SharedStore:
    node = config.node
    store = environment.open_store(node.metadata_store)
    stack.push_async_callback(store.close)
    known = cluster_of(environment.disk, node.data_dir, node.node_id)
    cluster_id = await agree_on_cluster(store, known, lambda: new_id(environment.randomness))
    return SharedStore(store, cluster_id, Admission(node.node_id))


def _shared(
    config: BrokerConfig, router: Router, tasks: Tasks, environment: Environment, limits: ConnectionLimits
) -> ConnectionResources:
    return ConnectionResources(
        router,
        tasks,
        bytearray(RECEIVE_BUFFER_BYTES),
        config.network.request_bytes_max,
        config.network.request_bytes_in_flight_max,
        report_failure(environment.log),
        limits,
    )


def _coordinate_groups(
    broker: RunningBroker, found: _Foundation, environment: Environment, stack: AsyncExitStack
) -> GroupCoordinator:
    cluster, storage = broker.cluster, broker.storage
    loaders = Tasks(stop_on_failure(broker, environment.log))
    means = CoordinatorDependencies(
        partitions=storage.partitions,
        pool=found.pool,
        cold_reads=found.cold_reads,
        tasks=loaders,
        clock=environment.clock,
        log=environment.log,
        on_full=storage.note_full,
        on_failed=storage.fail,
        load_lock=asyncio.Lock(),
    )
    shards = group_coordinator_runtime(cluster, means, environment.randomness)
    stack.callback(shards.close)
    stack.push_async_callback(loaders.stop)
    return GroupCoordinator(
        shards, cluster, TopicCreation(cluster, environment.clock, environment.randomness)
    )


def _report_groups(
    broker: RunningBroker, groups: GroupCoordinator, found: _Foundation, environment: Environment
) -> LogPositionLookup:
    """Connect the lag reports of this broker's groups with the log positions that other brokers report."""
    cluster, storage = broker.cluster, broker.storage
    peers = None
    if found.shared is not None:
        peers = PeerRequests(cluster, inter_broker_link(cluster.config))
    times = RecordTimestamps(found.lookup_reads, environment.clock)
    node_id = cluster.config.node.node_id
    positions = LogPositionLookup(node_id, lambda: cluster.image, storage.partitions, times, peers)
    broker.own_groups = GroupLagReporter(groups, cluster, positions, environment.clock)
    broker.groups = ClusterGroups(broker.own_groups, cluster, peers)
    return positions


async def _start_serving(
    config: BrokerConfig,
    broker: RunningBroker,
    found: _Foundation,
    environment: Environment,
    stack: AsyncExitStack,
    cluster_member: "ClusterMember | None",
) -> None:
    server, storage, limits = broker.server, broker.storage, found.limits
    # No other broker would take over from a standalone broker, so it keeps serving what it can.
    as_member = stop_on_failure if cluster_member is None else leave_on_failure
    writer = Tasks(as_member(broker, environment.log))
    stack.push_async_callback(writer.stop)
    tls = {name: TlsListener(name, setting) for name, setting in config.tls.items()}
    # Pushed before the background tasks, so it runs after they have stopped, and before the storage closes.
    stack.push_async_callback(_stop_serving, server, storage, environment.log, limits.shutdown_ms_max)
    broker.listeners = await _listen(config, server, tls)
    writer.start(broker.cluster.run(), "metadata")
    background = Tasks(stop_on_failure(broker, environment.log))
    if cluster_member is None:
        await _register(broker.cluster, config, broker.listeners)
    broker.compaction = _compaction(broker, found.directory, found.storage_worker, environment)
    stack.push_async_callback(broker.compaction.cleaner.shut_down)
    stack.push_async_callback(background.stop)
    background.start(broker.compaction.run(), "compaction")
    background.start(storage.run(), "storage")
    background.start(storage.run_checkpoints(), "checkpoints")
    background.start(storage.starts.run(), "log starts")
    background.start(storage.run_retention(), "retention")
    background.start(_keep_reserve(found, limits.disk_reserve_check_ms, environment.log), "reserve")
    background.start(server.sweep(), "connections")
    if tls:
        background.start(
            _reload_certificates(tls, limits.tls_reload_check_ms, environment.log), "certificates"
        )
    environment.on_serving(broker)
    await server.serve()
    if cluster_member is not None:
        # Other brokers check that a registered broker accepts connections at its address.
        await cluster_member.join(found.directory)
        members = Tasks(as_member(broker, environment.log))
        stack.push_async_callback(members.stop)
        cluster_member.start(members)
        # Runs before the member tasks stop: they keep the session while other brokers take over the
        # leaderships.
        stack.push_async_callback(cluster_member.leave)
        await cluster_member.until_admitted()


def _compaction(
    broker: RunningBroker, directory: DataDirectory, worker: Worker, environment: Environment
) -> Compaction:
    means = CompactionDependencies(directory, worker, environment.clock, environment.log)
    compaction = Compaction(
        broker.storage, lambda: broker.cluster.config.cleaner, environment.new_cleaner(), means
    )
    broker.cluster.subscribe(compaction.follow)
    return compaction


def _absolute(path: str) -> str:
    return os.path.abspath(path)


def _open_directory(
    config: BrokerConfig, environment: Environment, stack: AsyncExitStack, shared: SharedStore | None
) -> DataDirectory:
    path, cluster_id = config.node.data_dir, None if shared is None else shared.cluster_id
    reject_foreign_folder(environment.disk, path)
    environment.disk.make_folder(path)
    # The lock comes before any file is opened: two processes would corrupt each other's data directory.
    lock = environment.lock_folder(path)
    stack.callback(lock.release)
    reject_other_metadata_store(environment.disk, path, alone=shared is None)
    directory = open_directory(
        environment.disk, path, config.node.node_id, environment.randomness, cluster_id
    )
    # On a full disk the start itself may need the reserved space.
    if environment.disk.space(path).usable_bytes < DISK_RESERVE_BYTES:
        directory.release_reserve()
    directory.lock_mark = lock.mark
    if shared is not None:
        return directory
    if not environment.disk.exists(directory.metadata_path) and directory.partitions_on_disk():
        raise CorruptData(
            f"{directory.metadata_path} is missing although {directory.logs_path} holds records: "
            "restore it from a backup, or move the logs away to begin anew"
        )
    # Created here because SQLite would create the file with the permissions of the umask, not those of the
    # logs.
    environment.disk.open(directory.metadata_path, create=True).release()
    return directory


async def _opening_image(directory: DataDirectory, store: MetadataStore, *, was_clean: bool) -> ClusterImage:
    """The image of the cluster at start. After an unclean shutdown every partition begins a new leader epoch.

    With flush policy `os` a crash may lose records that were visible to clients. A new epoch lets those
    clients detect the loss.
    """
    cluster_id = directory.identity.cluster_id
    prefix = ClusterKeys(cluster_id).prefix
    image = image_of(await store.read(prefix), cluster_id)
    decision = NOTHING_TO_DO if was_clean else bump_leader_epochs(image)
    if not decision.all_changes:
        return image
    await _commit(store, decision)
    return image_of(await store.read(prefix), cluster_id)


async def _commit(store: MetadataStore, decision: Decision) -> None:
    """Commit a decision during startup, when no other process can change the metadata."""
    for piece in transactions_of(decision, store.changes_max):
        outcome = await store.transact(piece.compares, piece.changes)
        if isinstance(outcome, Conflict):
            raise CorruptData("the metadata changed while only this broker had it open")


async def _listen(config: BrokerConfig, server: Server, tls: dict[str, TlsListener]) -> tuple[Listener, ...]:
    bound = []
    for listener in config.listeners:
        context = tls[listener.name].context if listener.name in tls else None
        bound.append(await server.bind(listener, context))
    return tuple(bound)


async def _register(cluster: MetadataService, config: BrokerConfig, listeners: tuple[Listener, ...]) -> None:
    """Register this broker's endpoints, unless they are registered already."""
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
    """Accept no more requests, make accepted records durable, send the replies, and close all connections."""
    server.stop_listening()
    ends_at = asyncio.get_running_loop().time() + ms_max / 1000
    # Half of the time is for batches that wait for validation, the rest for the last flush.
    await _finish_deep_validations(storage, ends_at - ms_max / 2000, log)
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


async def _finish_deep_validations(storage: Storage, ends_at: float, log: Log) -> None:
    """Finish the batches that wait for validation, or log that there was no time for them."""
    try:
        async with asyncio.timeout_at(ends_at):
            await storage.deep_validations.drain()
    except TimeoutError:
        log.error("broker.batches_dropped", count=len(storage.deep_validations))


async def _keep_reserve(found: _Foundation, check_ms: int, log: Log) -> None:
    while True:
        await asyncio.sleep(check_ms / 1000)
        try:
            await found.storage_worker.run(found.directory.refill_reserve)
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
