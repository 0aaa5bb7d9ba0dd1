"""A consumer group outlives its coordinator."""

import threading
import time

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions

from tests.integration.broker_process import eventually
from tests.integration.cluster_load import SteadyWriter
from tests.integration.cluster_processes import ClusterProcesses

EVERYBODY = [1, 2, 3]


class Member:
    """Reads and commits what it has read, until it is told to end."""

    def __init__(self, bootstrap: str, group: str, topic: str, protocol: str) -> None:
        config = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
        if protocol == "classic":
            config |= {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}
        self._consumer = Consumer(config)
        self._consumer.subscribe([topic])
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self.seen: list[int] = []
        self.committed_at: list[float] = []

    def __enter__(self) -> "Member":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        self._consumer.close()

    def _read(self) -> None:
        while not self._ends.is_set():
            found = [message for message in self._consumer.consume(100, 0.1) if message.error() is None]
            if not found:
                continue
            for message in found:
                value = message.value()
                assert isinstance(value, bytes)
                self.seen.append(int(value))
            try:
                self._consumer.commit(asynchronous=False)
            except Exception:  # its coordinator is away; the next commit covers this one
                continue
            self.committed_at.append(time.monotonic())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_survives_the_kill_of_its_coordinator(cluster: ClusterProcesses, protocol: str) -> None:
    topic, group = f"read-{protocol}", f"readers-{protocol}"
    cluster.create(topic)
    with (
        SteadyWriter(cluster.bootstrap, topic) as writer,
        Member(cluster.bootstrap, group, topic, protocol) as member,
    ):
        eventually(lambda: len(member.committed_at) > 3, seconds_max=30)
        admin = cluster.admin()
        coordinator = admin.describe_consumer_groups([group])[group].result(10).coordinator.id
        killed_at = time.monotonic()
        cluster.brokers[coordinator].kill()
        eventually(lambda: member.committed_at[-1] > killed_at + 0.2, seconds_max=30)
        took = next(at for at in member.committed_at if at > killed_at + 0.2) - killed_at
        print(f"coordinator {coordinator} ({protocol}) was killed: commits went on after {took:.2f} s")
        cluster.brokers[coordinator].start()
        writer.end()
        eventually(lambda: len(set(member.seen)) >= len(writer.acknowledged), seconds_max=30)
    assert set(member.seen) >= set(writer.acknowledged)
    asked = ConsumerGroupTopicPartitions(group)
    admin = cluster.admin()
    (committed,) = admin.list_consumer_group_offsets([asked])[group].result(10).topic_partitions
    assert committed.offset == len(writer.acknowledged)
