"""How it is noticed within moments that a broker is gone: by a connection to it that breaks.

The controller holds one to every broker, and every broker holds one to the controller.

When one breaks it connects again at once. If that is refused, and again after a pause, nobody listens there
any more: the process is gone, and its session is ended instead of waiting until its time is up. Anything else
(a timeout, no way to the host) proves nothing, and is left to the session.

Rule 1: only the session that the connection was made for is ended. A process that has come back meanwhile
        has another one.
Rule 2: whoever has never been reached is not taken for gone, however often he refuses: it may be this
        broker that looks in the wrong place, and it would fence everybody, again and again. He is named.
"""

import asyncio
from typing import Final

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.config.listeners import Address
from penstock.controller.broker_lifecycle import depose_controller, fence
from penstock.controller.decision import Decision
from penstock.errors import ApiError
from penstock.host.metadata_store import StoreRejected, StoreUnavailable
from penstock.host.tasks import Tasks
from penstock.limits import ENDPOINT_CONNECT_MS_MAX, PEER_PAUSE_MS, PEER_PAUSE_MS_MAX
from penstock.metadata.cluster_image import ClusterImage
from penstock.observability.logs import Log

NOT_REACHED_HELP: Final = (
    "nobody listens at its advertised address, as this broker looks it up: clients may not find it either"
)


class FailureDetector:
    def __init__(
        self, cluster: MetadataService, broker_id: int, listener: str, tasks: Tasks, log: Log
    ) -> None:
        """`listener`: by whose address brokers reach each other."""
        self._cluster = cluster
        self._broker_id = broker_id
        self._listener = listener
        self._tasks = tasks
        self._log = log
        self._watched: dict[tuple[int, int], asyncio.Event] = {}
        """Brokers that have a task here, with the epoch it is for. Set: their connection is over."""
        cluster.subscribe(self._follow)

    async def _follow(self, before: ClusterImage, after: ClusterImage) -> None:
        if before.brokers is after.brokers and before.controller == after.controller:
            return
        for key, is_over in self._watched.items():
            if not self._is_ours(after, *key):
                is_over.set()
        for broker in after.brokers.values():
            key = broker.id, broker.broker_epoch
            if self._is_ours(after, *key) and key not in self._watched:
                is_over = self._watched[key] = asyncio.Event()
                self._tasks.start(self._watch(*key, is_over), f"connection to broker {broker.id}")

    def _is_ours(self, image: ClusterImage, broker_id: int, epoch: int) -> bool:
        """Whether we are to watch this epoch of a broker."""
        broker = image.brokers.get(broker_id)
        return (
            image.controller is not None
            and image.controller.broker_id in (self._broker_id, broker_id)
            and broker_id != self._broker_id
            and broker is not None
            and broker.live is not None
            and broker.live.epoch == epoch
            and self._listener in broker.endpoints
        )

    async def _watch(self, broker_id: int, epoch: int, is_over: asyncio.Event) -> None:
        pause_ms, refusals, was_there = PEER_PAUSE_MS, 0, False
        try:
            while self._is_ours(self._cluster.image, broker_id, epoch):
                endpoint = self._cluster.image.brokers[broker_id].endpoints[self._listener]
                began = asyncio.get_running_loop().time()
                try:
                    await self._until_over(Address(endpoint.host, endpoint.port), is_over)
                    refusals, was_there = 0, True
                    if asyncio.get_running_loop().time() - began >= PEER_PAUSE_MS_MAX / 1000:
                        pause_ms = PEER_PAUSE_MS
                        continue
                except ConnectionRefusedError:
                    refusals += 1
                    if was_there and refusals > 1 and await self._fence(broker_id, epoch):
                        return
                    if not was_there and refusals == 2:
                        self._log.warning("broker.not_reached", broker=broker_id, help=NOT_REACHED_HELP)
                except OSError:
                    # Nobody answers, or there is no way, or it is just ending: this proves nothing yet.
                    pass
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, PEER_PAUSE_MS_MAX)
        finally:
            del self._watched[broker_id, epoch]

    async def _until_over(self, address: Address, is_over: asyncio.Event) -> None:
        """Returns when a connection is lost, or of no more use; OSError if there is none to be had."""
        loop = asyncio.get_running_loop()
        is_over.clear()
        async with asyncio.timeout(ENDPOINT_CONNECT_MS_MAX / 1000):
            transport, _ = await loop.create_connection(
                lambda: _WatchedConnection(is_over), address.host, address.port
            )
        try:
            await is_over.wait()
        finally:
            transport.abort()

    async def _fence(self, broker_id: int, epoch: int) -> bool:
        self._log.warning("broker.found_gone", broker=broker_id, epoch=epoch)

        def decide(image: ClusterImage) -> Decision:
            is_controller = image.controller is not None and image.controller.broker_id == broker_id
            return (depose_controller if is_controller else fence)(image, broker_id, epoch)

        try:
            await self._cluster.change(decide)
        except (ApiError, StoreUnavailable, StoreRejected) as problem:
            self._log.warning("broker.not_fenced", broker=broker_id, reason=str(problem))
            return False
        return True


class _WatchedConnection(asyncio.Protocol):
    """A connection on which nothing is said."""

    def __init__(self, is_over: asyncio.Event) -> None:
        self._is_over = is_over

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over.set()
