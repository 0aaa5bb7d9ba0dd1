"""Decisions about topics: every refusal by its code, and every change in one transaction."""

from collections.abc import Callable

import pytest

from penstock.controller.broker_lifecycle import bump_leader_epochs, drain, register_standalone, unregister
from penstock.controller.configs import alter_broker_config, alter_topic_config
from penstock.controller.decision import Decision, transactions_of
from penstock.controller.producer_ids import next_producer_id_block
from penstock.controller.topics import (
    NewTopicFacts,
    ReplicaAssignment,
    TopicDefaults,
    TopicRequest,
    create_topic,
    delete_topic,
    grow_topic,
)
from penstock.errors import ErrorCode
from penstock.host.metadata_store import Compare
from penstock.metadata.cluster_image import ClusterImage
from penstock.metadata.documents import Endpoint
from penstock.metadata.image_builder import apply
from penstock.types import NO_TOPIC_ID, TopicId
from tests.unit.controller.controller_support import EMPTY, StoredCluster, refusal
from tests.unit.controller.controller_support import cluster_of as real_cluster_of

DEFAULTS = TopicDefaults(partitions=4, replication_factor=2)


def topic_id(number: int) -> TopicId:
    return TopicId(number.to_bytes(16, "big"))


def cluster_of(*broker_ids: int) -> ClusterImage:
    image = ClusterImage(cluster_id="c")
    for broker_id in broker_ids:
        decision = register_standalone(image, broker_id, rack=None, endpoints={"PLAINTEXT": Endpoint("h", 1)})
        image = after(image, decision)
    return image


def after(image: ClusterImage, decision: Decision) -> ClusterImage:
    return apply(image, decision.all_changes, image.revision + 1)


def create(image: ClusterImage, request: TopicRequest, number: int = 7) -> Decision:
    new = NewTopicFacts(topic_id(number), created_ms=1_000)
    return create_topic(image, request, new, defaults=DEFAULTS)


def with_topic(image: ClusterImage, name: str = "t", partitions: int = 2, number: int = 7) -> ClusterImage:
    return after(image, create(image, TopicRequest(name=name, partitions=partitions), number))


THREE = cluster_of(1, 2, 3)
WITH_T = with_topic(THREE)


def test_a_topic_is_created_as_asked() -> None:
    request = TopicRequest(
        name="t", partitions=3, replication_factor=2, overrides={"retention.ms": "5"}, internal=True
    )
    topic = after(THREE, create(THREE, request)).topics["t"]
    assert (topic.id, topic.internal, topic.created_ms) == (topic_id(7), True, 1_000)
    assert topic.overrides == {"retention.ms": "5"}
    for index, state in enumerate(topic.partitions):
        assert (state.index, state.leader_epoch, state.partition_epoch) == (index, 0, 0)
        assert state.leader == state.replicas[0]
        assert state.isr == state.replicas
        assert len(set(state.replicas)) == 2
    assert {state.leader for state in topic.partitions} == {1, 2, 3}


def test_minus_one_takes_the_defaults_of_the_broker() -> None:
    topic = after(THREE, create(THREE, TopicRequest(name="t"))).topics["t"]
    assert len(topic.partitions) == 4
    assert all(len(state.replicas) == 2 for state in topic.partitions)


def test_an_assignment_by_hand_is_followed() -> None:
    request = TopicRequest(name="t", assignments=[ReplicaAssignment(1, (2, 3)), ReplicaAssignment(0, (3, 1))])
    topic = after(THREE, create(THREE, request)).topics["t"]
    assert [state.replicas for state in topic.partitions] == [(3, 1), (2, 3)]
    assert [state.leader for state in topic.partitions] == [3, 2]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "é", "a\n", "x" * 250, "a:b"])
def test_an_illegal_name_is_refused(name: str) -> None:
    error = refusal(lambda: create(THREE, TopicRequest(name=name)))
    assert error.code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", ["a", "x" * 249, "A-z_0.9", "...", "-"])
def test_a_legal_name_is_accepted(name: str) -> None:
    assert name in after(THREE, create(THREE, TopicRequest(name=name))).topics


def test_a_name_that_exists_is_refused() -> None:
    error = refusal(lambda: create(WITH_T, TopicRequest(name="t"), 8))
    assert error.code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_names_that_differ_only_in_dots_and_underscores_collide() -> None:
    image = with_topic(THREE, "a.b_c")
    error = refusal(lambda: create(image, TopicRequest(name="a_b.c"), 8))
    assert error.code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "a.b_c" in error.detail
    image = after(image, delete_topic(image, name="a.b_c"))
    assert create(image, TopicRequest(name="a_b.c"), 8)


def assigned(
    *assignments: tuple[int, tuple[int, ...]], partitions: int = -1, factor: int = -1
) -> TopicRequest:
    return TopicRequest(
        name="t",
        partitions=partitions,
        replication_factor=factor,
        assignments=[ReplicaAssignment(*assignment) for assignment in assignments],
    )


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (TopicRequest(name="t", partitions=0), ErrorCode.INVALID_PARTITIONS),
        (TopicRequest(name="t", partitions=-2), ErrorCode.INVALID_PARTITIONS),
        (TopicRequest(name="t", partitions=10_001), ErrorCode.INVALID_PARTITIONS),
        (TopicRequest(name="t", partitions=2**31 - 1), ErrorCode.INVALID_PARTITIONS),
        (TopicRequest(name="t", replication_factor=0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (TopicRequest(name="t", replication_factor=-2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (TopicRequest(name="t", replication_factor=4), ErrorCode.INVALID_REPLICATION_FACTOR),
        (assigned((0, (1,)), partitions=1), ErrorCode.INVALID_REQUEST),
        (assigned((0, (1,)), factor=1), ErrorCode.INVALID_REQUEST),
        (assigned((0, (1,)), (2, (1,))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assigned((1, (1,))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assigned((0, (1,)), (0, (1,))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assigned((-1, (1,)), (0, (1,))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assigned((0, ())), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assigned((0, (1, 2)), (1, (1,))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assigned((0, (1, 1))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assigned((0, (1, 9))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assigned(*((i, (1,)) for i in range(10_001))), ErrorCode.INVALID_PARTITIONS),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(request_: TopicRequest, code: ErrorCode) -> None:
    assert refusal(lambda: create(THREE, request_)).code == code


def test_a_default_that_the_brokers_cannot_meet_is_refused() -> None:
    error = refusal(lambda: create(cluster_of(1), TopicRequest(name="t")))
    assert error.code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_an_id_that_is_reserved_is_our_mistake() -> None:
    with pytest.raises(AssertionError):
        create_topic(THREE, TopicRequest(name="t"), NewTopicFacts(NO_TOPIC_ID, 0), defaults=DEFAULTS)


def test_the_cluster_has_a_limit_on_partitions() -> None:
    image = cluster_of(1)
    for number in range(2, 12):
        request = TopicRequest(name=f"t{number}", partitions=9_999, replication_factor=1)
        image = after(image, create(image, request, number))
    assert image.partition_count == 99_990
    ten = TopicRequest(name="ten", partitions=10, replication_factor=1)
    eleven = TopicRequest(name="eleven", partitions=11, replication_factor=1)
    assert refusal(lambda: create(image, eleven, 20)).code == ErrorCode.INVALID_PARTITIONS
    image = after(image, create(image, ten, 20))
    assert refusal(lambda: grow_topic(image, "ten", 11)).code == ErrorCode.INVALID_PARTITIONS
    image = after(image, delete_topic(image, name="t2"))
    assert grow_topic(image, "ten", 10_000)


def test_growing_adds_partitions_and_leaves_the_others() -> None:
    image = after(WITH_T, grow_topic(WITH_T, "t", 5))
    before, grown = WITH_T.topics["t"], image.topics["t"]
    assert grown.partitions[:2] == before.partitions
    assert [state.index for state in grown.partitions] == [0, 1, 2, 3, 4]
    assert all(len(state.replicas) == 2 for state in grown.partitions)
    assert grown.overrides == before.overrides


def test_growing_by_hand_is_followed() -> None:
    image = after(WITH_T, grow_topic(WITH_T, "t", 4, [(3, 1), (2, 1)]))
    assert [state.replicas for state in image.topics["t"].partitions[2:]] == [(3, 1), (2, 1)]


@pytest.mark.parametrize(
    ("name", "count", "assignments", "code"),
    [
        ("absent", 3, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 2, None, ErrorCode.INVALID_PARTITIONS),
        ("t", 1, None, ErrorCode.INVALID_PARTITIONS),
        ("t", -1, None, ErrorCode.INVALID_PARTITIONS),
        ("t", 10_001, None, ErrorCode.INVALID_PARTITIONS),
        ("t", 3, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 3, [(1, 2), (2, 3)], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 3, [(1,)], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 3, [()], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 3, [(1, 1)], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 3, [(1, 9)], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_a_growth_that_cannot_be_is_refused(
    name: str, count: int, assignments: list[tuple[int, ...]] | None, code: ErrorCode
) -> None:
    assert refusal(lambda: grow_topic(WITH_T, name, count, assignments)).code == code


def test_deleting_by_name_or_by_id_leaves_nothing() -> None:
    for decision in (delete_topic(WITH_T, name="t"), delete_topic(WITH_T, topic_id=topic_id(7))):
        image = after(WITH_T, decision)
        assert not image.topics
        assert not image.topics_by_id
        assert image.partition_count == 0


def test_a_deletion_that_cannot_be_is_refused() -> None:
    known = topic_id(7)
    assert (
        refusal(lambda: delete_topic(WITH_T, name="x")).code,
        refusal(lambda: delete_topic(WITH_T, topic_id=topic_id(8))).code,
        refusal(lambda: delete_topic(WITH_T, name="t", topic_id=known)).code,
        refusal(lambda: delete_topic(WITH_T)).code,
        refusal(lambda: delete_topic(WITH_T, name="t", deletion_enabled=False)).code,
    ) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.TOPIC_DELETION_DISABLED,
    )


def test_settings_of_a_topic_are_replaced_whole() -> None:
    image = after(WITH_T, alter_topic_config(WITH_T, "t", {"a": "1"}))
    image = after(image, alter_topic_config(image, "t", {"b": "2"}))
    assert image.topics["t"].overrides == {"b": "2"}
    assert image.topics["t"].partitions is WITH_T.topics["t"].partitions


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("not legal", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_settings_of_a_topic_that_does_not_exist_are_refused(name: str, code: ErrorCode) -> None:
    assert refusal(lambda: alter_topic_config(WITH_T, name, {})).code == code


@pytest.mark.parametrize("broker_id", [2, None])
def test_settings_of_a_broker_are_replaced_whole_and_can_be_emptied(broker_id: int | None) -> None:
    image = after(THREE, alter_broker_config(THREE, broker_id, {"a": "1"}))
    assert image.overrides_of_broker(broker_id).overrides == {"a": "1"}
    image = after(image, alter_broker_config(image, broker_id, {"b": "2"}))
    assert image.overrides_of_broker(broker_id).overrides == {"b": "2"}
    image = after(image, alter_broker_config(image, broker_id, {}))
    assert image.overrides_of_broker(broker_id).overrides == {}
    assert image.overrides_of_broker(broker_id).revision, "leaders compare that it is absent"


def test_settings_of_a_broker_that_is_not_registered_are_refused() -> None:
    assert refusal(lambda: alter_broker_config(THREE, 9, {})).code == ErrorCode.INVALID_REQUEST


def test_a_new_epoch_begins_in_every_partition() -> None:
    image = with_topic(WITH_T, "u", partitions=3, number=8)
    image = after(image, bump_leader_epochs(image))
    states = [state for topic in image.topics.values() for state in topic.partitions]
    assert len(states) == 5
    assert all((state.leader_epoch, state.partition_epoch) == (1, 1) for state in states)
    assert [state.replicas for state in image.topics["t"].partitions] == [
        state.replicas for state in WITH_T.topics["t"].partitions
    ]


def test_of_decisions_that_race_one_is_decided_again() -> None:
    """Growing, configuring and deleting one topic all rest on its key."""
    decisions: dict[str, Callable[[ClusterImage], Decision]] = {
        "grow": lambda image: grow_topic(image, "t", 4),
        "configure": lambda image: alter_topic_config(image, "t", {"a": "1"}),
        "delete": lambda image: delete_topic(image, name="t"),
    }
    for first in decisions.values():
        for second in decisions.values():
            cluster = stored_topic()
            one, other = first(cluster.image), second(cluster.image)
            assert cluster.attempt(one)
            assert not cluster.attempt(other)
            assert cluster.read_afresh() == cluster.image


def stored_topic() -> StoredCluster:
    cluster = StoredCluster()
    cluster.commit(register_standalone(EMPTY, 1, rack=None, endpoints={}))
    cluster.create("t", partitions=2, factor=1)
    return cluster


def test_a_new_epoch_never_brings_a_deleted_topic_back() -> None:
    cluster = stored_topic()
    bump, deletion = bump_leader_epochs(cluster.image), delete_topic(cluster.image, name="t")
    assert cluster.attempt(deletion)
    assert not cluster.attempt(bump)


def test_a_topic_is_created_once() -> None:
    cluster = stored_topic()
    request = TopicRequest(name="u", partitions=1, replication_factor=1)
    one, other = create(cluster.image, request, 8), create(cluster.image, request, 9)
    assert cluster.attempt(one)
    assert not cluster.attempt(other)


def test_producer_ids_are_never_handed_out_twice() -> None:
    """A block counts as used once it is committed, whether or not its broker lived to use it."""
    cluster = stored_topic()
    handed_out: list[int] = []
    for _ in range(3):
        block, rival = next_producer_id_block(cluster.image), next_producer_id_block(cluster.image)
        assert cluster.attempt(block.decision)
        assert not cluster.attempt(rival.decision)
        handed_out += range(block.first, block.first + block.count)
    assert handed_out == list(range(3_000))


def test_a_broker_may_say_anew_where_it_listens() -> None:
    decision = register_standalone(THREE, 2, rack="r", endpoints={"TLS": Endpoint("other", 9093)})
    image = after(THREE, decision)
    assert image.brokers[2].endpoints == {"TLS": Endpoint("other", 9093)}
    assert image.brokers[2].rack == "r"
    assert sorted(image.brokers) == [1, 2, 3]


def in_cluster(image: ClusterImage) -> Decision:
    request = TopicRequest(name="u", partitions=6)
    new = NewTopicFacts(topic_id(90), created_ms=0)
    defaults = TopicDefaults(partitions=1, replication_factor=-1)
    return create_topic(image, request, new, defaults=defaults)


@pytest.mark.parametrize(("brokers", "factor"), [(1, 1), (2, 2), (3, 3), (5, 3)])
def test_a_topic_has_three_replicas_or_as_many_as_there_are_brokers(brokers: int, factor: int) -> None:
    cluster = real_cluster_of(*range(1, brokers + 1))
    cluster.commit(in_cluster(cluster.image))
    assert {len(state.replicas) for state in cluster.image.topics["u"].partitions} == {factor}


def test_brokers_that_are_gone_or_drained_get_no_replicas_while_others_suffice() -> None:
    cluster = real_cluster_of(1, 2, 3, 4, 5)
    cluster.end_session(4)
    cluster.commit(drain(cluster.image, 3))
    cluster.commit(in_cluster(cluster.image))
    used = {node for state in cluster.image.topics["u"].partitions for node in state.replicas}
    assert used == {1, 2, 5}


def test_a_topic_made_while_a_broker_is_down_has_all_its_replicas() -> None:
    cluster = real_cluster_of(1, 2, 3)
    cluster.end_session(3)
    cluster.commit(in_cluster(cluster.image))
    cluster.commit(create(cluster.image, TopicRequest(name="three", replication_factor=3)))
    cluster.commit(grow_topic(cluster.image, "three", 6))
    for name in ("u", "three"):
        assert len(cluster.image.topics[name].partitions) == 6
        for state in cluster.image.topics[name].partitions:
            assert sorted(state.replicas) == [1, 2, 3]
            assert sorted(state.isr) == [1, 2]
            assert state.leader == state.replicas[0] != 3
            assert state.replicas[2] == 3
    leaders = [state.leader for state in cluster.image.topics["three"].partitions]
    assert leaders.count(1) == leaders.count(2) == 3


def test_new_replicas_go_to_brokers_that_are_gone_before_drained_ones() -> None:
    cluster = real_cluster_of(1, 2, 3, 4)
    cluster.end_session(4)
    cluster.commit(drain(cluster.image, 3))
    cluster.commit(in_cluster(cluster.image))
    for state in cluster.image.topics["u"].partitions:
        assert sorted(state.replicas) == [1, 2, 4]
    cluster.commit(create(cluster.image, TopicRequest(name="four", replication_factor=4)))
    for state in cluster.image.topics["four"].partitions:
        assert state.replicas[2:] == (4, 3)
        assert sorted(state.isr) == [1, 2]
        assert state.leader in (1, 2)


def test_more_replicas_than_registered_brokers_are_refused() -> None:
    cluster = real_cluster_of(1, 2, 3)
    cluster.end_session(3)
    error = refusal(lambda: create(cluster.image, TopicRequest(name="v", replication_factor=4)))
    assert error.code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert "3 are registered" in error.detail
    cluster.commit(unregister(cluster.image, 3))
    error = refusal(lambda: create(cluster.image, TopicRequest(name="v", replication_factor=3)))
    assert error.code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert "2 are registered" in error.detail


def test_a_partition_that_no_broker_could_lead_is_not_created() -> None:
    cluster = real_cluster_of(1, 2)
    cluster.end_session(2)
    cluster.commit(drain(cluster.image, 1))
    error = refusal(lambda: create(cluster.image, TopicRequest(name="v", replication_factor=1)))
    assert error.code == ErrorCode.INVALID_REPLICATION_FACTOR
    by_hand = TopicRequest(name="v", assignments=[ReplicaAssignment(0, (1, 2))])
    assert refusal(lambda: create(cluster.image, by_hand)).code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_no_replica_goes_to_a_broker_that_is_unregistered_meanwhile() -> None:
    cluster = real_cluster_of(1, 2, 3)
    cluster.end_session(3)
    decision = in_cluster(cluster.image)
    cluster.commit(unregister(cluster.image, 3))
    assert not cluster.attempt(decision)
    cluster.commit(in_cluster(cluster.image))
    assert {len(state.replicas) for state in cluster.image.topics["u"].partitions} == {2}


def test_a_drained_broker_given_by_hand_does_not_lead_and_is_not_in_sync() -> None:
    cluster = real_cluster_of(1, 2, 3)
    cluster.commit(drain(cluster.image, 3))
    cluster.commit(create(cluster.image, TopicRequest(name="u", assignments=[ReplicaAssignment(0, (3, 1))])))
    state = cluster.state("u")
    assert (state.replicas, state.isr, state.leader) == ((3, 1), (1,), 1)


def test_who_is_gone_may_be_assigned_by_hand_and_is_not_in_sync() -> None:
    cluster = real_cluster_of(1, 2, 3)
    cluster.end_session(3)
    request = TopicRequest(name="u", assignments=[ReplicaAssignment(0, (3, 1)), ReplicaAssignment(1, (3, 3))])
    cluster.commit(create(cluster.image, TopicRequest(name="u", assignments=[ReplicaAssignment(0, (3, 1))])))
    state = cluster.state("u")
    assert (state.replicas, state.isr, state.leader) == ((3, 1), (1,), 1)
    alone = TopicRequest(name="v", assignments=[ReplicaAssignment(0, (3,))])
    assert refusal(lambda: create(cluster.image, alone, 8)).code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert refusal(lambda: create(cluster.image, request, 8)).code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_creating_depends_on_the_term_and_on_the_first_in_sync_replicas() -> None:
    for session in (1000, 2):
        cluster = real_cluster_of(1, 2)
        decision = in_cluster(cluster.image)
        cluster.end_session(session)
        assert not cluster.attempt(decision)
        assert "u" not in cluster.image.topics


def test_a_large_topic_counts_only_when_all_its_partitions_are_there() -> None:
    """It takes more changes than a transaction of etcd holds."""
    cluster = real_cluster_of(1, 2, 3)
    request = TopicRequest(name="large", partitions=300, replication_factor=3)
    first, *_, last = transactions_of(create(cluster.image, request), 128)
    assert cluster.attempt(first)
    assert "large" not in cluster.image.topics
    assert not cluster.attempt(last._replace(compares=(*last.compares, Compare("/other", 1))))
    cluster.commit(create(cluster.image, request))
    assert len(cluster.image.topics["large"].partitions) == 300
    assert not cluster.image.prepared
    cluster.commit(grow_topic(cluster.image, "large", 600))
    assert len(cluster.image.topics["large"].partitions) == 600
    cluster.commit(delete_topic(cluster.image, name="large"))
    assert cluster.read_afresh() == cluster.image
    assert not cluster.image.topics
    assert not cluster.image.prepared


def test_a_growth_that_came_too_late_does_not_touch_what_another_made_count() -> None:
    cluster = real_cluster_of(1, 2, 3)
    cluster.create("t", partitions=1, factor=1)
    late = grow_topic(cluster.image, "t", 200, [(1,)] * 199)
    cluster.commit(grow_topic(cluster.image, "t", 200, [(2,)] * 199))
    for piece in transactions_of(late, 128):
        assert not cluster.attempt(piece)
    assert cluster.state("t", 7).replicas == (2,)


def test_a_change_of_the_minimum_is_counted_for_ever() -> None:
    cluster = real_cluster_of(1, 2, 3)
    cluster.create("t")
    changes = [{"min.insync.replicas": "1"}, {"min.insync.replicas": "1", "a": "b"}, {}, {"a": "b"}]
    counted = []
    for overrides in changes:
        cluster.commit(alter_topic_config(cluster.image, "t", overrides))
        cluster.commit(alter_broker_config(cluster.image, None, overrides))
        cluster.commit(grow_topic(cluster.image, "t", len(cluster.image.topics["t"].partitions) + 1))
        of_all = cluster.image.overrides_of_broker(None).min_isr_changes
        counted.append((cluster.image.topics["t"].min_isr_changes, of_all))
    assert counted == [(1, 1), (1, 1), (2, 2), (2, 2)]
