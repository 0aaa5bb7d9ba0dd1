"""What is told of a cluster: loads, partitions in trouble, and topics that one lost disk would lose."""

import pytest

from penstock.controller.broker_lifecycle import drain, drain_by_operator
from penstock.controller.cluster_summary import BrokerLoad, TopicAtRisk, broker_state, survey
from penstock.controller.elections import repair_leadership
from penstock.controller.partitions import every_partition
from penstock.controller.reassignment import Reassignment, reassign
from penstock.errors import ErrorCode
from tests.unit.controller.controller_support import StoredCluster, cluster_of, refusal
from tests.unit.controller.scenarios import upkeep


@pytest.fixture
def cluster() -> StoredCluster:
    made = cluster_of(1, 2, 3)
    made.create("t", partitions=3, factor=3)
    return made


def test_a_sound_cluster_has_nothing_to_complain_about(cluster: StoredCluster) -> None:
    found = survey(cluster.image)
    assert found.loads == {1: BrokerLoad(1, 3), 2: BrokerLoad(1, 3), 3: BrokerLoad(1, 3)}
    assert found[1:] == ([], [], [], [], [])


def test_a_broker_that_is_gone_leaves_partitions_short_and_led_by_others(cluster: StoredCluster) -> None:
    cluster.create("alone", factor=1)
    (holder,) = cluster.state("alone").replicas
    cluster.end_session(holder)
    for partition in list(every_partition(cluster.image)):
        decision = repair_leadership(cluster.image, partition)
        if decision is not None:
            cluster.commit(decision)
    found = survey(cluster.image)
    assert broker_state(cluster.image.brokers[holder]) == "gone"
    assert found.loads[holder] == BrokerLoad(0, 4)
    assert [topic.name for topic, _ in found.offline] == ["alone"]
    assert [topic.name for topic, _ in found.under_replicated] == ["t"] * 3
    assert [state.replicas[0] for _, state in found.unbalanced] == [holder]


def test_a_topic_is_at_risk_with_one_replica_or_if_one_in_sync_is_enough(cluster: StoredCluster) -> None:
    cluster.create("alone", factor=1)
    cluster.create("hasty", factor=3, overrides={"min.insync.replicas": "1"})
    cluster.create("pair", factor=2)
    cluster.create("strict-pair", factor=2, overrides={"min.insync.replicas": "2"})
    assert survey(cluster.image).at_risk == [
        TopicAtRisk("alone", "one replica"),
        TopicAtRisk("hasty", "min.insync.replicas is 1"),
        TopicAtRisk("pair", "min.insync.replicas is 1"),
    ]


def test_a_replica_that_is_being_added_is_neither_missing_nor_counted(cluster: StoredCluster) -> None:
    cluster.create("alone", factor=1)
    (holder,) = cluster.state("alone").replicas
    others = tuple(node for node in (1, 2, 3) if node != holder)
    cluster.commit(reassign(cluster.image, Reassignment("alone", 0, (holder, *others))))
    found = survey(cluster.image)
    assert [topic.name for topic, _ in found.reassigning] == ["alone"]
    assert found.under_replicated == []
    assert found.at_risk == [TopicAtRisk("alone", "one replica")]


def test_a_drained_broker_leads_nothing_and_may_come_back(cluster: StoredCluster) -> None:
    cluster.commit(drain_by_operator(cluster.image, 2))
    upkeep(cluster)
    assert survey(cluster.image).loads[2] == BrokerLoad(0, 3)
    assert broker_state(cluster.image.brokers[2]) == "draining"
    cluster.commit(drain(cluster.image, 2, is_draining=False))
    assert broker_state(cluster.image.brokers[2]) == "admitted"


def test_the_last_that_could_take_over_is_not_drained(cluster: StoredCluster) -> None:
    cluster.commit(drain(cluster.image, 2))
    cluster.commit(drain(cluster.image, 3))
    assert refusal(lambda: drain_by_operator(cluster.image, 1)).code is ErrorCode.INVALID_REQUEST
    assert refusal(lambda: drain_by_operator(cluster.image, 9)).code is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_who_waits_to_be_admitted_is_fenced(cluster: StoredCluster) -> None:
    cluster.join(4)
    assert broker_state(cluster.image.brokers[4]) == "fenced"
