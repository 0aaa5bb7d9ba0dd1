"""A store that an earlier release wrote is read, and changed, by this one."""

import pytest

from penstock.controller.topics import (
    alter_broker_config,
    alter_topic_config,
    bump_leader_epochs,
    delete_topic,
    grow_topic,
    register_broker,
)
from penstock.host.metadata_store import Put
from penstock.metadata.cluster_image import Endpoint, PartitionState
from tests.unit.controller.controller_support import KEYS, StoredCluster, accept_any

TOPIC = "AAAAAAAAAAAAAAAAAAAABw"
WRITTEN = {
    "brokers/1": b'{"version":1,"rack":null,"endpoints":{"PLAINTEXT":{"host":"127.0.0.1","port":9092}}}',
    "topics/orders": b'{"version":1,"topic_id":"%b","partitions":2,"internal":false,'
    b'"created_ms":1700000000000,"overrides":{"retention.ms":"5"}}' % TOPIC.encode(),
    f"partitions/{TOPIC}/0": b'{"version":1,"replicas":[1],"leader":1,"leader_epoch":4,"isr":[1],'
    b'"partition_epoch":4}',
    f"partitions/{TOPIC}/1": b'{"version":1,"replicas":[1],"leader":1,"leader_epoch":4,"isr":[1],'
    b'"partition_epoch":4}',
    "configs/broker/default": b'{"version":1,"overrides":{"log.retention.ms":"7"}}',
    "configs/broker/1": b'{"version":1,"overrides":{"num.partitions":"3"}}',
    "configs/group/g": b'{"version":1,"overrides":{"a":"b"}}',
    "producer_ids/next_block": b'{"version":1,"next_id":3000}',
}


@pytest.fixture
def cluster() -> StoredCluster:
    made = StoredCluster(changes_max=1_000)
    made.store.transact((), [Put(KEYS.prefix + key, value) for key, value in WRITTEN.items()])
    made.image = made.read_afresh()
    return made


def test_everything_is_read_as_it_was_meant(cluster: StoredCluster) -> None:
    image = cluster.image
    assert image.is_embedded
    assert image.controller_id == 1
    assert image.brokers[1].is_admitted
    assert image.brokers[1].endpoints == {"PLAINTEXT": Endpoint("127.0.0.1", 9092)}
    assert image.topics["orders"].overrides == {"retention.ms": "5"}
    assert cluster.state("orders", 1) == PartitionState(1, 1, 4, (1,), (1,), 4, revision=1)
    assert image.overrides_of_broker(None).overrides == {"log.retention.ms": "7"}
    assert image.overrides_of_broker(1).overrides == {"num.partitions": "3"}
    assert image.overrides_of_group("g").overrides == {"a": "b"}
    assert image.producer_ids.next_id == 3_000


def test_everything_can_be_changed(cluster: StoredCluster) -> None:
    cluster.commit(bump_leader_epochs(cluster.image))
    cluster.commit(register_broker(cluster.image, 1, rack="r", endpoints={"PLAINTEXT": Endpoint("h", 1)}))
    cluster.commit(grow_topic(cluster.image, "orders", 3))
    cluster.commit(alter_topic_config(cluster.image, "orders", {"min.insync.replicas": "2"}, accept_any))
    cluster.commit(alter_broker_config(cluster.image, 1, {}, accept_any))
    cluster.create("new", 2, -1)
    assert [state.leader_epoch for state in cluster.image.topics["orders"].partitions] == [5, 5, 0]
    assert cluster.image.brokers[1].is_admitted
    assert cluster.state("new").replicas == (1,)
    assert cluster.read_afresh() == cluster.image
    cluster.commit(delete_topic(cluster.image, name="orders"))
    assert cluster.read_afresh() == cluster.image
    assert list(cluster.image.topics) == ["new"]
