"""A cluster of real processes: one etcd and several `penstock serve`, on free ports, in a test's folder.

Rule: what was started here is ended here, by its pid, however the test ends.
"""

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.integration.broker_process import BrokerProcess, eventually
from tests.integration.etcd_process import Etcd, running_etcd
from tests.integration.free_ports import free_ports


class ClusterProcesses:
    def __init__(self, folder: Path, etcd: Etcd, count: int, settings: Mapping[str, object]) -> None:
        self.etcd = etcd
        self.folder = folder
        self._settings = settings
        # Addresses stay the same over restarts, as they do for anybody who runs a cluster.
        self._ports = dict(enumerate(free_ports(count), start=1))
        self.brokers = {node_id: self.broker(node_id) for node_id in self._ports}

    def broker(
        self,
        node_id: int,
        folder: str | None = None,
        port: int | None = None,
        etcd_port: int | None = None,
        flags: tuple[str, ...] = (),
    ) -> BrokerProcess:
        """As one of these. `etcd_port`: where it finds etcd, if that is not where it is."""
        metadata = self.etcd.url if etcd_port is None else f"etcd://127.0.0.1:{etcd_port}"
        addresses = ("--kafka", f"127.0.0.1:{port or self._ports[node_id]}", "--http", "127.0.0.1:0")
        flags += ("--node-id", str(node_id), "--rack", f"rack-{node_id}", "--metadata", metadata)
        path = self.folder / (folder or f"broker-{node_id}")
        return BrokerProcess(path, *flags, settings=self._settings, addresses=addresses)

    def put_behind(self, node_id: int) -> tuple[int, int]:
        """Have a broker, before it is started, listen elsewhere than it tells clients: for a relay between.

        The port that it tells clients, and the port that it listens to.
        """
        (behind,) = free_ports(1)
        told = self._ports[node_id]
        flags = ("--advertised", f"127.0.0.1:{told}")
        self.brokers[node_id] = self.broker(node_id, port=behind, flags=flags)
        return told, behind

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def add(self, node_id: int) -> BrokerProcess:
        """Another broker, which is ended with the others."""
        (self._ports[node_id],) = free_ports(1)
        self.brokers[node_id] = self.broker(node_id)
        return self.brokers[node_id]

    def start(self) -> None:
        with ThreadPoolExecutor() as pool:
            for started in [pool.submit(broker.start) for broker in self.brokers.values()]:
                started.result()

    def start_missing(self) -> None:
        """For the next test, after one that failed while brokers were away."""
        for broker in self.brokers.values():
            if not broker.is_running:
                broker.kill()
                broker.start()

    def stop(self) -> None:
        for broker in self.brokers.values():
            if broker.is_running:
                broker.resume()
            broker.kill()

    def write(
        self, topic: str, numbers: range, *, timeout_ms: int = 20_000, timestamp_ms: int = 0
    ) -> list[str | None]:
        """The name of the error of each record. `timestamp_ms`: of all of them; 0: now."""
        errors: list[str | None] = []

        def delivered(error: KafkaError | None, _: object) -> None:
            errors.append(error.name() if error is not None else None)

        config = {"bootstrap.servers": self.bootstrap, "acks": "all", "message.timeout.ms": timeout_ms}
        producer = Producer(config | {"log_level": 0})
        for number in numbers:
            producer.produce(topic, b"%d" % number, timestamp=timestamp_ms, on_delivery=delivered)
        assert producer.flush(30) == 0, "something was never answered"
        return errors

    # Looking

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "socket.timeout.ms": 10_000})

    def create(self, topic: str, *, partitions: int = 1, factor: int = 3) -> None:
        self._create(NewTopic(topic, num_partitions=partitions, replication_factor=factor))

    def create_led_by(self, topic: str, leader: int) -> None:
        """With one partition and a replica everywhere."""
        others = [node_id for node_id in self.brokers if node_id != leader]
        self._create(NewTopic(topic, num_partitions=1, replica_assignment=[[leader, *others]]))

    def _create(self, wanted: NewTopic) -> None:
        admin = self.admin()  # held: it ends with its last reference
        admin.create_topics([wanted])[wanted.topic].result(20)

    def controller(self) -> int:
        return int(json.loads(self.brokers[1].get("/v1/cluster")[1])["controller"])

    def leader(self, topic: str, partition: int = 0) -> int:
        found = self.admin().list_topics(topic, timeout=10).topics[topic].partitions.get(partition)
        return found.leader if found is not None else -1

    def preferred_leader(self, topic: str, partition: int = 0) -> int:
        partitions = self.admin().list_topics(topic, timeout=10).topics[topic].partitions
        replicas: list[int] = partitions[partition].replicas
        return replicas[0]

    def isr(self, topic: str, partition: int = 0) -> list[int]:
        found = self.admin().list_topics(topic, timeout=10).topics[topic].partitions.get(partition)
        return sorted(found.isrs) if found is not None else []

    def log_of(self, node_id: int, topic: str, partition: int = 0) -> bytes:
        """The bytes of a replica, as they are on its disk."""
        folder = self.brokers[node_id].data_dir / "logs" / f"{topic}-{partition}"
        return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))

    def until_led_by_another(self, topic: str, leader: int, *, seconds_max: float) -> None:
        eventually(lambda: self.leader(topic) not in (leader, -1), seconds_max=seconds_max)

    def until_in_sync(self, topic: str, members: list[int], *, seconds_max: float = 20.0) -> None:
        def is_in_sync() -> bool:
            return self.isr(topic) == members

        eventually(is_in_sync, seconds_max=seconds_max, every=0.1)


@contextmanager
def running_cluster(
    folder: Path, count: int = 3, *, settings: Mapping[str, object] | None = None
) -> Iterator[ClusterProcesses]:
    with running_etcd(folder / "etcd") as etcd:
        cluster = ClusterProcesses(folder, etcd, count, settings or {})
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
