"""The cluster's facts as this broker holds them, and the one way to change them.

Decisions are pure functions of an image (`controller/`). Here they are carried out: decide, commit
to the metadata store, apply to the image, tell the subscribers. One task does it for everybody, one
change after another, so that no decision rests on an image that another is about to replace.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from penstock.config.broker import BrokerConfig
from penstock.controller.topics import Decision
from penstock.errors import ApiError, CorruptData, ErrorCode, StorageFailed, StorageFull
from penstock.host.metadata_store import Committed, Conflict, MetadataStore
from penstock.host.worker import Worker
from penstock.limits import METADATA_CHANGES_QUEUED_MAX, METADATA_CONFLICTS_MAX
from penstock.metadata.image import ClusterImage, apply, image_of
from penstock.metadata.keys import Keys

Decide = Callable[[ClusterImage], Decision]
Subscriber = Callable[[ClusterImage, ClusterImage], Awaitable[None]]
"""Told of the image before and after. No change is answered, and no other decided, until it is done."""


class _Change(NamedTuple):
    decide: Decide
    outcome: "asyncio.Future[ClusterImage]"


class Cluster:
    def __init__(
        self,
        store: MetadataStore,
        worker: Worker,
        image: ClusterImage,
        config: BrokerConfig,
        make_room: Callable[[], bool] = lambda: False,
    ) -> None:
        """`make_room` frees space that was set aside for this; False if there is none."""
        self._store = store
        self._worker = worker
        self._static_config = config
        self._changes: asyncio.Queue[_Change] = asyncio.Queue(METADATA_CHANGES_QUEUED_MAX)
        self._subscribers: list[Subscriber] = []
        self._make_room = make_room
        self._has_ended = False
        self.image = image
        self.config = self._effective_config()

    def subscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.append(subscriber)

    async def change(self, decide: Decide) -> ClusterImage:
        """Carry out a decision and return the image that shows it. Raises the ApiError of a refusal."""
        outcome: asyncio.Future[ClusterImage] = asyncio.get_running_loop().create_future()
        if not self._has_ended:
            await self._changes.put(_Change(decide, outcome))
        # Asked again: the queue may have had room only because it was emptied for good.
        if self._has_ended and not outcome.done():
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the metadata can no longer be changed")
        return await outcome

    async def run(self) -> None:
        """The one task that changes anything. If it ends, so does everybody's waiting."""
        try:
            while True:
                await self._next()
        finally:
            self._has_ended = True
            while not self._changes.empty():
                self._changes.get_nowait().outcome.cancel()

    async def _next(self) -> None:
        change = await self._changes.get()
        try:
            image = await self._carry_out(change.decide)
        except (ApiError, CorruptData, StorageFull, StorageFailed) as problem:
            if not change.outcome.cancelled():
                change.outcome.set_exception(_as_api_error(problem))
        except BaseException:
            change.outcome.cancel()
            raise
        else:
            if not change.outcome.cancelled():
                change.outcome.set_result(image)

    async def _carry_out(self, decide: Decide) -> ClusterImage:
        for _ in range(METADATA_CONFLICTS_MAX):
            decision = decide(self.image)
            if not decision.changes:
                return self.image
            outcome = await self._commit(decision)
            if not isinstance(outcome, Conflict):
                await self._install(apply(self.image, decision.changes, outcome.revision))
                return self.image
            await self._reload()
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "the cluster's metadata kept changing; try again")

    async def _commit(self, decision: Decision) -> Committed | Conflict:
        def transact() -> Committed | Conflict:
            return self._store.transact(decision.compares, decision.changes)

        try:
            return await self._worker.run(transact)
        except StorageFull:
            if not self._make_room():
                raise
            return await self._worker.run(transact)

    async def _reload(self) -> None:
        keys = Keys(self.image.cluster_id)
        snapshot = await self._worker.run(lambda: self._store.read(keys.prefix))
        await self._install(image_of(snapshot, self.image.cluster_id))

    async def _install(self, image: ClusterImage) -> None:
        before, self.image = self.image, image
        self.config = self._effective_config()
        for subscriber in self._subscribers:
            await subscriber(before, image)

    def _effective_config(self) -> BrokerConfig:
        node_id = self._static_config.node.node_id
        own = self.image.overrides_of_broker(node_id).overrides
        cluster = self.image.overrides_of_broker(None).overrides
        if not own and not cluster:
            return self._static_config
        return self._static_config.with_dynamic(own=own, cluster=cluster)


def _as_api_error(problem: Exception) -> ApiError:
    if isinstance(problem, ApiError):
        return problem
    return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata could not be written: {problem}")
