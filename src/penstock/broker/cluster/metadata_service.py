"""The cluster's facts as this broker holds them, and the one way to change them.

Decisions are pure functions of an image (`controller/`). Here they are carried out: decide, commit
to the metadata store, wait until this broker has seen it, answer.

Rule 1: the image advances by what the store shows, in the order of revisions, never by what was
        asked of it. Whoever changed something, this broker or another, takes the same way.
Rule 2: an image is answered, and counts as seen, when every subscriber has followed it. Each is told of every
        difference of two images once, so one that is missed is missed for good. Therefore images are shown
        in a task of their own, which nobody cancels, and a subscriber that fails ends this broker.
Rule 3: one change after another, so that of this broker's decisions none rests on an image that
        another is about to replace. `propose` is for those whose refusal is expected and harmless.
Rule 4: while the store is away the image stays as it is and nothing is changed; everybody is told
        so at once instead of waiting.
Rule 5: a store that is behind what was seen of it is another one, put back from an older copy. This broker's
        image shows what never happened there: it ends, whoever noticed. A member of etcd may lag behind, so
        what is compared is the answer to a linearisable question. And it may have come as far meanwhile: a
        watch that is begun again is asked for the event that was seen last, and has to show the same.
Rule 6: a decision that cannot be made is the trouble of whoever asked for it. The next one is made.
Rule 7: what is committed was compared by the store. A refusal is not, and neither is "nothing to do": clients
        are told them only on an image that shows everything which was committed before they asked. Whoever
        deletes a topic here and creates it there is not told that it exists.
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
"""Told of the image before and after. No change is answered, and none follows, until it is done.

A subscriber deals with its own trouble: what it raises ends the broker."""

NextImage = Callable[[ClusterImage], ClusterImage | None]
"""From the image that there is to a newer one; None: there is none."""

ReportFailure = Callable[[str, BaseException], None]

_PROBLEMS = (ApiError, CorruptData, StorageFull, StorageFailed)


class MetadataLimits(NamedTuple):
    """How many changes of the metadata wait, and how many groups have settings of their own."""

    changes_queued_max: int = METADATA_CHANGES_QUEUED_MAX
    groups_with_settings_max: int = GROUPS_WITH_SETTINGS_MAX


METADATA_LIMITS: Final = MetadataLimits()


class _QueuedChange(NamedTuple):
    decide: Decide
    is_current: bool
    """The image shows all that was committed before the change was asked for, or nobody minds."""
    outcome: "asyncio.Future[ClusterImage]"


class Unconfirmed(Exception):
    """It would be refused, or left, on an image that may not be current. Get a current one, and ask again."""


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
        """`make_room` frees space that was set aside for this; False if there is none.

        `report` is told of a mistake of ours that only one change suffers from.
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
        """Ends `run`."""
        self._tasks = Tasks(lambda name, failure: self._fail(name, failure))
        self._has_ended = False
        self._must_read = False
        self._image_lock = asyncio.Lock()
        self._read_barrier = ReadBarrier(self._catch_up)
        self._revision_waiters = RevisionWaiters(image.revision)
        self.latest: Event | None = None
        """What the watch showed last; None: nothing yet that the store still has."""
        self.image = image
        self.config = self._effective_config()
        self._without: ClusterImage | None = None
        self.store_unavailable_since: float | None = None
        """On the loop's clock; None while the store answers."""
        self.store_unavailable_reason = ""

    @property
    def changes_max(self) -> int:
        """How many one transaction of the store takes."""
        return self._store.changes_max

    @property
    def current_store_unavailable_reason(self) -> str | None:
        """Why nothing can be changed at the moment; None while the store answers."""
        return None if self.store_unavailable_since is None else self.store_unavailable_reason

    @property
    def client_view(self) -> ClusterImage:
        """What clients are told: the image, unless this broker knows better (`hide_broker`)."""
        return self.image if self._without is None else self._without

    def hide_broker(self, broker_id: int | None) -> None:
        """Clients are not sent to this broker, although the image has it, until there is another image."""
        if broker_id is None or broker_id not in self.image.brokers:
            self._without = None
            return
        gone = msgspec.structs.replace(self.image.brokers[broker_id], live=None)
        brokers = {**self.image.brokers, broker_id: gone}
        self._without = msgspec.structs.replace(self.image, brokers=brokers)

    def subscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.append(subscriber)

    async def change(self, decide: Decide, *, is_current: bool = True) -> ClusterImage:
        """Carry out a decision and return an image that shows it. Raises the ApiError of a refusal.

        `is_current` False: instead of a refusal it raises Unconfirmed (Rule 7). It is confirmed outside the
        queue: whoever registers, or deposes a controller, is not to wait for that.
        """
        outcome: asyncio.Future[ClusterImage] = asyncio.get_running_loop().create_future()
        if not self._has_ended:
            await self._changes.put(_QueuedChange(decide, is_current or self._is_alone, outcome))
        # Asked again: the queue may have had room only because it was emptied for good.
        if self._has_ended and not outcome.done():
            raise _ended()
        return await outcome

    async def propose(self, decision: Decision) -> CommittedTransaction | Conflict:
        """Try a decision once and at once, beside the changes that wait for their turn.

        Returns when this broker has seen what was committed.
        StoreAway: what has become of it is unknown, and it may still happen.
        """
        async with self._proposals:
            outcome = await self._commit(transactions_of(decision, self._store.changes_max))
        if isinstance(outcome, CommittedTransaction) and outcome.has_changed:
            await self._revision_waiters.wait_for(outcome.revision)
        return outcome

    async def leader_in_store(self, topic_id: TopicId, index: int) -> tuple[int, int] | None:
        """Who leads a partition, and in which epoch, as the store says now; None: it knows none."""
        key = ClusterKeys(self.image.cluster_id).partition(topic_id, index)
        entry = (await self._store.read(key)).entries.get(key)
        if entry is None:
            return None
        value = decode(PartitionValue, key, entry.value)
        return value.leader, value.leader_epoch

    async def wait_until_current(self) -> None:
        """Returns when the image shows all that was committed before this was asked.

        ApiError: the store does not answer.
        """
        if not self._is_alone:
            await self._read_barrier()

    async def wait_for_controller(self, ends_at: float) -> bool:
        """Returns when the cluster has a controller; False: until then it had none."""
        try:
            async with asyncio.timeout_at(ends_at):
                while self.image.controller is None:
                    await self._revision_waiters.wait_for(self.image.revision + 1)
        except TimeoutError:
            return False
        return True

    async def wait_for_conflict(self, conflict: Conflict, decided_on: ClusterImage) -> None:
        """Returns when this broker has seen why a proposal met a conflict. ApiError: not in time."""
        await self._wait_for_conflict(conflict, decided_on.revision)

    async def run(self) -> None:
        """Follow the store and carry out changes. If this ends, so does everybody's waiting."""
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
            self.latest = None  # its history is gone
        elif self.store_unavailable_since is not None:
            # A watch is silent when nothing happens: something has to be answered.
            known = self.image.revision
            self._require_not_restored(known, (await self._store.read(f"{self._prefix}controller")).revision)
        self.store_unavailable_since = None
        expected, after = self.latest, self.image.revision
        if expected is not None:
            after = expected.revision - 1
        async with aclosing(self._store.watch(self._prefix, after)) as events:
            async for event in events:
                if expected is not None:
                    self._require_same(expected, event)
                    expected = None
                await self._apply_event(event)

    async def _apply_event(self, event: Event) -> None:
        def after(known: ClusterImage) -> ClusterImage | None:
            # What was read again meanwhile may be ahead of the watch.
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
        """`known` was seen before the store was asked, which says that it is at `revision`."""
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
        # A caller that is cancelled must not leave subscribers behind that have not been told yet.
        await asyncio.shield(self._tasks.start(self._advance(after), "metadata image"))

    async def _advance(self, after: NextImage) -> None:
        async with self._image_lock:
            before, image = self.image, after(self.image)
            if image is None:
                return
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
                # Decided again all the same: what it compares has moved if it did happen.
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
        """It, and its transactions one after the other. ApiError: it is refused, or could not be decided."""
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
        """StoreAway if what has become of it is unknown."""
        for step in steps:
            known = self.image.revision
            outcome = await self._transact(step)
            if isinstance(outcome, Conflict):
                break
            self._require_not_restored(known, outcome.revision)
        return outcome

    async def _transact(self, piece: Decision) -> CommittedTransaction | Conflict:
        try:
            return await self._store.transact(piece.compares, piece.changes)
        except StorageFull:
            if not self._make_room():
                raise
            return await self._store.transact(piece.compares, piece.changes)

    @property
    def _is_alone(self) -> bool:
        """Nobody else changes the store: what it has, the image has."""
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
        """Returns with a newer image than the one that was decided on."""
        if conflict.revision is not None:
            await self._revision_waiters.wait_for(conflict.revision)
            return
        await self._wait_for_revision(decided_on + 1)

    async def _wait_for_revision(self, revision: int) -> None:
        """Returns when this broker has seen what was changed up to a revision, by whoever uses the store."""
        if self.image.revision >= revision:
            await self._revision_waiters.wait_for(revision)
            return
        # Usually the news is under way already, and much less than reading everything again. Where others
        # use the store, the revision may be of a change of theirs, and then none will come.
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
