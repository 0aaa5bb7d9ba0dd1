"""How Penstock's cost grows: the same work, with ever more partitions, connections and data.

The lines of each figure are the steps, not contenders. A curve that bends upwards has a knee to explain.
"""

import resource
import shutil
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from benchmarks.brokers import Broker, fresh_broker, running_broker, temporary_folder
from benchmarks.clients import (
    Job,
    consume_batched,
    in_another_process,
    produce_and_wait,
    produce_batched,
)
from benchmarks.figures import Better, percentile
from benchmarks.peers.clients.work import ClientFailed
from benchmarks.peers.results import Sample
from benchmarks.peers.servers.process import disk_bytes
from benchmarks.peers.sizes import Sizes
from benchmarks.phase import process_cpu_s
from benchmarks.settings import partitions_text
from benchmarks.topics import create_topic

MB = 1_000_000
GB = 1_000_000_000
POLICY = "before_ack"
RECORD_BYTES = 100
ANSWER_S_MAX = 300
SETTLE_S = 1.0

# ApiVersions version 0 without a client id: the smallest request that a broker answers.
PING = struct.pack(">ihhih", 10, 18, 0, 1, -1)
PING_S = 2.0

LOG_RECORD_BYTES = 1000
LOG_PARTITIONS = 10
SEGMENT_BYTES = 64 * 1024 * 1024
LOOKUPS = 200
CHECK_MS = 500
ACTIVE_BYTES = (LOG_PARTITIONS + 1) * SEGMENT_BYTES
"""What the active segments of all partitions occupy at most, and some more."""


def measure(name: str, sizes: Sizes) -> Iterator[Sample]:
    yield from FAMILIES[name](sizes)


def _sample(question: str, step: str, figure: str, value: float, unit: str) -> Sample:
    better = Better.HIGHER if unit.endswith("/s") else Better.LOWER
    return Sample(question=question, figure=figure, unit=unit, contender=step, value=value, better=better)


def partitions(sizes: Sizes) -> Iterator[Sample]:
    question = "growth_partitions"
    for count in sizes.growth_partitions:
        step = partitions_text(count)
        with fresh_broker() as broker:
            began = time.monotonic()
            topic = create_topic(broker.bootstrap, count, POLICY)
            yield _sample(question, step, "creating the topic", time.monotonic() - began, "s")
            job = Job(broker.bootstrap, broker.pids, topic, count, sizes.growth_records, RECORD_BYTES)
            produced = in_another_process(produce_batched, job)
            consumed = in_another_process(consume_batched, job)
            for what, phase in (("produced", produced), ("consumed", consumed)):
                figure = f"{what}, {RECORD_BYTES} B, round the partitions"
                yield _sample(question, step, figure, phase.per_second, "records/s")
                cpu_us = phase.broker_cpu_s * 1e6 / phase.work
                yield _sample(question, step, f"server CPU, {what}", cpu_us, "s/million records")
            yield from _waiting(question, step, job, sizes)
            time.sleep(SETTLE_S)
            yield _sample(question, step, "memory", broker.memory().resident / MB, "MB")


def _waiting(question: str, step: str, job: Job, sizes: Sizes) -> Iterator[Sample]:
    few = Job(job.bootstrap, job.broker_pids, job.topic, job.partitions, sizes.growth_waits, RECORD_BYTES)
    _, took_ms = in_another_process(produce_and_wait, few)
    for share, label in ((0.5, "p50"), (0.99, "p99")):
        yield _sample(question, step, f"produce and wait, {label}", percentile(sorted(took_ms), share), "ms")


def connections(sizes: Sizes) -> Iterator[Sample]:
    question = "growth_connections"
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for count in sizes.growth_connections:
        step = f"{count:,} {'connection' if count == 1 else 'connections'}"
        with fresh_broker() as broker, ExitStack() as stack:
            host, _, port = broker.bootstrap.rpartition(":")
            sockets = [
                stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
                for _ in range(count)
            ]
            for each in sockets:
                _ping(each)
            time.sleep(SETTLE_S)
            yield _sample(question, step, "memory", broker.memory().resident / MB, "MB")
            rate, cpu_us = _pings(broker, sockets)
            yield _sample(question, step, "small requests, round the connections", rate, "requests/s")
            yield _sample(question, step, "server CPU of a small request", cpu_us, "µs")
            topic = create_topic(broker.bootstrap, 1, POLICY)
            job = Job(broker.bootstrap, broker.pids, topic, 1, 0, RECORD_BYTES)
            yield from _waiting(question, step, job, sizes)


def _ping(connection: socket.socket) -> None:
    connection.sendall(PING)
    if not connection.recv(65536):
        raise ClientFailed("the broker closed a connection")


def _pings(broker: Broker, sockets: list[socket.socket]) -> tuple[float, float]:
    """Requests a second over all connections in turn, and microseconds of the broker's CPU for each."""
    before, began, done = process_cpu_s(broker.pid), time.monotonic(), 0
    while time.monotonic() < began + PING_S:
        _ping(sockets[done % len(sockets)])
        done += 1
    used_s = process_cpu_s(broker.pid) - before
    return done / (time.monotonic() - began), used_s * 1e6 / done


def logs(sizes: Sizes) -> Iterator[Sample]:
    question = "growth_logs"
    for total in sizes.growth_bytes:
        step = f"{total / GB:g} GB"
        with temporary_folder() as folder:
            if shutil.disk_usage(folder).free < total * 1.2:
                raise ClientFailed(f"{folder.parent} has less free space than {step} need")
            settings = (f"log.retention.check.interval.ms={CHECK_MS}",)
            with running_broker(folder, settings) as broker:
                topic = _log_topic(broker)
                records = total // LOG_RECORD_BYTES
                pids = broker.pids
                job = Job(broker.bootstrap, pids, topic, LOG_PARTITIONS, records, LOG_RECORD_BYTES)
                in_another_process(produce_batched, job)
                broker.process.kill()
                broker.process.wait()
            with running_broker(folder, settings) as broker:
                yield _sample(question, step, "start after kill -9", broker.start_s, "s")
            with running_broker(folder, settings) as broker:
                yield _sample(question, step, "start after a clean stop", broker.start_s, "s")
                yield _sample(question, step, "memory", broker.memory().resident / MB, "MB")
                took_ms = _lookups_ms(broker, topic)
                for share, label in ((0.5, "p50"), (0.99, "p99")):
                    value = percentile(took_ms, share)
                    yield _sample(question, step, f"offset of a time, {label}", value, "ms")
                before, began = process_cpu_s(broker.pid), time.monotonic()
                _expire(broker, topic)
                _wait_for_retention(folder, ACTIVE_BYTES)
                took_s = time.monotonic() - began
                yield _sample(question, step, "retention of all closed segments", took_s, "s")
                used_s = process_cpu_s(broker.pid) - before
                yield _sample(question, step, "server CPU of that", used_s, "s")


def _log_topic(broker: Broker) -> str:
    config = {"flush.policy": "os", "segment.bytes": str(SEGMENT_BYTES)}
    new = NewTopic("log", num_partitions=LOG_PARTITIONS, replication_factor=1, config=config)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([new])["log"].result(ANSWER_S_MAX)
    return "log"


def _lookups_ms(broker: Broker, topic: str) -> list[float]:
    """Sorted milliseconds of questions for the offset of a time, spread over the last hour."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "lookups"})
    now_ms, took_ms = int(time.time() * 1000), []
    for number in range(LOOKUPS):
        asked = TopicPartition(topic, number % LOG_PARTITIONS, now_ms - 3_600_000 * number // LOOKUPS)
        began = time.perf_counter()
        consumer.offsets_for_times([asked], timeout=ANSWER_S_MAX)
        took_ms.append((time.perf_counter() - began) * 1000)
    consumer.close()
    return sorted(took_ms)


def _expire(broker: Broker, topic: str) -> None:
    """Let retention keep nothing but the active segments."""
    entry = ConfigEntry("retention.bytes", "1", incremental_operation=AlterConfigOpType.SET)
    asked = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.incremental_alter_configs([asked])[asked].result(ANSWER_S_MAX)


def _wait_for_retention(data: Path, deleted_below: int) -> None:
    """Wait until the files occupy less than this: deleted segments stay for a moment under another name."""
    deadline = time.monotonic() + ANSWER_S_MAX
    while disk_bytes(data) >= deleted_below:
        if time.monotonic() > deadline:
            raise ClientFailed(f"closed segments were still there after {ANSWER_S_MAX} s")
        time.sleep(0.05)


FAMILIES: dict[str, Callable[[Sizes], Iterator[Sample]]] = {
    "growth_partitions": partitions,
    "growth_connections": connections,
    "growth_logs": logs,
}
