"""What a leader shows, whom it lets join, and whom it lets go."""

from penstock.replication.leading import (
    NO_BROKER_EPOCH,
    CommittedPartitionState,
    FollowerFetchState,
    IsrProposal,
    LeaderRole,
)
from penstock.types import Offset

LAG_MS = 10_000


def leading(
    isr: tuple[int, ...] = (1, 2, 3), *, min_isr: int = 2, start: int = 0, high: int = 0
) -> LeaderRole:
    state = CommittedPartitionState((1, 2, 3), isr, version=7, min_isr=min_isr)
    return LeaderRole(1, state, Offset(start), Offset(high), now=0.0)


def state(*isr: int, version: int, min_isr: int = 2) -> CommittedPartitionState:
    return CommittedPartitionState((1, 2, 3), isr, version, min_isr)


def fetch(
    leader: LeaderRole, broker: int, offset: int, *, end: int = 100, now: float = 1.0
) -> IsrProposal | None:
    return leader.fetched(
        FollowerFetchState(broker, 50 + broker, Offset(offset), 50 + broker), Offset(end), now
    )


def test_what_all_in_sync_replicas_have_is_shown() -> None:
    leader = leading()
    assert leader.reached(Offset(10)) == 0
    fetch(leader, 2, 8)
    assert leader.high_watermark == 0
    fetch(leader, 3, 9)
    assert leader.high_watermark == 8
    fetch(leader, 2, 20)
    assert leader.high_watermark == 9
    fetch(leader, 3, 20)
    assert leader.high_watermark == 10, "the leader itself has no more on disk"
    assert leader.reached(Offset(20)) == 20


def test_a_replica_out_of_sync_is_not_waited_for() -> None:
    leader = leading((1, 2))
    leader.reached(Offset(10))
    fetch(leader, 2, 10)
    assert leader.high_watermark == 10


def test_the_high_watermark_does_not_follow_a_replica_that_falls_back() -> None:
    leader = leading((1, 2))
    leader.reached(Offset(10))
    fetch(leader, 2, 10)
    fetch(leader, 2, 3)
    assert (leader.high_watermark, leader.acknowledged_end(2)) == (10, 3)
    leader.reached(Offset(30))
    assert leader.high_watermark == 10


def test_nothing_becomes_safe_with_too_few_in_sync() -> None:
    leader = leading((1,), min_isr=2)
    assert not leader.meets_min_isr
    assert leader.reached(Offset(10)) == 0
    assert leader.changed(state(1, version=7, min_isr=1), now=1.0) == 10


def test_more_cannot_be_asked_for_than_there_are_replicas() -> None:
    leader = leading((1, 2, 3), min_isr=5)
    assert leader.min_isr == 3
    assert leader.meets_min_isr


def test_who_has_all_that_was_shown_may_join() -> None:
    leader = leading((1, 2), high=4)
    assert fetch(leader, 3, 3) is None
    assert fetch(leader, 3, 4) == IsrProposal((1, 2, 3), {3: 53}, version=7)
    assert leader.maximal_isr == {1, 2, 3}
    assert leader.isr == (1, 2)


def test_who_has_not_reached_this_leadership_may_not_join() -> None:
    """KAFKA-7128: a new leader's high watermark may be behind what the one before it showed."""
    leader = leading((1, 2), start=9, high=4)
    assert not leader.is_caught_up
    assert fetch(leader, 3, 8) is None
    assert fetch(leader, 3, 9) is not None


def test_only_the_incarnation_that_is_admitted_may_join() -> None:
    leader = leading((1, 2))
    for admitted in (NO_BROKER_EPOCH, 52, 54):
        assert leader.fetched(FollowerFetchState(3, 53, Offset(5), admitted), Offset(9), 1.0) is None
    assert leader.fetched(FollowerFetchState(3, 53, Offset(5), 53), Offset(9), 1.0) is not None


def test_a_replica_about_to_join_is_waited_for() -> None:
    leader = leading((1, 2))
    leader.reached(Offset(10))
    fetch(leader, 3, 4)
    fetch(leader, 2, 10)
    assert leader.high_watermark == 4


def test_a_replica_about_to_leave_is_waited_for_until_it_has_left() -> None:
    leader = leading()
    leader.reached(Offset(10))
    fetch(leader, 2, 100, now=11.0)
    proposal = leader.propose_shrink(Offset(100), 11.0, LAG_MS)
    assert proposal == IsrProposal((1, 2), {}, version=7)
    assert leader.high_watermark == 0
    assert leader.committed(proposal, version=8) == 10
    assert leader.isr == (1, 2)


def test_a_refused_proposal_changes_nothing() -> None:
    leader = leading((1, 2))
    leader.reached(Offset(10))
    proposal = fetch(leader, 3, 4)
    assert proposal is not None
    fetch(leader, 2, 10)
    assert leader.rejected(proposal) == 10
    assert leader.isr == (1, 2)
    assert leader.maximal_isr == {1, 2}


def test_a_newer_state_settles_a_proposal_and_its_own_answer_comes_too_late() -> None:
    leader = leading((1, 2))
    proposal = fetch(leader, 3, 4)
    assert proposal is not None
    leader.changed(state(1, 2, 3, version=8), now=2.0)
    leader.changed(state(1, 3, version=9), now=2.0)
    assert leader.proposal is None
    leader.committed(proposal, version=8)
    leader.rejected(proposal)
    assert leader.isr == (1, 3)
    assert leader.maximal_isr == {1, 3}


def test_an_older_state_is_passed_over_and_the_same_settles_nothing() -> None:
    leader = leading((1, 2))
    proposal = fetch(leader, 3, 4)
    leader.changed(state(1, version=6), now=2.0)
    leader.changed(state(1, 2, version=7), now=2.0)
    assert leader.proposal is proposal
    assert leader.maximal_isr == {1, 2, 3}


def fetch_from(leader: LeaderRole, broker: int, log_start: int) -> IsrProposal | None:
    """A fetch at the end of the log, of a replica whose log begins there after a crash."""
    epoch = 50 + broker
    return leader.fetched(
        FollowerFetchState(broker, epoch, Offset(100), epoch, Offset(log_start)), Offset(100), 1.0
    )


def test_a_deletion_counts_when_all_in_sync_replicas_have_stored_it() -> None:
    leader = leading((1, 2))
    assert not leader.is_deleted(Offset(5)), "nothing is known of broker 2"
    fetch_from(leader, 2, 4)
    assert not leader.is_deleted(Offset(5))
    fetch_from(leader, 2, 5)
    assert leader.is_deleted(Offset(5)), "broker 3 is neither in sync nor eligible"


def test_a_deletion_counts_when_all_eligible_leaders_have_stored_it() -> None:
    leader = leading((1,))
    leader.changed(CommittedPartitionState((1, 2, 3), (1,), version=8, min_isr=2, elr=(2,)), 1.0)
    assert not leader.is_deleted(Offset(5)), "broker 2 may be elected, alive now or not"
    fetch_from(leader, 2, 5)
    assert leader.is_deleted(Offset(5))


def test_a_replica_that_has_just_left_may_be_eligible() -> None:
    leader = leading((1, 2))
    fetch_from(leader, 2, 0)
    proposal = leader.propose_shrink(Offset(200), 100.0, LAG_MS)
    assert proposal is None
    proposal = leader.propose_shrink(Offset(200), 120.0, LAG_MS)
    assert proposal is not None
    leader.committed(proposal, 8)
    assert leader.isr == (1,)
    assert not leader.is_deleted(Offset(5))
    leader.changed(state(1, version=8), 121.0)
    assert leader.is_deleted(Offset(5)), "the image says that nobody is eligible"


def test_a_replica_joins_when_it_has_stored_what_is_deleted() -> None:
    leader = leading((1, 2))
    leader.own_start = Offset(5)
    assert fetch_from(leader, 3, 4) is None
    assert fetch_from(leader, 3, 5) is not None


def test_there_is_one_proposal_at_a_time() -> None:
    leader = leading((1, 2))
    assert fetch(leader, 3, 4) is not None
    assert fetch(leader, 3, 5) is None
    assert leader.propose_shrink(Offset(100), 100.0, LAG_MS) is None


def test_who_is_behind_for_too_long_leaves_and_who_is_at_the_end_stays() -> None:
    leader = leading()
    fetch(leader, 2, 100, end=100, now=1.0)
    fetch(leader, 3, 90, end=100, now=1.0)
    assert leader.propose_shrink(Offset(100), 9.0, LAG_MS) is None
    assert leader.propose_shrink(Offset(100), 500.0, LAG_MS) == IsrProposal((1, 2), {}, version=7)


def test_who_cannot_fetch_leaves_at_once_also_from_the_end_of_the_log() -> None:
    leader = leading()
    fetch(leader, 2, 100, end=100, now=1.0)
    fetch(leader, 3, 100, end=100, now=1.0)
    proposal = leader.propose_shrink(Offset(100), 1.5, LAG_MS, frozenset({3, 9}))
    assert proposal == IsrProposal((1, 2), {}, version=7)


def test_silence_counts_from_when_there_was_something_to_fetch() -> None:
    leader = leading((1, 2))
    fetch(leader, 2, 100, end=100, now=1.0)
    assert leader.propose_shrink(Offset(100), 500.0, LAG_MS) is None
    assert leader.propose_shrink(Offset(101), 501.0, LAG_MS) is None
    assert leader.propose_shrink(Offset(101), 512.0, LAG_MS) == IsrProposal((1,), {}, version=7)


def test_who_keeps_up_with_a_log_that_grows_stays() -> None:
    leader = leading((1, 2))
    for second in range(60):
        fetch(leader, 2, 10 * second, end=10 * second + 10, now=float(second))
        assert leader.propose_shrink(Offset(10 * second + 10), float(second), LAG_MS) is None


def test_who_fetches_and_never_catches_up_leaves() -> None:
    leader = leading((1, 2))
    proposals = []
    for second in range(60):
        fetch(leader, 2, second, end=10 * second + 10, now=float(second))
        proposals.append(leader.propose_shrink(Offset(10 * second + 10), float(second), LAG_MS))
    assert next(second for second, proposal in enumerate(proposals) if proposal) in (11, 12)


def test_a_replica_that_is_taken_away_is_forgotten_and_a_new_one_begins_behind() -> None:
    leader = leading()
    leader.reached(Offset(10))
    fetch(leader, 2, 10)
    leader.changed(CommittedPartitionState((1, 2, 4), (1, 2), 8, 2), now=5.0)
    assert leader.high_watermark == 10
    assert leader.acknowledged_end(4) == -1
    assert fetch(leader, 4, 10) == IsrProposal((1, 2, 4), {4: 54}, version=8)


def test_the_lag_of_the_slowest_replica_counts_replicas_out_of_sync_too() -> None:
    leader = leading((1, 2))
    assert leader.is_under_replicated
    assert leader.records_behind(Offset(10)) == 10, "nobody has fetched yet"
    fetch(leader, 2, 10)
    fetch(leader, 3, 4)
    assert leader.records_behind(Offset(10)) == 6
    fetch(leader, 3, 10)
    assert leader.records_behind(Offset(10)) == 0
    leader.changed(state(1, 2, 3, version=8), now=1.0)
    assert not leader.is_under_replicated
