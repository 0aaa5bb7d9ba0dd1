"""The leader's view of its followers: the high watermark, and changes of the in-sync replicas (ISR).

A follower's fetch offset states up to where that follower has every record, durably. From these offsets the
leader derives

    high watermark        the smallest of them over all brokers that may be in the ISR
    replicas that join    a follower that has everything below the high watermark and below the start of
                          this leadership, and has stored every deletion that this leader has stored
    replicas that leave   a follower that has not reached the end of the log for too long

The committed ISR is in the metadata store. The leader proposes another ISR; its broker validates the proposal
(controller/isr.py) and commits it (broker/replication/isr_updates.py), and the store accepts or rejects it.
The leader continues meanwhile, and the store's reply may be lost. Until the outcome is known, both sets
count: the committed ISR and the proposed one together are the *maximal ISR*, and a record is below the high
watermark only when all of its members have the record. So whichever of the two sets is true, every broker
that can be elected from it has every visible record.

Rule 1: the high watermark never moves back, and does not move while the committed ISR has fewer members than
        min.insync.replicas.
Rule 2: one proposal at a time. The store's reply to it, or a newer state of the partition, settles it,
        whichever arrives first. A later reply to the same proposal is ignored.
Rule 3: a fetch counts if the follower made it under this leader epoch, from the process that owns the session
        of its broker. The caller has checked both, and that the follower's log does not diverge from the
        leader's.
Rule 4: a follower at the end of the log is not behind, however long it sends no fetch. `propose_shrink`
        notices that a follower is behind. The lag counts from that check or from the follower's own fetches,
        whichever is later.
Rule 5: one `LeaderRole` for one leader epoch of a log, however often this broker stops and resumes leading
        within that epoch (`Leaderships` in replication/roles.py): a proposal that was forgotten may still be
        committed.

The module is pure: it does not wait, read a clock or touch a log.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.protocol.messages.fetch import EpochEndOffset
from penstock.types import NO_OFFSET, Offset

NO_BROKER_EPOCH: Final = -1
"""In place of the broker epoch of a broker that may not join an ISR, or that was in sync before."""


class CommittedPartitionState(NamedTuple):
    """State of a partition in the metadata store, as far as its leader needs it."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    version: int
    """The partition epoch. Every change of the state raises it."""
    min_isr: int
    """min.insync.replicas"""
    elr: tuple[int, ...] = ()
    """Eligible leader replicas (KIP-966): they may be elected although they are not in sync."""


class IsrProposal(NamedTuple):
    """Proposed ISR whose outcome the leader does not know yet."""

    isr: tuple[int, ...]
    """In the order of the replica assignment."""
    added: Mapping[int, int]
    """Brokers that join, each with the broker epoch of its fetch: a later process of that broker must not
    join instead."""
    version: int
    """Partition epoch of the state that the proposal replaces."""


class FollowerFetchState(NamedTuple):
    """One follower's fetch of one partition."""

    broker_id: int
    broker_epoch: int
    offset: Offset
    admitted_epoch: int
    """Broker epoch with which the broker may join an ISR; NO_BROKER_EPOCH: the broker may not join."""
    log_start: Offset = NO_OFFSET
    """The follower's log begins here after a crash, if not later; NO_OFFSET: unknown, it may begin at 0."""


class FollowerFetchResult(NamedTuple):
    """Outcome of a follower's fetch, apart from the records."""

    diverging: EpochEndOffset | None
    """The follower's log diverges: the follower gets no records but the end offset of the common epoch."""
    proposal: IsrProposal | None
    """To be sent to the metadata store."""


class Follower:
    """State of another replica, as its fetches report it."""

    __slots__ = ("acknowledged_end", "behind_since", "last_fetch_at", "log_end_at_last_fetch", "log_start")

    def __init__(self, now: float) -> None:
        self.acknowledged_end = NO_OFFSET
        """The follower has every record below, on disk if the topic's flush policy requires that."""
        self.behind_since: float | None = now
        """Start of the current lag; None: the follower was at the end of the log at the last check."""
        self.last_fetch_at = now
        self.log_end_at_last_fetch = NO_OFFSET
        """End of the leader's log at the follower's last fetch."""
        self.log_start = NO_OFFSET

    def note(self, fetched: FollowerFetchState, log_end: Offset, now: float) -> None:
        offset = fetched.offset
        if offset >= log_end:
            self.behind_since = None
        elif offset >= self.log_end_at_last_fetch:
            # The follower reached what the leader had at its previous fetch, so its lag began no earlier than
            # then (as in Kafka's lastCaughtUpTime). Under constant load an offset is rarely equal to the
            # moving log end.
            self.behind_since = self.last_fetch_at
        elif self.behind_since is None:
            self.behind_since = now
        self.acknowledged_end = offset
        self.last_fetch_at = now
        self.log_end_at_last_fetch = log_end
        self.log_start = fetched.log_start

    def resume(self, now: float) -> None:
        """Restart the lag clock: no fetch was served until now, so the follower could not catch up."""
        self.last_fetch_at = now
        if self.behind_since is not None:
            self.behind_since = now


class LeaderRole:
    """Leader side of one partition in one leader epoch."""

    def __init__(
        self,
        broker_id: int,
        state: CommittedPartitionState,
        epoch_start: Offset,
        high_watermark: Offset,
        now: float,
    ) -> None:
        self._broker_id = broker_id
        self._state = state
        self.epoch_start: Final = epoch_start
        """End of the log when this leadership began."""
        self.high_watermark = high_watermark
        self.own_end = NO_OFFSET
        """This broker has every record below this offset, as the topic's flush policy counts it."""
        self.own_start = Offset(0)
        """Offset at which this broker's log begins after a crash, if not later. No confirmed deletion, by
        this leader or an earlier one, covers records at or above it."""
        self._followers: dict[int, Follower] = {}
        self._proposal: IsrProposal | None = None
        self._maximal: frozenset[int] = frozenset()
        self._apply_state(state, now)

    # The state of the partition

    @property
    def isr(self) -> tuple[int, ...]:
        """The committed in-sync replicas."""
        return self._state.isr

    @property
    def min_isr(self) -> int:
        """min.insync.replicas, limited to the number of replicas."""
        return min(self._state.min_isr, len(self._state.replicas))

    @property
    def meets_min_isr(self) -> bool:
        """Whether the committed ISR has enough members for the high watermark to move."""
        return len(self._state.isr) >= self.min_isr

    @property
    def is_under_replicated(self) -> bool:
        return len(self._state.isr) < len(self._state.replicas)

    def records_behind(self, log_end: Offset) -> int:
        """Number of records that the slowest other replica lacks, in sync or not."""
        ends = (max(follower.acknowledged_end, Offset(0)) for follower in self._followers.values())
        return max(log_end - min(ends, default=log_end), 0)

    @property
    def is_caught_up(self) -> bool:
        """Whether everything that an earlier leader made visible is below this leader's high watermark."""
        return self.high_watermark >= self.epoch_start

    @property
    def maximal_isr(self) -> frozenset[int]:
        """Brokers in the committed ISR or in the pending proposal, whatever its outcome."""
        return self._maximal

    @property
    def proposal(self) -> IsrProposal | None:
        """Proposal with unknown outcome. The broker sends it, unchanged, until the outcome is known."""
        return self._proposal

    def is_replica(self, broker_id: int) -> bool:
        return broker_id in self._followers

    def acknowledged_end(self, broker_id: int) -> Offset:
        follower = self._followers.get(broker_id)
        return follower.acknowledged_end if follower is not None else NO_OFFSET

    def is_deleted(self, offset: Offset) -> bool:
        """Check whether the log of every other electable replica begins at `offset` or later after a crash.

        An eligible leader that is not alive counts too, with the log start that it reported last: that broker
        may return and be elected.
        """
        members = (self._followers.get(member) for member in (*self._maximal, *self._state.elr))
        return all(member is None or member.log_start >= offset for member in members)

    def changed(self, state: CommittedPartitionState, now: float) -> Offset:
        """Apply a newer state from the metadata store. Returns the high watermark."""
        # An older image may arrive after the reply to a proposal.
        if state.version < self._state.version:
            return self.high_watermark
        if state.version > self._state.version:
            # The proposal was compared with an older partition epoch: either this state is its result, or the
            # store rejects it.
            self._proposal = None
        self._apply_state(state, now)
        return self._advance()

    def resumed(self, state: CommittedPartitionState, now: float) -> Offset:
        """Lead again under the same leader epoch, after a stop. Returns the high watermark.

        Everything else stays as it was, including a proposal whose outcome is unknown.
        """
        for follower in self._followers.values():
            follower.resume(now)
        return self.changed(state, now)

    def _apply_state(self, state: CommittedPartitionState, now: float) -> None:
        self._state = state
        others = [replica for replica in state.replicas if replica != self._broker_id]
        self._followers = {other: self._followers.get(other) or Follower(now) for other in others}
        self._update_maximal_isr()

    def _update_maximal_isr(self) -> None:
        proposed = self._proposal.isr if self._proposal is not None else ()
        self._maximal = frozenset((*self._state.isr, *proposed))

    # Positions

    def reached(self, own_end: Offset) -> Offset:
        """Record the end of this broker's own log, by its flush policy. Returns the high watermark."""
        self.own_end = own_end
        return self._advance()

    def fetched(self, fetched: FollowerFetchState, log_end: Offset, now: float) -> IsrProposal | None:
        """Record that a follower has everything below its fetch offset. Returns the resulting proposal.

        The high watermark may have moved.
        """
        follower = self._followers[fetched.broker_id]
        follower.note(fetched, log_end, now)
        if fetched.broker_id in self._maximal:
            self._advance()
            return None
        if not self.may_join(fetched):
            return None
        members = {*self._state.isr, fetched.broker_id}
        return self._propose(members, {fetched.broker_id: fetched.broker_epoch})

    def may_join(self, fetched: FollowerFetchState) -> bool:
        return (
            self._proposal is None
            and fetched.offset >= self.high_watermark
            # Records below the epoch start may be visible to clients of an earlier leader, although this
            # leader's high watermark has not reached them yet.
            and fetched.offset >= self.epoch_start
            # Fence: only the process that the controller admitted may join.
            and fetched.broker_epoch == fetched.admitted_epoch
            # A new member may be elected next. Its log must not bring back records whose deletion was
            # confirmed.
            and max(fetched.log_start, Offset(0)) >= self.own_start
        )

    def _advance(self) -> Offset:
        # Below min.insync.replicas nothing new becomes visible: a single surviving replica could lose it.
        if not self.meets_min_isr:
            return self.high_watermark
        end = self.own_end
        # The maximal ISR: the pending proposal may already be committed, so its members count too.
        for member in self._maximal:
            follower = self._followers.get(member)
            if follower is not None and follower.acknowledged_end < end:
                end = follower.acknowledged_end
        if end > self.high_watermark:
            self.high_watermark = end
        return self.high_watermark

    # Proposals

    def propose_shrink(
        self, log_end: Offset, now: float, lag_ms_max: int, unreachable: frozenset[int] = frozenset()
    ) -> IsrProposal | None:
        """Propose an ISR without the followers that have been behind for too long. Called periodically.

        `unreachable`: members that cannot fetch from this leader, and are removed at once.
        """
        if self._proposal is not None:
            return None
        late = {
            member
            for member in self._state.isr
            if member in unreachable or self._is_lagging(member, log_end, now, lag_ms_max / 1000)
        }
        return self._propose(set(self._state.isr) - late, {}) if late else None

    def _is_lagging(self, member: int, log_end: Offset, now: float, lag_s_max: float) -> bool:
        follower = self._followers.get(member)
        if follower is None or follower.acknowledged_end >= log_end:
            return False
        if follower.behind_since is None:
            follower.behind_since = now
        return now - follower.behind_since > lag_s_max

    def _propose(self, members: Iterable[int], added: Mapping[int, int]) -> IsrProposal:
        wanted = frozenset(members)
        isr = _in_replica_order(self._state.replicas, wanted)
        self._proposal = IsrProposal(isr, added, self._state.version)
        self._update_maximal_isr()
        return self._proposal

    def committed(self, proposal: IsrProposal, version: int) -> Offset:
        """Apply a proposal that was committed with this version. Returns the high watermark."""
        # By identity: a late reply to an earlier proposal changes nothing (rule 2).
        if proposal is self._proposal:
            self._proposal = None
            # A broker that left the ISR may be an eligible leader. The next image states which ones are.
            left = tuple(member for member in self._state.isr if member not in proposal.isr)
            elr = (*self._state.elr, *left)
            self._state = self._state._replace(isr=proposal.isr, version=version, elr=elr)
            self._update_maximal_isr()
        return self._advance()

    def rejected(self, proposal: IsrProposal) -> Offset:
        """Drop a proposal that never was and never will be committed. Returns the high watermark.

        A conflict alone does not prove that: an earlier attempt to send the same proposal may have succeeded.
        The caller has read the state at the revision of the conflict, and the state was still the old one.
        """
        if proposal is self._proposal:
            self._proposal = None
            self._update_maximal_isr()
        return self._advance()

    def __repr__(self) -> str:
        ends = {broker: follower.acknowledged_end for broker, follower in self._followers.items()}
        pending = f" proposed={list(self._proposal.isr)}" if self._proposal else ""
        return (
            f"<Leading isr={list(self.isr)}{pending} min={self.min_isr} own={self.own_end} "
            f"others={ends} high={self.high_watermark}>"
        )


def _in_replica_order(replicas: Sequence[int], members: frozenset[int]) -> tuple[int, ...]:
    return tuple(replica for replica in replicas if replica in members)
