"""The clients, which run in processes of their own: producers and consumers of librdkafka.

Every function takes a `Job` and returns a `Phase` that was measured around the work alone: a producer has
connected and written to every partition before the clock starts. The connection time of a consumer, a few
milliseconds, is included.

librdkafka puts one batch into each produce request, so the number of requests is the number of batches.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, TypeVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from benchmarks.phase import Gauge, Phase

Result = TypeVar("Result")

DELIVERY_S_MAX = 120
STALL_S_MAX = 30
CLIENT_S_MAX = 1200
"""Time limit for a client process: one that was killed would otherwise be awaited for ever."""
LOG_ERRORS = 3
BATCHED = {"linger.ms": 100, "batch.size": 1_000_000}
"""Long enough for full batches even with 1,000 partitions."""
READ_AHEAD = {"queued.min.messages": 200_000, "fetch.queue.backoff.ms": 2}
"""By default librdkafka pauses for a second when its prefetch queue is full, however soon it is consumed."""
SMALL_BATCHES = {"linger.ms": 0, "batch.size": 16_384, "max.in.flight.requests.per.connection": 5}
ONE_BY_ONE = {"linger.ms": 0, "batch.num.messages": 1}


class ClientFailed(Exception):
    """A record was rejected, lost or not delivered in time."""


@dataclass(frozen=True, slots=True)
class Job:
    bootstrap: str
    broker_pids: tuple[int, ...]
    topic: str
    partitions: int
    records: int
    record_bytes: int


def in_another_process(function: Callable[..., Result], *arguments: Any) -> Result:
    """Run the client in another process, with its own interpreter and core. It ends with this call."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply_async(function, arguments).get(CLIENT_S_MAX)


def _raise_if_refused(error: KafkaError | None, _: Message) -> None:
    if error is not None:
        raise ClientFailed(str(error))


def connected_producer(job: Job, settings: dict[str, Any]) -> Producer:
    """A producer that is connected to every partition's leader."""
    producer = Producer(
        {
            "bootstrap.servers": job.bootstrap,
            "acks": "all",
            "log_level": LOG_ERRORS,
            "socket.nagle.disable": True,
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 256 * 1024,
            "on_delivery": _raise_if_refused,
            **settings,
        }
    )
    for partition in range(job.partitions):
        producer.produce(job.topic, b"first", partition=partition)
    flush(producer)
    return producer


def flush(producer: Producer) -> None:
    if left := producer.flush(DELIVERY_S_MAX):
        raise ClientFailed(f"{left} records were not delivered within {DELIVERY_S_MAX} s")


def _produce_all(producer: Producer, job: Job) -> None:
    """Produce the records round-robin over the partitions, and wait only while librdkafka's queue is full."""
    value, produce, partitions = bytes(job.record_bytes), producer.produce, job.partitions
    left = job.records
    while left:
        try:
            produce(job.topic, value, partition=left % partitions)
        except BufferError:
            producer.poll(0.05)
            continue
        left -= 1
        if not left & 0xFFF:
            producer.poll(0)
    flush(producer)


def produce_batched(job: Job) -> Phase:
    producer = connected_producer(job, BATCHED | {"delivery.report.only.error": True})
    gauge = Gauge(job.broker_pids)
    _produce_all(producer, job)
    return gauge.stop(job.records)


def produce_small_batches(job: Job) -> Phase:
    """Send batches of the size and in the number that Java's producer has in flight by default."""
    producer = connected_producer(job, SMALL_BATCHES | {"delivery.report.only.error": True})
    gauge = Gauge(job.broker_pids)
    _produce_all(producer, job)
    return gauge.stop(job.records)


def produce_one_by_one(job: Job) -> Phase:
    """Send one request for each record, with as many in flight as librdkafka and the broker allow."""
    producer = connected_producer(job, ONE_BY_ONE | {"delivery.report.only.error": True})
    gauge = Gauge(job.broker_pids)
    _produce_all(producer, job)
    return gauge.stop(job.records)


def produce_and_wait(job: Job) -> tuple[Phase, list[float]]:
    """Send each record after the acknowledgement of the one before. Returns each one's milliseconds, too."""
    producer = connected_producer(job, ONE_BY_ONE)
    value, took_ms = bytes(job.record_bytes), []
    clock = time.perf_counter
    gauge = Gauge(job.broker_pids)
    for number in range(job.records):
        began = clock()
        producer.produce(job.topic, value, partition=number % job.partitions)
        while len(producer):
            producer.poll(1)
        took_ms.append((clock() - began) * 1000)
    return gauge.stop(job.records), took_ms


def assigned_consumer(job: Job, settings: dict[str, Any]) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": job.bootstrap,
            "group.id": "benchmarks",
            "enable.auto.commit": False,
            "log_level": LOG_ERRORS,
            **settings,
        }
    )
    consumer.assign([TopicPartition(job.topic, number, OFFSET_BEGINNING) for number in range(job.partitions)])
    return consumer


def consume_batched(job: Job) -> Phase:
    """Consume all records of `produce_batched`."""
    consumer = assigned_consumer(job, READ_AHEAD)
    gauge = Gauge(job.broker_pids)
    expected, received = job.records + job.partitions, 0
    deadline = time.monotonic() + STALL_S_MAX
    while received < expected:
        messages = consumer.consume(min(10_000, expected - received), timeout=0.1)
        if messages:
            deadline = time.monotonic() + STALL_S_MAX
        elif time.monotonic() > deadline:
            raise ClientFailed(f"{received} of {expected} records came, then none for {STALL_S_MAX} s")
        received += sum(1 for message in messages if message.error() is None)
    phase = gauge.stop(received)
    consumer.close()
    return phase
