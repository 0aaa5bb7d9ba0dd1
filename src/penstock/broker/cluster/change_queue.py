"""Queue of metadata changes: decide on the current image, commit to the store, wait until it is applied.

Decisions are pure functions of an image (`controller/`). This module carries them out.

Rule 1: changes run one after another, so that no decision of this broker rests on an image that another
        change of this broker is about to replace. `commit_once` skips the queue; it is for decisions that may
        meet a conflict without harm.
Rule 2: a decision function that raises fails only its own request; the queue continues with the next one.
Rule 3: the store compares the revisions behind a commit, but it cannot compare the revisions behind a
        rejection, or behind "nothing to do". These are returned only on an image that shows every change that
        was committed before the request. So a client that deletes a topic through one broker and creates it
        through another does not get TOPIC_ALREADY_EXISTS.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from penstock.broker.cluster.published_image import PublishedImage
from penstock.broker.cluster.store_watch import StoreWatch, as_api_error, store_unavailable_error
from penstock.controller.decision import Decide, Decision, transactions_of
from penstock.errors import ApiError, CorruptData, ErrorCode, StorageFailed, StorageFull
from penstock.host.metadata_store import (
    CommittedTransaction,
    Conflict,
    MetadataStore,
    StoreRejected,
    StoreUnavailable,
    require_well_formed,
)
from penstock.limits import (
    METADATA_COMMITS_AT_ONCE_MAX,
    METADATA_CONFLICTS_MAX,
    METADATA_TRIES_MAX,
    METADATA_UNAVAILABLE_PAUSE_MS,
)
from penstock.metadata.cluster_image import ClusterImage

ReportFailure = Callable[[str, BaseException], None]


class Unconfirmed(Exception):
    """The image may be too old for this outcome: a rejection, or "nothing to do".

    The caller waits for a current image (`MetadataService.wait_until_current`) and retries.
    """


class _QueuedChange(NamedTuple):
    decide: Decide
    is_current: bool
    """The image shows every commit before the request, or the caller accepts an older image (Rule 3)."""
    outcome: "asyncio.Future[ClusterImage]"


class ChangeQueue:
    def __init__(
        self,
        store: MetadataStore,
        published: PublishedImage,
        watch: StoreWatch,
        make_room: Callable[[], bool],
        report: ReportFailure,
        size_max: int,
    ) -> None:
        self._store = store
        self._published = published
        self._watch = watch
        self._make_room = make_room
        self._report = report
        self._changes: asyncio.Queue[_QueuedChange] = asyncio.Queue(size_max)
        self._unqueued = asyncio.Semaphore(METADATA_COMMITS_AT_ONCE_MAX)
        self._has_ended = False

    async def change(self, decide: Decide, *, is_current: bool) -> ClusterImage:
        """Carry out a decision and return an image that shows it. Raises the ApiError of a rejection."""
        outcome: asyncio.Future[ClusterImage] = asyncio.get_running_loop().create_future()
        if not self._has_ended:
            await self._changes.put(_QueuedChange(decide, is_current, outcome))
        # Checked again after `put`: the queue may have had room only because `end` emptied it.
        if not outcome.done():
            self.require_not_ended()
        return await outcome

    async def commit_once(self, decision: Decision) -> CommittedTransaction | Conflict:
        """Commit a decision in one attempt, without the queue (Rule 1).

        Returns a commit when this broker has applied it.
        StoreUnavailable: the outcome is unknown, and the store may still commit the decision.
        """
        async with self._unqueued:
            outcome = await self._commit(transactions_of(decision, self._store.changes_max))
        if isinstance(outcome, CommittedTransaction) and outcome.has_changed:
            await self._published.wait_for(outcome.revision)
        return outcome

    async def wait_for_conflict(self, conflict: Conflict, decided_on: ClusterImage) -> None:
        """Returns when this broker has applied the change that a decision conflicted with.

        ApiError: not in time.
        """
        if conflict.revision is not None:
            await self._published.wait_for(conflict.revision)
        else:
            await self._watch.wait_for(decided_on.revision + 1)

    async def run(self) -> None:
        while True:
            change = await self._changes.get()
            try:
                image = await self._carry_out(change.decide, is_current=change.is_current)
            except (ApiError, CorruptData, StorageFull, StorageFailed, StoreRejected, Unconfirmed) as problem:
                if not change.outcome.cancelled():
                    is_refusal = not isinstance(problem, Unconfirmed)
                    change.outcome.set_exception(as_api_error(problem) if is_refusal else problem)
            except BaseException:
                change.outcome.cancel()
                raise
            else:
                if not change.outcome.cancelled():
                    change.outcome.set_result(image)

    def end(self) -> None:
        """Cancel the queued changes, and reject all others."""
        self._has_ended = True
        while not self._changes.empty():
            self._changes.get_nowait().outcome.cancel()

    def require_not_ended(self) -> None:
        if self._has_ended:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the metadata can no longer be changed")

    async def _carry_out(self, decide: Decide, *, is_current: bool) -> ClusterImage:
        silences = 0
        for _ in range(METADATA_CONFLICTS_MAX):
            self._watch.require_available()
            decided_on = self._published.image
            try:
                decision, steps = self._decided(decide, decided_on)
            except ApiError as rejection:
                if is_current or rejection.code is ErrorCode.UNKNOWN_SERVER_ERROR:
                    raise
                raise Unconfirmed from rejection
            if not is_current and (decision.is_partial or not decision.all_changes):
                raise Unconfirmed
            if not decision.all_changes:
                return self._published.image
            try:
                outcome = await self._commit(steps)
            except StoreUnavailable as away:
                # Safe to retry with unknown outcome: if the commit did happen, the revisions that the
                # decision compares have changed, and the retry meets a conflict instead of committing twice.
                silences += 1
                if silences == METADATA_TRIES_MAX:
                    raise store_unavailable_error(str(away)) from away
                await asyncio.sleep(METADATA_UNAVAILABLE_PAUSE_MS / 1000)
                continue
            if isinstance(outcome, Conflict):
                await self.wait_for_conflict(outcome, decided_on)
                continue
            if outcome.has_changed:
                await self._published.wait_for(outcome.revision)
            return self._published.image
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
            known = self._published.image.revision  # before the transaction, see `require_not_restored`
            outcome = await self._transact(step)
            if isinstance(outcome, Conflict):
                break
            self._watch.require_not_restored(known, outcome.revision)
        return outcome

    async def _transact(self, step: Decision) -> CommittedTransaction | Conflict:
        try:
            return await self._store.transact(step.compares, step.changes)
        except StorageFull:
            # Some changes, such as deleting a topic, free disk space but must be written first: use the
            # reserved space for them.
            if not self._make_room():
                raise
            return await self._store.transact(step.compares, step.changes)
