"""The metadata store is unavailable for a while: the cluster serves on meanwhile, and loses nothing."""

import threading
import time

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from penstock.limits import BROKER_SESSION_MS
from tests.integration.broker_process import eventually
from tests.integration.cluster_load import SteadyWriter, read_all, require_intact
from tests.integration.cluster_processes import ClusterProcesses
from tests.integration.relay import relay_to

EVERYBODY = [1, 2, 3]
AWAY_SECONDS = BROKER_SESSION_MS / 1000 + 1.5
"""Longer than a session lives."""


@pytest.mark.parametrize("how", ["killed", "paused"])
def test_writes_go_on_while_the_store_is_unavailable(cluster: ClusterProcesses, topic: str, how: str) -> None:
    (member,) = cluster.etcd.members
    cluster.create(topic)
    with SteadyWriter(cluster.bootstrap, topic) as writer:
        time.sleep(0.5)
        if how == "killed":
            member.kill()
        else:
            member.pause()
        away_at = time.monotonic()
        time.sleep(AWAY_SECONDS)
        written_meanwhile = sum(at > away_at + AWAY_SECONDS - 1 for at in writer.times)
        assert written_meanwhile > 20, "the cluster stopped serving"
        with pytest.raises(KafkaException):
            cluster.create(f"{topic}-refused")
        if how == "killed":
            member.start()
            member.wait_until_ready()
        else:
            member.resume()
        back_at = time.monotonic()
        took = writer.resumed_after(back_at)
        print(f"etcd was {how} and came back: the longest wait of a write ended after {took:.2f} s")
        eventually(lambda: _can_create(cluster), seconds_max=20, every=0.2)
        cluster.until_in_sync(topic, EVERYBODY)
    require_intact(writer, read_all(cluster.bootstrap, topic))


def test_a_leader_that_alone_is_cut_off_from_the_store_gives_way(
    cluster: ClusterProcesses, topic: str
) -> None:
    """Nobody but its followers tells it. Clients with default settings that know only it find another."""
    (member,) = cluster.etcd.members
    with relay_to(int(member.endpoint.partition(":")[2])) as relay:
        behind_nothing = cluster.brokers[1]
        assert behind_nothing.stop() == 0
        cluster.brokers[1] = cluster.broker(1, etcd_port=relay.port).start()
        cluster.create_led_by(topic, 1)
        cluster.until_in_sync(topic, EVERYBODY)
        with SteadyWriter(cluster.bootstrap, topic) as writer, SteadyReader(cluster, topic) as reader:
            eventually(lambda: reader.times)
            relay.cut()
            eventually(lambda: cluster.brokers[1].get("/health/ready")[0] == 503, seconds_max=20)
            assert "the other brokers have taken over" in cluster.brokers[1].get("/health/ready")[1]
            given_way_at = time.monotonic()
            writer.resumed_after(given_way_at)
            eventually(lambda: reader.times[-1] > given_way_at + 1, seconds_max=20)
            assert cluster.leader(topic) != 1
            relay.heal()
            cluster.until_in_sync(topic, EVERYBODY, seconds_max=30)
            eventually(lambda: cluster.brokers[1].get("/health/ready")[0] == 200, seconds_max=20)
        assert cluster.brokers[1].stop() == 0
        cluster.brokers[1] = behind_nothing.start()
    require_intact(writer, read_all(cluster.bootstrap, topic))


class SteadyReader:
    """Notes when it gets something."""

    def __init__(self, cluster: ClusterProcesses, topic: str) -> None:
        self.times: list[float] = []
        self._consumer = Consumer(
            {"bootstrap.servers": cluster.bootstrap, "group.id": "steady", "log_level": 0}
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        while not self._ends.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.times.append(time.monotonic())

    def __enter__(self) -> "SteadyReader":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        self._consumer.close()


def _can_create(cluster: ClusterProcesses) -> bool:
    try:
        cluster.create(f"created-{time.monotonic_ns()}")
    except KafkaException:
        return False
    return True
