"""A consumer reads from the replica in its own rack (KIP-392), and from the leader when that one is gone."""

import json
import time
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.integration.broker_process import eventually
from tests.integration.cluster_processes import ClusterProcesses

CLUSTER_SETTINGS = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
EVERYBODY = [1, 2, 3]


class Reader:
    """Consumer of one partition that notes which broker it reads from."""

    def __init__(self, cluster: ClusterProcesses, topic: str, rack: str) -> None:
        self.topic = topic
        self.source = -1
        self.found: list[int] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": "near",
                "client.rack": rack,
                "statistics.interval.ms": 100,
                "stats_cb": self._note,
                "fetch.wait.max.ms": 100,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])

    def _note(self, text: str) -> None:
        known: Any = json.loads(text)["topics"].get(self.topic, {}).get("partitions", {}).get("0")
        self.source = known["broker"] if known is not None else -1

    def reads(self, source: int, end: int) -> bool:
        """Whether it has come so far, and reads from that broker."""
        for message in self._consumer.consume(500, timeout=0.2):
            assert message.error() is None, message.error()
            value = message.value()
            assert isinstance(value, bytes)
            self.found.append(int(value))
        return self.source == source and len(self.found) >= end

    def close(self) -> None:
        self._consumer.close()


def test_who_is_in_the_rack_of_a_follower_reads_there_and_misses_nothing(cluster: ClusterProcesses) -> None:
    cluster.create_led_by("near", 1)
    cluster.until_in_sync("near", EVERYBODY)
    assert cluster.write("near", range(200)) == [None] * 200
    reader = Reader(cluster, "near", "rack-2")
    try:
        eventually(lambda: reader.reads(2, 200), seconds_max=20)
        assert cluster.write("near", range(200, 400)) == [None] * 200
        eventually(lambda: reader.reads(2, 400), seconds_max=20)
        cluster.brokers[2].kill()
        assert cluster.write("near", range(400, 500)) == [None] * 100
        eventually(lambda: reader.reads(1, 500), seconds_max=30)
    finally:
        reader.close()
    assert reader.found == list(range(500))
    cluster.brokers[2].start()
    cluster.until_in_sync("near", EVERYBODY)


@pytest.mark.parametrize("rack", ["rack-1", "rack-9"])
def test_a_consumer_without_a_replica_in_its_rack_reads_the_leader(
    cluster: ClusterProcesses, rack: str
) -> None:
    topic = f"far-{rack}"
    cluster.create_led_by(topic, 1)
    cluster.until_in_sync(topic, EVERYBODY)
    assert cluster.write(topic, range(100)) == [None] * 100
    reader = Reader(cluster, topic, rack)
    try:
        eventually(lambda: reader.reads(1, 100), seconds_max=20)
        time.sleep(0.3)
        assert reader.reads(1, 100)
    finally:
        reader.close()
