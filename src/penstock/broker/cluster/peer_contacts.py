"""Contacts of this broker with its peers, and which peers count as unreachable. Pure: time is an argument.

    reached ──→ suspected ──→ unreachable ──→ recovering ──→ reached
                a probe          two in       a probe          no probe failed
                failed           a row        succeeded        for a while

Normally the answers of the leaders that this broker follows show that they can be reached, and no probe is
sent. A probe is sent to a leader that has not answered for a while. When it fails, all peers are probed until
the failure is confirmed or refuted: whether this broker lacks one peer or all of them decides which broker
should lead.

Rule 1: a peer is unreachable after PEER_PROBE_FAILURES_MIN failed probes in a row. With it, every other peer
        is whose last probe failed: they were probed later, and would be reported a moment later.
Rule 2: a peer is recovering until its probes have succeeded for PEER_REACHABLE_MS, so that a connection that
        comes and goes moves leaderships rarely.
Rule 3: if this broker itself did nothing for a while, its probes prove nothing (`restart`).
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from penstock.limits import PEER_PROBE_FAILURES_MIN, PEER_REACHABLE_MS, PEER_SILENCE_MS_MAX


class Peer(NamedTuple):
    id: int
    epoch: int
    """The broker epoch: a process that registers again is another peer."""


class _Contact:
    __slots__ = ("failures", "heard_at", "is_unreachable", "recovering_since")

    def __init__(self, now: float) -> None:
        self.heard_at = now
        self.failures = 0
        """Failed probes in a row."""
        self.is_unreachable = False
        self.recovering_since: float | None = None
        """When a probe succeeded again after others had failed; None: the peer does not recover."""


class PeerContacts:
    def __init__(self) -> None:
        self._contacts: dict[Peer, _Contact] = {}

    @property
    def unreachable(self) -> list[Peer]:
        return sorted(peer for peer, contact in self._contacts.items() if contact.is_unreachable)

    @property
    def recovering(self) -> list[Peer]:
        recovering = (peer for peer, each in self._contacts.items() if each.recovering_since is not None)
        return sorted(recovering)

    def keep(self, peers: Collection[Peer], now: float) -> None:
        """Forget all other peers. New ones count as heard now."""
        self._contacts = {peer: self._contacts.get(peer) or _Contact(now) for peer in peers}

    def restart(self, now: float) -> None:
        """Forget failures and silence up to now: this broker itself may be the reason."""
        for contact in self._contacts.values():
            contact.heard_at, contact.failures = now, 0

    def answered(self, answers: Mapping[int, float]) -> None:
        """Record when leaders, by their broker id, answered a fetch."""
        for peer, contact in self._contacts.items():
            at = answers.get(peer.id, contact.heard_at)
            if at > contact.heard_at:
                contact.heard_at, contact.failures = at, 0

    def to_probe(self, expected: Collection[int], now: float) -> list[Peer]:
        """The peers to probe now. `expected`: ids of brokers that should have answered without a probe."""
        is_confirming = any(each.failures and not each.is_unreachable for each in self._contacts.values())
        return [
            peer
            for peer, contact in sorted(self._contacts.items())
            if contact.failures
            or contact.is_unreachable
            or contact.recovering_since is not None
            or (
                now - contact.heard_at >= PEER_SILENCE_MS_MAX / 1000
                and (is_confirming or peer.id in expected)
            )
        ]

    def probed(self, outcomes: Iterable[tuple[Peer, bool]], now: float) -> None:
        """Record a round of probes: whether each peer answered."""
        for peer, has_answered in outcomes:
            contact = self._contacts[peer]
            if has_answered:
                contact.heard_at, contact.failures = now, 0
                self._reached(contact, now)
            else:
                contact.failures += 1
                if contact.recovering_since is not None:  # rule 2: the while begins anew
                    contact.recovering_since = now
        confirmed = [each for each in self._contacts.values() if each.failures >= PEER_PROBE_FAILURES_MIN]
        if any(not each.is_unreachable for each in confirmed):
            for contact in self._contacts.values():
                if contact.failures:
                    contact.is_unreachable, contact.recovering_since = True, None

    def _reached(self, contact: _Contact, now: float) -> None:
        since = contact.recovering_since
        if contact.is_unreachable:
            contact.is_unreachable, contact.recovering_since = False, now
        elif since is not None and now - since >= PEER_REACHABLE_MS / 1000:
            contact.recovering_since = None
