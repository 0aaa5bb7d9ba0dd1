"""Requests from one broker to another for monitoring data (group reports, log positions).

Each request uses a connection of its own, over the listener and with the certificate of replication, and has
a timeout. After a failure, further requests to that broker fail at once for PEER_UNAVAILABLE_MS, so that a
page about many groups does not wait for the same broker once per group. A new session of that broker ends the
pause.

Rule: a request never waits for a limit that its own reply may need. The caller limits how many requests are
      pending. Otherwise two brokers that send requests to each other would deadlock.
"""

import asyncio
from typing import NamedTuple

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.replication.replica_fetchers import InterBrokerLink
from penstock.config.listeners import Address
from penstock.errors import ProtocolError
from penstock.limits import PEER_UNAVAILABLE_MS
from penstock.protocol.schema import Api, Request, Response
from penstock.wire.async_client import connected
from penstock.wire.client_protocol import VersionMismatch


class PeerUnavailable(Exception):
    """Another broker returned no usable response."""

    def __init__(self, broker_id: int, reason: str) -> None:
        super().__init__(f"broker {broker_id}: {reason}")
        self.broker_id = broker_id
        self.reason = reason


class _PeerFailure(NamedTuple):
    epoch: int
    """Broker epoch at the time of the failure."""
    until: float
    reason: str


class PeerRequests:
    def __init__(self, cluster: MetadataService, link: InterBrokerLink) -> None:
        self._cluster = cluster
        self._link = link
        self._client_id = f"penstock-{cluster.config.node.node_id}"
        self._failures: dict[int, _PeerFailure] = {}
        """Last failure by broker id, at most one per registered broker."""

    async def ask(
        self, broker_id: int, api: Api[Request, Response], message: Request, timeout_ms: int
    ) -> Response:
        """Send a request. PeerUnavailable: not reachable, no response in time, or API not supported."""
        loop = asyncio.get_running_loop()
        broker = self._cluster.image.brokers.get(broker_id)
        endpoint = None if broker is None else broker.endpoints.get(self._link.listener)
        if broker is None or endpoint is None or broker.live is None:
            raise PeerUnavailable(broker_id, "it is not running, or not reached by brokers")
        known = self._failures.get(broker_id)
        if known is not None and known.epoch == broker.broker_epoch and loop.time() < known.until:
            raise PeerUnavailable(broker_id, known.reason)
        timeout_s = timeout_ms / 1000
        address = Address(endpoint.host, endpoint.port)
        try:
            async with (
                asyncio.timeout(timeout_s),
                connected(address, self._client_id, tls=self._link.tls) as client,
            ):
                # The latest version, not negotiated: ApiVersions does not list APIs between brokers.
                answer = await client.ask(api, message, timeout_s, version=api.versions[1])
        except (OSError, ProtocolError, VersionMismatch) as problem:
            reason = _reason(problem, address, timeout_s)
            until = loop.time() + PEER_UNAVAILABLE_MS / 1000
            self._failures[broker_id] = _PeerFailure(broker.broker_epoch, until, reason)
            raise PeerUnavailable(broker_id, reason) from problem
        self._failures.pop(broker_id, None)
        return answer


def _reason(problem: Exception, address: Address, timeout_s: float) -> str:
    if isinstance(problem, TimeoutError):
        return f"no answer from {address} within {timeout_s:g} s"
    return f"no answer from {address}: {problem}"
