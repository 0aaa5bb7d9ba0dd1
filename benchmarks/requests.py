"""Cost of a small request: one record each, many in flight."""

from collections.abc import Iterator

from benchmarks.brokers import fresh_broker
from benchmarks.clients import Job, in_another_process, produce_one_by_one
from benchmarks.figures import Better, Figure
from benchmarks.settings import Settings, partitions_text
from benchmarks.topics import new_topic

RECORDS = 100_000
RECORD_BYTES = 100
POLICIES = ("os", "before_ack")
CPU_US_PER_REQUEST_MAX = 30.0


def measure(settings: Settings) -> Iterator[Figure]:
    for partitions in settings.partition_counts:
        for policy in POLICIES:
            yield from _figures(settings, partitions, policy)


def _figures(settings: Settings, partitions: int, policy: str) -> Iterator[Figure]:
    phases = []
    for _ in range(settings.repeats):
        with fresh_broker() as broker, new_topic(broker.bootstrap, partitions, policy) as topic:
            records = settings.scaled(RECORDS)
            job = Job(broker.bootstrap, broker.pids, topic, partitions, records, RECORD_BYTES)
            phases.append(in_another_process(produce_one_by_one, job))
    name = f"one-record requests, {policy}, {partitions_text(partitions)}"
    is_judged = policy == "os" and partitions == 1
    yield Figure(
        name=name,
        unit="requests/s",
        samples=tuple(phase.per_second for phase in phases),
        better=Better.HIGHER,
        limited_by=max(phases, key=lambda phase: phase.per_second).limited_by(),
    )
    yield Figure(
        name=f"broker CPU, {name}",
        unit="µs/request",
        samples=tuple(phase.broker_cpu_s * 1e6 / phase.work for phase in phases),
        target=CPU_US_PER_REQUEST_MAX if is_judged else None,
        limited_by="broker code" if is_judged else "",
    )
