"""Metadata service of one broker: the current cluster image, and the only way to change cluster metadata.

    StoreWatch       follows the metadata store, makes the next image of each change, detects a restored store
    PublishedImage   gives each image to the subscribers, and wakes the tasks that wait for its revision
    ChangeQueue      decides, commits and retries changes, one after another

The service wires these three, and is what the rest of the broker sees of them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import msgspec

from penstock.broker.cluster.change_queue import ChangeQueue, ReportFailure
from penstock.broker.cluster.published_image import PublishedImage, Subscriber
from penstock.broker.cluster.store_watch import StoreWatch
from penstock.config.broker import BrokerConfig
from penstock.controller.decision import Decide, Decision
from penstock.errors import ApiError
from penstock.host.metadata_store import CommittedTransaction, Conflict, Event, MetadataStore
from penstock.host.tasks import Tasks
from penstock.limits import GROUPS_WITH_SETTINGS_MAX, METADATA_CHANGES_QUEUED_MAX
from penstock.metadata.cluster_image import ClusterImage
from penstock.metadata.documents import PartitionValue, decode_document
from penstock.metadata.keys import ClusterKeys
from penstock.types import TopicId


class MetadataServiceLimits(NamedTuple):
    """How many metadata changes are queued, and how many groups have configs of their own."""

    changes_queued_max: int = METADATA_CHANGES_QUEUED_MAX
    groups_with_settings_max: int = GROUPS_WITH_SETTINGS_MAX


METADATA_SERVICE_LIMITS: Final = MetadataServiceLimits()


class MetadataService:
    def __init__(
        self,
        store: MetadataStore,
        image: ClusterImage,
        config: BrokerConfig,
        make_room: Callable[[], bool] = lambda: False,
        report: ReportFailure = lambda name, failure: None,
        limits: MetadataServiceLimits = METADATA_SERVICE_LIMITS,
    ) -> None:
        """Start from `image`.

        `make_room` frees disk space reserved for metadata, and returns False if there is none. `report`
        receives a programming error that failed a single change.
        """
        self._store = store
        self._static_config = config
        self.limits = limits
        self._fail: ReportFailure = report
        """Ends `run` with this exception, and with it the broker. Before `run` starts it only reports."""
        self._tasks = Tasks(lambda name, failure: self._fail(name, failure))
        self._published = PublishedImage(image, self._tasks)
        self._watch = StoreWatch(
            store, self._published, lambda problem: self._fail("metadata watch", problem)
        )
        self._queue = ChangeQueue(
            store, self._published, self._watch, make_room, report, limits.changes_queued_max
        )
        self._read_barrier = _ReadBarrier(self._catch_up)
        self._without: ClusterImage | None = None
        self.config = self._effective_config()
        # The first subscriber: all others read the new config.
        self.subscribe(self._follow)

    @property
    def image(self) -> ClusterImage:
        return self._published.image

    @property
    def latest(self) -> Event | None:
        """The last event of the watch; None before the first event, and after the store was read whole."""
        return self._watch.latest

    @property
    def changes_max(self) -> int:
        """Maximum number of changes in one store transaction."""
        return self._store.changes_max

    @property
    def store_unavailable_since(self) -> float | None:
        """Time of the event loop's clock; None while the store is available."""
        return self._watch.unavailable_since

    @property
    def current_store_unavailable_reason(self) -> str | None:
        """Reason why metadata cannot be changed now; None while the store is available."""
        return None if self._watch.unavailable_since is None else self._watch.unavailable_reason

    @property
    def client_view(self) -> ClusterImage:
        """Image for replies to clients: the current image, without the broker of `hide_broker`."""
        return self.image if self._without is None else self._without

    def hide_broker(self, broker_id: int | None) -> None:
        """Remove a broker from `client_view` until the next image; None: restore it."""
        if broker_id is None or broker_id not in self.image.brokers:
            self._without = None
            return
        gone = msgspec.structs.replace(self.image.brokers[broker_id], live=None)
        brokers = {**self.image.brokers, broker_id: gone}
        self._without = msgspec.structs.replace(self.image, brokers=brokers)

    def subscribe(self, subscriber: Subscriber) -> None:
        self._published.subscribe(subscriber)

    async def change(self, decide: Decide, *, is_current: bool = True) -> ClusterImage:
        """Carry out a decision and return an image that shows it. Raises the ApiError of a rejection.

        `is_current` False: raises Unconfirmed instead of a rejection (`change_queue.py`, Rule 3). The caller
        confirms outside the queue, so that a registration or the deposition of a controller does not wait for
        that read.
        """
        return await self._queue.change(decide, is_current=is_current or self._is_alone)

    async def commit_once(self, decision: Decision) -> CommittedTransaction | Conflict:
        """Commit a decision in one attempt, without the queue of changes (`ChangeQueue.commit_once`)."""
        return await self._queue.commit_once(decision)

    async def wait_for_conflict(self, conflict: Conflict, decided_on: ClusterImage) -> None:
        """Returns when this broker has applied the change that a proposal conflicted with.

        ApiError: not in time.
        """
        await self._queue.wait_for_conflict(conflict, decided_on)

    async def wait_until_current(self) -> None:
        """Returns when the image shows every change that was committed before this call.

        ApiError: the store is unavailable.
        """
        if not self._is_alone:
            await self._read_barrier()

    async def wait_for_controller(self, ends_at: float) -> bool:
        """Wait until the image has a controller; False if it has none at `ends_at`."""
        try:
            async with asyncio.timeout_at(ends_at):
                while self.image.controller is None:
                    await self._published.wait_for(self.image.revision + 1)
        except TimeoutError:
            return False
        return True

    async def leader_in_store(self, topic_id: TopicId, index: int) -> tuple[int, int] | None:
        """Read leader and leader epoch of a partition from the store; None: no such partition."""
        key = ClusterKeys(self.image.cluster_id).partition(topic_id, index)
        entry = (await self._store.read(key)).entries.get(key)
        if entry is None:
            return None
        value = decode_document(PartitionValue, key, entry.value)
        return value.leader, value.leader_epoch

    async def run(self) -> None:
        """Watch the store and carry out changes. When this ends, all pending waits are cancelled."""
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def fail(_: str, failure: BaseException) -> None:
            if not failed.done():
                failed.set_exception(failure)

        self._fail = fail
        self._tasks.start(self._watch.run(), "metadata watch")
        self._tasks.start(self._queue.run(), "metadata changes")
        try:
            await failed
        finally:
            self._queue.end()
            await self._tasks.stop()
            self._published.end()

    @property
    def _is_alone(self) -> bool:
        """A single broker with an embedded store: no other process writes, the image is current."""
        return bool(self.image.brokers) and self.image.is_embedded

    async def _catch_up(self) -> None:
        self._queue.require_not_ended()
        await self._watch.catch_up()

    async def _follow(self, before: ClusterImage, after: ClusterImage) -> None:
        self._without = None
        if after.broker_overrides is not before.broker_overrides:
            self.config = self._effective_config()

    def _effective_config(self) -> BrokerConfig:
        node_id = self._static_config.node.node_id
        own = self.image.overrides_of_broker(node_id).overrides
        cluster = self.image.overrides_of_broker(None).overrides
        if not own and not cluster:
            return self._static_config
        return self._static_config.with_dynamic(own=own, cluster=cluster)


class _ReadBarrier:
    """Concurrent requests for a current image share one linearizable read.

    A request that arrives during a read waits for the next one, because the running read may have begun
    before a commit that the request must see. All requests that have arrived when a read begins share it, and
    its failure.
    """

    def __init__(self, catch_up: Callable[[], Awaitable[None]]) -> None:
        """`catch_up` does the read. It raises only ApiError."""
        self._catch_up = catch_up
        self._lock = asyncio.Lock()
        self._requested = 0
        self._completed = 0
        self._problem: ApiError | None = None

    async def __call__(self) -> None:
        self._requested += 1
        number = self._requested
        async with self._lock:
            # While this request waited for the lock, another one may have run a read that covers it.
            if self._completed < number:
                await self._complete_all()
            if self._problem is not None:
                raise self._problem.again()

    async def _complete_all(self) -> None:
        asked, problem = self._requested, None  # before the await: later requests need a later read
        try:
            await self._catch_up()
        except ApiError as failure:
            problem = failure
        self._completed, self._problem = asked, problem
