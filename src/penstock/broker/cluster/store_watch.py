"""Watch of the metadata store: makes the next image of every change, and detects a restored store.

Rule 1: the image advances only by events that the store returns, in order of revision, never by the request
        that caused them. Changes by this broker and by other brokers arrive the same way.
Rule 2: while the store is unavailable the image stays as it is, and everything that needs the store is
        rejected at once instead of waiting.
Rule 3: a store whose revision is below what this broker has seen was restored from an older copy. The image
        of this broker then shows changes that never happened in that store, so this broker ends, whichever
        call found it. A single etcd member may lag, so the revision of a linearizable read is compared. A
        restored store may also have caught up meanwhile: a resumed watch requests the last seen event once
        more, and that event must be the same.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import NoReturn

from penstock.broker.cluster.published_image import PublishedImage
from penstock.broker.cluster.store_identity import shows_same_change, store_progress_of
from penstock.errors import ApiError, CorruptData, ErrorCode, StorageFailed, StorageFull
from penstock.host.metadata_store import (
    Event,
    HistoryCompacted,
    MetadataStore,
    StoreRejected,
    StoreUnavailable,
)
from penstock.limits import METADATA_REVISION_WAIT_MS, METADATA_UNAVAILABLE_PAUSE_MS
from penstock.metadata.cluster_image import ClusterImage
from penstock.metadata.image_builder import apply, image_of
from penstock.metadata.keys import ClusterKeys


class StoreWatch:
    def __init__(
        self, store: MetadataStore, published: PublishedImage, end_broker: Callable[[CorruptData], None]
    ) -> None:
        """`end_broker` receives the reason when the store was restored (Rule 3)."""
        self._store = store
        self._published = published
        self._end_broker = end_broker
        keys = ClusterKeys(published.image.cluster_id)
        self._prefix = keys.prefix
        self._any_key = keys.controller
        """A read of any key returns the revision of the whole store."""
        self._must_read = False
        self.latest: Event | None = None
        """The last event of the watch; None before the first event, and after the store was read whole."""
        self.unavailable_since: float | None = None
        """Time of the event loop's clock; None while the store is available."""
        self.unavailable_reason = ""

    async def run(self) -> None:
        while True:
            try:
                await self._watch()
            except HistoryCompacted:
                self._must_read = True
            except (StoreUnavailable, StoreRejected) as problem:
                if self.unavailable_since is None:
                    self.unavailable_since = asyncio.get_running_loop().time()
                self.unavailable_reason = str(problem)
                await asyncio.sleep(METADATA_UNAVAILABLE_PAUSE_MS / 1000)

    def require_available(self) -> None:
        """ApiError: the store is unavailable."""
        if self.unavailable_since is not None:
            raise store_unavailable_error(self.unavailable_reason)

    async def catch_up(self) -> None:
        """Returns when the image shows every change that the store had committed before this call.

        ApiError: the store is unavailable.
        """
        self.require_available()
        known = self._published.image.revision
        try:
            revision = (await self._store.read(self._any_key)).revision
            self.require_not_restored(known, revision)
            await self.wait_for(revision)
        except (StoreUnavailable, StoreRejected) as problem:
            raise store_unavailable_error(str(problem)) from problem
        except (CorruptData, StorageFull, StorageFailed) as problem:
            raise as_api_error(problem) from problem

    async def wait_for(self, revision: int) -> None:
        """Returns when this broker has applied every change of the cluster up to a revision.

        Other users of the store may have made the change of that revision.
        """
        if self._published.image.revision >= revision:
            await self._published.wait_for(revision)
            return
        # Usually the watch delivers the event soon, which is much cheaper than reading all metadata. But if
        # the revision belongs to another user of the store, the watch has no event for it: then read
        # everything.
        try:
            async with asyncio.timeout(METADATA_REVISION_WAIT_MS / 1000):
                await self._published.wait_for(revision)
        except TimeoutError:
            try:
                await self._read_again()
            except StoreUnavailable as away:
                raise store_unavailable_error(str(away)) from away

    def require_not_restored(self, known: int, revision: int) -> None:
        """End this broker if the store's `revision` is below `known`.

        The caller took `known` from the image before the read or commit that returned `revision`. The image
        may advance during that call, and would then wrongly be ahead of `revision`.
        """
        if revision < known:
            self._fail_restored(f"is at revision {revision}, and this broker has seen {known}")

    async def _watch(self) -> None:
        if self._must_read:
            await self._read_again()
            self._must_read = False
            self.latest = None  # compacted away: the store cannot return this event again to compare
        elif self.unavailable_since is not None:
            # A watch returns nothing while nothing changes, so only a read proves that the store is
            # available, and that it was not restored meanwhile (Rule 3).
            known = self._published.image.revision
            self.require_not_restored(known, (await self._store.read(self._any_key)).revision)
        self.unavailable_since = None
        expected, after = self.latest, self._published.image.revision
        if expected is not None:
            after = expected.revision - 1  # the watch repeats the last seen event, to compare it (Rule 3)
        async with aclosing(self._store.watch(self._prefix, after)) as events:
            async for event in events:
                if expected is not None:
                    if event.revision != expected.revision or set(event.changes) != set(expected.changes):
                        self._fail_other_change(expected.revision)
                    expected = None
                await self._apply(event)

    async def _apply(self, event: Event) -> None:
        def after(known: ClusterImage) -> ClusterImage | None:
            # `_read_again` may have published a newer image meanwhile.
            if event.revision <= known.revision:
                return None
            self.latest = event
            return apply(known, event.changes, event.revision)

        await self._published.publish(after)

    async def _read_again(self) -> None:
        known = self._published.image.revision
        seen = store_progress_of(self.latest, known)
        snapshot = await self._store.read(self._prefix)
        self.require_not_restored(known, snapshot.revision)
        if not await shows_same_change(self._store, self._prefix, seen):
            self._fail_other_change(seen.revision)

        def after(known: ClusterImage) -> ClusterImage | None:
            return image_of(snapshot, known.cluster_id) if snapshot.revision > known.revision else None

        await self._published.publish(after)

    def _fail_other_change(self, revision: int) -> NoReturn:
        self._fail_restored(f"shows another change at revision {revision} than it did before")

    def _fail_restored(self, what: str) -> NoReturn:
        problem = CorruptData(
            f"the metadata store {what}: "
            "it was replaced or put back from an older copy. Put back the one that these brokers followed, "
            "and start every broker again"
        )
        self._end_broker(problem)
        raise problem


def store_unavailable_error(reason: str) -> ApiError:
    detail = f"the metadata store cannot be used, and nothing can be changed now: {reason}"
    return ApiError(ErrorCode.REQUEST_TIMED_OUT, detail)


def as_api_error(problem: Exception) -> ApiError:
    if isinstance(problem, ApiError):
        return problem
    return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata could not be written: {problem}")
