"""The cluster image of this broker: its publication to subscribers, and tasks that wait for a revision.

Rule 1: an image counts as applied when every subscriber has applied it. Each subscriber receives each
        difference between two images exactly once, so a missed difference is never repaired. So a task of its
        own publishes images, no caller can cancel it, and a subscriber that raises ends this broker.
Rule 2: a task that waits for a revision continues when that revision is applied: it may rely on every
        subscriber.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from penstock.errors import ApiError, ErrorCode
from penstock.host.tasks import Tasks
from penstock.limits import METADATA_REVISION_WAIT_MS_MAX
from penstock.metadata.cluster_image import ClusterImage

Subscriber = Callable[[ClusterImage, ClusterImage], Awaitable[None]]
"""Receives the previous and the new image. Until it returns, no change completes and no other image follows.

A subscriber handles its own errors: an exception from a subscriber ends the broker."""

NextImage = Callable[[ClusterImage], ClusterImage | None]
"""Returns the image that follows the current one; None if the current one is newer already."""


class _RevisionWaiter(NamedTuple):
    revision: int
    applied: "asyncio.Future[None]"


class PublishedImage:
    def __init__(self, image: ClusterImage, tasks: Tasks) -> None:
        self.image = image
        self._applied_revision = image.revision
        self._tasks = tasks
        self._lock = asyncio.Lock()
        self._subscribers: list[Subscriber] = []
        self._waiting: list[_RevisionWaiter] = []

    def subscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.append(subscriber)

    async def publish(self, after: NextImage) -> None:
        # Shielded: a cancelled caller must not stop the publication between two subscribers (Rule 1).
        await asyncio.shield(self._tasks.start(self._publish(after), "metadata image"))

    async def _publish(self, after: NextImage) -> None:
        async with self._lock:
            before, image = self.image, after(self.image)
            if image is None:
                return
            # Replaced before any subscriber runs: a subscriber and everything it calls read the new image.
            self.image = image
            for subscriber in self._subscribers:
                await subscriber(before, image)
            self._applied_revision = image.revision
            still: list[_RevisionWaiter] = []
            for waiter in self._waiting:
                if waiter.revision > image.revision:
                    still.append(waiter)
                elif not waiter.applied.done():
                    waiter.applied.set_result(None)
            self._waiting = still

    async def wait_for(self, revision: int) -> None:
        """Wait until this revision is applied.

        ApiError REQUEST_TIMED_OUT: not within METADATA_REVISION_WAIT_MS_MAX.
        """
        if self._applied_revision >= revision:
            return
        waiter = _RevisionWaiter(revision, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(METADATA_REVISION_WAIT_MS_MAX / 1000):
                await waiter.applied
        except TimeoutError:
            detail = f"this broker has not yet seen revision {revision} of the metadata; try again"
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, detail) from None
        finally:
            # Still in the list after a timeout or a cancellation; `_publish` has removed it otherwise.
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def end(self) -> None:
        """Cancel all waits: no further revision will be applied."""
        for waiter in self._waiting:
            waiter.applied.cancel()
