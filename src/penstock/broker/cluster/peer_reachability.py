"""Peer reachability: this broker reports the brokers that it cannot reach, in the metadata store.

A broker that is cut off from the others, but not from the store, keeps its session. Only its followers
notice, because their fetches have no answer. `peer_contacts.py` decides when another broker counts as
unreachable. This module sends the probes, and keeps the report of this broker as it should be. The report is
one key, tied to the session: it vanishes with this broker. What follows from reports is decided in
controller/reachability.py.

A probe is a new connection over which the other broker negotiates versions. It needs neither the disk of the
other broker nor its store.

Rule 1: the store is written only when the set of unreachable brokers has changed.
Rule 2: nothing is reported without a session, or while the store is unavailable.
Rule 3: a probe that this broker could not send proves nothing about the other broker.
"""

import asyncio
import errno
from collections.abc import Collection
from typing import Final

from penstock.broker.cluster.membership import ClusterMembership
from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.cluster.peer_contacts import Peer, PeerContacts
from penstock.broker.replication.replica_fetchers import ReplicaFetchers
from penstock.config.listeners import Address
from penstock.controller.reachability import PeerReport, report_unreachable, reporters_of
from penstock.errors import ApiError, ProtocolError
from penstock.host.metadata_store import StoreRejected, StoreUnavailable
from penstock.limits import PEER_CHECK_MS, PEER_PROBE_MS_MAX
from penstock.metadata.cluster_image import ClusterImage
from penstock.observability.logs import Log
from penstock.wire.async_client import connected
from penstock.wire.client_protocol import VersionMismatch

LOCAL_ERRORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""This broker lacks what a connection takes: descriptors or memory."""
UNREACHABLE_HELP = "if it leads partitions that this broker follows, it hands them over or goes on without it"


class PeerReachability:
    def __init__(
        self, cluster: MetadataService, membership: ClusterMembership, fetchers: ReplicaFetchers, log: Log
    ) -> None:
        self._cluster = cluster
        self._membership = membership
        self._fetchers = fetchers
        self._log = log
        self._node_id = cluster.config.node.node_id
        self._contacts = PeerContacts()
        self._logged: frozenset[Peer] = frozenset()
        self._checked_at = 0.0
        """End of the last check."""

    async def run(self) -> None:
        """The task that checks and reports."""
        self._checked_at = asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(PEER_CHECK_MS / 1000)
            await self.check()
            self._checked_at = asyncio.get_running_loop().time()

    async def check(self) -> None:
        loop, image = asyncio.get_running_loop(), self._cluster.image
        now = loop.time()
        self._contacts.keep(self._peers(image), now)
        if now - self._checked_at > (PEER_CHECK_MS + PEER_PROBE_MS_MAX) / 1000:
            self._contacts.restart(now)
        self._contacts.answered(self._fetchers.answered_at)
        # A broker that reports this one is probed too: this broker may follow it soon.
        expected = self._fetchers.leader_ids() | reporters_of(image, self._node_id)
        await self._probe(self._contacts.to_probe(expected, now))
        self._log_changes()
        await self._report()

    def _peers(self, image: ClusterImage) -> list[Peer]:
        return [
            Peer(broker.id, broker.broker_epoch)
            for broker in image.brokers.values()
            if broker.id != self._node_id and self._fetchers.address_of(broker.id) is not None
        ]

    # Probes

    async def _probe(self, peers: Collection[Peer]) -> None:
        if not peers:
            return
        loop = asyncio.get_running_loop()
        began = loop.time()
        outcomes = await asyncio.gather(*(self.answers(peer.id) for peer in peers))
        answered = [outcome for outcome in outcomes if outcome is not None]
        # This broker lacks descriptors or memory, or it did nothing for a while, or is overloaded.
        if len(answered) < len(outcomes) or loop.time() - began > 2 * PEER_PROBE_MS_MAX / 1000:
            self._contacts.restart(loop.time())
            return
        self._contacts.probed(zip(peers, answered, strict=True), loop.time())

    async def answers(self, broker_id: int) -> bool | None:
        """Whether a broker answers over a new connection; None: this broker cannot make a connection."""
        address: Address | None = self._fetchers.address_of(broker_id)
        if address is None:
            return False
        seconds, tls = PEER_PROBE_MS_MAX / 1000, self._fetchers.link.tls
        try:
            async with (
                asyncio.timeout(seconds),
                connected(address, f"penstock-{self._node_id}", tls=tls, timeout_s=seconds),
            ):
                return True
        except OSError as problem:
            return None if problem.errno in LOCAL_ERRORS else False
        except (ProtocolError, VersionMismatch):
            return False

    # The report

    def _log_changes(self) -> None:
        unreachable = frozenset(self._contacts.unreachable)
        for peer in sorted(unreachable - self._logged):
            self._log.warning("broker.unreachable", broker=peer.id, help=UNREACHABLE_HELP)
        for peer in sorted(self._logged - unreachable):
            self._log.info("broker.reachable", broker=peer.id)
        self._logged = unreachable

    async def _report(self) -> None:
        image, session = self._cluster.image, self._membership.session
        own = image.sessions.get(self._node_id)
        if session is None or own is None or own.epoch != self._membership.epoch:
            return
        if self._cluster.store_unavailable_since is not None:
            return
        report = PeerReport(self._contacts.unreachable, self._contacts.recovering)
        decision = report_unreachable(image, self._node_id, session, report)
        if not decision.changes:
            return
        try:
            # A conflict needs no answer: the next check decides on a newer image.
            await self._cluster.commit_once(decision)
        except (StoreUnavailable, StoreRejected, ApiError) as problem:
            self._log.warning("broker.not_reported", reason=str(problem))
