"""Replicas move: nobody leaves before the new ones are in sync, and at the end there are just those."""

import pytest

from penstock.controller.broker_lifecycle import drain
from penstock.controller.reassignment import Reassignment, cancel, complete, reassign, reassigning_partitions
from penstock.errors import ErrorCode
from penstock.metadata.durability import min_isr
from tests.unit.controller.controller_support import StoredCluster, cluster_of, refusal
from tests.unit.controller.scenarios import shrink, upkeep


@pytest.fixture
def cluster() -> StoredCluster:
    """Topic t on brokers 1 and 2; broker 9 controls."""
    made = cluster_of(9, 1, 2)
    made.commit(drain(made.image, 9))
    made.create("t", factor=2)
    for broker_id in (3, 4, 5):
        made.join(broker_id)
        made.admit(broker_id)
    if made.state().replicas != (1, 2):
        move(made, 1, 2)
        upkeep(made)
    return made


def move(cluster: StoredCluster, *target: int) -> None:
    cluster.commit(reassign(cluster.image, Reassignment("t", 0, target)))


def test_replicas_move_when_the_new_ones_are_in_sync(cluster: StoredCluster) -> None:
    before = cluster.state()
    move(cluster, 3, 4)
    state = cluster.state()
    assert (state.replicas, state.adding, state.removing) == ((3, 4, 1, 2), (3, 4), (1, 2))
    assert (state.isr, state.leader, state.leader_epoch) == (before.isr, before.leader, before.leader_epoch)
    assert reassigning_partitions(cluster.image) == [(cluster.image.topics["t"], state)]
    shrink(cluster, 1, 2, 3)
    assert complete(cluster.image, (cluster.image.topics["t"], cluster.state())) is None
    shrink(cluster, 1, 2, 3, 4)
    upkeep(cluster)
    state = cluster.state()
    assert (state.replicas, state.isr, state.adding, state.removing) == ((3, 4), (3, 4), (), ())
    assert (state.leader, state.leader_epoch) == (3, before.leader_epoch + 1)


def test_a_leader_that_stays_has_another_epoch_when_a_replica_is_gone(cluster: StoredCluster) -> None:
    """Whoever went and has not heard of it is not taken for in sync when he comes again."""
    before = cluster.state()
    leader = before.leader
    move(cluster, 3, leader)
    shrink(cluster, 1, 2, 3)
    assert cluster.state().leader_epoch == before.leader_epoch
    upkeep(cluster)
    state = cluster.state()
    assert (state.replicas, state.leader) == ((3, leader), leader)
    assert state.leader_epoch == before.leader_epoch + 1


def test_only_the_order_changes_at_once(cluster: StoredCluster) -> None:
    before = cluster.state()
    move(cluster, 2, 1)
    assert (cluster.state().replicas, cluster.state().isr) == ((2, 1), (2, 1))
    assert cluster.state().leader == before.leader
    assert not reassign(cluster.image, Reassignment("t", 0, (2, 1))).changes


def test_fewer_replicas_are_fewer_at_once_if_they_are_in_sync(cluster: StoredCluster) -> None:
    move(cluster, 2)
    state = cluster.state()
    assert (state.replicas, state.isr, state.leader, state.removing) == ((2,), (2,), 2, ())


def test_more_replicas_do_not_hold_up_writers_before_they_are_there(cluster: StoredCluster) -> None:
    move(cluster, 1, 2, 3)
    topic = cluster.image.topics["t"]
    assert min_isr(cluster.image, topic, cluster.state()) == 1
    shrink(cluster, 1, 2, 3)
    upkeep(cluster)
    assert min_isr(cluster.image, topic, cluster.state()) == 2


def test_a_cancelled_reassignment_leaves_what_was_before(cluster: StoredCluster) -> None:
    before = cluster.state()
    move(cluster, 3, 4)
    shrink(cluster, 1, 2, 3)
    cluster.commit(cancel(cluster.image, "t", 0))
    state = cluster.state()
    assert (set(state.replicas), state.adding, state.removing) == ({1, 2}, (), ())
    assert set(state.isr) == {1, 2}
    assert state.leader == before.leader
    error = refusal(lambda: cancel(cluster.image, "t", 0))
    assert error.code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_a_reassignment_replaces_another_from_where_that_began(cluster: StoredCluster) -> None:
    move(cluster, 3, 4)
    shrink(cluster, 1, 2, 3)
    move(cluster, 5, 1)
    state = cluster.state()
    assert (state.replicas, state.adding, state.removing) == ((5, 1, 2), (5,), (2,))
    assert set(state.isr) == {1, 2}


def test_nobody_drops_all_who_are_in_sync(cluster: StoredCluster) -> None:
    """Those from before are gone, and one of the new ones leads."""
    move(cluster, 3, 4)
    shrink(cluster, 1, 2, 3)
    for broker_id in (1, 2):
        cluster.end_session(broker_id)
    upkeep(cluster)
    assert (cluster.state().isr, cluster.state().leader) == ((3,), 3)
    for decide in (
        lambda: cancel(cluster.image, "t", 0),
        lambda: reassign(cluster.image, Reassignment("t", 0, (5, 4))),
    ):
        assert refusal(decide).code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.parametrize(
    ("name", "target", "code"),
    [
        ("x", (1, 2), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", (), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", (1, 1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", (1, 77), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", (1, 2, 3), ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_what_cannot_be_is_refused(
    cluster: StoredCluster, name: str, target: tuple[int, ...], code: ErrorCode
) -> None:
    wanted = Reassignment(name, 0, target)
    assert refusal(lambda: reassign(cluster.image, wanted, allow_factor_change=False)).code == code


def test_who_is_gone_is_waited_for(cluster: StoredCluster) -> None:
    cluster.end_session(4)
    move(cluster, 3, 4)
    shrink(cluster, 1, 2, 3)
    upkeep(cluster)
    assert cluster.state().is_reassigning


def test_of_two_one_is_decided_again(cluster: StoredCluster) -> None:
    wanted = [Reassignment("t", 0, target) for target in ((3, 4), (5, 4))]
    both = [reassign(cluster.image, one) for one in wanted]
    assert [cluster.attempt(decision) for decision in both] == [True, False]
