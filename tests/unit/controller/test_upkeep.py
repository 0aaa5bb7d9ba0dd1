"""What the controller does next: the most urgent first, in pieces, and nothing twice."""

from penstock.config.broker import BrokerConfig
from penstock.controller.balance import balancing_moves
from penstock.controller.broker_lifecycle import become_controller, drain
from penstock.controller.configs import alter_topic_config
from penstock.controller.decision import transactions_of
from penstock.controller.reassignment import Reassignment, reassign
from penstock.controller.topics import NewTopicFacts, TopicDefaults, TopicRequest, create_topic
from penstock.controller.upkeep import Task, deferrable_work, partitions_to_check, urgent_work
from penstock.host.metadata_store import SessionId
from penstock.limits import UPKEEP_DECISIONS_MAX
from penstock.types import TopicId
from tests.unit.controller.controller_support import StoredCluster, cluster_of
from tests.unit.controller.scenarios import shrink, upkeep

CONFIG = BrokerConfig.of().replication


def test_a_cluster_in_which_all_is_well_needs_nothing() -> None:
    cluster = cluster_of(1, 2, 3)
    cluster.create("t", 6, 3)
    assert urgent_work(cluster.image) is None
    assert deferrable_work(cluster.image, CONFIG) is None


def test_leaders_come_before_newcomers_and_newcomers_before_moves() -> None:
    cluster = cluster_of(1, 2, 3)
    cluster.create("t", 3, 2)
    cluster.join(4)
    cluster.end_session(3)
    cluster.commit(drain(cluster.image, 2))
    assert upkeep(cluster) == [Task.REPAIR_LEADERSHIP, Task.ADMIT, Task.REPLACE_DRAINING_LEADER]


def test_partitions_without_a_leader_come_first() -> None:
    cluster = cluster_of(1, 2, 3)
    cluster.create("t", 30, 3)
    cluster.end_session(3)
    work = urgent_work(cluster.image)
    assert work is not None
    led = [state.leader for state in cluster.image.topics["t"].partitions].count(3)
    first = {change.key for decision in work.decisions[:led] for change in decision.changes}  # type: ignore[union-attr]
    assert all(cluster.image.topics["t"].partitions[int(key.rpartition("/")[2])].leader == 3 for key in first)
    assert len(first) == led == 10
    assert len(work.decisions) == 30


def test_much_work_is_done_in_pieces() -> None:
    cluster = cluster_of(1, 2)
    cluster.create("t", 2 * UPKEEP_DECISIONS_MAX + 1, 2)
    cluster.end_session(2)
    assert upkeep(cluster) == [Task.REPAIR_LEADERSHIP] * 3
    assert all(state.isr == (1,) for state in cluster.image.topics["t"].partitions)


def test_another_controller_goes_on_where_the_last_one_stopped() -> None:
    cluster = cluster_of(1, 2, 3)
    cluster.create("t", 3, 3)
    cluster.end_session(2)
    work = urgent_work(cluster.image)
    assert work is not None
    cluster.commit(work.decisions[0])
    cluster.end_session(1000)
    cluster.commit(become_controller(cluster.image, 3, SessionId(7)))
    assert not any(cluster.attempt(decision) for decision in work.decisions[1:]), "its term is over"
    assert upkeep(cluster) == [Task.REPAIR_LEADERSHIP]
    assert all(2 not in state.isr for state in cluster.image.topics["t"].partitions)


def test_only_what_changed_is_looked_at_unless_a_broker_did() -> None:
    cluster = cluster_of(1, 2, 3)
    cluster.create("t", 5, 3)
    cluster.create("u", 1, 3)
    before = cluster.image
    shrink(cluster, *cluster.state("t", 2).isr[:2], index=2)
    assert partitions_to_check(before, cluster.image) == [(cluster.image.topics["t"], cluster.state("t", 2))]
    assert partitions_to_check(before, before) == []
    before = cluster.image
    cluster.commit(alter_topic_config(cluster.image, "u", {"a": "b"}))
    assert partitions_to_check(before, cluster.image) == [(cluster.image.topics["u"], cluster.state("u"))]
    before = cluster.image
    cluster.end_session(3)
    assert partitions_to_check(before, cluster.image) is None


def test_preferred_leaders_lead_again_when_many_do_not() -> None:
    cluster = cluster_of(1, 2, 3)
    cluster.create("t", 9, 3)
    cluster.end_session(2)
    upkeep(cluster)
    cluster.join(2, "second")
    upkeep(cluster)
    for index in range(9):
        shrink(cluster, 1, 2, 3, index=index)
    assert deferrable_work(cluster.image, CONFIG._replace(auto_leader_rebalance=False)) is None
    work = deferrable_work(cluster.image, CONFIG)
    assert work is not None
    assert work.task is Task.ELECT_PREFERRED
    for decision in work.decisions:
        cluster.commit(decision)
    assert all(state.leader == state.replicas[0] for state in cluster.image.topics["t"].partitions)
    assert deferrable_work(cluster.image, CONFIG) is None


def test_a_broker_that_joins_is_given_partitions_a_few_at_a_time() -> None:
    cluster = cluster_of(1, 2)
    cluster.create("t", 30, 2)
    cluster.join(3)
    upkeep(cluster)
    assert deferrable_work(cluster.image, CONFIG._replace(auto_balance=False)) is None
    work = deferrable_work(cluster.image, CONFIG, reassignments_at_once=4)
    assert work is not None
    assert (work.task, len(work.decisions)) == (Task.BALANCE, 4)
    for decision in work.decisions:
        cluster.commit(decision)
    assert deferrable_work(cluster.image, CONFIG, reassignments_at_once=4) is None, (
        "as many are under way as may be"
    )


def test_what_people_move_after_a_broker_has_its_share_stays_there() -> None:
    cluster = cluster_of(1, 2)
    cluster.join(3)
    upkeep(cluster)
    assert deferrable_work(cluster.image, CONFIG._replace(auto_balance=False)) is None
    work = deferrable_work(cluster.image, CONFIG)
    assert work is not None
    assert work.task is Task.FINISH_JOINING, "there is nothing to be shared"
    for decision in work.decisions:
        cluster.commit(decision)
    cluster.create("t", 9, 2)
    for index in range(9):
        cluster.commit(reassign(cluster.image, Reassignment("t", index, (1, 2))))
    while any(state.is_reassigning for state in cluster.image.topics["t"].partitions):
        for state in cluster.image.topics["t"].partitions:
            shrink(cluster, *state.replicas, index=state.index)
        upkeep(cluster)
    assert balancing_moves(cluster.image, 9), "it is uneven"
    assert deferrable_work(cluster.image, CONFIG._replace(auto_leader_rebalance=False)) is None, "and left so"


def test_internal_topics_are_made_safe_before_the_cluster_is_made_even() -> None:
    cluster = cluster_of(1)
    cluster.create("__consumer_offsets", 2, -1, internal=True)
    cluster.join(2)
    upkeep(cluster)
    work = deferrable_work(cluster.image, CONFIG._replace(auto_balance=False))
    assert work is not None
    assert work.task is Task.RAISE_REPLICATION_FACTOR


def half_created(cluster: StoredCluster) -> None:
    request = TopicRequest(name="half", partitions=300, replication_factor=1)
    new = NewTopicFacts(TopicId(b"h" * 16), 0)
    defaults = TopicDefaults(1, 1)
    decision = create_topic(cluster.image, request, new, defaults=defaults)
    cluster.commit(transactions_of(decision, 128)[0])


def test_what_a_controller_left_half_made_is_swept_by_the_next() -> None:
    cluster = cluster_of(1)
    half_created(cluster)
    assert deferrable_work(cluster.image, CONFIG) is None, "it may still be on its way"
    cluster.end_session(1000)
    cluster.commit(become_controller(cluster.image, 1, SessionId(1000)))
    work = deferrable_work(cluster.image, CONFIG)
    assert work is not None
    assert (work.task, len(work.decisions)) == (Task.DELETE_STALE, 128)
    half_created(cluster)
    assert not any(cluster.attempt(decision) for decision in work.decisions), "they were made anew"
