"""Questions that a broker asks another one on behalf of somebody who watches the cluster.

Each question has a connection of its own, over the listener and with the certificate that replication uses,
and ends after a time. A broker that did not answer is not asked again for a while, so that a page about many
groups does not wait for it once for each of them. A new session of that broker ends the pause.

Rule: a question never waits for a bound that its own answer may need. Whoever asks bounds how many questions
      are under way; brokers that ask each other would otherwise wait for each other.
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
    """Another broker gave no answer that can be used."""

    def __init__(self, broker_id: int, reason: str) -> None:
        super().__init__(f"broker {broker_id}: {reason}")
        self.broker_id = broker_id
        self.reason = reason


class _PeerFailure(NamedTuple):
    epoch: int
    """Of the broker, when it failed to answer."""
    until: float
    reason: str


class PeerRequests:
    def __init__(self, cluster: MetadataService, link: InterBrokerLink) -> None:
        self._cluster = cluster
        self._link = link
        self._client_id = f"penstock-{cluster.config.node.node_id}"
        self._failures: dict[int, _PeerFailure] = {}
        """By broker; one at most for each that is registered."""

    async def ask(
        self, broker_id: int, api: Api[Request, Response], message: Request, timeout_ms: int
    ) -> Response:
        """PeerUnavailable if it cannot be reached, does not answer in time, or does not know the question."""
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
                # Not negotiated: what is between brokers is not listed by ApiVersions.
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
