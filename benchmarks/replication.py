"""The cost of replication: the same records to topics with one replica and with three.

Three brokers, etcd and the clients share the machine. Flush policy before_ack: a record is acknowledged, and
visible, when it is on the disks of all in-sync replicas.
"""

from collections.abc import Iterator
from itertools import product
from multiprocessing import get_context
from typing import NamedTuple

from confluent_kafka import KafkaError, Message

from benchmarks.brokers import temporary_folder
from benchmarks.clients import (
    CLIENT_S_MAX,
    ClientFailed,
    Job,
    connected_producer,
    flush,
    in_another_process,
    produce_batched,
)
from benchmarks.clusters import Cluster, running_cluster
from benchmarks.end_to_end import RECORDS_PER_SECOND, WARM_UP_S, receive, send_evenly
from benchmarks.figures import Better, Figure, percentile
from benchmarks.phase import Gauge, Phase
from benchmarks.settings import FULL, Settings, partitions_text
from benchmarks.topics import new_topic

FACTORS = (1, 3)
PARTITIONS = 3
"""Partitions of a topic: each broker leads one."""
EVEN_PARTITIONS = (1, 3, 100)
"""With more partitions batches are smaller: 5,000 records a second are 1,000 batches, 3,000 or 5,000."""
RECORDS = {100: 1_000_000, 1000: 500_000}
MB = 1_000_000
SHARE_MIN = 0.3
EVEN_RECORDS = 10 * RECORDS_PER_SECOND
EVEN_RECORD_BYTES = 100
P99_MS_MAX = {1: 10.0, 100: 25.0}
"""By partitions, with three copies: until a record is acknowledged, and until it is consumed."""


def measure(settings: Settings) -> Iterator[Figure]:
    with temporary_folder() as folder, running_cluster(folder / "cluster") as cluster:
        for record_bytes in RECORDS:
            yield from _throughput(cluster, settings, record_bytes)
        yield from _latency(cluster, settings)


# Throughput


def _throughput(cluster: Cluster, settings: Settings, record_bytes: int) -> Iterator[Figure]:
    """Runs with one replica and with three alternate, so that other load on the machine affects both."""
    phases: dict[int, list[Phase]] = {factor: [] for factor in FACTORS}
    for _ in range(settings.repeats):
        for factor in FACTORS:
            with new_topic(cluster.bootstrap, PARTITIONS, "before_ack", factor) as topic:
                records = settings.scaled(RECORDS[record_bytes])
                job = Job(cluster.bootstrap, cluster.pids, topic, PARTITIONS, records, record_bytes)
                phases[factor].append(in_another_process(produce_batched, job))
    best = {factor: max(phases[factor], key=lambda phase: phase.per_second) for factor in FACTORS}
    for factor in FACTORS:
        yield Figure(
            name=f"produce, acks=all, {_copies(factor)}, {record_bytes} B",
            unit="MB/s",
            samples=tuple(phase.per_second * record_bytes / MB for phase in phases[factor]),
            better=Better.HIGHER,
            limited_by=best[factor].limited_by(),
        )
    yield Figure(
        name=f"three copies as a share of one, {record_bytes} B",
        unit="",
        samples=tuple(
            three.per_second / one.per_second for one, three in zip(phases[1], phases[3], strict=True)
        ),
        better=Better.HIGHER,
        target=SHARE_MIN,
        limited_by=best[3].limited_by(),
    )


def _copies(factor: int) -> str:
    return "one copy" if factor == 1 else "three copies"


# Latency


def _latency(cluster: Cluster, settings: Settings) -> Iterator[Figure]:
    chosen = settings.partition_counts
    counts = EVEN_PARTITIONS if chosen == FULL.partition_counts else chosen
    for partitions, factor in product(counts, FACTORS):
        runs = [_measure_steady_flow(cluster, settings, partitions, factor) for _ in range(settings.repeats)]
        setting = f"at 5,000/s, {_copies(factor)}, {partitions_text(partitions)}"
        produced = "produce", [run.acknowledged_ms for run in runs]
        consumed = "end to end", [run.ages_ms for run in runs]
        for name, times_ms in (produced, consumed):
            for share, label in ((0.5, "p50"), (0.99, "p99")):
                is_judged = (factor, label) == (3, "p99")
                yield Figure(
                    name=f"{name} {setting}, {label}",
                    unit="ms",
                    samples=tuple(percentile(sorted(each), share) for each in times_ms),
                    target=P99_MS_MAX.get(partitions) if is_judged else None,
                    limited_by=runs[0].phase.limited_by(),
                )
        yield Figure(
            name=f"CPU of all brokers {setting}",
            unit="cores",
            samples=tuple(run.phase.broker_cpu_s / run.phase.wall_s for run in runs),
        )


class SteadyLatency(NamedTuple):
    """Times of a steady load, one for each record."""

    phase: Phase
    acknowledged_ms: list[float]
    ages_ms: list[float]
    """Time at which a consumer received the record."""


def _measure_steady_flow(cluster: Cluster, settings: Settings, partitions: int, factor: int) -> SteadyLatency:
    with new_topic(cluster.bootstrap, partitions, "before_ack", factor) as topic:
        records = settings.scaled(EVEN_RECORDS)
        job = Job(cluster.bootstrap, cluster.pids, topic, partitions, records, EVEN_RECORD_BYTES)
        with get_context("spawn").Pool(2) as pool:
            receiving = pool.apply_async(receive, (job,))
            sending = pool.apply_async(send_and_note, (job,))
            ages_ms = receiving.get(CLIENT_S_MAX)
            phase, took_ms = sending.get(CLIENT_S_MAX)
    return SteadyLatency(phase, took_ms, ages_ms)


def send_and_note(job: Job) -> tuple[Phase, list[float]]:
    """Send evenly, and return the milliseconds until each record was acknowledged, too."""
    took_ms: list[float] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        latency_s = message.latency()
        if error is not None or latency_s is None:
            raise ClientFailed(str(error))
        took_ms.append(latency_s * 1000)

    producer = connected_producer(job, {"linger.ms": 0, "on_delivery": on_delivery})
    send_evenly(producer, job, WARM_UP_S * RECORDS_PER_SECOND, is_counted=False)
    flush(producer)
    took_ms.clear()
    gauge = Gauge(job.broker_pids)
    send_evenly(producer, job, job.records, is_counted=True)
    flush(producer)
    return gauge.stop(job.records), took_ms
