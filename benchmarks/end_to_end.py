"""How old a record is when a consumer has it, at a steady 5,000 records a second.

Producer and consumer are two processes on the broker's machine, so one monotonic clock dates both
ends. Flush policy before_ack: nobody sees a record that is not on disk.
"""

import struct
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from benchmarks.brokers import fresh_broker
from benchmarks.clients import (
    STALL_S_MAX,
    ClientFailed,
    Job,
    assigned_consumer,
    connected_producer,
    flush,
)
from benchmarks.figures import Figure, percentile
from benchmarks.phase import Gauge, Phase
from benchmarks.settings import Settings, partitions_text
from benchmarks.topics import new_topic

RECORDS_PER_SECOND = 5000
RECORDS = 10 * RECORDS_PER_SECOND
RECORD_BYTES = 100
TICK_S = 0.001
P99_MS_MAX = 10.0
STAMP = struct.Struct(">q")


def measure(settings: Settings) -> Iterator[Figure]:
    for partitions in settings.partition_counts:
        runs = [_measure_once(settings.scaled(RECORDS), partitions) for _ in range(settings.repeats)]
        orders = [sorted(ages_ms) for ages_ms, _ in runs]
        for share, label in ((0.5, "p50"), (0.99, "p99")):
            is_judged = label == "p99" and partitions == 1
            yield Figure(
                name=f"end to end at 5,000/s, before_ack, {partitions_text(partitions)}, {label}",
                unit="ms",
                samples=tuple(percentile(order, share) for order in orders),
                target=P99_MS_MAX if is_judged else None,
                limited_by=runs[0][1].limited_by(),
            )


def _measure_once(records: int, partitions: int) -> tuple[list[float], Phase]:
    with fresh_broker() as broker, new_topic(broker.bootstrap, partitions, "before_ack") as topic:
        job = Job(broker.bootstrap, broker.pid, topic, partitions, records, RECORD_BYTES)
        with ProcessPoolExecutor(2, get_context("spawn")) as pool:
            receiving = pool.submit(receive, job)
            sending = pool.submit(send, job)
            return receiving.result(), sending.result()


def send(job: Job) -> Phase:
    """At an even pace: each tick sends what is due by now, however late the tick comes."""
    producer = connected_producer(job, {"linger.ms": 0})
    padding = bytes(job.record_bytes - STAMP.size)
    gauge = Gauge(job.broker_pid)
    began, sent = time.monotonic(), 0
    while sent < job.records:
        due = min(job.records, int((time.monotonic() - began) * RECORDS_PER_SECOND))
        while sent < due:
            stamped = STAMP.pack(time.monotonic_ns()) + padding
            producer.produce(job.topic, stamped, partition=sent % job.partitions)
            sent += 1
        producer.poll(0)
        time.sleep(TICK_S)
    flush(producer)
    return gauge.stop(job.records)


def receive(job: Job) -> list[float]:
    """The age of every record in milliseconds. Those that only opened the partitions have no stamp."""
    consumer = assigned_consumer(job, {"fetch.min.bytes": 1})
    ages_ms: list[float] = []
    deadline = time.monotonic() + STALL_S_MAX
    while len(ages_ms) < job.records:
        message = consumer.poll(0.5)
        now = time.monotonic_ns()
        if message is None:
            if time.monotonic() > deadline:
                raise ClientFailed(f"{len(ages_ms)} of {job.records} records came, then no more")
            continue
        deadline = time.monotonic() + STALL_S_MAX
        value = message.value()
        if message.error() is None and value is not None and len(value) == job.record_bytes:
            ages_ms.append((now - STAMP.unpack_from(value)[0]) / 1e6)
    consumer.close()
    return ages_ms
