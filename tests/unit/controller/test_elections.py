"""Who leads: in sync, else eligible, else nobody, unless it is allowed that records are lost."""

from collections.abc import Mapping

import pytest

from penstock.controller.broker_lifecycle import bump_leader_epochs, drain, fence
from penstock.controller.configs import alter_broker_config, alter_topic_config
from penstock.controller.decision import Decision
from penstock.controller.elections import (
    ElectionType,
    elect,
    elect_preferred_leader,
    is_withdrawn,
    repair_leadership,
    withdraw,
)
from penstock.errors import ErrorCode
from penstock.metadata.cluster_image import NO_NODE, PartitionState
from penstock.metadata.durability import eligible_leaders
from tests.unit.controller.controller_support import StoredCluster, cluster_of, refusal
from tests.unit.controller.scenarios import shrink, upkeep

UNCLEAN = {"unclean.leader.election.enable": "true"}


@pytest.fixture
def cluster() -> StoredCluster:
    """Broker 9 controls, and holds nothing that matters here."""
    made = cluster_of(9, 1, 2, 3)
    made.commit(drain(made.image, 9))
    made.create("t", factor=3)
    return made


def lose(cluster: StoredCluster, *broker_ids: int) -> PartitionState:
    for broker_id in broker_ids:
        cluster.end_session(broker_id)
    upkeep(cluster)
    return cluster.state()


def test_the_next_in_sync_leads_in_a_new_epoch_and_who_is_gone_is_not_in_sync(cluster: StoredCluster) -> None:
    before = cluster.state()
    first, second, third = before.replicas
    after = lose(cluster, first)
    assert (after.leader, after.leader_epoch, after.partition_epoch) == (second, 1, 1)
    assert (after.isr, after.elr) == ((second, third), ())
    assert after.replicas == before.replicas


def test_a_follower_that_is_gone_costs_no_new_epoch(cluster: StoredCluster) -> None:
    first, second, third = cluster.state().replicas
    after = lose(cluster, third)
    assert (after.leader, after.leader_epoch, after.partition_epoch) == (first, 0, 1)
    assert after.isr == (first, second)


def test_who_leaves_below_the_minimum_is_eligible_and_the_last_one_stays(cluster: StoredCluster) -> None:
    first, second, third = cluster.state().replicas
    lose(cluster, third)
    after = lose(cluster, second)
    assert (after.isr, after.elr, after.leader) == ((first,), (second,), first)
    after = lose(cluster, first)
    assert (after.isr, after.elr, after.leader) == ((first,), (second,), -1)
    cluster.join(third, "second")
    upkeep(cluster)
    assert cluster.state().leader == -1, "it left when enough were in sync without it"
    cluster.join(second, "second")
    upkeep(cluster)
    after = cluster.state()
    assert (after.isr, after.elr, after.leader) == ((second,), (first,), second)
    assert after.leader_epoch == 2


def test_all_who_are_gone_at_once_may_lead_when_they_are_back(cluster: StoredCluster) -> None:
    everybody = cluster.state().replicas
    assert lose(cluster, *everybody).isr == everybody
    cluster.join(everybody[2], "second")
    upkeep(cluster)
    after = cluster.state()
    assert (after.isr, after.leader) == ((everybody[2],), everybody[2])
    assert set(after.elr) == set(everybody[:2])


@pytest.mark.parametrize("of_all", [False, True])
def test_nobody_is_eligible_under_another_minimum(cluster: StoredCluster, of_all: bool) -> None:
    """Also when it is the old one again: in between, records were committed without them."""
    first, second, _ = cluster.state().replicas
    shrink(cluster, first, second)
    shrink(cluster, first)
    topic = cluster.image.topics["t"]
    assert eligible_leaders(cluster.image, topic, cluster.state()) == (second,)
    for overrides in ({"min.insync.replicas": "1"}, {}):
        if of_all:
            cluster.commit(alter_broker_config(cluster.image, None, overrides))
        else:
            cluster.commit(alter_topic_config(cluster.image, "t", overrides))
    after = lose(cluster, first)
    assert (after.isr, after.leader) == ((first,), -1)
    assert eligible_leaders(cluster.image, cluster.image.topics["t"], after) == ()


def test_an_election_of_the_eligible_rests_on_the_minimum(cluster: StoredCluster) -> None:
    first, second, _ = cluster.state().replicas
    shrink(cluster, first, second)
    shrink(cluster, first)
    cluster.end_session(first)
    decision = repair_leadership(cluster.image, (cluster.image.topics["t"], cluster.state()))
    assert decision is not None
    cluster.commit(alter_topic_config(cluster.image, "t", {"min.insync.replicas": "1"}))
    assert not cluster.attempt(decision)
    upkeep(cluster)
    assert cluster.state().leader == -1


def test_an_election_rests_on_the_session_of_who_is_elected(cluster: StoredCluster) -> None:
    first, second, _ = cluster.state().replicas
    cluster.end_session(first)
    decision = repair_leadership(cluster.image, (cluster.image.topics["t"], cluster.state()))
    cluster.end_session(second)
    assert decision is not None
    assert not cluster.attempt(decision)


def test_records_are_lost_only_where_that_is_allowed(cluster: StoredCluster) -> None:
    first, second, third = cluster.state().replicas
    shrink(cluster, first, second)
    assert lose(cluster, first, second).leader == -1
    cluster.commit(alter_topic_config(cluster.image, "t", UNCLEAN))
    upkeep(cluster)
    after = cluster.state()
    assert (after.leader, after.isr, after.elr) == (third, (third,), ())
    assert after.is_recovering
    shrink(cluster, third)
    assert not cluster.state().is_recovering, "it has said how far it came"


def repair_on_its_way(cluster: StoredCluster) -> Decision:
    decision = repair_leadership(cluster.image, (cluster.image.topics["t"], cluster.state()))
    assert decision is not None
    return decision


@pytest.mark.parametrize("of_all", [False, True])
def test_records_are_lost_only_while_that_is_still_allowed(cluster: StoredCluster, of_all: bool) -> None:
    """The controller's decision reaches the store after the operator was told that the setting is off."""
    first, second, _ = cluster.state().replicas
    shrink(cluster, first, second)
    lose(cluster, first, second)

    def allow(overrides: Mapping[str, str]) -> None:
        if of_all:
            cluster.commit(alter_broker_config(cluster.image, None, overrides))
        else:
            cluster.commit(alter_topic_config(cluster.image, "t", overrides))

    allow(UNCLEAN)
    decision = repair_on_its_way(cluster)
    allow({})
    assert not cluster.attempt(decision)
    upkeep(cluster)
    assert (cluster.state().leader, cluster.state().isr) == (NO_NODE, (first, second))


@pytest.mark.parametrize("is_requested", [False, True])
@pytest.mark.parametrize("is_in_sync", [False, True])
def test_no_records_are_lost_when_who_has_them_comes_back_before_that(
    cluster: StoredCluster, is_in_sync: bool, is_requested: bool
) -> None:
    """In sync, or eligible; and whether an operator asked for the unclean election or the settings do."""
    first, second, _ = cluster.state().replicas
    shrink(cluster, first, second)
    if not is_in_sync:
        shrink(cluster, first)
    lose(cluster, first, second)
    if is_requested:
        decision = elect(cluster.image, "t", 0, ElectionType.UNCLEAN)
    else:
        cluster.commit(alter_topic_config(cluster.image, "t", UNCLEAN))
        decision = repair_on_its_way(cluster)
    cluster.join(second, "second")
    assert not cluster.attempt(decision)
    upkeep(cluster)
    assert cluster.state().leader == second


def test_who_has_the_records_and_waits_to_be_admitted_is_waited_for(cluster: StoredCluster) -> None:
    first, second, _ = cluster.state().replicas
    shrink(cluster, first, second)
    cluster.commit(alter_topic_config(cluster.image, "t", UNCLEAN))
    for broker_id in (first, second):
        cluster.end_session(broker_id)
    cluster.join(second, "second")
    upkeep(cluster)
    assert cluster.state().leader == second
    assert not cluster.state().is_recovering


def test_a_drained_broker_leads_only_what_nobody_else_can(cluster: StoredCluster) -> None:
    first, second, third = cluster.state().replicas
    cluster.commit(drain(cluster.image, second))
    assert lose(cluster, first).leader == third
    assert lose(cluster, third).leader == second


def withdrawn(cluster: StoredCluster, broker_id: int, fetched_epoch: int = -1) -> PartitionState | None:
    """The partition after this broker found its copy damaged; None: it has nothing to decide."""
    partition = (cluster.image.topics["t"], cluster.state())
    decision = withdraw(cluster.image, partition, broker_id, fetched_epoch=fetched_epoch)
    if decision is None:
        return None
    cluster.commit(decision)
    return cluster.state()


def test_a_leader_whose_copy_is_damaged_hands_over_to_who_is_in_sync(cluster: StoredCluster) -> None:
    first, second, third = cluster.state().replicas
    after = withdrawn(cluster, first)
    assert after is not None
    assert (after.leader, after.leader_epoch, after.isr, after.elr) == (second, 1, (second, third), ())
    # Of two replicas in sync the other is left, and who has lost records is not eligible.
    after = withdrawn(cluster, second)
    assert after is not None
    assert (after.leader, after.isr, after.elr, after.last_known_elr) == (third, (third,), (), ())
    assert withdrawn(cluster, third) is None, "nobody else has it"


def test_a_leader_whose_copy_is_damaged_hands_over_to_who_is_eligible(cluster: StoredCluster) -> None:
    """The last in sync has it no longer; who left before him had all that was committed."""
    first, second, _ = cluster.state().replicas
    shrink(cluster, first, second)
    shrink(cluster, first)
    assert cluster.state().elr == (second,)
    after = withdrawn(cluster, first)
    assert after is not None
    assert (after.leader, after.isr, after.elr) == (second, (second,), ())


def test_a_follower_whose_copy_is_damaged_leaves_the_in_sync_replicas(cluster: StoredCluster) -> None:
    first, second, third = cluster.state().replicas
    after = withdrawn(cluster, second)
    assert after is not None
    assert (after.leader, after.isr, after.elr, after.last_known_elr) == (first, (first, third), (), ())
    assert after.leader_epoch == 1, "what it fetched before is rejected"
    assert withdrawn(cluster, second, fetched_epoch=0) is None, "that is done"
    assert is_withdrawn(cluster.image, cluster.state(), second, fetched_epoch=0)
    # Below the minimum, too: a copy that is damaged protects nothing.
    after = withdrawn(cluster, third)
    assert after is not None
    assert (after.leader, after.isr, after.elr, after.last_known_elr) == (first, (first,), (), ())


def test_a_damaged_copy_is_not_an_eligible_leader(cluster: StoredCluster) -> None:
    first, second, _ = cluster.state().replicas
    shrink(cluster, first, second)
    shrink(cluster, first)
    assert cluster.state().elr == (second,)
    after = withdrawn(cluster, second)
    assert after is not None
    assert (after.leader, after.isr, after.elr, after.min_isr_changes) == (first, (first,), (), 0)
    assert lose(cluster, first).leader == NO_NODE


def test_who_is_out_of_sync_is_withdrawn_under_a_later_epoch_only(cluster: StoredCluster) -> None:
    """The leader may have yet to see a fetch of the damaged copy that would put it in sync."""
    first, second, third = cluster.state().replicas
    shrink(cluster, first, third)
    before = cluster.state()
    assert not is_withdrawn(cluster.image, before, second, fetched_epoch=before.leader_epoch)
    after = withdrawn(cluster, second, fetched_epoch=before.leader_epoch)
    assert after is not None
    assert (after.leader, after.isr) == (before.leader, before.isr)
    assert is_withdrawn(cluster.image, after, second, fetched_epoch=before.leader_epoch)


def test_a_damaged_copy_stays_while_nobody_admitted_has_the_records(cluster: StoredCluster) -> None:
    first, second, third = cluster.state().replicas
    lose(cluster, second)
    lose(cluster, third)
    assert (cluster.state().leader, cluster.state().isr) == (first, (first,))
    assert withdrawn(cluster, first) is None
    assert not is_withdrawn(cluster.image, cluster.state(), first, fetched_epoch=-1)
    cluster.join(third, "second")
    upkeep(cluster)
    after = withdrawn(cluster, first)
    assert after is not None, "one that was eligible has come back"
    assert (after.leader, after.isr) == (third, (third,))


def test_the_preferred_leader_is_elected_on_demand(cluster: StoredCluster) -> None:
    first, second, third = cluster.state().replicas

    def decide() -> object:
        return elect(cluster.image, "t", 0, ElectionType.PREFERRED)

    assert refusal(decide).code == ErrorCode.ELECTION_NOT_NEEDED
    lose(cluster, first)
    assert refusal(decide).code == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    cluster.join(first, "second")
    upkeep(cluster)
    assert refusal(decide).code == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert elect_preferred_leader(cluster.image, (cluster.image.topics["t"], cluster.state())) is None
    shrink(cluster, first, second, third)
    cluster.commit(elect(cluster.image, "t", 0, ElectionType.PREFERRED))
    assert (cluster.state().leader, cluster.state().leader_epoch) == (first, 2)


def test_an_unclean_election_on_demand_takes_whoever_is_there(cluster: StoredCluster) -> None:
    first, second, third = cluster.state().replicas

    def decide() -> object:
        return elect(cluster.image, "t", 0, ElectionType.UNCLEAN)

    assert refusal(decide).code == ErrorCode.ELECTION_NOT_NEEDED
    shrink(cluster, first, second)
    lose(cluster, *cluster.state().replicas)
    assert refusal(decide).code == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    cluster.join(third, "second")
    upkeep(cluster)
    cluster.commit(elect(cluster.image, "t", 0, ElectionType.UNCLEAN))
    assert (cluster.state().leader, cluster.state().is_recovering) == (third, True)


@pytest.mark.parametrize(("name", "index"), [("t", 1), ("t", -1), ("x", 0)])
def test_a_partition_that_is_not_there_has_no_election(cluster: StoredCluster, name: str, index: int) -> None:
    for election in ElectionType:
        error = refusal(lambda election=election: elect(cluster.image, name, index, election))  # type: ignore[misc]
        assert error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_controller_that_is_none_any_more_elects_nobody(cluster: StoredCluster) -> None:
    epoch = cluster.image.brokers[1].broker_epoch
    cluster.commit(fence(cluster.image, 1, epoch))
    decision = repair_leadership(cluster.image, (cluster.image.topics["t"], cluster.state()))
    assert decision is not None
    cluster.end_session(1000)
    assert not cluster.attempt(decision)


def test_in_a_cluster_epochs_do_not_begin_anew_all_at_once(cluster: StoredCluster) -> None:
    with pytest.raises(AssertionError):
        bump_leader_epochs(cluster.image)
