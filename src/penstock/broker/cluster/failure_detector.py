"""Failure detector for brokers: idle connections that break as soon as a broker's process ends.

The controller holds one connection to every broker, and every broker holds one to the controller.

When a connection breaks, the detector reconnects at once. If the operating system refuses the connection, and
refuses again after a pause, no process listens there: the broker is gone. The detector then fences the
broker, so that its session does not have to expire. Any other error (a timeout, no route to the host) proves
nothing, and the session decides.

Rule 1: the detector fences only the broker epoch that the connection was made for. A restarted process has
        another epoch.
Rule 2: a broker that this process has never reached is not fenced, however often its address refuses a
        connection: this process may resolve the address wrongly, and would fence every broker again and
        again. The detector logs the broker instead.
"""

import asyncio
from typing import Final

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.config.listeners import Address
from penstock.controller.broker_lifecycle import depose_controller, fence
from penstock.controller.decision import Decision
from penstock.errors import ApiError
from penstock.host.backoff import Backoff
from penstock.host.metadata_store import StoreRejected, StoreUnavailable
from penstock.host.tasks import Tasks
from penstock.limits import ENDPOINT_CONNECT_MS_MAX, PEER_PAUSE_MS, PEER_PAUSE_MS_MAX
from penstock.metadata.cluster_image import ClusterImage
from penstock.observability.logs import Log

NOT_REACHED_HELP: Final = (
    "no process listens at its advertised address, as this broker looks it up: clients may not find it either"
)


class FailureDetector:
    def __init__(
        self, cluster: MetadataService, broker_id: int, listener: str, tasks: Tasks, log: Log
    ) -> None:
        """`listener`: the name of the listener that brokers use for each other."""
        self._cluster = cluster
        self._broker_id = broker_id
        self._listener = listener
        self._tasks = tasks
        self._log = log
        self._watched: dict[tuple[int, int], asyncio.Event] = {}
        """Watched brokers by id and broker epoch. An event is set when the connection is lost, or is no
        longer needed."""
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
        """Check whether this broker has to watch that epoch of a broker."""
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
        pauses = Backoff(PEER_PAUSE_MS, PEER_PAUSE_MS_MAX)
        refusals, was_there = 0, False
        try:
            while self._is_ours(self._cluster.image, broker_id, epoch):
                endpoint = self._cluster.image.brokers[broker_id].endpoints[self._listener]
                began = asyncio.get_running_loop().time()
                try:
                    await self._until_over(Address(endpoint.host, endpoint.port), is_over)
                    refusals, was_there = 0, True
                    # After a connection that lasted, reconnect without a pause. One that broke soon counts as
                    # a failing peer: the pauses grow, so that reconnecting does not become a busy loop.
                    if asyncio.get_running_loop().time() - began >= PEER_PAUSE_MS_MAX / 1000:
                        pauses.reset()
                        continue
                except ConnectionRefusedError:
                    refusals += 1
                    if was_there and refusals > 1 and await self._fence(broker_id, epoch):
                        return
                    if not was_there and refusals == 2:
                        self._log.warning("broker.not_reached", broker=broker_id, help=NOT_REACHED_HELP)
                except OSError:
                    # A timeout, no route, or a process that is just ending: none of these proves it is gone.
                    pass
                await asyncio.sleep(pauses.next_delay_s())
        finally:
            del self._watched[broker_id, epoch]

    async def _until_over(self, address: Address, is_over: asyncio.Event) -> None:
        """Hold a connection until it is lost or no longer needed. OSError: it could not be made."""
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
            # Only the controller fences brokers, and no controller is left to fence a dead controller: any
            # broker may depose it, and a new controller then handles its partitions.
            is_controller = image.controller is not None and image.controller.broker_id == broker_id
            return (depose_controller if is_controller else fence)(image, broker_id, epoch)

        try:
            await self._cluster.change(decide)
        except (ApiError, StoreUnavailable, StoreRejected) as problem:
            self._log.warning("broker.not_fenced", broker=broker_id, reason=str(problem))
            return False
        return True


class _WatchedConnection(asyncio.Protocol):
    """A connection that carries no data."""

    def __init__(self, is_over: asyncio.Event) -> None:
        self._is_over = is_over

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over.set()
