"""Latency of a producer that waits for the acknowledgement of each record before it sends the next."""

from collections.abc import Iterator

from benchmarks.brokers import fresh_broker
from benchmarks.clients import Job, in_another_process, produce_and_wait
from benchmarks.figures import Figure, percentile
from benchmarks.settings import Settings, partitions_text
from benchmarks.topics import new_topic

RECORDS = 10_000
RECORD_BYTES = 100
POLICIES = ("before_ack", "interval", "os")


def measure(settings: Settings) -> Iterator[Figure]:
    for partitions in settings.partition_counts:
        for policy in POLICIES:
            yield from _figures(settings, partitions, policy)


def _figures(settings: Settings, partitions: int, policy: str) -> Iterator[Figure]:
    measured = []
    for _ in range(settings.repeats):
        with fresh_broker() as broker, new_topic(broker.bootstrap, partitions, policy) as topic:
            records = settings.scaled(RECORDS)
            job = Job(broker.bootstrap, broker.pids, topic, partitions, records, RECORD_BYTES)
            measured.append(in_another_process(produce_and_wait, job))
    orders = [sorted(took_ms) for _, took_ms in measured]
    for share, label in ((0.5, "p50"), (0.99, "p99")):
        yield Figure(
            name=f"produce and wait, {policy}, {partitions_text(partitions)}, {label}",
            unit="ms",
            samples=tuple(percentile(order, share) for order in orders),
            limited_by=min((phase for phase, _ in measured), key=lambda phase: phase.wall_s).limited_by(),
        )
