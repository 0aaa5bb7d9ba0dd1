"""Metadata service of one broker: the current cluster image, and the only way to change cluster metadata.

Decisions are pure functions of an image (`controller/`). The service carries a decision out: decide on the
current image, commit to the metadata store, wait until this broker has applied the commit, return the image.

Rule 1: the image advances only by events that the store returns, in order of revision, never by the request
        that caused them. Changes by this broker and by other brokers arrive the same way.
Rule 2: a new image counts as seen, and the service returns it, when every subscriber has applied it. Each
        subscriber receives each difference between two images exactly once, so a missed difference is never
        repaired. So a task of its own publishes images, no caller can cancel it, and a subscriber that raises
        ends this broker.
Rule 3: changes run one after another, so that no decision of this broker rests on an image that another
        change of this broker is about to replace. `propose` skips the queue; it is for decisions that may
        meet a conflict without harm.
Rule 4: while the store is unavailable the image stays as it is and every change is rejected at once instead
        of waiting.
Rule 5: a store whose revision is below what this broker has seen was restored from an older copy. The image
        of this broker then shows changes that never happened in that store, so this broker ends, whichever
        call found it. A single etcd member may lag, so the service compares the revision of a linearizable
        read. A restored store may also have caught up meanwhile: a resumed watch requests the last seen event
        once more, and that event must be the same.
Rule 6: a decision function that raises fails only its own request; the service continues with the next one.
Rule 7: the store compares the revisions behind a commit, but it cannot compare the revisions behind a
        rejection, or behind "nothing to do". The service returns these only on an image that shows every
        change that was committed before the request. So a client that deletes a topic through one broker and
        creates it through another does not get TOPIC_ALREADY_EXISTS.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Final, NamedTuple, NoReturn

import msgspec

from penstock.broker.cluster.read_barrier import ReadBarrier
from penstock.broker.cluster.revision_waiters import RevisionWaiters
from penstock.broker.cluster.store_identity import shows_same_change, store_progress_of
from penstock.config.broker import BrokerConfig
from penstock.controller.decision import Decision, transactions_of
from penstock.errors import ApiError, CorruptData, ErrorCode, StorageFailed, StorageFull
from penstock.host.metadata_store import (
    CommittedTransaction,
    Conflict,
    Event,
    HistoryCompacted,
    MetadataStore,
    StoreRejected,
    StoreUnavailable,
    require_well_formed,
)
from penstock.host.tasks import Tasks
from penstock.limits import (
    GROUPS_WITH_SETTINGS_MAX,
    METADATA_CHANGES_QUEUED_MAX,
    METADATA_CONFLICTS_MAX,
    METADATA_PROPOSALS_MAX,
    METADATA_REVISION_WAIT_MS,
    METADATA_TRIES_MAX,
    METADATA_UNAVAILABLE_PAUSE_MS,
)
from penstock.metadata.cluster_image import ClusterImage
from penstock.metadata.documents import PartitionValue, decode
from penstock.metadata.image_builder import apply, image_of
from penstock.metadata.keys import ClusterKeys
from penstock.types import TopicId

Decide = Callable[[ClusterImage], Decision]
Subscriber = Callable[[ClusterImage, ClusterImage], Awaitable[None]]
"""Receives the previous and the new image. Until it returns, no change completes and no other image follows.

A subscriber handles its own errors: an exception from a subscriber ends the broker."""

NextImage = Callable[[ClusterImage], ClusterImage | None]
"""Returns the image that follows the current one; None if the current one is newer already."""

ReportFailure = Callable[[str, BaseException], None]

_PROBLEMS = (ApiError, CorruptData, StorageFull, StorageFailed)


class MetadataLimits(NamedTuple):
    """Limits for queued metadata changes, and for groups with dynamic configs."""

    changes_queued_max: int = METADATA_CHANGES_QUEUED_MAX
    groups_with_settings_max: int = GROUPS_WITH_SETTINGS_MAX


METADATA_LIMITS: Final = MetadataLimits()


class _QueuedChange(NamedTuple):
    decide: Decide
    is_current: bool
    """The image shows every commit before the request, or the caller accepts an older image (Rule 7)."""
    outcome: "asyncio.Future[ClusterImage]"


class Unconfirmed(Exception):
    """The image may be too old for this outcome: a rejection, or "nothing to do".

    The caller waits for a current image (`wait_until_current`) and retries.
    """


class MetadataService:
    def __init__(
        self,
        store: MetadataStore,
        image: ClusterImage,
        config: BrokerConfig,
        make_room: Callable[[], bool] = lambda: False,
        report: ReportFailure = lambda name, failure: None,
        limits: MetadataLimits = METADATA_LIMITS,
    ) -> None:
        """Start from `image`.

        `make_room` frees disk space reserved for metadata, and returns False if there is none. `report`
        receives a programming error that failed a single change (Rule 6).
        """
        self._store = store
        self._prefix = ClusterKeys(image.cluster_id).prefix
        self._static_config = config
        self.limits = limits
        self._changes: asyncio.Queue[_QueuedChange] = asyncio.Queue(limits.changes_queued_max)
        self._proposals = asyncio.Semaphore(METADATA_PROPOSALS_MAX)
        self._subscribers: list[Subscriber] = []
        self._make_room = make_room
        self._report = report
        self._fail: Callable[[str, BaseException], None] = report
        """Ends `run` with this exception, and with it the broker. Before `run` starts it only reports."""
        self._tasks = Tasks(lambda name, failure: self._fail(name, failure))
        self._has_ended = False
        self._must_read = False
        self._image_lock = asyncio.Lock()
        self._read_barrier = ReadBarrier(self._catch_up)
        self._revision_waiters = RevisionWaiters(image.revision)
        self.latest: Event | None = None
        """The last event of the watch; None before the first event, and after the store was read whole."""
        self.image = image
        self.config = self._effective_config()
        self._without: ClusterImage | None = None
        self.store_unavailable_since: float | None = None
        """Time of the event loop's clock; None while the store is available."""
        self.store_unavailable_reason = ""

    @property
    def changes_max(self) -> int:
        """Maximum number of changes in one store transaction."""
        return self._store.changes_max

    @property
    def current_store_unavailable_reason(self) -> str | None:
        """Reason why metadata cannot be changed now; None while the store is available."""
        return None if self.store_unavailable_since is None else self.store_unavailable_reason

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
        self._subscribers.append(subscriber)

    async def change(self, decide: Decide, *, is_current: bool = True) -> ClusterImage:
        """Carry out a decision and return an image that shows it. Raises the ApiError of a rejection.

        `is_current` False: raises Unconfirmed instead of a rejection (Rule 7). The caller confirms outside
        the queue, so that a registration or the deposition of a controller does not wait for that read.
        """
        outcome: asyncio.Future[ClusterImage] = asyncio.get_running_loop().create_future()
        if not self._has_ended:
            await self._changes.put(_QueuedChange(decide, is_current or self._is_alone, outcome))
        # Checked again after `put`: the queue may have had room only because `run` emptied it at its end.
        if self._has_ended and not outcome.done():
            raise _ended()
        return await outcome

    async def propose(self, decision: Decision) -> CommittedTransaction | Conflict:
        """Commit a decision in one attempt, without the queue of changes (Rule 3).

        Returns a commit when this broker has applied it.
        StoreUnavailable: the outcome is unknown, and the store may still commit the decision.
        """
        async with self._proposals:
            outcome = await self._commit(transactions_of(decision, self._store.changes_max))
        if isinstance(outcome, CommittedTransaction) and outcome.has_changed:
            await self._revision_waiters.wait_for(outcome.revision)
        return outcome

    async def leader_in_store(self, topic_id: TopicId, index: int) -> tuple[int, int] | None:
        """Read leader and leader epoch of a partition from the store; None: no such partition."""
        key = ClusterKeys(self.image.cluster_id).partition(topic_id, index)
        entry = (await self._store.read(key)).entries.get(key)
        if entry is None:
            return None
        value = decode(PartitionValue, key, entry.value)
        return value.leader, value.leader_epoch

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
                    await self._revision_waiters.wait_for(self.image.revision + 1)
        except TimeoutError:
            return False
        return True

    async def wait_for_conflict(self, conflict: Conflict, decided_on: ClusterImage) -> None:
        """Returns when this broker has applied the change that a proposal conflicted with.

        ApiError: not in time.
        """
        await self._wait_for_conflict(conflict, decided_on.revision)

    async def run(self) -> None:
        """Watch the store and carry out changes. When this ends, all pending waits are cancelled."""
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def fail(_: str, failure: BaseException) -> None:
            if not failed.done():
                failed.set_exception(failure)

        self._fail = fail
        self._tasks.start(self._follow(), "metadata watch")
        self._tasks.start(self._carry_out_changes(), "metadata changes")
        try:
            await failed
        finally:
            self._has_ended = True
            await self._tasks.stop()
            while not self._changes.empty():
                self._changes.get_nowait().outcome.cancel()
            self._revision_waiters.end()

    # Following

    async def _follow(self) -> None:
        while True:
            try:
                await self._watch()
            except HistoryCompacted:
                self._must_read = True
            except (StoreUnavailable, StoreRejected) as problem:
                if self.store_unavailable_since is None:
                    self.store_unavailable_since = asyncio.get_running_loop().time()
                self.store_unavailable_reason = str(problem)
                await asyncio.sleep(METADATA_UNAVAILABLE_PAUSE_MS / 1000)

    async def _watch(self) -> None:
        if self._must_read:
            await self._read_again()
            self._must_read = False
            self.latest = None  # compacted away: the store cannot return this event again to compare
        elif self.store_unavailable_since is not None:
            # A watch returns nothing while nothing changes, so only a read proves that the store is
            # available, and that it was not restored meanwhile (Rule 5).
            known = self.image.revision
            self._require_not_restored(known, (await self._store.read(f"{self._prefix}controller")).revision)
        self.store_unavailable_since = None
        expected, after = self.latest, self.image.revision
        if expected is not None:
            after = expected.revision - 1  # the watch repeats the last seen event, to compare it (Rule 5)
        async with aclosing(self._store.watch(self._prefix, after)) as events:
            async for event in events:
                if expected is not None:
                    self._require_same(expected, event)
                    expected = None
                await self._apply_event(event)

    async def _apply_event(self, event: Event) -> None:
        def after(known: ClusterImage) -> ClusterImage | None:
            # `_read_again` may have published a newer image meanwhile.
            if event.revision <= known.revision:
                return None
            self.latest = event
            return apply(known, event.changes, event.revision)

        await self._publish(after)

    async def _read_again(self) -> None:
        known, seen = self.image.revision, store_progress_of(self.latest, self.image.revision)
        snapshot = await self._store.read(self._prefix)
        self._require_not_restored(known, snapshot.revision)
        if not await shows_same_change(self._store, self._prefix, seen):
            self._fail_other_change(seen.revision)

        def after(known: ClusterImage) -> ClusterImage | None:
            return image_of(snapshot, known.cluster_id) if snapshot.revision > known.revision else None

        await self._publish(after)

    def _require_not_restored(self, known: int, revision: int) -> None:
        """End this broker if the store's `revision` is below `known`.

        The caller took `known` from the image before the read or commit that returned `revision`. The image
        may advance during that call, and would then wrongly be ahead of `revision`.
        """
        if revision < known:
            self._fail_restored(f"is at revision {revision}, and this broker has seen {known}")

    def _require_same(self, expected: Event, event: Event) -> None:
        if event.revision != expected.revision or set(event.changes) != set(expected.changes):
            self._fail_other_change(expected.revision)

    def _fail_other_change(self, revision: int) -> NoReturn:
        self._fail_restored(f"shows another change at revision {revision} than it did before")

    def _fail_restored(self, what: str) -> NoReturn:
        problem = CorruptData(
            f"the metadata store {what}: "
            "it was replaced or put back from an older copy. Put back the one that these brokers followed, "
            "and start every broker again"
        )
        self._fail("metadata watch", problem)
        raise problem

    async def _publish(self, after: NextImage) -> None:
        # Shielded: a cancelled caller must not stop the publication between two subscribers (Rule 2).
        await asyncio.shield(self._tasks.start(self._advance(after), "metadata image"))

    async def _advance(self, after: NextImage) -> None:
        async with self._image_lock:
            before, image = self.image, after(self.image)
            if image is None:
                return
            # The image and the effective config are replaced before any subscriber runs, so that a subscriber
            # and everything it calls read the new values. Waiters are woken last: what a waiter does next may
            # rely on every subscriber.
            self.image = image
            self._without = None
            if image.broker_overrides is not before.broker_overrides:
                self.config = self._effective_config()
            for subscriber in self._subscribers:
                await subscriber(before, image)
            self._revision_waiters.advance(image.revision)

    # Changing

    async def _carry_out_changes(self) -> None:
        while True:
            await self._next()

    async def _next(self) -> None:
        change = await self._changes.get()
        try:
            image = await self._carry_out(change.decide, is_current=change.is_current)
        except (*_PROBLEMS, StoreRejected, Unconfirmed) as problem:
            if not change.outcome.cancelled():
                is_refusal = not isinstance(problem, Unconfirmed)
                change.outcome.set_exception(_as_api_error(problem) if is_refusal else problem)
        except BaseException:
            change.outcome.cancel()
            raise
        else:
            if not change.outcome.cancelled():
                change.outcome.set_result(image)

    async def _carry_out(self, decide: Decide, *, is_current: bool) -> ClusterImage:
        silences = 0
        for _ in range(METADATA_CONFLICTS_MAX):
            self._require_store()
            decided_on = self.image
            try:
                decision, steps = self._decided(decide, decided_on)
            except ApiError as rejection:
                if is_current or rejection.code is ErrorCode.UNKNOWN_SERVER_ERROR:
                    raise
                raise Unconfirmed from rejection
            if not is_current and (decision.is_partial or not decision.all_changes):
                raise Unconfirmed
            if not decision.all_changes:
                return self.image
            try:
                outcome = await self._commit(steps)
            except StoreUnavailable as away:
                # Safe to retry with unknown outcome: if the commit did happen, the revisions that the
                # decision compares have changed, and the retry meets a conflict instead of committing twice.
                silences += 1
                if silences == METADATA_TRIES_MAX:
                    raise _store_unavailable_error(str(away)) from away
                await asyncio.sleep(METADATA_UNAVAILABLE_PAUSE_MS / 1000)
                continue
            if isinstance(outcome, Conflict):
                await self._wait_for_conflict(outcome, decided_on.revision)
                continue
            if outcome.has_changed:
                await self._revision_waiters.wait_for(outcome.revision)
            return self.image
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "the cluster's metadata kept changing; try again")

    def _decided(self, decide: Decide, image: ClusterImage) -> tuple[Decision, list[Decision]]:
        """The decision, and its transactions in order. ApiError: rejected, or `decide` itself failed."""
        try:
            decision = decide(image)
            steps = transactions_of(decision, self._store.changes_max)
            for step in steps:
                require_well_formed(step.compares, step.changes, self._store.changes_max)
            return decision, steps
        except ApiError:
            raise
        except Exception as mistake:
            self._report("a change of metadata", mistake)
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "this could not be decided") from mistake

    async def _commit(self, steps: list[Decision]) -> CommittedTransaction | Conflict:
        """Commit the transactions of one decision in order. StoreUnavailable: the outcome is unknown."""
        for step in steps:
            known = self.image.revision  # before the transaction, see `_require_not_restored`
            outcome = await self._transact(step)
            if isinstance(outcome, Conflict):
                break
            self._require_not_restored(known, outcome.revision)
        return outcome

    async def _transact(self, piece: Decision) -> CommittedTransaction | Conflict:
        try:
            return await self._store.transact(piece.compares, piece.changes)
        except StorageFull:
            # Some changes, such as deleting a topic, free disk space but must be written first: use the
            # reserved space for them.
            if not self._make_room():
                raise
            return await self._store.transact(piece.compares, piece.changes)

    @property
    def _is_alone(self) -> bool:
        """A single broker with an embedded store: no other process writes, the image is current."""
        return bool(self.image.brokers) and self.image.is_embedded

    async def _catch_up(self) -> None:
        if self._has_ended:
            raise _ended()
        self._require_store()
        known = self.image.revision
        try:
            revision = (await self._store.read(f"{self._prefix}controller")).revision
            self._require_not_restored(known, revision)
            await self._wait_for_revision(revision)
        except (StoreUnavailable, StoreRejected) as problem:
            raise _store_unavailable_error(str(problem)) from problem
        except (CorruptData, StorageFull, StorageFailed) as problem:
            raise _as_api_error(problem) from problem

    async def _wait_for_conflict(self, conflict: Conflict, decided_on: int) -> None:
        """Returns when the image is newer than the image of the decision."""
        if conflict.revision is not None:
            await self._revision_waiters.wait_for(conflict.revision)
            return
        await self._wait_for_revision(decided_on + 1)

    async def _wait_for_revision(self, revision: int) -> None:
        """Returns when this broker has applied every change of the cluster up to a revision.

        Other users of the store may have made the change of that revision.
        """
        if self.image.revision >= revision:
            await self._revision_waiters.wait_for(revision)
            return
        # Usually the watch delivers the event soon, which is much cheaper than reading all metadata. But if
        # the revision belongs to another user of the store, the watch has no event for it: then read
        # everything.
        try:
            async with asyncio.timeout(METADATA_REVISION_WAIT_MS / 1000):
                await self._revision_waiters.wait_for(revision)
        except TimeoutError:
            try:
                await self._read_again()
            except StoreUnavailable as away:
                raise _store_unavailable_error(str(away)) from away

    def _require_store(self) -> None:
        if self.store_unavailable_since is not None:
            raise _store_unavailable_error(self.store_unavailable_reason)

    def _effective_config(self) -> BrokerConfig:
        node_id = self._static_config.node.node_id
        own = self.image.overrides_of_broker(node_id).overrides
        cluster = self.image.overrides_of_broker(None).overrides
        if not own and not cluster:
            return self._static_config
        return self._static_config.with_dynamic(own=own, cluster=cluster)


def _ended() -> ApiError:
    return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the metadata can no longer be changed")


def _store_unavailable_error(reason: str) -> ApiError:
    detail = f"the metadata store cannot be used, and nothing can be changed now: {reason}"
    return ApiError(ErrorCode.REQUEST_TIMED_OUT, detail)


def _as_api_error(problem: Exception) -> ApiError:
    if isinstance(problem, ApiError):
        return problem
    return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata could not be written: {problem}")
