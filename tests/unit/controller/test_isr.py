"""A leader changes its in-sync replicas, with Kafka's refusals, and rests on all that could be wrong."""

from collections.abc import Callable

import pytest

from penstock.controller.broker_lifecycle import drain
from penstock.controller.configs import alter_broker_config, alter_topic_config
from penstock.controller.elections import ElectionType, elect
from penstock.controller.isr import AlterPartition, IsrMember, change_isr
from penstock.controller.reassignment import Reassignment, reassign
from penstock.controller.topics import grow_topic
from penstock.errors import ErrorCode
from penstock.host.metadata_store import ABSENT
from penstock.types import TopicId
from tests.unit.controller.controller_support import KEYS, StoredCluster, cluster_of, refusal
from tests.unit.controller.scenarios import proposal, shrink, upkeep


@pytest.fixture
def cluster() -> StoredCluster:
    made = cluster_of(1, 2, 3, 4)
    made.create("t", factor=1)
    made.commit(reassign(made.image, Reassignment("t", 0, (1, 2, 3))))
    shrink(made, *made.state().replicas)
    upkeep(made)
    assert made.state().replicas == (1, 2, 3)
    if made.state().leader != 1:
        made.commit(elect(made.image, "t", 0, ElectionType.PREFERRED))
    return made


def test_who_leaves_below_the_minimum_is_eligible_until_enough_are_in_sync(cluster: StoredCluster) -> None:
    seen = []
    for isr in ((1, 2), (1,), (1, 3), (1, 2, 3), (1,)):
        shrink(cluster, *isr)
        seen.append((cluster.state().isr, cluster.state().elr))
    assert seen == [((1, 2), ()), ((1,), (2,)), ((1, 3), ()), ((1, 2, 3), ()), ((1,), (2, 3))]


def test_an_in_sync_set_costs_no_leader_epoch(cluster: StoredCluster) -> None:
    before = cluster.state()
    shrink(cluster, 1, 2)
    after = cluster.state()
    assert after.leader_epoch == before.leader_epoch
    assert after.partition_epoch == before.partition_epoch + 1


def test_proposing_what_is_so_changes_nothing(cluster: StoredCluster) -> None:
    assert not change_isr(cluster.image, proposal(cluster.image, 3, 1, 2)).changes


def test_what_was_refused_once_is_never_committed_later(cluster: StoredCluster) -> None:
    """An attempt whose answer was lost may arrive when another has been refused already."""
    shrink(cluster, 1)
    grow = change_isr(cluster.image, proposal(cluster.image, 1, 2))
    cluster.commit(alter_broker_config(cluster.image, None, {"log.retention.ms": "1"}))
    assert not cluster.attempt(grow)
    cluster.commit(alter_broker_config(cluster.image, None, {}))
    assert not cluster.attempt(grow)
    assert cluster.state().isr == (1,)


def test_a_leader_compares_nothing_absent_that_can_come_and_go(cluster: StoredCluster) -> None:
    shrink(cluster, 1)
    for isr in ((1, 2), (1, 2, 3)):
        decision = change_isr(cluster.image, proposal(cluster.image, *isr))
        absent = {compare.key for compare in decision.compares if compare.revision == ABSENT}
        assert absent <= {KEYS.broker_config(None)}, "which is never deleted"


def restart(cluster: StoredCluster, broker_id: int) -> None:
    cluster.end_session(broker_id)
    cluster.join(broker_id, "again")


def with_(**fields: object) -> Callable[[AlterPartition], AlterPartition]:
    return lambda made: made._replace(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (with_(topic_id=TopicId(b"?" * 16)), ErrorCode.UNKNOWN_TOPIC_ID),
        (with_(partition=1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (with_(partition=-1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (lambda made: made._replace(leader_epoch=made.leader_epoch - 1), ErrorCode.FENCED_LEADER_EPOCH),
        (lambda made: made._replace(leader_epoch=made.leader_epoch + 1), ErrorCode.NOT_CONTROLLER),
        (lambda made: made._replace(partition_epoch=made.partition_epoch + 1), ErrorCode.NOT_CONTROLLER),
        (
            lambda made: made._replace(partition_epoch=made.partition_epoch - 1),
            ErrorCode.INVALID_UPDATE_VERSION,
        ),
        (
            lambda made: made._replace(leader=IsrMember(2, made.isr[1].broker_epoch)),
            ErrorCode.INVALID_REQUEST,
        ),
        (with_(leader=IsrMember(1, 99)), ErrorCode.STALE_BROKER_EPOCH),
        (lambda made: made._replace(isr=made.isr[1:]), ErrorCode.INVALID_REQUEST),
        (lambda made: made._replace(isr=(*made.isr, made.isr[0])), ErrorCode.INVALID_REQUEST),
        (lambda made: made._replace(isr=(*made.isr, IsrMember(4, 7))), ErrorCode.INVALID_REQUEST),
        (lambda made: made._replace(isr=(*made.isr, IsrMember(3, 99))), ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_a_proposal_that_cannot_be_is_refused(
    cluster: StoredCluster, change: Callable[[AlterPartition], AlterPartition], code: ErrorCode
) -> None:
    cluster.end_session(2)
    cluster.join(2, "again")
    upkeep(cluster)
    shrink(cluster, 1)
    made = change(proposal(cluster.image, 1, 2))
    assert refusal(lambda: change_isr(cluster.image, made)).code == code


def test_who_is_fenced_waiting_or_drained_is_not_added(cluster: StoredCluster) -> None:
    shrink(cluster, 1)
    stale = proposal(cluster.image, 1, 2)
    cluster.end_session(2)
    assert refusal(lambda: change_isr(cluster.image, stale)).code == ErrorCode.INELIGIBLE_REPLICA
    cluster.join(2, "again")
    waiting = proposal(cluster.image, 1, 2)
    assert refusal(lambda: change_isr(cluster.image, waiting)).code == ErrorCode.INELIGIBLE_REPLICA
    cluster.admit(2)
    fetched_before = stale._replace(partition_epoch=cluster.state().partition_epoch)
    assert refusal(lambda: change_isr(cluster.image, fetched_before)).code == ErrorCode.INELIGIBLE_REPLICA
    cluster.commit(drain(cluster.image, 2))
    drained = proposal(cluster.image, 1, 2)
    assert refusal(lambda: change_isr(cluster.image, drained)).code == ErrorCode.INELIGIBLE_REPLICA
    shrink(cluster, 1, 3)


def test_a_leader_that_is_not_admitted_proposes_nothing(cluster: StoredCluster) -> None:
    cluster.end_session(1)
    cluster.join(1, "again")
    made = proposal(cluster.image, 1)
    assert refusal(lambda: change_isr(cluster.image, made)).code == ErrorCode.STALE_BROKER_EPOCH


def test_a_proposal_fails_if_anything_it_rests_on_has_moved(cluster: StoredCluster) -> None:
    """Each time, nothing else has changed."""
    shrink(cluster, 1, 2)
    things: dict[str, Callable[[], object]] = {
        "the session of who is added": lambda: restart(cluster, 3),
        "its registration": lambda: cluster.commit(drain(cluster.image, 3)),
        "the settings of the topic": lambda: cluster.commit(
            alter_topic_config(cluster.image, "t", {"min.insync.replicas": "1"})
        ),
        "the topic": lambda: cluster.commit(grow_topic(cluster.image, "t", 2)),
        "the default of all": lambda: cluster.commit(
            alter_broker_config(cluster.image, None, {"min.insync.replicas": "1"})
        ),
        "the partition": lambda: shrink(cluster, 1),
        "the leader's session": lambda: cluster.end_session(1),
    }
    for thing, happen in things.items():
        if thing == "its registration":
            cluster.admit(3)
        elif thing == "the settings of the topic":
            cluster.commit(drain(cluster.image, 3, is_draining=False))
        decision = change_isr(cluster.image, proposal(cluster.image, 1, 2, 3))
        happen()
        assert not cluster.attempt(decision), thing
