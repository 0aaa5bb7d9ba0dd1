"""A broker's place in a cluster: everything that a broker which is alone does without, put together.

    membership    the session, and that others know where we are
    controlling   the controller's loop, in case that is us; peers: who is gone
    fetchers      what we follow
    followers     who follows us
    damaged       copies of ours that were found damaged

Start: register, serve, and wait to be admitted. Stop: ask to be relieved, wait until others lead what we
led, end the session while everything still works, and then stop like any other broker.

Rule: a broker that has lost what makes it a member ends its session at once, and serves no more
      (`RunningBroker.give_up`). Nobody is asked to relieve it: it may be the controller itself.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.broker.controlling import Controlling
from penstock.broker.damaged_replicas import DamagedReplicas
from penstock.broker.failures import report_failure
from penstock.broker.fetchers import Fetchers, Way
from penstock.broker.followers import ClusterFollowers
from penstock.broker.history import require_same_history, seen_of
from penstock.broker.inventory import InventoryKeeper
from penstock.broker.membership import FoundOnDisk, Membership, registration
from penstock.broker.peers import Peers
from penstock.broker.witnesses import Witnesses
from penstock.config.broker import BrokerConfig
from penstock.controller.brokers import drain, is_drained
from penstock.errors import ApiError, ConfigError, StorageFailed
from penstock.host.metadata_store import MetadataStore, StoreAway, StoreRefuses
from penstock.host.tasks import Tasks
from penstock.host.tls import ClientTls
from penstock.limits import BROKER_ADMISSION_MS_MAX, BROKER_DRAIN_MS_MAX
from penstock.log.data_directory import NO_BROKER_EPOCH, DataDirectory, new_id
from penstock.metadata.image import ClusterImage, image_of
from penstock.metadata.keys import Keys
from penstock.replication.roles import Admission

if TYPE_CHECKING:
    from penstock.broker.broker import RunningBroker, World


DISK_LOOK_MS: Final = 250
Holds = Callable[[], bool]


class SharedStore(NamedTuple):
    """The metadata store of a cluster, and whether this process is a member there."""

    store: MetadataStore
    cluster_id: str
    admission: Admission


async def opening_image(shared: SharedStore, directory: DataDirectory) -> ClusterImage:
    """The cluster as it is when this broker starts."""
    prefix = Keys(shared.cluster_id).prefix
    try:
        image = image_of(await shared.store.read(prefix), shared.cluster_id)
        await require_same_history(shared.store, prefix, image.revision, directory)
    except (StoreAway, StoreRefuses) as problem:
        raise ConfigError(f"the metadata store cannot be used: {problem}") from problem
    return image


def way_between_brokers(config: BrokerConfig) -> Way:
    """The first listener, as its own clients are to be: with its certificate where that is TLS."""
    listener = config.listeners[0]
    tls = config.tls.get(listener.name)
    if tls is None:
        return Way(listener.name)
    identity = ClientTls(tls.truststore_path, tls.keystore_path, key_password=tls.key_password)
    return Way(listener.name, identity.context())


class Place:
    def __init__(
        self, broker: "RunningBroker", shared: SharedStore, config: BrokerConfig, world: "World"
    ) -> None:
        cluster, log = broker.cluster, world.log
        self._broker = broker
        self._cluster = cluster
        self._config = config
        self._log = log
        self._admission = shared.admission
        self._directory: DataDirectory
        self._news = asyncio.Event()
        self._tasks = Tasks(report_failure(log))
        """What may fail for itself."""
        self._given_up: asyncio.Event | None = None
        """Set when the session has been ended; None: this broker is a member."""
        self._new_id: Callable[[], str] = lambda: new_id(world.randomness)
        self.membership = Membership(shared.store, cluster, shared.admission, self._new_id, log)
        node_id, way = config.node.node_id, way_between_brokers(config)
        self._peers = Peers(cluster, node_id, way.listener, self._tasks, log)
        self._controlling = Controlling(
            cluster,
            node_id,
            lambda: self.membership.session,
            lambda: cluster.config.replication,
            shared.store.changes_max,
            log,
        )

        def own_epoch() -> int:
            return self.membership.epoch

        self._fetchers = Fetchers(cluster, broker.storage, own_epoch, way, self._tasks, world.clock, log)
        self._damaged = DamagedReplicas(cluster, broker.storage, own_epoch, self._fetchers.look_at, log)
        self._witnesses = Witnesses(
            cluster, self.membership, shared.admission, broker.storage.partitions, way, log
        )
        self.followers = ClusterFollowers(
            cluster, broker.storage.partitions, own_epoch, self._tasks, world.clock, log
        )

    # Starting

    async def join(self, directory: DataDirectory) -> None:
        self._directory = directory
        known = self._cluster.image.brokers.get(self._config.node.node_id)
        start_ids = directory.begin_start(self._new_id(), "" if known is None else known.start_id)
        clean_epoch = directory.clean_epoch()
        directory.take_clean_mark()
        self._cluster.subscribe(self._follow)
        found = FoundOnDisk(clean_epoch, start_ids, self._broker.storage.partitions.lost)
        await self.membership.join(registration(self._config, directory, self._broker.listeners, found))

    def start(self, tasks: Tasks) -> None:
        """`tasks`: without which the broker would only seem to work."""
        tasks.start(self.membership.run(), "membership")
        tasks.start(self._controlling.run(), "controller")
        tasks.start(self.followers.run(), "followers")
        tasks.start(self._witnesses.run(self._config.node.node_id), "witnesses")
        tasks.start(self._leave_if_the_disk_fails(), "disk")
        inventory = InventoryKeeper(self._directory, self._broker.storage, self._log)
        tasks.start(inventory.run(), "inventory")
        self._damaged.open()
        tasks.start(self._damaged.run(), "damaged replicas")
        tasks.start(self._damaged.renew(), "renewals of damaged replicas")
        self._fetchers.open()

    async def _leave_if_the_disk_fails(self) -> None:
        """Others have what this broker led, and can go on without it."""
        partitions = self._broker.storage.partitions
        while True:
            await asyncio.sleep(DISK_LOOK_MS / 1000)
            if partitions.failure is not None:
                self._log.error("broker.leaves", reason=partitions.failure)
                await self.membership.leave()
                self._news.set()
                return

    async def _follow(self, before: ClusterImage, after: ClusterImage) -> None:
        if self._admission.epoch != NO_BROKER_EPOCH:
            self._directory.broker_epoch = self._admission.epoch
        self._directory.seen = seen_of(self._cluster.latest, after.revision)
        self._news.set()

    async def until_admitted(self) -> None:
        """Or for as long as it makes sense. StorageFailed: it has left, and has to be started again."""
        partitions = self._broker.storage.partitions
        await self._until(
            lambda: self._is_admitted() or partitions.failure is not None, BROKER_ADMISSION_MS_MAX
        )
        if partitions.failure is not None:
            raise StorageFailed(partitions.failure)
        if not self._is_admitted():
            self._log.warning("broker.not_admitted", help="it serves when the controller has admitted it")

    def _is_admitted(self) -> bool:
        return self._admission.holds(self._cluster.image)

    def not_admitted(self) -> str | None:
        """Why others do not count on this broker; None if they do."""
        if self._admission.is_deposed:
            return "the metadata store is away, and the other brokers have taken over"
        if self._is_admitted():
            return None
        node_id, image = self._config.node.node_id, self._cluster.image
        if node_id in image.admitted:
            return f"another process has node id {node_id} now: stop that one or this one"
        return "the cluster has not admitted this broker"

    async def _until(self, holds: Holds, ms_max: int) -> bool:
        try:
            async with asyncio.timeout(ms_max / 1000):
                while not holds():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return False
        return True

    # Stopping

    def give_up(self) -> None:
        """Be gone for the others, at once."""
        if self._given_up is None:
            self._given_up = asyncio.Event()
            self._tasks.start(self._end_session(self._given_up), "giving up")

    async def _end_session(self, has_ended: asyncio.Event) -> None:
        try:
            await self.membership.leave()
        finally:
            has_ended.set()

    async def leave(self) -> None:
        """Let others lead, and be gone for them."""
        if self._given_up is not None:
            await self._given_up.wait()
        else:
            await self._be_relieved()
            await self.membership.leave()
        await self._tasks.stop()

    async def _be_relieved(self) -> None:
        node_id = self._config.node.node_id
        try:
            await self._cluster.change(lambda image: drain(image, node_id))
            if not await self._until(lambda: is_drained(self._cluster.image, node_id), BROKER_DRAIN_MS_MAX):
                self._log.warning("broker.not_drained", help="nobody else took over what it leads")
        except ApiError as problem:
            self._log.warning("broker.not_drained", reason=str(problem))
