"""Penstock beside a broker that does the least that a broker in Python can do, in turn, under before_ack."""

import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.bare_broker import TOPIC
from benchmarks.brokers import Broker, fresh_broker, running_command, temporary_folder
from benchmarks.clients import (
    Job,
    in_another_process,
    produce_and_wait,
    produce_batched,
    produce_small_batches,
)
from benchmarks.figures import Better, Figure, percentile
from benchmarks.phase import Phase
from benchmarks.settings import Settings
from benchmarks.topics import create_topic

RECORD_BYTES = 1000
WORKS = {"1 MB": (produce_batched, 1_000_000), "16 KB, five in flight": (produce_small_batches, 300_000)}
"""Name of the batches, the client that sends them, and how many records."""
WAIT_RECORDS, WAIT_RECORD_BYTES = 10_000, 100
SHARE_MIN = 0.95
MB = 1_000_000


def measure(settings: Settings) -> Iterator[Figure]:
    yield from _throughput(settings)
    yield from _waiting(settings)


def _throughput(settings: Settings) -> Iterator[Figure]:
    for name, (produce, records) in WORKS.items():
        phases: dict[str, list[Phase]] = defaultdict(list)
        for _ in range(settings.repeats):
            for whose, broker in _both():
                job = Job(broker.bootstrap, broker.pids, TOPIC, 1, settings.scaled(records), RECORD_BYTES)
                phases[whose].append(in_another_process(produce, job))
        yield from _figures(f"batches of {name}, {RECORD_BYTES} B", phases)


def _figures(name: str, phases: dict[str, list[Phase]]) -> Iterator[Figure]:
    for whose, each in phases.items():
        yield Figure(
            name=f"{whose}: {name}",
            unit="MB/s",
            samples=tuple(phase.per_second * RECORD_BYTES / MB for phase in each),
            better=Better.HIGHER,
            limited_by=max(each, key=lambda phase: phase.per_second).limited_by(),
        )
        yield Figure(
            name=f"broker CPU, {whose}: {name}",
            unit="s/million records",
            samples=tuple(phase.broker_cpu_s * 1e6 / phase.work for phase in each),
        )
    best = {whose: max(phase.per_second for phase in each) for whose, each in phases.items()}
    yield Figure(
        name=f"penstock as a share of a bare broker: {name}",
        unit="",
        samples=(best["penstock"] / best["bare"],),
        better=Better.HIGHER,
        target=SHARE_MIN,
    )


def _waiting(settings: Settings) -> Iterator[Figure]:
    """A producer that sends one record and waits for its acknowledgement."""
    waits_ms: dict[str, list[list[float]]] = defaultdict(list)
    for _ in range(settings.repeats):
        for whose, broker in _both():
            records = settings.scaled(WAIT_RECORDS)
            job = Job(broker.bootstrap, broker.pids, TOPIC, 1, records, WAIT_RECORD_BYTES)
            _, took_ms = in_another_process(produce_and_wait, job)
            waits_ms[whose].append(sorted(took_ms))
    for whose, orders in waits_ms.items():
        for share, label in ((0.5, "p50"), (0.99, "p99")):
            yield Figure(
                name=f"{whose}: produce and wait, {label}",
                unit="ms",
                samples=tuple(percentile(order, share) for order in orders),
            )


def _both() -> Iterator[tuple[str, Broker]]:
    """A fresh bare broker, then a fresh Penstock."""
    for whose, broker_of in (("bare", _bare_broker), ("penstock", _penstock)):
        with broker_of() as broker:
            yield whose, broker


@contextmanager
def _penstock() -> Iterator[Broker]:
    with fresh_broker() as broker:
        create_topic(broker.bootstrap, 1, "before_ack", name=TOPIC)
        yield broker


@contextmanager
def _bare_broker() -> Iterator[Broker]:
    with temporary_folder() as home:
        command = [sys.executable, "-m", "benchmarks.bare_broker", str(home)]
        with running_command(command, home) as broker:
            yield broker
