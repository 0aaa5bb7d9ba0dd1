"""The cost of 10,000 partitions with three replicas on three brokers: creation, idling, fail-over, start.

Nothing is written to them, except to one partition of each broker for the kill. All brokers, etcd and the
client share the machine, so a time to start is that of three brokers which start at once.
"""

import time
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ClusterMetadata  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from benchmarks.brokers import temporary_folder
from benchmarks.clients import LOG_ERRORS, ClientFailed
from benchmarks.clusters import Cluster, running_cluster
from benchmarks.figures import Choice, Figure, percentile
from benchmarks.phase import process_cpu_s
from benchmarks.settings import Settings

TOPICS = 10
PARTITIONS = 10_000
FACTOR = 3
ANSWER_S_MAX = 300
SETTLE_S = 15.0
"""Time in which the brokers finish their work for new partitions."""
IDLE_S = 20.0
METADATA_REQUESTS = 20
LOOK_EVERY_S = 0.05
WRITE_S_MAX = 60
MB = 1_000_000


def measure(settings: Settings) -> Iterator[Figure]:
    partitions = settings.scaled(PARTITIONS)
    with temporary_folder() as folder:
        yield from _measure_creation(folder, partitions)
        yield from _measure_restart(folder, partitions)


def _named(what: str, partitions: int) -> str:
    return f"{what}, {partitions:,} partitions on three brokers"


def _measure_creation(folder: Path, partitions: int) -> Iterator[Figure]:
    with running_cluster(folder / "cluster") as cluster:
        admin = _admin(cluster)
        began = time.monotonic()
        _create(admin, partitions)
        _until_led(admin, partitions, range(3))
        yield Figure(
            name=_named("until all have leaders after creating", partitions),
            unit="s",
            samples=(time.monotonic() - began,),
        )
        time.sleep(SETTLE_S)
        yield from _measure_idle(cluster, admin, partitions)
        yield from _measure_failover(cluster, admin, partitions)


def _create(admin: AdminClient, partitions: int) -> None:
    wanted = [NewTopic(f"many-{number}", partitions // TOPICS, FACTOR) for number in range(TOPICS)]
    for topic in wanted:
        admin.create_topics([topic], request_timeout=ANSWER_S_MAX)[topic.topic].result(ANSWER_S_MAX)


def _measure_idle(cluster: Cluster, admin: AdminClient, partitions: int) -> Iterator[Figure]:
    yield Figure(
        name=_named("memory of a broker", partitions),
        unit="MB",
        samples=tuple(cluster.memory(node).resident / MB for node in range(3)),
        choice=Choice.WORST,
    )
    before, began = _cpu_s(cluster), time.monotonic()
    time.sleep(IDLE_S)
    passed_s = time.monotonic() - began
    shares = [(after - was) / passed_s for after, was in zip(_cpu_s(cluster), before, strict=True)]
    yield Figure(
        name=_named("an idle broker", partitions),
        unit="% of a core",
        samples=tuple(100 * share for share in shares[:-1]),
        choice=Choice.WORST,
        limited_by=f"etcd: {shares[-1]:.1%} of a core",
    )
    took_ms = sorted(_metadata_ms(admin) for _ in range(METADATA_REQUESTS))
    for share, label in ((0.5, "p50"), (1.0, "longest")):
        name = _named(f"Metadata of all topics, {label}", partitions)
        yield Figure(name=name, unit="ms", samples=(percentile(took_ms, share),))


def _cpu_s(cluster: Cluster) -> list[float]:
    return [process_cpu_s(pid) for pid in (*cluster.pids, cluster.etcd_pid)]


def _metadata_ms(admin: AdminClient) -> float:
    began = time.perf_counter()
    admin.list_topics(timeout=ANSWER_S_MAX)
    return (time.perf_counter() - began) * 1000


def _measure_failover(cluster: Cluster, admin: AdminClient, partitions: int) -> Iterator[Figure]:
    """Kill a broker that leads a third of the partitions."""
    survivors = Cluster(cluster.folder, cluster.addresses[1:], cluster.pids[1:], cluster.start_s)
    admin = _admin(survivors)
    topic, partition = _led_by(admin, 0)
    producer = _writer(survivors)
    _write(producer, topic, partition)
    cluster.kill(0)
    began = time.monotonic()
    _write(producer, topic, partition)
    yield Figure(
        name=_named("broker killed: until one of its partitions is written to", partitions),
        unit="s",
        samples=(time.monotonic() - began,),
    )
    _until_led(admin, partitions, (1, 2))
    yield Figure(
        name=_named("broker killed: until all have leaders", partitions),
        unit="s",
        samples=(time.monotonic() - began,),
    )


def _measure_restart(folder: Path, partitions: int) -> Iterator[Figure]:
    """Start all three brokers again, the killed one with its data."""
    with running_cluster(folder / "cluster") as cluster:
        yield Figure(
            name=_named("all brokers ready after a start", partitions),
            unit="s",
            samples=(cluster.start_s,),
        )
        began = time.monotonic()
        admin = _admin(cluster)
        _until_led(admin, partitions, range(3))
        yield Figure(
            name=_named("from then until all have leaders", partitions),
            unit="s",
            samples=(time.monotonic() - began,),
        )
        topic, partition = _led_by(admin, 1)
        _write(_writer(cluster), topic, partition)


# Clients


def _admin(cluster: Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": LOG_ERRORS})


def _writer(cluster: Cluster) -> Producer:
    settings = {"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0}
    impatient = {"request.timeout.ms": 3000, "retry.backoff.ms": 50, "retry.backoff.max.ms": 100}
    return Producer({**settings, **impatient, "log_level": LOG_ERRORS})


def _write(producer: Producer, topic: str, partition: int) -> None:
    producer.produce(topic, b"a record", partition=partition)
    if producer.flush(WRITE_S_MAX):
        raise ClientFailed(f"{topic} {partition} could not be written to within {WRITE_S_MAX} s")


def _many(metadata: ClusterMetadata) -> Iterator[tuple[str, int, int]]:
    """Topic, partition and leader."""
    for name, topic in metadata.topics.items():
        if name.startswith("many-"):
            yield from ((name, number, each.leader) for number, each in topic.partitions.items())


def _led_by(admin: AdminClient, node: int) -> tuple[str, int]:
    found = _many(admin.list_topics(timeout=ANSWER_S_MAX))
    return next((topic, partition) for topic, partition, leader in found if leader == node)


def _until_led(admin: AdminClient, partitions: int, leaders: range | tuple[int, ...]) -> None:
    """Wait until one of these brokers leads every partition."""
    deadline = time.monotonic() + ANSWER_S_MAX
    while True:
        led = sum(leader in leaders for _, _, leader in _many(admin.list_topics(timeout=ANSWER_S_MAX)))
        if led == partitions:
            return
        if time.monotonic() > deadline:
            raise ClientFailed(f"{led} of {partitions} partitions had leaders after {ANSWER_S_MAX} s")
        time.sleep(LOOK_EVERY_S)
