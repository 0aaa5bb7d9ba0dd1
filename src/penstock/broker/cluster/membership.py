"""Cluster membership of this broker: the cluster id, the broker's session, and its registration.

    agree on the id ──→ session ──→ registered ──→ admitted by the controller
                           ↑             │
                           └── session lost, or fenced

A session expires after five seconds (BROKER_SESSION_MS), and the broker renews it every one and a half
seconds (BROKER_KEEP_MS). When the session has ended, or the controller has fenced the broker by deleting its
key, the broker registers again with a new incarnation. Its process, its logs and its state continue. The
controller decides what follows from the new broker epoch.

Rule 1: the first broker that finds an empty store writes the cluster id, once. A broker rejects a data
        directory of another cluster, and a data directory that has a cluster id when the store has none.
Rule 2: if another process holds this node id, the broker waits as long as a dead process could hold it
        (BROKER_JOIN_MS_MAX), and then fails with the address of that process. The broker does not wait for
        the previous process of the same data directory: that process had the same lock, so it is dead, or the
        directory would still be locked. Two processes with copies of one directory hold two different locks.
Rule 3: while the store is unavailable this broker keeps everything (grace mode): leaders continue to lead, no
        leader is elected, no ISR changes. The store ends a session, never this broker's clock.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from msgspec.structs import replace

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.config.broker import BrokerConfig
from penstock.config.listeners import Listener
from penstock.config.topic import FlushPolicy
from penstock.controller.broker_lifecycle import RegistrationRequest, is_stale_disk_copy, register
from penstock.controller.decision import Decision
from penstock.errors import ApiError, ConfigError, CorruptData, ErrorCode
from penstock.host.backoff import Backoff
from penstock.host.metadata_store import (
    ABSENT,
    Compare,
    MetadataStore,
    Put,
    SessionId,
    StoreRejected,
    StoreUnavailable,
)
from penstock.host.waiting import wait_for_event
from penstock.limits import (
    BROKER_JOIN_MS_MAX,
    BROKER_JOIN_PAUSE_MS,
    BROKER_JOIN_PAUSE_MS_MAX,
    BROKER_KEEP_MS,
    BROKER_SESSION_MS,
    LOST_PARTITIONS_NAMED_MAX,
)
from penstock.log.data_directory import DataDirectory, Inventory
from penstock.metadata import levels
from penstock.metadata.cluster_image import ClusterImage
from penstock.metadata.documents import Endpoint, FeaturesValue, encode_document
from penstock.metadata.keys import CLUSTER_ID_KEY, ClusterKeys
from penstock.observability.logs import Log
from penstock.replication.roles import Admission

OLDER_COPY_HELP: Final = (
    "this data directory is a copy from before its broker was last started: it counts as an empty one, and "
    "what others have is copied from them"
)


async def agree_on_cluster(store: MetadataStore, known: str | None, draw: Callable[[], str]) -> str:
    """Read the cluster id from the store, or write a drawn one if the store has none.

    `known`: the cluster id of the data directory; None if it has none yet.
    """
    try:
        while True:
            found = (await store.read(CLUSTER_ID_KEY)).entries.get(CLUSTER_ID_KEY)
            if found is not None:
                return _checked(found.value.decode(), known)
            if known is not None:
                raise CorruptData(
                    f"the data directory belongs to cluster {known}, and the metadata store knows no "
                    "cluster: look at the address of the store, or restore it; a broker that was alone until "
                    "now is made a member with `penstock cluster adopt`"
                )
            # Another broker may write its id first: then this transaction conflicts, and the next read
            # returns that id.
            await store.transact([Compare(CLUSTER_ID_KEY, ABSENT)], _founding(draw()))
    except (StoreUnavailable, StoreRejected) as problem:
        raise ConfigError(f"the metadata store cannot be used: {problem}") from problem


def _founding(cluster_id: str) -> list[Put]:
    """Documents of a new cluster, at the newest feature level: no older broker is a member yet."""
    level = encode_document(FeaturesValue({levels.FEATURE: levels.NEWEST}))
    return [Put(CLUSTER_ID_KEY, cluster_id.encode()), Put(ClusterKeys(cluster_id).features, level)]


def _checked(cluster_id: str, known: str | None) -> str:
    if known is not None and known != cluster_id:
        raise CorruptData(
            f"the data directory belongs to cluster {known}, and the metadata store holds cluster "
            f"{cluster_id}: choose another folder with --data-dir, or that cluster's store with --metadata"
        )
    return cluster_id


class ClusterMembership:
    def __init__(
        self,
        store: MetadataStore,
        cluster: MetadataService,
        admission: Admission,
        new_incarnation: Callable[[], str],
        log: Log,
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._admission = admission
        self._new_incarnation = new_incarnation
        self._log = log
        self._own: RegistrationRequest
        self._is_member = False
        """The image has this incarnation's live key. A live key that is missing later means a lost session;
        before the key was seen, the image may just be old."""
        self._lost = asyncio.Event()
        self._has_left = False
        self._store_is_unavailable = False
        self._kept_at = 0.0
        """Start of the last request whose reply confirmed the session."""
        self.session: SessionId | None = None
        self.epoch = ABSENT
        """Latest broker epoch of this broker."""

    # Joining

    async def join(self, own: RegistrationRequest) -> None:
        """Register for the first time. ConfigError: another process holds this node id (Rule 2)."""
        self._own = own
        self._cluster.subscribe(self._follow)
        ends_at = asyncio.get_running_loop().time() + BROKER_JOIN_MS_MAX / 1000
        pauses = Backoff(BROKER_JOIN_PAUSE_MS, BROKER_JOIN_PAUSE_MS_MAX)
        while True:
            try:
                await self._register(is_first=True)
                return
            except (ApiError, StoreUnavailable, StoreRejected) as problem:
                if asyncio.get_running_loop().time() >= ends_at:
                    raise ConfigError(self._join_error_reason(problem)) from problem
            await asyncio.sleep(pauses.next_delay_s())

    def _join_error_reason(self, problem: Exception) -> str:
        known = self._cluster.image.brokers.get(self._own.broker_id)
        if (
            isinstance(problem, ApiError)
            and problem.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
            and known
        ):
            at = ", ".join(f"{endpoint.host}:{endpoint.port}" for endpoint in known.endpoints.values())
            return (
                f"node id {known.id} is taken: a broker at {at} has it and is alive. "
                "Choose another with --node-id, or stop that broker"
            )
        return f"this broker cannot join its cluster: {problem}"

    async def _register(self, *, is_first: bool = False) -> None:
        asked_at = asyncio.get_running_loop().time()
        session = await self._store.begin_session(BROKER_SESSION_MS)
        incarnation = self._new_incarnation()
        self._admission.incarnation = incarnation
        self._is_member = False
        self._lost.clear()  # from here on, `_lost` refers to the new session
        own = replace(self._own, incarnation=incarnation)
        is_older = False

        def decide(image: ClusterImage) -> Decision:
            nonlocal is_older
            # Decided inside the change, on the image that the registration is committed against.
            is_older = is_stale_disk_copy(image.brokers.get(own.broker_id), own.start_ids)
            return register(image, self._as_of(image, own), session, is_first=is_first)

        try:
            await self._cluster.change(decide)
        except BaseException:
            # Nothing refers to this session, and a live key that did commit must not outlast this attempt.
            await self.end_session(session)
            raise
        # Only now: with a session the controller loop acts, and until here the image may have shown the
        # registration of the previous session.
        self.session, self._kept_at = session, asked_at
        self._log.info("broker.registered", node_id=own.broker_id, epoch=self.epoch)
        if is_older:
            self._log.warning("broker.older_copy", node_id=own.broker_id, help=OLDER_COPY_HELP)

    def _as_of(self, image: ClusterImage, own: RegistrationRequest) -> RegistrationRequest:
        """The registration of a process that was admitted before: it continues and has lost no records.

        The clean epoch comes from the image, which may have an admission that this process has not applied.
        """
        known = image.brokers.get(own.broker_id)
        if self._admission.epoch == ABSENT or known is None:
            return own
        return replace(own, clean_epoch=known.admitted_epoch, lost={}, has_lost_all=False)

    async def end_session(self, session: SessionId) -> None:
        try:
            await self._store.end_session(session)
        except (StoreUnavailable, StoreRejected) as problem:  # then the session expires in the store
            self._log.warning("broker.session_not_ended", reason=str(problem))

    # Staying

    async def run(self) -> None:
        """The task that renews the session, and registers again when the session is over."""
        pauses = Backoff(BROKER_JOIN_PAUSE_MS, BROKER_JOIN_PAUSE_MS_MAX)
        while not self._has_left:
            if not await self.is_over():
                continue
            if self.session is not None:
                session, self.session = self.session, None
                self._log.warning(
                    "broker.session_over",
                    epoch=self.epoch,
                    help="it was silent for too long, or no process listened at its advertised address",
                )
                await self.end_session(session)
            try:
                await self._register()
            except (ApiError, StoreUnavailable, StoreRejected) as problem:
                self._log.warning("broker.not_registered", reason=str(problem))
                await asyncio.sleep(pauses.next_delay_s())
            else:
                pauses.reset()

    async def is_over(self) -> bool:
        """Wait for the next renewal, or less if the image shows the end. True: register again."""
        await wait_for_event(self._lost, 0 if self.session is None else BROKER_KEEP_MS / 1000)
        if self._has_left:
            return False
        if self.session is None or self._lost.is_set():
            return True
        asked_at = asyncio.get_running_loop().time()
        try:
            is_kept = await self._store.renew_session(self.session)
        except (StoreUnavailable, StoreRejected) as problem:
            if not self._store_is_unavailable:
                self._store_is_unavailable = True
                help_ = "the broker serves on; nothing can be changed"
                self._log.warning("broker.store_unavailable", reason=str(problem), help=help_)
            return False  # grace mode (Rule 3): an unavailable store has not ended the session
        if is_kept:
            self._kept_at = asked_at  # the start of the renewal: the store may have confirmed it that early
        if self._store_is_unavailable:
            self._store_is_unavailable = False
            self._log.info("broker.store_available")
        return not is_kept

    def store_silence_ms(self) -> float:
        """Milliseconds since the store last confirmed the session."""
        return (asyncio.get_running_loop().time() - self._kept_at) * 1000

    async def _follow(self, before: ClusterImage, after: ClusterImage) -> None:
        if before.sessions is after.sessions:
            return
        live = after.sessions.get(self._own.broker_id)
        if live is not None and live.incarnation == self._admission.incarnation:
            self._is_member = True
            self.epoch = live.epoch
        elif self._is_member:
            self._is_member = False
            self._lost.set()

    # Leaving

    async def leave(self) -> None:
        """End the session, so that the cluster does not wait until it expires."""
        self._has_left = True
        if self.session is not None:
            session, self.session = self.session, None
            await self.end_session(session)


def registration(
    config: BrokerConfig,
    directory: DataDirectory,
    listeners: tuple[Listener, ...],
    *,
    clean_epoch: int,
    start_ids: tuple[str, ...],
    lost: Inventory,
) -> RegistrationRequest:
    """The registration of this broker, with what the previous process left in the data directory.

    `ClusterMembership` adds the incarnation.
    """
    named = {topic_id: tuple(indexes) for topic_id, indexes in lost.items()}
    is_too_much = sum(map(len, named.values())) > LOST_PARTITIONS_NAMED_MAX
    return RegistrationRequest(
        broker_id=config.node.node_id,
        incarnation="",
        directory_id=directory.identity.directory_id,
        clean_epoch=clean_epoch,
        start_ids=start_ids,
        lock=directory.lock_mark,
        lost={} if is_too_much else named,
        has_lost_all=is_too_much,
        flushes_before_ack=config.topic_defaults.flush_policy is FlushPolicy.BEFORE_ACK,
        rack=config.node.rack,
        endpoints=advertised_endpoints(listeners),
        features={levels.FEATURE: levels.NEWEST},
    )


def advertised_endpoints(listeners: Iterable[Listener]) -> dict[str, Endpoint]:
    """The endpoints that this broker registers, by listener name."""
    return {at.name: Endpoint(at.advertised_host, at.advertised_port) for at in listeners}
