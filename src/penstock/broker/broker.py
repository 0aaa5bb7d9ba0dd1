"""The composition root: builds every part of a broker, starts them in order, and stops them in reverse.

`_Start.run` lists the steps of a start. The broker serves no client before everything found on disk is
checked and durable. Everything that was acknowledged is durable before anything closes.
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
from penstock.broker.cluster.membership import advertised_endpoints, agree_on_cluster
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
from penstock.broker.storage.flusher import Flusher
from penstock.broker.storage.partition_storage import STORAGE_LIMITS, Storage, StorageLimits
from penstock.broker.task_failures import (
    leave_on_failure,
    loop_exception_handler,
    report_failure,
    stop_on_failure,
)
from penstock.config.broker import BrokerConfig
from penstock.config.listeners import Listener
from penstock.controller.broker_lifecycle import bump_leader_epochs, register_standalone
from penstock.controller.decision import transactions_of
from penstock.errors import ConfigError, CorruptData, StorageFailed, StorageFull
from penstock.host.clock import Clock, SystemClock
from penstock.host.disk import Disk
from penstock.host.folder_lock import FolderLock, Lock
from penstock.host.metadata_store import Conflict, MetadataStore
from penstock.host.os_disk import OsDisk
from penstock.host.randomness import Randomness, SystemRandomness
from penstock.host.syscalls.kernel_sync import file_sync
from penstock.host.syscalls.short_timer import NewTimer, short_timer
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
    reject_other_store_kind,
)
from penstock.metadata.cluster_image import ClusterImage
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
    new_timer: NewTimer = short_timer
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


@asynccontextmanager
async def running_broker(
    config: BrokerConfig, environment: Environment, limits: BrokerLimits = BROKER_LIMITS
) -> AsyncIterator[RunningBroker]:
    """Run a broker within the block. It has stopped cleanly after the block."""
    async with AsyncExitStack() as stack:
        yield await _Start(config, environment, limits, stack).run()


class _Start:
    """The start of a broker, step by step. Each step pushes on the stack how it is undone."""

    def __init__(
        self, config: BrokerConfig, environment: Environment, limits: BrokerLimits, stack: AsyncExitStack
    ) -> None:
        self._config = config
        self._environment = environment
        self._limits = limits
        self._stack = stack
        self._log = environment.log
        self._loop = asyncio.get_running_loop()
        self._shared: SharedStore | None = None
        """The shared metadata store; None: this broker is standalone."""

    async def run(self) -> RunningBroker:
        self._log_warnings(self._config)
        if not self._config.node.is_standalone:
            self._shared = await self._open_shared_store()
        self._directory = self._open_directory()
        self._start_workers()
        image = await self._open_metadata()
        await self._open_storage(image)
        self._cluster.subscribe(self._warn_of_settings)
        self._make_server()
        self._make_groups()
        if self._shared is not None:
            self._broker.cluster_member = ClusterMember(
                self._broker, self._shared, self._config, self._environment
            )
        self._add_routes()
        await self._serve()
        return self._broker

    def _log_warnings(self, config: BrokerConfig) -> None:
        for warning in config.warnings:
            self._log.warning("config.warning", reason=warning)

    async def _warn_of_settings(self, before: ClusterImage, after: ClusterImage) -> None:
        """Log which dynamic settings have no effect, at each change of them."""
        if before.broker_overrides is not after.broker_overrides and self._cluster.config is not self._config:
            self._log_warnings(self._cluster.config)

    # What was found on disk is opened, checked and made durable

    async def _open_shared_store(self) -> SharedStore:
        node, environment = self._config.node, self._environment
        store = environment.open_store(node.metadata_store)
        self._stack.push_async_callback(store.close)
        known = cluster_of(environment.disk, node.data_dir, node.node_id)
        cluster_id = await agree_on_cluster(store, known, lambda: new_id(environment.randomness))
        return SharedStore(store, cluster_id, Admission(node.node_id))

    def _open_directory(self) -> DataDirectory:
        disk, path, shared = self._environment.disk, self._config.node.data_dir, self._shared
        reject_foreign_folder(disk, path)
        disk.make_folder(path)
        # The lock comes before any file is opened: two processes would corrupt each other's data directory.
        lock = self._environment.lock_folder(path)
        self._stack.callback(lock.release)
        reject_other_store_kind(disk, path, is_standalone=shared is None)
        directory = open_directory(
            disk,
            path,
            self._config.node.node_id,
            self._environment.randomness,
            None if shared is None else shared.cluster_id,
        )
        # On a full disk the start itself may need the reserved space.
        if disk.space(path).usable_bytes < DISK_RESERVE_BYTES:
            directory.release_reserve()
        directory.lock_mark = lock.mark
        if shared is not None:
            return directory
        if not disk.exists(directory.metadata_path) and directory.partitions_on_disk():
            raise CorruptData(
                f"{directory.metadata_path} is missing although {directory.logs_path} holds records: "
                "restore it from a backup, or move the logs away to begin anew"
            )
        # Created here because SQLite would create the file with the permissions of the umask, not those of
        # the logs.
        disk.open(directory.metadata_path, create=True).release()
        return directory

    def _start_workers(self) -> None:
        new_worker = self._environment.new_worker
        flush_worker, self._storage_worker, self._metadata_worker = workers = [
            new_worker(name, self._loop) for name in ("flush", "storage", "metadata")
        ]
        self._pool = WorkerPool("read", COLD_READ_THREADS, self._loop, new_worker)
        # For lookups by timestamp, which may take long: no other read waits behind them.
        self._lookup_pool = WorkerPool("lookup", 1, self._loop, new_worker)
        # Pushed before the storage's callback, so they run after it: closing the storage needs its workers.
        for stop in (self._pool.stop, self._lookup_pool.stop, *(worker.stop for worker in workers)):
            self._stack.callback(stop)
        self._log_sync = file_sync(self._environment.disk, flush_worker, self._loop)
        self._stack.callback(self._log_sync.close)
        self._flush_timer = self._environment.new_timer(self._loop)
        self._stack.callback(self._flush_timer.close)

    async def _open_metadata(self) -> ClusterImage:
        directory = self._directory
        if self._shared is None:
            store: MetadataStore = EmbeddedStore(SqliteStore(directory.metadata_path), self._metadata_worker)
            self._stack.push_async_callback(store.close)
            # Reading the mark removes it: a crash from now on leaves no mark.
            was_clean = directory.consume_clean_shutdown_mark()
            image = await _standalone_image(directory.identity.cluster_id, store, was_clean=was_clean)
        else:
            store = self._shared.store
            image = await opening_image(self._shared, directory)
        self._cluster = MetadataService(
            store, image, self._config, directory.release_reserve, report_failure(self._log)
        )
        if self._cluster.config is not self._config:
            self._log_warnings(self._cluster.config)
        return image

    async def _open_storage(self, image: ClusterImage) -> None:
        self._storage = storage = Storage(
            self._directory,
            lambda: self._cluster.config,
            Flusher(self._log_sync, self._flush_timer, self._environment.clock),
            self._storage_worker,
            self._environment.clock,
            self._log,
            self._environment.new_worker,
            self._limits.storage,
        )
        # Set before the logs are opened: a member of a cluster leads no partition before it is admitted.
        if self._shared is not None:
            storage.partitions.may_lead = self._shared.admission.may_lead
            storage.partitions.is_in_cluster = True
        storage.open(image)
        await storage.checkpoint_recovered()
        # Pushed only after recovery: a start that failed during it must not write a clean shutdown mark.
        self._stack.push_async_callback(storage.close)
        # Before all other subscribers of the broker: they see the partitions of the new image.
        self._cluster.subscribe(storage.follow)

    # The parts that serve clients are made

    def _make_server(self) -> None:
        network, authorizer = self._config.network, self._environment.authorizer
        router = Router((), authorizer, self._environment.quotas, lambda: self._cluster.image)
        self._resources = ConnectionResources(
            router,
            Tasks(report_failure(self._log)),
            bytearray(RECEIVE_BUFFER_BYTES),
            network.request_bytes_max,
            network.request_bytes_in_flight_max,
            report_failure(self._log),
            self._limits.connection,
        )
        server = Server(self._resources, network, authorizer, self._log, self._limits.server)
        self._broker = RunningBroker(self._cluster, self._storage, server)
        self._stack.callback(self._loop.set_exception_handler, self._loop.get_exception_handler())
        self._loop.set_exception_handler(loop_exception_handler(self._broker, self._log))

    def _make_groups(self) -> None:
        cluster, storage, environment = self._cluster, self._storage, self._environment
        self._cold_reads = ColdReads(self._pool, storage.read_failed)
        self._lookup_reads = ColdReads(self._lookup_pool, storage.read_failed)
        loaders = Tasks(stop_on_failure(self._broker, self._log))
        shards = group_coordinator_runtime(
            cluster,
            CoordinatorDependencies(
                partitions=storage.partitions,
                pool=self._pool,
                cold_reads=self._cold_reads,
                tasks=loaders,
                clock=environment.clock,
                log=self._log,
                on_full=storage.note_full,
                on_failed=storage.fail,
                load_lock=asyncio.Lock(),
            ),
            environment.randomness,
        )
        self._stack.callback(shards.close)
        self._stack.push_async_callback(loaders.stop)
        self._creation = TopicCreation(cluster, environment.clock, environment.randomness)
        self._groups = GroupCoordinator(shards, cluster, self._creation)
        # Lag reports: the groups are this broker's, the positions of their logs also those of other brokers.
        peers = None if self._shared is None else PeerRequests(cluster, inter_broker_link(cluster.config))
        times = RecordTimestamps(self._lookup_reads, environment.clock)
        node_id = cluster.config.node.node_id
        self._positions = LogPositionLookup(node_id, lambda: cluster.image, storage.partitions, times, peers)
        self._broker.own_groups = GroupLagReporter(self._groups, cluster, self._positions, environment.clock)
        self._broker.groups = ClusterGroups(self._broker.own_groups, cluster, peers)

    def _add_routes(self) -> None:
        clock, member, resources = self._environment.clock, self._broker.cluster_member, self._resources
        parts = HandlerDependencies(
            cluster=self._cluster,
            storage=self._storage,
            groups=self._groups,
            creation=self._creation,
            directory=self._directory,
            pool=self._pool,
            cold_reads=self._cold_reads,
            lookups=TimeLookups(self._lookup_reads, resources.tasks, clock),
            tasks=resources.tasks,
            clock=clock,
            randomness=self._environment.randomness,
            data_path=os.path.abspath(self._directory.logs_path),
            free_reply_bytes=lambda: REPLY_BYTES_TOTAL_MAX - resources.reply_bytes_queued,
            group_reports=self._broker.own_groups,
            log_positions=self._positions,
            followers=NO_FOLLOWERS if member is None else member.followers,
            produce_limits=self._limits.produce,
        )
        add_routes(resources.router, parts)
        self._stack.push_async_callback(resources.tasks.stop)

    # Clients are served, and the broker joins its cluster

    async def _serve(self) -> None:
        broker, stack, member = self._broker, self._stack, self._broker.cluster_member
        # No other broker would take over from a standalone broker, so it keeps serving what it can.
        on_failure = (stop_on_failure if member is None else leave_on_failure)(broker, self._log)
        writer = Tasks(on_failure)
        stack.push_async_callback(writer.stop)
        tls = {name: TlsListener(name, setting) for name, setting in self._config.tls.items()}
        # Pushed before the background tasks, so it runs after they have stopped, and before the storage
        # closes.
        stack.push_async_callback(
            _stop_serving, broker.server, self._storage, self._log, self._limits.shutdown_ms_max
        )
        for listener in self._config.listeners:
            context = tls[listener.name].context if listener.name in tls else None
            broker.listeners += (await broker.server.bind(listener, context),)
        writer.start(self._cluster.run(), "metadata")
        if member is None:
            await self._register()
        self._run_background_tasks(tls)
        self._environment.on_serving(broker)
        await broker.server.serve()
        if member is not None:
            # Other brokers check that a registered broker accepts connections at its address.
            await member.join(self._directory)
            members = Tasks(on_failure)
            stack.push_async_callback(members.stop)
            member.start(members)
            # Runs before the member tasks stop: they keep the session while other brokers take over the
            # leaderships.
            stack.push_async_callback(member.leave)
            await member.until_admitted()

    async def _register(self) -> None:
        """Register the endpoints of this standalone broker."""
        node, endpoints = self._config.node, advertised_endpoints(self._broker.listeners)
        await self._cluster.change(
            lambda image: register_standalone(image, node.node_id, rack=node.rack, endpoints=endpoints)
        )

    def _run_background_tasks(self, tls: dict[str, TlsListener]) -> None:
        broker, storage, limits = self._broker, self._storage, self._limits
        dependencies = CompactionDependencies(
            self._directory, self._storage_worker, self._environment.clock, self._log
        )
        broker.compaction = Compaction(
            storage, lambda: self._cluster.config.cleaner, self._environment.new_cleaner(), dependencies
        )
        self._cluster.subscribe(broker.compaction.follow)
        self._stack.push_async_callback(broker.compaction.cleaner.shut_down)
        background = Tasks(stop_on_failure(broker, self._log))
        self._stack.push_async_callback(background.stop)
        background.start(broker.compaction.run(), "compaction")
        background.start(storage.run(), "storage")
        background.start(storage.run_checkpoints(), "checkpoints")
        background.start(storage.starts.run(), "log starts")
        background.start(storage.run_retention(), "retention")
        background.start(self._keep_reserve(), "reserve")
        background.start(broker.server.sweep(), "connections")
        if tls:
            reload = _reload_certificates(tls, limits.tls_reload_check_ms, self._log)
            background.start(reload, "certificates")

    async def _keep_reserve(self) -> None:
        while True:
            await asyncio.sleep(self._limits.disk_reserve_check_ms / 1000)
            try:
                await self._storage_worker.run(self._directory.refill_reserve)
            except (StorageFull, StorageFailed) as problem:
                self._log.warning("storage.no_reserve", reason=str(problem))


async def _standalone_image(cluster_id: str, store: MetadataStore, *, was_clean: bool) -> ClusterImage:
    """The image of the cluster at start. After an unclean shutdown every partition begins a new leader epoch.

    With flush policy `os` a crash may lose records that were visible to clients. A new epoch lets those
    clients detect the loss.
    """
    prefix = ClusterKeys(cluster_id).prefix
    image = image_of(await store.read(prefix), cluster_id)
    if was_clean or not image.partition_count:
        return image
    for step in transactions_of(bump_leader_epochs(image), store.changes_max):
        if isinstance(await store.transact(step.compares, step.changes), Conflict):
            raise CorruptData("the metadata changed while only this broker had it open")
    return image_of(await store.read(prefix), cluster_id)


async def _stop_serving(server: Server, storage: Storage, log: Log, ms_max: int) -> None:
    """Accept no more requests, make accepted records durable, send the replies, and close all connections."""
    server.stop_listening()
    ends_at = asyncio.get_running_loop().time() + ms_max / 1000
    # Half of the time is for batches that wait for validation, the rest for the last flush.
    await _finish_deep_validations(storage, ends_at - ms_max / 2000, log)
    targets = [
        (partition, partition.log.log_end_offset)
        for partition in storage.partitions
        if len(partition.high_watermark_waits)
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


async def _reload_certificates(tls: dict[str, TlsListener], check_ms: int, log: Log) -> None:
    while True:
        await asyncio.sleep(check_ms / 1000)
        for name, listener in tls.items():
            try:
                if listener.reload_if_changed():
                    log.info("tls.reloaded", listener=name)
            except ConfigError as problem:
                log.error("tls.not_reloaded", listener=name, reason=str(problem))
