"""Throughput of batched records of 100 bytes and 1 KB, produced and consumed.

Runs of the flush policies alternate, so that other load on the machine affects them alike.
"""

from collections import defaultdict
from collections.abc import Iterator

from benchmarks.brokers import Broker, fresh_broker
from benchmarks.clients import Job, consume_batched, in_another_process, produce_batched
from benchmarks.figures import Better, Figure
from benchmarks.phase import Phase
from benchmarks.settings import Settings, partitions_text
from benchmarks.topics import new_topic

RECORDS = {100: 2_000_000, 1000: 1_000_000}
POLICIES = ("os", "before_ack")
GB = 1_000_000_000
MB = 1_000_000

BYTES_PER_SECOND_MIN = 300.0
SHARE_OF_OS_MIN = {1: 0.8, 100: 0.6}
CPU_S_PER_GB_MAX = 1.5

Phases = dict[str, list[Phase]]
"""Phases by name: "os" and "before_ack" (produced), and "consume"."""


def measure(settings: Settings) -> Iterator[Figure]:
    for record_bytes, records in RECORDS.items():
        for partitions in settings.partition_counts:
            phases: Phases = defaultdict(list)
            for _ in range(settings.repeats):
                _measure_once(phases, settings.scaled(records), record_bytes, partitions)
            yield from _figures(phases, record_bytes, partitions)


def _measure_once(phases: Phases, records: int, record_bytes: int, partitions: int) -> None:
    for policy in POLICIES:
        with fresh_broker() as broker, new_topic(broker.bootstrap, partitions, policy) as topic:
            job = _job(broker, topic, partitions, records, record_bytes)
            phases[policy].append(in_another_process(produce_batched, job))
            if policy == "os":
                phases["consume"].append(in_another_process(consume_batched, job))


def _job(broker: Broker, topic: str, partitions: int, records: int, record_bytes: int) -> Job:
    return Job(broker.bootstrap, broker.pids, topic, partitions, records, record_bytes)


def _figures(phases: Phases, record_bytes: int, partitions: int) -> Iterator[Figure]:
    where = f"{record_bytes} B, {partitions_text(partitions)}"
    is_judged = record_bytes == 1000
    for kind, name in (("os", "produce, os"), ("before_ack", "produce, before_ack"), ("consume", "consume")):
        yield from _rates(phases[kind], f"{name}, {where}", record_bytes, _rate_target(kind, where))
    produced_and_consumed = [
        (produce.broker_cpu_s + consume.broker_cpu_s) / produce.work
        for produce, consume in zip(phases["os"], phases["consume"], strict=True)
    ]
    yield Figure(
        name=f"broker CPU, produced and consumed, {where}",
        unit="s/million records",
        samples=tuple(each * 1e6 for each in produced_and_consumed),
    )
    yield Figure(
        name=f"broker CPU, produced and consumed, {where}",
        unit="s/GB",
        samples=tuple(each * GB / record_bytes for each in produced_and_consumed),
        target=CPU_S_PER_GB_MAX if is_judged and partitions == 1 else None,
        limited_by="broker code and copies in the kernel",
    )
    yield Figure(
        name=f"before_ack as a share of os, {where}",
        unit="",
        samples=(max(p.per_second for p in phases["before_ack"]) / max(p.per_second for p in phases["os"]),),
        better=Better.HIGHER,
        target=SHARE_OF_OS_MIN.get(partitions) if is_judged else None,
        limited_by=_best(phases["before_ack"]).limited_by(),
    )


def _rate_target(kind: str, where: str) -> float | None:
    return BYTES_PER_SECOND_MIN if (kind, where) == ("before_ack", "1000 B, 1 partition") else None


def _best(phases: list[Phase]) -> Phase:
    return max(phases, key=lambda phase: phase.per_second)


def _rates(phases: list[Phase], name: str, record_bytes: int, target: float | None) -> Iterator[Figure]:
    yield Figure(
        name=name,
        unit="records/s",
        samples=tuple(phase.per_second for phase in phases),
        better=Better.HIGHER,
        limited_by=_best(phases).limited_by(),
    )
    yield Figure(
        name=name,
        unit="MB/s",
        samples=tuple(phase.per_second * record_bytes / MB for phase in phases),
        better=Better.HIGHER,
        target=target,
        limited_by=_best(phases).limited_by(),
    )
    yield Figure(
        name=f"broker CPU, {name}",
        unit="s/GB",
        samples=tuple(phase.broker_cpu_s * GB / phase.work / record_bytes for phase in phases),
    )
