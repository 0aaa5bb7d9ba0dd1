"""A leader that its followers cannot reach: who leads then, who stays in sync, and when nothing moves."""

from collections.abc import Collection

import pytest

from penstock.controller.broker_lifecycle import drain
from penstock.controller.elections import ElectionType, elect, elect_preferred_leader, repair_leadership
from penstock.controller.partitions import TopicPartitionState
from penstock.controller.reachability import (
    FollowerContact,
    PeerReport,
    hand_over,
    has_stable_connections,
    removable_followers,
    report_unreachable,
    reporters_of,
    unreachable_for,
)
from penstock.controller.reassignment import Reassignment, reassign
from penstock.errors import ErrorCode
from penstock.host.metadata_store import SessionId
from penstock.metadata.cluster_image import PartitionState
from tests.unit.controller.controller_support import StoredCluster, cluster_of, refusal
from tests.unit.controller.scenarios import shrink, upkeep


@pytest.fixture
def cluster() -> StoredCluster:
    """Three brokers, each of which has a replica. The leader is also the controller."""
    return three()


def three() -> StoredCluster:
    made = cluster_of(1, 2, 3)
    made.create("t", factor=3)
    replicas = made.state().replicas
    if replicas != (1, 2, 3):
        made.commit(reassign(made.image, Reassignment("t", 0, (1, 2, 3))))
        upkeep(made)
    if made.state().leader != 1:
        made.commit(elect(made.image, "t", 0, ElectionType.PREFERRED))
    assert (made.state().replicas, made.state().leader) == ((1, 2, 3), 1)
    return made


def partition(cluster: StoredCluster) -> TopicPartitionState:
    return cluster.image.topics["t"], cluster.state()


def report(cluster: StoredCluster, reporter: int, *others: int, recovering: Collection[int] = ()) -> None:
    """Broker `reporter` cannot reach these."""
    brokers = cluster.image.brokers
    made = PeerReport(
        [(node, brokers[node].broker_epoch) for node in others],
        [(node, brokers[node].broker_epoch) for node in recovering],
    )
    cluster.commit(report_unreachable(cluster.image, reporter, SessionId(reporter), made))


def contact(*cut_off: int, silent: Collection[int] = ()) -> FollowerContact:
    return FollowerContact(frozenset(cut_off), frozenset((*cut_off, *silent)))


def cut_off(cluster: StoredCluster, node: int) -> None:
    """Nobody reaches this broker, and all have said so."""
    others = [other for other in sorted(cluster.image.admitted) if other != node]
    for other in others:
        report(cluster, other, node)
    report(cluster, node, *others)


def handed_over(cluster: StoredCluster, found: FollowerContact, leader: int = 1) -> PartitionState | None:
    """The partition after the leader has acted; None: it does nothing."""
    decision = hand_over(cluster.image, partition(cluster), leader, found)
    if decision is None:
        return None
    cluster.commit(decision)
    return cluster.state()


# Reports


def test_a_report_is_known_until_it_is_withdrawn(cluster: StoredCluster) -> None:
    report(cluster, 2, 1)
    assert unreachable_for(cluster.image, 2) == {1}
    assert reporters_of(cluster.image, 1) == {2}
    report(cluster, 2)
    assert not cluster.image.unreachable
    assert cluster.read_afresh() == cluster.image


def test_a_report_that_stays_as_it_is_is_not_written_again(cluster: StoredCluster) -> None:
    nothing = PeerReport()
    assert not report_unreachable(cluster.image, 2, SessionId(2), nothing).changes
    report(cluster, 2, 1)
    same = PeerReport([(1, cluster.image.brokers[1].broker_epoch)])
    assert not report_unreachable(cluster.image, 2, SessionId(2), same).changes


def test_a_report_ends_with_the_session_of_its_sender(cluster: StoredCluster) -> None:
    report(cluster, 2, 1)
    late = report_unreachable(cluster.image, 2, SessionId(2), PeerReport([(3, 1)]))
    cluster.end_session(2)
    assert not reporters_of(cluster.image, 1)
    assert not cluster.attempt(late), "the process that reported is gone"


def test_a_report_is_about_one_process(cluster: StoredCluster) -> None:
    report(cluster, 2, 1)
    cluster.end_session(1)
    cluster.join(1, "second")
    assert not reporters_of(cluster.image, 1)


# Handing over


def test_a_leader_that_nobody_reaches_hands_over_and_leaves_the_isr(cluster: StoredCluster) -> None:
    epoch = cluster.state().leader_epoch
    cut_off(cluster, 1)
    after = handed_over(cluster, contact(2, 3))
    assert after is not None
    assert (after.leader, after.isr, after.leader_epoch) == (2, (2, 3), epoch + 1)
    assert handed_over(cluster, contact(1), leader=2) is None, "it is in reach of those that are in sync"


def test_a_leader_without_a_report_of_its_own_leaves_the_isr_too(cluster: StoredCluster) -> None:
    """It follows nobody, so that it has not noticed yet."""
    report(cluster, 2, 1)
    report(cluster, 3, 1)
    after = handed_over(cluster, contact(2, 3))
    assert after is not None
    assert (after.leader, after.isr) == (2, (2, 3))


def test_the_first_report_alone_moves_nothing_while_another_follower_is_silent(
    cluster: StoredCluster,
) -> None:
    """Broker 3 may be cut off as well, and has not said so yet: as leader it would wait for broker 1."""
    report(cluster, 2, 1)
    found = contact(2, silent=[3])
    assert handed_over(cluster, found) is None
    assert not removable_followers(cluster.image, partition(cluster), found)


def test_a_single_broken_link_moves_leadership_to_who_reaches_both(cluster: StoredCluster) -> None:
    report(cluster, 2, 1)
    after = handed_over(cluster, contact(2))
    assert after is not None
    assert (after.leader, after.isr) == (3, (1, 2, 3))


def test_a_follower_that_nobody_reaches_leaves_and_the_leader_stays(cluster: StoredCluster) -> None:
    cut_off(cluster, 3)
    assert handed_over(cluster, contact(3)) is None
    assert removable_followers(cluster.image, partition(cluster), contact(3)) == {3}


def test_nothing_moves_where_no_broker_reaches_another(cluster: StoredCluster) -> None:
    for node in (1, 2, 3):
        cut_off(cluster, node)
        report(cluster, node, *({1, 2, 3} - {node}))
    found = contact(2, 3)
    assert handed_over(cluster, found) is None
    assert not removable_followers(cluster.image, partition(cluster), found), "too few would be left"


def test_nothing_moves_where_too_few_would_be_in_reach(cluster: StoredCluster) -> None:
    """Broker 2 is gone, so neither side can be written to."""
    cut_off(cluster, 1)
    cluster.end_session(2)
    shrink(cluster, 1, 3)
    assert handed_over(cluster, contact(3)) is None


def test_who_is_eligible_leads_where_the_leader_is_alone_in_sync(cluster: StoredCluster) -> None:
    """Its followers were behind for too long before they reported it."""
    shrink(cluster, 1, 3)
    shrink(cluster, 1)
    assert cluster.state().elr == (3,)
    cut_off(cluster, 1)
    after = handed_over(cluster, contact(2, 3))
    assert after is not None
    assert (after.leader, after.isr, after.elr) == (3, (3,), (1,))


def test_who_may_lack_records_is_never_elected(cluster: StoredCluster) -> None:
    shrink(cluster, 1, 3)
    cut_off(cluster, 1)
    after = handed_over(cluster, contact(2, 3))
    assert after is not None
    assert after.leader == 3


def test_a_drained_broker_takes_nothing_over(cluster: StoredCluster) -> None:
    cluster.commit(drain(cluster.image, 2))
    cut_off(cluster, 1)
    after = handed_over(cluster, contact(2, 3))
    assert after is not None
    assert (after.leader, after.isr) == (3, (2, 3))


def test_a_hand_over_rests_on_the_sessions_of_both_leaders(cluster: StoredCluster) -> None:
    cut_off(cluster, 1)
    decision = hand_over(cluster.image, partition(cluster), 1, contact(2, 3))
    assert decision is not None
    for node in (1, 2):
        other = three()
        cut_off(other, 1)
        assert hand_over(other.image, partition(other), 1, contact(2, 3)) == decision
        other.end_session(node)
        assert not other.attempt(decision)


def test_a_hand_over_that_comes_late_changes_nothing(cluster: StoredCluster) -> None:
    cut_off(cluster, 1)
    decision = hand_over(cluster.image, partition(cluster), 1, contact(2, 3))
    shrink(cluster, 1, 3)
    assert decision is not None
    assert not cluster.attempt(decision)


def test_a_pair_goes_on_without_the_follower_that_reports_its_leader() -> None:
    pair = cluster_of(1, 2)
    pair.create("t", factor=2)
    leader, follower = pair.state().replicas
    report(pair, follower, leader)
    assert hand_over(pair.image, partition(pair), leader, contact(follower)) is None
    assert removable_followers(pair.image, partition(pair), contact(follower)) == {follower}


def test_a_leader_with_enough_in_sync_replicas_keeps_its_leadership() -> None:
    """A reassignment copies to brokers 4 and 5, which reach broker 3 and not broker 1."""
    made = three()
    for broker_id in (4, 5):
        made.join(broker_id)
        made.admit(broker_id)
    made.commit(reassign(made.image, Reassignment("t", 0, (3, 4, 5))))
    for reporter in (3, 4, 5):
        report(made, reporter, 1, 2)
    state = made.state()
    assert (state.leader, sorted(state.isr), sorted(state.replicas)) == (1, [1, 2, 3], [1, 2, 3, 4, 5])
    found = contact(3, 4, 5)
    assert handed_over(made, found) is None, "broker 3 would wait until the others have copied everything"
    assert removable_followers(made.image, partition(made), found) == {3}


def test_enough_in_sync_replicas_weigh_more_than_many_that_have_to_copy() -> None:
    """The leader is connected to brokers 4 and 5 only, which copy; brokers 2 and 3 to each other."""
    made = three()
    for broker_id in (4, 5):
        made.join(broker_id)
        made.admit(broker_id)
    made.commit(reassign(made.image, Reassignment("t", 0, (3, 4, 5))))
    for reporter in (2, 3):
        report(made, reporter, 1, 4, 5)
    after = handed_over(made, contact(2, 3))
    assert after is not None
    assert (after.leader, sorted(after.isr)) == (3, [2, 3])


# Other elections


def test_who_was_out_of_reach_a_moment_ago_leads_by_no_preference(cluster: StoredCluster) -> None:
    cut_off(cluster, 1)
    handed_over(cluster, contact(2, 3))
    shrink(cluster, 1, 2, 3)
    assert elect_preferred_leader(cluster.image, partition(cluster)) is None
    for node in (1, 2):
        report(cluster, node)
    report(cluster, 3, recovering=[1])
    assert not has_stable_connections(cluster.image, cluster.state(), 1)
    assert elect_preferred_leader(cluster.image, partition(cluster)) is None
    report(cluster, 3)
    assert elect_preferred_leader(cluster.image, partition(cluster)) is not None


def test_an_operator_is_told_who_does_not_reach_the_preferred_leader(cluster: StoredCluster) -> None:
    cut_off(cluster, 1)
    handed_over(cluster, contact(2, 3))
    shrink(cluster, 1, 2, 3)
    rejection = refusal(lambda: elect(cluster.image, "t", 0, ElectionType.PREFERRED))
    assert rejection.code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert "brokers [2, 3] cannot reach each other" in str(rejection.detail)


def test_an_election_prefers_who_is_in_reach() -> None:
    """The leader dies, and the next one in the order of the assignment is cut off."""
    made = cluster_of(1, 2, 3, 4)
    made.create("t", factor=4)
    first, second, third, _ = made.state().replicas
    cut_off(made, second)
    made.end_session(first)
    decision = repair_leadership(made.image, partition(made))
    assert decision is not None
    made.commit(decision)
    assert made.state().leader == third
