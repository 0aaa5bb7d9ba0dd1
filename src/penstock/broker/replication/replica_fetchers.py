"""The follower's side of replication: one fetcher task per leader broker.

    fetch ──→ append ──→ flush ──→ fetch, which acknowledges the records

Each fetcher task holds one connection and one fetch session. If this broker follows many partitions of a
leader, partitions without new records for a while move to a second task with its own session: each fetch
makes both brokers check every partition of the session, and few partitions are written to at a time.
replication/fetch_session_handler.py decides what to request, and replication/following.py what a response
means. This module does the waiting and the I/O.

Rule 1: for a topic that flushes before acknowledging, the follower flushes appended records before its next
        fetch, because the fetch offset acknowledges them.
Rule 2: the follower retries an unavailable leader with pauses that double up to REPLICA_PAUSE_MS_MAX, or at
        once when the image shows a change of the brokers.
Rule 3: the follower aborts a fetch that waits at the leader when the follower gets another partition, or a
        new leader epoch, of that leader. Producers to a new topic, or after an election, should not wait for
        the old fetch to return.
Rule 4: the follower stores its log start offset as soon as the offset moves. Fetches continue meanwhile and
        report the stored log start offset.
Rule 5: a replica that a reassignment adds to this broker is throttled (replication/throttle.py).
"""

import asyncio
from collections.abc import Callable
from ssl import SSLContext
from typing import NamedTuple

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.storage.partition_storage import Storage
from penstock.broker.task_failures import report_failure
from penstock.config.listeners import Address
from penstock.config.topic import FlushPolicy
from penstock.errors import CorruptData, ProtocolError, StorageFailed, StorageFull
from penstock.host.backoff import Backoff
from penstock.host.clock import Clock
from penstock.host.tasks import Tasks
from penstock.host.waiting import wait_for_event
from penstock.limits import (
    REPLICA_FETCH_MS_MAX,
    REPLICA_IDLE_WAIT_MS,
    REPLICA_INTERRUPT_MS,
    REPLICA_PAUSE_MS,
    REPLICA_PAUSE_MS_MAX,
    REPLICA_WAIT_MS,
)
from penstock.log.truncation import Truncation
from penstock.metadata.cluster_image import NO_NODE, ClusterImage
from penstock.metadata.image_changes import changed_partitions
from penstock.observability.logs import Log
from penstock.protocol.messages.fetch import FETCH, FetchResponse, PartitionData
from penstock.replication.fetch_session_handler import (
    FetchSessionHandler,
    PartitionActivity,
    Replica,
    SessionPartition,
)
from penstock.replication.following import Applied, RetryLater
from penstock.replication.partition import Partition
from penstock.replication.throttle import NO_RATE, Allowance, Throttle, is_being_added
from penstock.types import LeaderEpoch, Offset
from penstock.wire.async_client import AsyncClient, connected
from penstock.wire.client_protocol import VersionMismatch


class InterBrokerLink(NamedTuple):
    """Listener and TLS settings for connections between brokers."""

    listener: str
    """Each broker is reached at its endpoint for this listener."""
    tls: SSLContext | None = None


class ReplicaFetchers:
    """Assignment of followed replicas to fetcher tasks, kept in step with the image."""

    def __init__(
        self,
        cluster: MetadataService,
        storage: Storage,
        own_epoch: Callable[[], int],
        link: InterBrokerLink,
        tasks: Tasks,
        clock: Clock,
        log: Log,
    ) -> None:
        self.cluster = cluster
        self.storage = storage
        self.own_epoch = own_epoch
        self.clock = clock
        self.log = log
        self.link = link
        self._tasks = tasks
        self._followed: dict[Replica, _Leader] = {}
        self.by_leader: dict[FetcherKey, LeaderFetcher] = {}
        self._idle: set[Replica] = set()
        """Replicas that the second session of their leader fetches."""
        self.node_id = cluster.config.node.node_id
        self.answered_at: dict[int, float] = {}
        """By leader id: when it last answered a fetch, in the time of the event loop."""
        self._throttle = Throttle()
        self.report = report_failure(log)

    def open(self) -> None:
        """Begin to fetch every replica that this broker follows in the current image."""
        for partition in self.storage.partitions:
            self.update_leader(Replica(partition.topic_id, partition.name.partition))
        self.cluster.subscribe(self._follow)

    async def _follow(self, before: ClusterImage, after: ClusterImage) -> None:
        """Update fetchers for a new image. The storage subscribed first, so its partitions are current."""
        for topic, was, now in changed_partitions(before, after):
            state = now or was
            assert state is not None
            self.update_leader(Replica(topic.id, state.index))
        if before.brokers is not after.brokers:
            for fetcher in self.by_leader.values():
                fetcher.wake()  # a leader may have a new address, or be available again

    def update_leader(self, replica: Replica) -> None:
        """Move a replica to the fetcher of its leader, if the leader or the leader epoch has changed."""
        leader = self._leader(self.storage.partitions.find_by_id(*replica))
        known = self._followed.get(replica)
        if leader == known:
            return
        if known is not None:
            del self._followed[replica]
            self.by_leader[FetcherKey(known.id, replica in self._idle)].unfollow(replica)
            self._idle.discard(replica)
        if leader is not None:
            self._followed[replica] = leader
            # First in the busy session, whose fetches wait less, until the replica proves to be idle.
            self._fetcher(FetcherKey(leader.id, is_idle=False)).follow(replica)

    def move(self, replica: Replica, *, to_idle: bool) -> None:
        """Move a replica to the other session of its leader."""
        leader_id = self._followed[replica].id
        self._fetcher(FetcherKey(leader_id, not to_idle)).unfollow(replica)
        (self._idle.add if to_idle else self._idle.discard)(replica)
        self._fetcher(FetcherKey(leader_id, to_idle)).follow(replica)

    # Throttling

    def allow(self, replica: Replica, now: float) -> Allowance:
        rate = self._rate_of(replica)
        return Allowance(now) if rate is None else self._throttle.allowance(rate, now)

    def copied(self, replica: Replica, count: int) -> None:
        rate = self._rate_of(replica)
        if rate is not None:
            self._throttle.spend(count, rate, self.clock.monotonic())

    def _rate_of(self, replica: Replica) -> int | None:
        """The rate limit in bytes per second; None if the replica is not throttled."""
        rate = self.cluster.config.replication.copied_bytes_per_second_max
        if rate == NO_RATE or not is_being_added(self.cluster.image, *replica, self.node_id):
            return None
        return rate

    def _leader(self, partition: Partition | None) -> "_Leader | None":
        if partition is None or partition.following is None or partition.offline_error is not None:
            return None
        leader_id, epoch = partition.following.leader_id, partition.following.leader_epoch
        return None if leader_id in (NO_NODE, self.node_id) else _Leader(leader_id, epoch)

    def _fetcher(self, key: "FetcherKey") -> "LeaderFetcher":
        fetcher = self.by_leader.get(key)
        if fetcher is None:
            fetcher = self.by_leader[key] = LeaderFetcher(key, self)
            self._tasks.start(fetcher.run(), f"fetch from broker {key.leader_id}")
        return fetcher

    def leader_ids(self) -> frozenset[int]:
        """The brokers that this broker fetches from."""
        return frozenset(key.leader_id for key, fetcher in self.by_leader.items() if len(fetcher.session))

    def address_of(self, broker_id: int) -> Address | None:
        """The address of a live broker; None if the broker is not alive or lacks the listener."""
        broker = self.cluster.image.brokers.get(broker_id)
        if broker is None or not broker.is_alive or self.link.listener not in broker.endpoints:
            return None
        endpoint = broker.endpoints[self.link.listener]
        return Address(endpoint.host, endpoint.port)


class _Leader(NamedTuple):
    id: int
    epoch: LeaderEpoch


class FetcherKey(NamedTuple):
    leader_id: int
    is_idle: bool


class LeaderFetcher:
    """Fetcher of one leader and one session."""

    def __init__(self, key: FetcherKey, fetchers: ReplicaFetchers) -> None:
        self._leader_id, self._is_idle = key
        self._fetchers = fetchers
        self._storage = fetchers.storage
        self._log = fetchers.log
        wait_ms = REPLICA_IDLE_WAIT_MS if self._is_idle else REPLICA_WAIT_MS
        find = fetchers.storage.partitions.find_by_id
        self.session = FetchSessionHandler(self._leader_id, find, wait_ms, fetchers.allow)
        self._activity = PartitionActivity()
        self._wakeup = asyncio.Event()
        self._client: AsyncClient | None = None
        """The connection while a response is pending, so that `follow` can abort the fetch; else None."""
        self._interrupted_at = 0.0
        self._is_interrupted = False
        self._last_logged = ""

    # What is followed

    def follow(self, replica: Replica) -> None:
        self.session.follow(replica)
        self.wake()
        now = asyncio.get_running_loop().time()
        self._activity.begin(replica, now)
        # Aborting costs a connection, so at most one abort per interval however many replicas are added.
        if self._client is not None and now - self._interrupted_at >= REPLICA_INTERRUPT_MS / 1000:
            self._interrupted_at, self._is_interrupted = now, True
            self._client.close()

    def unfollow(self, replica: Replica) -> None:
        self.session.unfollow(replica)
        self._activity.end(replica)

    def wake(self) -> None:
        self._wakeup.set()

    # Fetching

    async def run(self) -> None:
        """The fetcher task. After an unexpected exception the task logs it once and starts again."""
        while True:
            try:
                await self._run()
            except Exception as mistake:
                if repr(mistake) != self._last_logged:
                    self._last_logged = repr(mistake)
                    self._fetchers.report(f"fetch from broker {self._leader_id}", mistake)
            await self._wait_for_wakeup(REPLICA_PAUSE_MS_MAX / 1000)

    async def _run(self) -> None:
        pauses = Backoff(REPLICA_PAUSE_MS, REPLICA_PAUSE_MS_MAX)
        while True:
            address = self._fetchers.address_of(self._leader_id)
            if not len(self.session) or address is None:
                await self._wait_for_wakeup(None)
                continue
            try:
                name, tls = f"penstock-{self._fetchers.node_id}", self._fetchers.link.tls
                async with connected(address, name, tls=tls) as client:
                    pauses.reset()
                    await self._fetch_over(client)
            except (OSError, ProtocolError, VersionMismatch) as problem:
                if self._is_interrupted:
                    # `follow` closed the connection: not a failure of the leader, so reconnect at once.
                    self._is_interrupted = False
                    continue
                self._log_leader_unavailable(f"{problem}")
            await self._wait_for_wakeup(pauses.next_delay_s())

    def _log_leader_unavailable(self, reason: str) -> None:
        if reason != self._last_logged:
            self._last_logged = reason
            self._log.warning("replica.leader_unavailable", leader=self._leader_id, reason=reason)

    async def _wait_for_wakeup(self, seconds: float | None) -> None:
        """Wait for `wake`, at most so many seconds; None: without limit."""
        self._wakeup.clear()
        if seconds is None:
            await self._wakeup.wait()
        else:
            await wait_for_event(self._wakeup, seconds)

    async def _fetch_over(self, client: AsyncClient) -> None:
        self.session.begin()  # a new connection starts a new fetch session: the next fetch is a full one
        fetchers = self._fetchers
        while len(self.session):
            now = fetchers.clock.monotonic()
            request = self.session.request(fetchers.node_id, fetchers.own_epoch(), now)
            if request is None:
                # Every partition is delayed. Wait for the first one that is due, or for another partition.
                next_delayed_at = self.session.next_delayed_at()
                await self._wait_for_wakeup(
                    None if next_delayed_at is None else max(0.0, next_delayed_at - now)
                )
                continue
            self._client = client
            try:
                response = await client.ask(FETCH, request, REPLICA_FETCH_MS_MAX / 1000)
            finally:
                self._client = None
            self._last_logged = ""
            fetchers.answered_at[self._leader_id] = asyncio.get_running_loop().time()
            await self.process_response(response)
            self._sort_out()

    def _sort_out(self) -> None:
        """Move replicas between the busy and the idle session by their recent activity."""
        now = asyncio.get_running_loop().time()
        moved = self._activity.busy() if self._is_idle else self._activity.idle(now)
        for replica in moved:
            self._fetchers.move(replica, to_idle=not self._is_idle)

    async def process_response(self, response: FetchResponse) -> None:
        unflushed: list[tuple[Partition, Offset]] = []
        truncations: list[tuple[Replica, Partition, Truncation]] = []
        for replica, asked, data in self.session.handle_response(response):
            partition = asked.partition
            step = self.append_response(replica, asked, data)
            if isinstance(step, Applied):
                if partition.log.is_start_unstored:
                    self._storage.starts.request(partition.log)
                if step.batches:
                    self._fetchers.copied(replica, len(data.records or b""))
                    self._activity.note(replica, asyncio.get_running_loop().time())
                    if partition.flush_policy is FlushPolicy.BEFORE_ACK:
                        unflushed.append((partition, partition.log.log_end_offset))
            elif isinstance(step, Truncation):
                truncations.append((replica, partition, step))
            elif isinstance(step, RetryLater):
                self._put_off(replica, REPLICA_PAUSE_MS)
        # A truncation waits for the disk, so the records of all other partitions are appended first.
        for waiting in truncations:
            await self._truncate(*waiting)
        if response.error_code:
            await self._wait_for_wakeup(REPLICA_PAUSE_MS / 1000)
        if unflushed:
            try:
                # Before the next request: its fetch offsets acknowledge these records to the leader.
                await self._storage.flusher.flush_to(unflushed)
            except StorageFailed as failure:
                self._storage.fail(failure)

    def append_response(self, replica: Replica, asked: SessionPartition, data: PartitionData) -> object:
        partition = asked.partition
        try:
            return partition.handle_fetch_response(asked.fetch_position, data)
        except CorruptData as damage:
            # No leader can have stored such records, so the response is at fault, not this replica's log.
            self._log.error("replica.damaged_answer", partition=partition.name, reason=str(damage))
        except StorageFull as full:
            self._storage.note_full(full)
        except StorageFailed as failure:
            self._storage.fail(failure)
        self._put_off(replica, REPLICA_PAUSE_MS_MAX)
        return None

    def _put_off(self, replica: Replica, pause_ms: int) -> None:
        self.session.delay(replica, self._fetchers.clock.monotonic() + pause_ms / 1000)

    async def _truncate(self, replica: Replica, partition: Partition, truncation: Truncation) -> None:
        self._log.info(
            "replica.truncates",
            partition=partition.name,
            offset=truncation.offset,
            end=partition.log.log_end_offset,
        )
        try:
            # A failure takes the partition offline; `update_leader` below then stops its fetches.
            await self._storage.truncate(partition, truncation)
        except (CorruptData, StorageFailed) as failure:
            self._storage.damage(partition, failure)
        self._fetchers.update_leader(replica)
