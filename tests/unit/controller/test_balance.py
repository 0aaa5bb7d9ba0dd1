"""Replicas and leaders are evened out in few moves, and an even cluster is left alone."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.controller.balance import balancing_moves, evacuation_moves, replication_factor_moves
from penstock.controller.broker_lifecycle import drain
from penstock.controller.partitions import every_partition
from penstock.controller.reassignment import Reassignment, reassign
from tests.unit.controller.controller_support import StoredCluster, cluster_of
from tests.unit.controller.scenarios import shrink, upkeep


def carry_out(cluster: StoredCluster, plan: list[Reassignment]) -> None:
    """Until everything is where it should be."""
    for wanted in plan:
        cluster.commit(reassign(cluster.image, wanted))
        state = cluster.state(wanted.topic, wanted.partition)
        if state.is_reassigning:
            shrink(cluster, *state.replicas, topic=wanted.topic, index=wanted.partition)
    upkeep(cluster)


def held(cluster: StoredCluster) -> Counter[int]:
    return Counter(node for _, state in every_partition(cluster.image) for node in state.replicas)


def preferred(cluster: StoredCluster) -> Counter[int]:
    return Counter(state.replicas[0] for _, state in every_partition(cluster.image))


def spread(counts: Counter[int], nodes: set[int]) -> int:
    numbers = [counts[node] for node in nodes]
    return max(numbers) - min(numbers)


@settings(deadline=None, max_examples=20)
@given(
    brokers=st.integers(1, 4),
    joining=st.integers(1, 2),
    topics=st.lists(st.tuples(st.integers(1, 7), st.integers(1, 3)), min_size=1, max_size=4),
    moves_max=st.integers(1, 8),
)
def test_who_joins_is_given_its_share(
    brokers: int, joining: int, topics: list[tuple[int, int]], moves_max: int
) -> None:
    cluster = cluster_of(*range(1, brokers + 1))
    for number, (partitions, factor) in enumerate(topics):
        cluster.create(f"t{number}", partitions, min(factor, brokers))
    for broker_id in range(brokers + 1, brokers + joining + 1):
        cluster.join(broker_id)
        cluster.admit(broker_id)
    for _ in range(200):
        plan = balancing_moves(cluster.image, moves_max)
        assert len(plan) <= moves_max
        if not plan:
            break
        carry_out(cluster, plan)
    else:
        raise AssertionError("it is never even")
    everybody = set(cluster.image.brokers)
    assert spread(held(cluster), everybody) <= 1
    for topic in cluster.image.topics.values():
        of_topic = Counter(node for state in topic.partitions for node in state.replicas)
        assert spread(of_topic, everybody) <= 1
    factors = {len(state.replicas) for _, state in every_partition(cluster.image)}
    if factors != {1}:
        assert spread(preferred(cluster), everybody) <= 2


def test_a_move_does_not_put_replicas_into_one_rack() -> None:
    cluster = cluster_of(1, 2, racks=["a", "b"])
    cluster.create("t", 8, 2)
    cluster.join(3, rack="a")
    cluster.admit(3)
    for _ in range(20):
        carry_out(cluster, balancing_moves(cluster.image, 3))
    assert held(cluster)[3] == 4
    for _, state in every_partition(cluster.image):
        assert len({cluster.image.brokers[node].rack for node in state.replicas}) == 2


def test_a_partition_on_the_move_is_left_alone() -> None:
    cluster = cluster_of(1, 2)
    cluster.create("t", 4, 2)
    cluster.join(3)
    cluster.admit(3)
    first = balancing_moves(cluster.image, 1)
    cluster.commit(reassign(cluster.image, first[0]))
    assert all(wanted.partition != first[0].partition for wanted in balancing_moves(cluster.image, 9))


def test_who_is_drained_or_gone_is_given_nothing_and_keeps_what_it_has() -> None:
    cluster = cluster_of(1, 2, 3, 4)
    cluster.create("t", 6, 2)
    cluster.commit(drain(cluster.image, 4))
    cluster.end_session(3)
    upkeep(cluster)
    before = held(cluster)
    for wanted in balancing_moves(cluster.image, 20):
        after = set(wanted.target) - set(cluster.state("t", wanted.partition).replicas)
        assert after <= {1, 2}
    assert held(cluster) == before


def test_a_broker_is_emptied_where_others_can_take_over() -> None:
    cluster = cluster_of(1, 2, 3)
    cluster.create("t", 6, 2)
    cluster.create("everywhere", 1, 3)
    for _ in range(10):
        carry_out(cluster, evacuation_moves(cluster.image, 2, 2))
    assert held(cluster)[2] == 1, "three replicas need three brokers"
    assert spread(held(cluster), {1, 3}) == 0


def test_internal_topics_get_more_replicas_as_brokers_join() -> None:
    cluster = cluster_of(1)
    cluster.create("__consumer_offsets", 3, -1, internal=True)
    cluster.create("t", 3, -1)
    assert replication_factor_moves(cluster.image, 9) == []
    for joining, factor in ((2, 2), (3, 3), (4, 3)):
        cluster.join(joining)
        cluster.admit(joining)
        while plan := replication_factor_moves(cluster.image, 2):
            assert len(plan) <= 2
            carry_out(cluster, plan)
        internal = cluster.image.topics["__consumer_offsets"].partitions
        assert [len(state.replicas) for state in internal] == [factor] * 3
    assert [len(state.replicas) for state in cluster.image.topics["t"].partitions] == [1] * 3
    assert spread(held(cluster), {2, 3}) <= 1
