"""Hostile frames against a running broker: sizes that lie, floods, stalls. Others notice nothing."""

import select
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from penstock.broker.broker import BrokerLimits
from penstock.broker.network.connection import ConnectionLimits
from penstock.broker.network.server import ServerLimits
from penstock.protocol.frames import encode_request
from penstock.protocol.messages.api_versions import API_VERSIONS, ApiVersionsRequest
from penstock.protocol.messages.create_topics import CREATE_TOPICS, CreatableTopic, CreateTopicsRequest
from penstock.protocol.messages.fetch import FETCH, FetchPartition, FetchRequest, FetchTopic
from penstock.protocol.messages.produce import PRODUCE
from penstock.testing.in_process import broker_with
from tests.integration.broker_process import BrokerProcess, eventually, serving
from tests.integration.hostile import hostile_socket, peak_memory_mib, processor_seconds, unharmed
from tests.integration.raw_client import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    RawClient,
    batch_of,
    connected,
    fetch_request,
    produce_request,
    records_of,
)

MIB = 1024 * 1024
PEAK_MIB_MAX = 512
CONNECTIONS = 2_000
PIPELINED = 100_000
INT_MAX = 2**31 - 1
API_VERSIONS_0 = b"".join(encode_request(API_VERSIONS, 0, 7, None, ApiVersionsRequest()))
FETCH_12 = b"".join(encode_request(FETCH, FETCH_VERSION, 1, "x", fetch_request("t", 0)))


def size(count: int) -> bytes:
    return struct.pack(">i", count)


@pytest.fixture(scope="module")
def hostile_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with serving(tmp_path_factory.mktemp("hostile") / "data") as broker:
        yield broker


REFUSED = {
    "negative size": size(-1) + bytes(20),
    "smallest size": size(-(2**31)) + bytes(20),
    "size 0": size(0) + bytes(20),
    "too small for a header": size(7) + bytes(20),
    "beyond the limit": size(100 * MIB + 1) + bytes(20),
    "largest size": size(INT_MAX) + bytes(20),
    "unknown key": size(10) + struct.pack(">hhih", 999, 0, 1, -1),
    "negative key": size(10) + struct.pack(">hhih", -1, 0, 1, -1),
    "unknown version": size(10) + struct.pack(">hhih", 1, 99, 1, -1),
    "negative version": size(10) + struct.pack(">hhih", 1, -1, 1, -1),
    "client id beyond the frame": size(10) + struct.pack(">hhih", 18, 0, 1, 30_000),
    "client id of length -2": size(10) + struct.pack(">hhih", 18, 0, 1, -2),
    "client id that is no text": size(12) + struct.pack(">hhih", 18, 0, 1, 2) + b"\xff\xfe",
    "body cut short": size(len(FETCH_12) - 14) + FETCH_12[4:-10],
    "tags beyond the frame": size(11) + struct.pack(">hhih", 18, 3, 1, -1) + b"\x7f",
    "array beyond the frame": size(16) + struct.pack(">hhihi", 3, 1, 1, -1, INT_MAX) + bytes(2),
    "array of negative length": size(16) + struct.pack(">hhihi", 3, 1, 1, -1, -2) + bytes(2),
    "varint without an end": size(30) + struct.pack(">hhih", 3, 12, 1, -1) + b"\xff" * 20,
    "noise": b"\x00\x00\x04\x00" + bytes(range(256)) * 4,
    "another protocol": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED)
def test_what_is_no_request_costs_only_the_connection_it_came_on(
    hostile_broker: BrokerProcess, topic: str, data: bytes
) -> None:
    with unharmed(hostile_broker, topic) as honest:
        with hostile_socket(hostile_broker.bootstrap) as attacker:
            attacker.sendall(data)
            assert RawClient(attacker).is_closed_by_broker()
        honest.writes()


def test_repeated_correlation_ids_are_each_answered(hostile_broker: BrokerProcess, topic: str) -> None:
    with unharmed(hostile_broker, topic), connected(hostile_broker.bootstrap) as client:
        client.socket.sendall(API_VERSIONS_0 * 50)
        assert [client.receive(API_VERSIONS, 0)[0] for _ in range(50)] == [7] * 50


def test_a_hundred_thousand_pipelined_requests_are_answered_or_wait(
    hostile_broker: BrokerProcess, topic: str
) -> None:
    with unharmed(hostile_broker, topic) as honest, hostile_socket(hostile_broker.bootstrap) as flood:
        flood.setblocking(False)
        unsent, replies = memoryview(API_VERSIONS_0 * PIPELINED), 0
        reply_bytes = None
        while reply_bytes is None or replies < reply_bytes * PIPELINED:
            readable, writable, _ = select.select([flood], [flood] if unsent else [], [], 10)
            assert readable or writable, "neither answers nor takes anything"
            if writable:
                unsent = unsent[flood.send(unsent[: 256 * 1024]) :]
            if readable:
                data = flood.recv(MIB)
                assert data, "the broker closed the connection"
                reply_bytes = reply_bytes or 4 + int.from_bytes(data[:4], "big")
                replies += len(data)
        honest.writes()


def test_two_thousand_half_requests_do_not_take_the_memory(own_broker: BrokerProcess, topic: str) -> None:
    pieces = [
        size(100 * MIB) + bytes(1000),
        size(2 * MIB) + bytes(30_000),
        size(500) + bytes(100),
        size(500)[:2],
    ]
    with unharmed(own_broker, topic) as honest, ExitStack() as stack:
        client = stack.enter_context(connected(own_broker.bootstrap))
        for number in range(CONNECTIONS):
            attacker = stack.enter_context(hostile_socket(own_broker.bootstrap))
            attacker.sendall(pieces[number % len(pieces)])
            if number % 500 == 0:
                honest.writes()
        honest.writes()
        assert peak_memory_mib(own_broker.pid) < PEAK_MIB_MAX
        end = client.fetch(topic, 0).responses[0].partitions[0].high_watermark
        used = processor_seconds(own_broker.pid)
        # The broker itself says when half a second is over, in which nobody asked it for anything.
        quiet = fetch_request(topic, end, max_wait_ms=500, min_bytes=1)
        assert records_of(client.ask(FETCH, FETCH_VERSION, quiet)) == b""
        assert processor_seconds(own_broker.pid) - used < 0.15, "waiting for memory keeps the broker busy"


def test_announcing_the_largest_requests_does_not_take_the_memory(
    own_broker: BrokerProcess, topic: str
) -> None:
    with unharmed(own_broker, topic) as honest, ExitStack() as stack:
        begun = size(100 * MIB) + bytes(30 * MIB)
        for _ in range(10):
            attacker = stack.enter_context(hostile_socket(own_broker.bootstrap))
            attacker.setblocking(False)
            with pytest.raises(BlockingIOError):
                attacker.sendall(begun)
        honest.writes()
        assert peak_memory_mib(own_broker.pid) < PEAK_MIB_MAX


def fill(client: RawClient, topic: str, partitions: int, mebibytes: int) -> None:
    """A mebibyte after another, around all the partitions."""
    wanted = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)
    reply = client.ask(CREATE_TOPICS, 5, CreateTopicsRequest(timeout_ms=10_000, topics=[wanted]))
    assert reply.topics[0].error_code == 0
    batch = batch_of(bytes(MIB - 500))
    for number in range(mebibytes):
        request = produce_request(topic, batch, partition=number % partitions)
        client.send(PRODUCE, PRODUCE_VERSION, request)
    for _ in range(mebibytes):
        _, answer = client.receive(PRODUCE, PRODUCE_VERSION)
        assert answer.responses[0].partition_responses[0].error_code == 0


def everything_of(topic: str, partitions: int, wait_ms: int = 0, min_bytes: int = 0) -> FetchRequest:
    asked = [
        FetchPartition(partition=number, partition_max_bytes=INT_MAX if partitions == 1 else MIB)
        for number in range(partitions)
    ]
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=INT_MAX,
        session_epoch=-1,
        topics=[FetchTopic(topic=topic, partitions=asked)],
    )


def test_large_fetches_do_not_take_the_memory_however_they_are_asked_for(
    own_broker: BrokerProcess, topic: str
) -> None:
    with unharmed(own_broker, topic) as honest, ExitStack() as stack:
        clients = [stack.enter_context(connected(own_broker.bootstrap)) for _ in range(8)]
        fill(clients[0], "wide", 60, 60)
        fill(clients[0], "deep", 1, 20)
        reply = clients[0].ask(FETCH, FETCH_VERSION, everything_of("wide", 10_000))
        sent = [len(part.records or b"") for part in reply.responses[0].partitions]
        assert len(sent) == 10_000
        assert 50 * MIB < sum(sent) <= 55 * MIB
        for client in clients[1:4]:  # never read, and asked for again and again
            for _ in range(20):
                client.send(FETCH, FETCH_VERSION, everything_of("deep", 1))
        patient = clients[4]  # finished replies behind one that takes its time
        patient.send(FETCH, FETCH_VERSION, fetch_request(topic, 1, max_wait_ms=60_000, min_bytes=INT_MAX))
        for _ in range(40):
            patient.send(FETCH, FETCH_VERSION, everything_of("deep", 1))
        honest.writes()
        assert peak_memory_mib(own_broker.pid) < PEAK_MIB_MAX


def test_fetches_that_wait_for_more_than_there_is_do_not_slow_appends(
    own_broker: BrokerProcess, topic: str
) -> None:
    with unharmed(own_broker, topic), ExitStack() as stack:
        client, waiting = (stack.enter_context(connected(own_broker.bootstrap)) for _ in range(2))
        fill(client, "deep", 1, 16)
        for _ in range(50):
            waiting.send(FETCH, FETCH_VERSION, everything_of("deep", 1, 60_000, 40 * MIB))
        client.fetch(topic, 0)  # behind them
        used = processor_seconds(own_broker.pid)
        for _ in range(20):
            assert client.produce("deep", batch_of(b"small")).error_code == 0
        assert processor_seconds(own_broker.pid) - used < 1.0, "each append was answered by reading it all"


# Those who stall: the times of a broker in this process are shortened


@pytest.fixture
def impatient() -> Iterator[str]:
    limits = BrokerLimits(
        connection=ConnectionLimits(frame_completion_ms_max=300, slow_reader_ms_max=300),
        server=ServerLimits(connection_sweep_ms=50),
    )
    with broker_with(limits=limits) as running:
        yield running.bootstrap


def test_a_trickling_request_is_cut_off_and_a_silent_client_is_not(impatient: str) -> None:
    with connected(impatient) as trickling, connected(impatient) as silent:
        trickling.socket.sendall(API_VERSIONS_0[:5])
        assert trickling.is_closed_by_broker()
        assert silent.ask(API_VERSIONS, 0, ApiVersionsRequest()).error_code == 0


def test_a_client_that_does_not_read_is_cut_off_and_others_are_served(impatient: str) -> None:
    with connected(impatient) as client, hostile_socket(impatient) as deaf:
        fill(client, "deep", 1, 20)
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        asked = b"".join(encode_request(FETCH, FETCH_VERSION, 1, "x", everything_of("deep", 1)))
        deaf.sendall(asked * 3)

        def cut_off() -> bool:
            assert client.ask(API_VERSIONS, 0, ApiVersionsRequest()).error_code == 0
            try:
                deaf.send(asked)
            except OSError:
                return True
            return False

        eventually(cut_off, every=0.05)
