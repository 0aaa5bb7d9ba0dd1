"""A cluster that changes: too few replicas, topics made anew, a broker more, a whole restart."""

import time
from functools import partial

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]

from tests.integration.broker_process import eventually
from tests.integration.cluster_load import SteadyWriter, read_all, require_intact, watermarks
from tests.integration.cluster_processes import ClusterProcesses

EVERYBODY = [1, 2, 3]


def test_with_too_few_replicas_nothing_is_acknowledged_and_all_can_be_read(
    cluster: ClusterProcesses,
) -> None:
    cluster.create_led_by("alone", 1)
    assert cluster.write("alone", range(100)) == [None] * 100
    for follower in (2, 3):
        cluster.brokers[follower].kill()
    cluster.until_in_sync("alone", [1])
    refusals = cluster.write("alone", range(1), timeout_ms=2_000)
    assert refusals[0] is not None
    assert len(read_all(cluster.bootstrap, "alone")) == 100
    for follower in (2, 3):
        cluster.brokers[follower].start()
    cluster.until_in_sync("alone", EVERYBODY)
    assert cluster.write("alone", range(1)) == [None]


def test_what_was_deleted_stays_deleted_whoever_leads(cluster: ClusterProcesses) -> None:
    cluster.create_led_by("deleted", 1)
    assert cluster.write("deleted", range(100)) == [None] * 100
    admin, before_60 = cluster.admin(), TopicPartition("deleted", 0, 60)
    (outcome,) = admin.delete_records([before_60]).values()
    asked_at = time.monotonic()
    assert outcome.result(20).low_watermark == 60
    print(f"records were deleted on three brokers after {time.monotonic() - asked_at:.3f} s")
    for broker in cluster.brokers.values():
        broker.kill()  # before their checkpoints
    for follower in (2, 3):
        cluster.brokers[follower].start()
    cluster.until_led_by_another("deleted", 1, seconds_max=10)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "looks", "log_level": 0})
    assert watermarks(consumer, TopicPartition("deleted", 0), time.monotonic() + 20) == (60, 100)
    consumer.close()
    cluster.brokers[1].start()
    cluster.until_in_sync("deleted", EVERYBODY)
    for follower in (2, 3):
        cluster.brokers[follower].pause()
    try:
        (outcome,) = admin.delete_records([TopicPartition("deleted", 0, 80)], request_timeout=2).values()
        with pytest.raises(KafkaException):
            outcome.result(20)
    finally:
        for follower in (2, 3):
            cluster.brokers[follower].resume()
    cluster.until_in_sync("deleted", EVERYBODY)


def test_a_topic_made_anew_meanwhile_has_nothing_of_the_old_one(
    cluster: ClusterProcesses,
) -> None:
    cluster.create_led_by("anew", 1)
    assert cluster.write("anew", range(500)) == [None] * 500
    cluster.brokers[3].kill()
    admin = cluster.admin()
    admin.delete_topics(["anew"])["anew"].result(20)
    cluster.create("anew", factor=2)
    assert cluster.write("anew", range(10)) == [None] * 10
    cluster.brokers[3].start()
    assert read_all(cluster.bootstrap, "anew") == list(range(10))
    eventually(lambda: cluster.log_of(3, "anew") in (b"", cluster.log_of(cluster.leader("anew"), "anew")))


def test_a_topic_made_while_a_broker_is_down_gets_its_third_replica(cluster: ClusterProcesses) -> None:
    def replicas(topic: str) -> list[tuple[list[int], list[int]]]:
        partitions = cluster.admin().list_topics(topic, timeout=10).topics[topic].partitions
        return [(sorted(found.replicas), sorted(found.isrs)) for _, found in sorted(partitions.items())]

    def is_in_sync(topic: str, partitions: int) -> bool:
        return replicas(topic) == [(EVERYBODY, EVERYBODY)] * partitions

    admin = cluster.admin()
    cluster.brokers[3].kill()
    eventually(lambda: sorted(admin.list_topics(timeout=10).brokers) == [1, 2], seconds_max=20)
    cluster.create("asked", partitions=2, factor=3)
    cluster.create("unasked", partitions=2, factor=-1)
    admin.create_partitions([NewPartitions("asked", 3)])["asked"].result(20)
    assert replicas("asked") == [(EVERYBODY, [1, 2])] * 3
    assert replicas("unasked") == [(EVERYBODY, [1, 2])] * 2
    for topic in ("asked", "unasked"):
        assert cluster.write(topic, range(100)) == [None] * 100
    cluster.brokers[3].start()
    for topic, count in (("asked", 3), ("unasked", 2)):
        eventually(partial(is_in_sync, topic, count), seconds_max=20)
        written = [cluster.log_of(3, topic, index) for index in range(count)]
        assert written == [cluster.log_of(1, topic, index) for index in range(count)]
        assert any(written)


def test_a_cluster_that_was_killed_whole_comes_back_with_everything(cluster: ClusterProcesses) -> None:
    cluster.create("whole")
    with SteadyWriter(cluster.bootstrap, "whole") as writer:
        time.sleep(0.5)
        for broker in cluster.brokers.values():
            broker.kill()
        time.sleep(0.2)
        killed_at = time.monotonic()
        cluster.start()
        took = writer.resumed_after(killed_at, seconds_max=60)
        print(f"all brokers were killed and started: writes went on after {took:.2f} s")
    require_intact(writer, read_all(cluster.bootstrap, "whole"))


def test_a_broker_that_joins_is_given_partitions(cluster: ClusterProcesses) -> None:
    cluster.create("spread", partitions=12, factor=2)
    assert cluster.write("spread", range(1_000)) == [None] * 1_000
    newcomer = cluster.add(4)
    newcomer.start()

    def holds_its_share() -> bool:
        partitions = cluster.admin().list_topics("spread", timeout=10).topics["spread"].partitions.values()
        held = sum(4 in partition.replicas for partition in partitions)
        in_sync = all(sorted(p.replicas) == sorted(p.isrs) and len(p.replicas) == 2 for p in partitions)
        return held >= 4 and in_sync

    began = time.monotonic()
    eventually(holds_its_share, seconds_max=60, every=0.2)
    print(f"a fourth broker has its share after {time.monotonic() - began:.1f} s")
    assert sum(len(read_all(cluster.bootstrap, "spread", number)) for number in range(12)) == 1_000
