"""Cluster member: the parts of a clustered broker that a single broker does not have, wired together.

    membership         the session and the registration
    controller loop    the controller's work, while this broker is the controller
    peers              detection of brokers whose process is gone
    fetchers           replication from other leaders to this broker
    followers          replication from this broker to its followers
    damaged            repair of damaged replicas on this broker
    peer lease check   whether this broker was fenced while it cannot reach the store
    reachability       reports of brokers that this broker cannot reach

Start: register, serve, and wait for admission. Stop: request to be drained, wait until other brokers lead the
partitions of this broker, end the session while everything still works, and then stop like a single broker.

Rule: when a task that membership depends on fails, the broker ends its session at once and serves no more
      (`RunningBroker.end_membership`). The broker does not wait to be drained: it may be the controller
      itself.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.broker.cluster.controller_loop import ControllerLoop
from penstock.broker.cluster.failure_detector import FailureDetector
from penstock.broker.cluster.membership import ClusterMembership, registration
from penstock.broker.cluster.peer_lease_check import PeerLeaseCheck
from penstock.broker.cluster.peer_reachability import PeerReachability
from penstock.broker.cluster.store_identity import require_same_history, store_progress_of
from penstock.broker.replication.cluster_followers import ClusterFollowers
from penstock.broker.replication.damaged_replicas import DamagedReplicas
from penstock.broker.replication.replica_fetchers import InterBrokerLink, ReplicaFetchers
from penstock.broker.storage.partition_inventory import InventoryKeeper
from penstock.broker.task_failures import report_failure
from penstock.config.broker import BrokerConfig
from penstock.controller.broker_lifecycle import drain, is_drained
from penstock.errors import ApiError, ConfigError, StorageFailed
from penstock.host.metadata_store import MetadataStore, StoreRejected, StoreUnavailable
from penstock.host.tasks import Tasks
from penstock.host.tls import ClientTls
from penstock.limits import BROKER_ADMISSION_MS_MAX, BROKER_DRAIN_MS_MAX
from penstock.log.data_directory import NOT_ADMITTED, DataDirectory, new_id
from penstock.metadata.cluster_image import ClusterImage
from penstock.metadata.image_builder import image_of
from penstock.metadata.keys import ClusterKeys
from penstock.replication.roles import Admission

if TYPE_CHECKING:
    from penstock.broker.broker import Environment, RunningBroker


DISK_LOOK_MS: Final = 250
Condition = Callable[[], bool]


class SharedStore(NamedTuple):
    """The metadata store of a cluster, and this process's admission to the cluster."""

    store: MetadataStore
    cluster_id: str
    admission: Admission


async def opening_image(shared: SharedStore, directory: DataDirectory) -> ClusterImage:
    """Read the cluster image at the start of this broker. ConfigError: the store cannot be used."""
    prefix = ClusterKeys(shared.cluster_id).prefix
    try:
        image = image_of(await shared.store.read(prefix), shared.cluster_id)
        await require_same_history(shared.store, prefix, image.revision, directory)
    except (StoreUnavailable, StoreRejected) as problem:
        raise ConfigError(f"the metadata store cannot be used: {problem}") from problem
    return image


def inter_broker_link(config: BrokerConfig) -> InterBrokerLink:
    """Connection settings between brokers: the first listener, with its certificate if it uses TLS."""
    listener = config.listeners[0]
    tls = config.tls.get(listener.name)
    if tls is None:
        return InterBrokerLink(listener.name)
    identity = ClientTls(tls.truststore_path, tls.keystore_path, key_password=tls.key_password)
    return InterBrokerLink(listener.name, identity.context())


class ClusterMember:
    def __init__(
        self, broker: "RunningBroker", shared: SharedStore, config: BrokerConfig, environment: "Environment"
    ) -> None:
        cluster, log = broker.cluster, environment.log
        self._broker = broker
        self._cluster = cluster
        self._config = config
        self._log = log
        self._admission = shared.admission
        self._directory: DataDirectory
        self._wakeup = asyncio.Event()
        self._tasks = Tasks(report_failure(log))
        """Tasks whose failure is only logged, and does not end the broker."""
        self._session_ended: asyncio.Event | None = None
        """Event for the end of the session; None while nothing has requested `end_membership`."""
        self._new_id: Callable[[], str] = lambda: new_id(environment.randomness)
        self.membership = ClusterMembership(shared.store, cluster, shared.admission, self._new_id, log)
        node_id, link = config.node.node_id, inter_broker_link(config)
        self._peers = FailureDetector(cluster, node_id, link.listener, self._tasks, log)
        self.controller_loop = ControllerLoop(
            cluster,
            node_id,
            lambda: self.membership.session,
            lambda: cluster.config.replication,
            shared.store.changes_max,
            log,
        )

        def own_epoch() -> int:
            return self.membership.epoch

        self.fetchers = ReplicaFetchers(
            cluster, broker.storage, own_epoch, link, self._tasks, environment.clock, log
        )
        self._damaged = DamagedReplicas(cluster, broker.storage, own_epoch, self.fetchers.update_leader, log)
        self._peer_lease_check = PeerLeaseCheck(
            cluster, self.membership, shared.admission, broker.storage.partitions, link, log
        )
        self._reachability = PeerReachability(cluster, self.membership, self.fetchers, log)
        self.followers = ClusterFollowers(
            cluster, broker.storage.partitions, own_epoch, self._tasks, environment.clock, log
        )

    # Starting

    async def join(self, directory: DataDirectory) -> None:
        self._directory = directory
        known = self._cluster.image.brokers.get(self._config.node.node_id)
        start_ids = directory.record_start(self._new_id(), "" if known is None else known.start_id)
        # The epoch is read from the mark, which must then be gone before this process can write: after a
        # crash the mark would wrongly prove that the log has every record acknowledged under that epoch.
        clean_epoch = directory.clean_epoch()
        directory.consume_clean_shutdown_mark()
        self._cluster.subscribe(self._follow)
        await self.membership.join(
            registration(
                self._config,
                directory,
                self._broker.listeners,
                clean_epoch=clean_epoch,
                start_ids=start_ids,
                lost=self._broker.storage.partitions.lost,
            )
        )

    def start(self, tasks: Tasks) -> None:
        """Start the tasks. `tasks` ends the broker if one of them fails: without it the broker would run but
        not work."""
        tasks.start(self.membership.run(), "membership")
        tasks.start(self.controller_loop.run(), "controller")
        tasks.start(self.followers.run(), "followers")
        tasks.start(self._peer_lease_check.run(self._config.node.node_id), "witnesses")
        tasks.start(self._reachability.run(), "reachability")
        tasks.start(self._leave_if_the_disk_fails(), "disk")
        inventory = InventoryKeeper(self._directory, self._broker.storage, self._log)
        tasks.start(inventory.run(), "inventory")
        self._damaged.open()
        tasks.start(self._damaged.run(), "damaged replicas")
        tasks.start(self._damaged.replace(), "replacements of damaged replicas")
        # After the damaged replicas, whose `open` relies on no fetch of this process having been sent.
        self.fetchers.open()

    async def _leave_if_the_disk_fails(self) -> None:
        """End the session when the disk fails, so that in-sync followers are elected as leaders."""
        partitions = self._broker.storage.partitions
        while True:
            await asyncio.sleep(DISK_LOOK_MS / 1000)
            if partitions.failure is not None:
                self._log.error("broker.leaves", reason=partitions.failure)
                await self.membership.leave()
                self._wakeup.set()
                return

    async def _follow(self, before: ClusterImage, after: ClusterImage) -> None:
        if self._admission.epoch != NOT_ADMITTED:
            self._directory.broker_epoch = self._admission.epoch
        self._directory.store_progress = store_progress_of(self._cluster.latest, after.revision)
        self._wakeup.set()

    async def until_admitted(self) -> None:
        """Wait for admission, at most BROKER_ADMISSION_MS_MAX; then the broker serves without it.

        StorageFailed: the disk has failed and this broker has left the cluster. It has to be restarted.
        """
        partitions = self._broker.storage.partitions
        await self._until(
            lambda: self._is_admitted() or partitions.failure is not None, BROKER_ADMISSION_MS_MAX
        )
        if partitions.failure is not None:
            raise StorageFailed(partitions.failure)
        if not self._is_admitted():
            self._log.warning(
                "broker.not_admitted", help="this broker serves when the controller has admitted it"
            )

    def _is_admitted(self) -> bool:
        return self._admission.is_admitted_in(self._cluster.image)

    def not_admitted(self) -> str | None:
        """Reason why this broker is not ready; None if the cluster has admitted it."""
        if self._admission.is_deposed:
            return "the metadata store is unavailable, and the other brokers have taken over"
        if self._is_admitted():
            return None
        node_id, image = self._config.node.node_id, self._cluster.image
        if node_id in image.admitted:
            return f"another process has node id {node_id} now: stop that one or this one"
        return "the cluster has not admitted this broker"

    async def _until(self, holds: Condition, ms_max: int) -> bool:
        try:
            async with asyncio.timeout(ms_max / 1000):
                while not holds():
                    self._wakeup.clear()
                    await self._wakeup.wait()
        except TimeoutError:
            return False
        return True

    # Stopping

    def end_membership(self) -> None:
        """End the session at once, without being drained."""
        if self._session_ended is None:
            self._session_ended = asyncio.Event()
            self._tasks.start(self._end_session(self._session_ended), "giving up")

    async def _end_session(self, has_ended: asyncio.Event) -> None:
        try:
            await self.membership.leave()
        finally:
            has_ended.set()

    async def leave(self) -> None:
        """Be drained, and then end the session."""
        if self._session_ended is not None:
            await self._session_ended.wait()
        else:
            # Drained first: other brokers lead before the session ends, so no partition is without a leader.
            await self._drain()
            await self.membership.leave()
        await self._tasks.stop()

    async def _drain(self) -> None:
        node_id = self._config.node.node_id
        try:
            await self._cluster.change(lambda image: drain(image, node_id))
            if not await self._until(lambda: is_drained(self._cluster.image, node_id), BROKER_DRAIN_MS_MAX):
                self._log.warning("broker.not_drained", help="no other broker took over what it leads")
        except ApiError as problem:
            self._log.warning("broker.not_drained", reason=str(problem))
