"""What the leader of a partition with several replicas knows of the others, and what follows from it.

Each follower's fetch says up to where it has everything, durably. From that come

    the high watermark    the least of those ends over everybody who may be in the in-sync set
    who may join          who has everything that was ever shown, and the start of this leadership, and
                          has stored that all is deleted which this leader has stored as deleted
    who must leave        who has not been at the end of the log for too long

The in-sync set belongs to the metadata store. The leader proposes another and goes on while the answer
is on its way; it may get lost. Until then both count: the committed set and the proposed one together
are the *maximal* set, and a record is safe when all of those have it. So whichever of the two is true,
whoever is elected from it has every record that was shown.

Rule 1: the high watermark never goes back, and never moves while the committed set has fewer members
        than min.insync.replicas.
Rule 2: one proposal at a time. It is settled by its own answer or by a newer state of the partition,
        whichever is seen first; what comes later about it is passed over.
Rule 3: a fetch counts if it was made under this leader epoch, by the process that has its broker's session.
        The caller has checked both, and that the follower's history is ours.
Rule 4: a follower that is at the end costs nothing, however long it is silent. That it is behind is
        noticed when somebody looks, and counts from there or from its fetches, whichever is later.
Rule 5: one object for one leader epoch of a log, however often this broker stops leading and leads on
        within it (replication/leaderships.py): a forgotten proposal may still be committed.

Nothing here waits, reads a clock or touches a log.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.types import NO_OFFSET, Offset

NO_BROKER_EPOCH: Final = -1


class CommittedPartitionState(NamedTuple):
    """The state of a partition in the metadata store, as far as its leader needs it."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    version: int
    """The partition epoch: every change of the state has a higher one."""
    isr_min: int
    """min.insync.replicas"""
    elr: tuple[int, ...] = ()
    """Replicas that may be elected although they are not in sync (eligible leader replicas, KIP-966)."""


class PendingIsrChange(NamedTuple):
    isr: tuple[int, ...]
    """In the order of the replicas."""
    added: Mapping[int, int]
    """Who joins, with the broker epoch it fetched with: another incarnation must not join instead."""
    version: int
    """Of the state that it is to replace."""


class FollowerFetchState(NamedTuple):
    """One follower's fetch of one partition."""

    broker_id: int
    broker_epoch: int
    offset: Offset
    admitted_epoch: int
    """The epoch with which the broker may join in-sync sets; NO_BROKER_EPOCH: it may not."""
    log_start: Offset = NO_OFFSET
    """Where its log begins after a crash, if not later; NO_OFFSET: not known, it may begin at 0."""


class Follower:
    """Another replica, as its fetches show it."""

    __slots__ = ("acknowledged_end", "behind_since", "last_fetch_at", "log_end_at_last_fetch", "log_start")

    def __init__(self, now: float) -> None:
        self.acknowledged_end = NO_OFFSET
        """It has everything below, on disk if that is what the topic asks for."""
        self.behind_since: float | None = now
        """None: it was at the end of the log when somebody last looked."""
        self.last_fetch_at = now
        self.log_end_at_last_fetch = NO_OFFSET
        """Where the log ended when it last fetched."""
        self.log_start = NO_OFFSET

    def note(self, fetched: FollowerFetchState, log_end: Offset, now: float) -> None:
        offset = fetched.offset
        if offset >= log_end:
            self.behind_since = None
        elif offset >= self.log_end_at_last_fetch:  # it has caught up with what there was at its last fetch
            self.behind_since = self.last_fetch_at
        elif self.behind_since is None:
            self.behind_since = now
        self.acknowledged_end = offset
        self.last_fetch_at = now
        self.log_end_at_last_fetch = log_end
        self.log_start = fetched.log_start

    def resume(self, now: float) -> None:
        """The leader did not take fetches until now: the follower could not catch up meanwhile."""
        self.last_fetch_at = now
        if self.behind_since is not None:
            self.behind_since = now


class LeaderRole:
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
        """Where the log ended when this leadership began."""
        self.high_watermark = high_watermark
        self.own_end = NO_OFFSET
        """Up to where this broker has everything itself, as the topic's flush policy counts it."""
        self.own_start = Offset(0)
        """Where the log of this broker begins after a crash, if not later. No deletion that was confirmed, by
        this leader or one before it, is of later records."""
        self._followers: dict[int, Follower] = {}
        self._proposal: PendingIsrChange | None = None
        self._maximal: frozenset[int] = frozenset()
        self._apply_state(state, now)

    # The state of the partition

    @property
    def isr(self) -> tuple[int, ...]:
        """The committed in-sync set."""
        return self._state.isr

    @property
    def isr_min(self) -> int:
        """More than there are replicas cannot be asked for."""
        return min(self._state.isr_min, len(self._state.replicas))

    @property
    def meets_min_isr(self) -> bool:
        """Whether the committed in-sync set is large enough for records to become safe."""
        return len(self._state.isr) >= self.isr_min

    @property
    def is_under_replicated(self) -> bool:
        return len(self._state.isr) < len(self._state.replicas)

    def records_behind(self, log_end: Offset) -> int:
        """How many records the slowest of the other replicas lacks, in sync or not."""
        ends = (max(follower.acknowledged_end, Offset(0)) for follower in self._followers.values())
        return max(log_end - min(ends, default=log_end), 0)

    @property
    def is_caught_up(self) -> bool:
        """Whether everything that was ever shown by an earlier leader is shown by this one too."""
        return self.high_watermark >= self.epoch_start

    @property
    def maximal_isr(self) -> frozenset[int]:
        """Whoever may be in the in-sync set, whatever became of a proposal."""
        return self._maximal

    @property
    def proposal(self) -> PendingIsrChange | None:
        """The one whose outcome is not known. It is sent, and sent again as it is, until that is."""
        return self._proposal

    def is_replica(self, broker_id: int) -> bool:
        return broker_id in self._followers

    def acknowledged_end(self, broker_id: int) -> Offset:
        follower = self._followers.get(broker_id)
        return follower.acknowledged_end if follower is not None else NO_OFFSET

    def is_deleted(self, offset: Offset) -> bool:
        """Whether the log of every other replica that may be elected begins there after a crash, or later.

        An eligible leader that is not alive counts too, with what it reported last: it may return and lead.
        """
        members = (self._followers.get(member) for member in (*self._maximal, *self._state.elr))
        return all(member is None or member.log_start >= offset for member in members)

    def changed(self, state: CommittedPartitionState, now: float) -> Offset:
        """The metadata store has this now. Returns the high watermark."""
        if state.version < self._state.version:
            return self.high_watermark
        if state.version > self._state.version:
            self._proposal = None  # it was compared with an older state: it was that change, or is refused
        self._apply_state(state, now)
        return self._advance()

    def resumed(self, state: CommittedPartitionState, now: float) -> Offset:
        """The broker leads on under the same leader epoch, after it had stopped. Returns the high watermark.

        Everything else is as it was, a proposal without a known outcome too.
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
        """What this broker has itself ends there now. Returns the high watermark."""
        self.own_end = own_end
        return self._advance()

    def fetched(self, fetched: FollowerFetchState, log_end: Offset, now: float) -> PendingIsrChange | None:
        """A follower has everything below its offset. Returns what that is a reason to propose.

        The high watermark may have moved.
        """
        follower = self._followers[fetched.broker_id]
        follower.note(fetched, log_end, now)
        if fetched.broker_id in self._maximal:
            self._advance()
            return None
        if not self._may_join(fetched):
            return None
        members = {*self._state.isr, fetched.broker_id}
        return self._propose(members, {fetched.broker_id: fetched.broker_epoch})

    def _may_join(self, fetched: FollowerFetchState) -> bool:
        return (
            self._proposal is None
            and fetched.offset >= self.high_watermark
            and fetched.offset >= self.epoch_start
            and fetched.broker_epoch == fetched.admitted_epoch
            # It may be elected next. What was confirmed as deleted must not come back then.
            and max(fetched.log_start, Offset(0)) >= self.own_start
        )

    def _advance(self) -> Offset:
        if not self.meets_min_isr:
            return self.high_watermark
        end = self.own_end
        for member in self._maximal:
            follower = self._followers.get(member)
            if follower is not None and follower.acknowledged_end < end:
                end = follower.acknowledged_end
        if end > self.high_watermark:
            self.high_watermark = end
        return self.high_watermark

    # Proposals

    def propose_shrink(self, log_end: Offset, now: float, lag_ms_max: int) -> PendingIsrChange | None:
        """Whoever has been behind for too long is to leave the in-sync set. Asked now and then."""
        if self._proposal is not None:
            return None
        late = {
            member for member in self._state.isr if self._is_lagging(member, log_end, now, lag_ms_max / 1000)
        }
        return self._propose(set(self._state.isr) - late, {}) if late else None

    def _is_lagging(self, member: int, log_end: Offset, now: float, lag_s_max: float) -> bool:
        follower = self._followers.get(member)
        if follower is None or follower.acknowledged_end >= log_end:
            return False
        if follower.behind_since is None:
            follower.behind_since = now
        return now - follower.behind_since > lag_s_max

    def _propose(self, members: Iterable[int], added: Mapping[int, int]) -> PendingIsrChange:
        wanted = frozenset(members)
        isr = _in_replica_order(self._state.replicas, wanted)
        self._proposal = PendingIsrChange(isr, added, self._state.version)
        self._update_maximal_isr()
        return self._proposal

    def committed(self, proposal: PendingIsrChange, version: int) -> Offset:
        """The proposal is the state now, with this version. Returns the high watermark."""
        if proposal is self._proposal:
            self._proposal = None
            # Who has left may be eligible. The image that comes next says who is.
            left = tuple(member for member in self._state.isr if member not in proposal.isr)
            elr = (*self._state.elr, *left)
            self._state = self._state._replace(isr=proposal.isr, version=version, elr=elr)
            self._update_maximal_isr()
        return self._advance()

    def rejected(self, proposal: PendingIsrChange) -> Offset:
        """The proposal never became and never will become the state. Returns the high watermark.

        A conflict alone does not say so: the same proposal may have been accepted when it was sent
        before. The caller has seen the state of a revision at which it failed, and it was the old one.
        """
        if proposal is self._proposal:
            self._proposal = None
            self._update_maximal_isr()
        return self._advance()

    def __repr__(self) -> str:
        ends = {broker: follower.acknowledged_end for broker, follower in self._followers.items()}
        pending = f" proposed={list(self._proposal.isr)}" if self._proposal else ""
        return (
            f"<Leading isr={list(self.isr)}{pending} min={self.isr_min} own={self.own_end} "
            f"others={ends} high={self.high_watermark}>"
        )


def _in_replica_order(replicas: Sequence[int], members: frozenset[int]) -> tuple[int, ...]:
    return tuple(replica for replica in replicas if replica in members)
