"""End-to-end latency, from producer to consumer, at a steady 5,000 records a second.

Producer and consumer are two processes on the broker's machine, so one monotonic clock gives both times.
Flush policy before_ack: a record is visible only when it is on disk.
"""

import struct
import time
from collections.abc import Iterator
from multiprocessing import get_context

from confluent_kafka import Producer

from benchmarks.brokers import fresh_broker
from benchmarks.clients import (
    CLIENT_S_MAX,
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
WARM_UP_S = 3
"""Warm-up at the same rate, not counted: until the consumer has found its partitions and caught up."""
NOT_COUNTED = 0


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
        job = Job(broker.bootstrap, broker.pids, topic, partitions, records, RECORD_BYTES)
        with get_context("spawn").Pool(2) as pool:
            receiving = pool.apply_async(receive, (job,))
            sending = pool.apply_async(send, (job,))
            return receiving.get(CLIENT_S_MAX), sending.get(CLIENT_S_MAX)


def send(job: Job) -> Phase:
    producer = connected_producer(job, {"linger.ms": 0})
    send_evenly(producer, job, WARM_UP_S * RECORDS_PER_SECOND, is_counted=False)
    gauge = Gauge(job.broker_pids)
    send_evenly(producer, job, job.records, is_counted=True)
    flush(producer)
    return gauge.stop(job.records)


def send_evenly(producer: Producer, job: Job, records: int, *, is_counted: bool) -> None:
    """Send at each tick the records that are due, however late the tick is."""
    padding = bytes(job.record_bytes - STAMP.size)
    began, sent = time.monotonic(), 0
    while sent < records:
        due = min(records, int((time.monotonic() - began) * RECORDS_PER_SECOND))
        while sent < due:
            stamp = time.monotonic_ns() if is_counted else NOT_COUNTED
            producer.produce(job.topic, STAMP.pack(stamp) + padding, partition=sent % job.partitions)
            sent += 1
        producer.poll(0)
        time.sleep(TICK_S)


def receive(job: Job) -> list[float]:
    """The latency in milliseconds of every record after the warm-up."""
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
        if message.error() is not None or value is None or len(value) != job.record_bytes:
            continue
        (stamp,) = STAMP.unpack_from(value)
        if stamp != NOT_COUNTED:
            ages_ms.append((now - stamp) / 1e6)
    consumer.close()
    return ages_ms
