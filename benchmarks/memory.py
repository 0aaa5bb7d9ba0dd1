"""Memory of idle partitions and idle connections."""

import resource
import socket
import struct
import time
from collections.abc import Iterator

from benchmarks.brokers import Broker, fresh_broker
from benchmarks.clients import Job, connected_producer, in_another_process
from benchmarks.figures import Figure
from benchmarks.settings import Settings
from benchmarks.topics import new_topic

PARTITIONS = 1000
PARTITIONS_MB_MAX = 120.0
CONNECTIONS = 2000
DESCRIPTORS = CONNECTIONS + 500
SETTLE_S = 1.0
MB = 1_000_000

# ApiVersions version 0 without a client id: the first word of any client.
API_VERSIONS_FRAME = struct.pack(">ihhih", 10, 18, 0, 1, -1)


def measure(_: Settings) -> Iterator[Figure]:
    with fresh_broker() as broker:
        yield from _partitions(broker)
    with fresh_broker() as broker:
        yield from _connections(broker)


def _partitions(broker: Broker) -> Iterator[Figure]:
    before = broker.memory().resident
    with new_topic(broker.bootstrap, PARTITIONS, "before_ack") as topic:
        job = Job(broker.bootstrap, broker.pids, topic, PARTITIONS, 0, 0)
        in_another_process(write_once, job)
        time.sleep(SETTLE_S)
        resident = broker.memory().resident
        descriptors = broker.descriptors()
    name = f"{PARTITIONS:,} partitions, each written once"
    yield Figure(
        name=f"memory with {name}",
        unit="MB",
        samples=(resident / MB,),
        target=PARTITIONS_MB_MAX,
        limited_by=f"{(resident - before) / PARTITIONS / 1000:.1f} kB a partition over the idle broker",
    )
    yield Figure(name=f"open files with {name}", unit="", samples=(descriptors,))


def write_once(job: Job) -> None:
    connected_producer(job, {"linger.ms": 0})


def _connections(broker: Broker) -> Iterator[Figure]:
    before, files_before = broker.memory().resident, broker.descriptors()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    assert most >= DESCRIPTORS, f"this shell allows {most} open files; {DESCRIPTORS} are needed"
    host, _, port = broker.bootstrap.rpartition(":")
    sockets: list[socket.socket] = []
    try:
        for _ in range(CONNECTIONS):
            connection = socket.create_connection((host, int(port)), timeout=30)
            sockets.append(connection)
            connection.sendall(API_VERSIONS_FRAME)
            assert connection.recv(65536), "the broker closed the connection"
        time.sleep(SETTLE_S)
        resident, files = broker.memory().resident, broker.descriptors()
    finally:
        for connection in sockets:
            connection.close()
    yield Figure(
        name=f"memory with {CONNECTIONS:,} idle connections",
        unit="MB",
        samples=(resident / MB,),
        limited_by=f"{(resident - before) / CONNECTIONS / 1000:.1f} kB a connection over the idle broker",
    )
    yield Figure(
        name=f"open files for {CONNECTIONS:,} idle connections", unit="", samples=(files - files_before,)
    )
