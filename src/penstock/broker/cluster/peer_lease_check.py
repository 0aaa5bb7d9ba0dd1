"""Peer lease check: verifies this broker's session with other brokers while the metadata store does not
reply.

A broker that cannot reach the store continues to serve (grace mode). But if only this broker cannot reach the
store, its session expires and other brokers are elected leaders of its partitions. Neither this broker nor
its clients would notice: a consumer that receives neither new records nor an error does not look for another
leader.

So when the store has not confirmed the session for longer than normal (STORE_SILENCE_MS_MAX), this broker
sends an empty fetch with its broker epoch to the other brokers. They reject it if no live broker has this
epoch. Then this broker is deposed: it leads nothing, and does not name itself as a leader, until the store
replies again.

Rule: a single rejection proves nothing, because the rejecting broker may not have applied this broker's
      latest session yet. PEER_LEASE_REJECTIONS_MIN consecutive rounds must be rejected.
"""

import asyncio

from penstock.broker.cluster.membership import ClusterMembership
from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.replication.replica_fetchers import InterBrokerLink
from penstock.config.listeners import Address
from penstock.errors import ErrorCode, ProtocolError
from penstock.limits import (
    PEER_LEASE_CHECK_MS_MAX,
    PEER_LEASE_CHECK_PAUSE_MS,
    PEER_LEASE_REJECTIONS_MIN,
    STORE_SILENCE_MS_MAX,
)
from penstock.observability.logs import Log
from penstock.protocol.messages.fetch import FETCH, FetchRequest, ReplicaState
from penstock.replication.replica_manager import ReplicaManager
from penstock.replication.roles import Admission
from penstock.wire.async_client import connected
from penstock.wire.client_protocol import VersionMismatch

NO_SESSION, LAST_OF_NONE = 0, -1


class PeerLeaseCheck:
    def __init__(
        self,
        cluster: MetadataService,
        membership: ClusterMembership,
        admission: Admission,
        partitions: ReplicaManager,
        link: InterBrokerLink,
        log: Log,
    ) -> None:
        self._cluster = cluster
        self._membership = membership
        self._admission = admission
        self._partitions = partitions
        self._link = link
        self._log = log

    async def run(self, node_id: int) -> None:
        """The task that sends the checks."""
        refusals = 0
        while True:
            await asyncio.sleep(PEER_LEASE_CHECK_PAUSE_MS / 1000)
            if self._membership.store_silence_ms() <= STORE_SILENCE_MS_MAX:
                refusals = 0
                self._reinstate()
                continue
            refusals = refusals + 1 if await self._is_refused(node_id) else 0
            if refusals == PEER_LEASE_REJECTIONS_MIN and not self._admission.is_deposed:
                self.depose(node_id)

    def depose(self, node_id: int) -> None:
        self._log.warning("broker.deposed", help="other brokers lead until the metadata store answers")
        # The admission first: `recheck_leadership` evaluates it. Nothing awaits in between, so that no client
        # gets a reply from a half-deposed broker.
        self._admission.depose(self._cluster.image)
        self._cluster.hide_broker(node_id)
        self._partitions.recheck_leadership()

    def _reinstate(self) -> None:
        """Lead again: the store has confirmed the session, so no other broker has taken over."""
        if self._admission.is_deposed:
            self._admission.reinstate()
            self._cluster.hide_broker(None)
            self._partitions.recheck_leadership()

    async def _is_refused(self, node_id: int) -> bool:
        """Check whether any broker rejects this broker's epoch. A broker that does not reply counts as no."""
        others = [broker_id for broker_id in self._cluster.image.sessions if broker_id != node_id]
        answers = await asyncio.gather(*(self.is_rejected_by(broker_id, node_id) for broker_id in others))
        return any(answers)

    async def is_rejected_by(self, broker_id: int, node_id: int) -> bool:
        broker = self._cluster.image.brokers.get(broker_id)
        endpoint = broker.endpoints.get(self._link.listener) if broker is not None else None
        if endpoint is None:
            return False
        question = FetchRequest(
            replica_state=ReplicaState(node_id, self._membership.epoch),
            session_id=NO_SESSION,
            session_epoch=LAST_OF_NONE,
        )
        address = Address(endpoint.host, endpoint.port)
        try:
            async with (
                asyncio.timeout(PEER_LEASE_CHECK_MS_MAX / 1000),
                connected(address, f"penstock-{node_id}", tls=self._link.tls) as client,
            ):
                answer = await client.ask(FETCH, question, PEER_LEASE_CHECK_MS_MAX / 1000)
        except (OSError, ProtocolError, VersionMismatch):
            return False
        return answer.error_code == ErrorCode.STALE_BROKER_EPOCH
