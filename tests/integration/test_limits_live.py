"""What one client does to a broker, seen by the others: nothing."""

import os
import socket
import struct
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.protocol.messages.api_versions import API_VERSIONS, ApiVersionsRequest
from penstock.protocol.messages.fetch import FETCH
from penstock.protocol.messages.metadata import METADATA, MetadataRequest, MetadataRequestTopic
from penstock.protocol.messages.produce import PRODUCE
from penstock.protocol.schema import Api, Struct
from penstock.testing import broker
from tests.integration.broker_process import BrokerProcess
from tests.integration.raw_client import (
    FETCH_VERSION,
    METADATA_VERSION,
    PRODUCE_VERSION,
    RawClient,
    batch_of,
    connected,
    fetch_request,
    produce_request,
)

PIPELINED = 200
GREEDY_FETCHES = 60
CONNECTIONS = 500
SMALL_REQUESTS = {"socket.request.max.bytes": 10_000, "message.max.bytes": 9_500}


def assert_serves(bootstrap: str, topic: str) -> None:
    """A newcomer is served as if nothing was the matter."""
    with connected(bootstrap) as client:
        client.create_topic(topic)
        assert client.produce(topic, batch_of(b"served")).error_code == 0
        assert client.fetch(topic, 0).responses[0].partitions[0].high_watermark > 0


def test_pipelined_requests_are_answered_in_order(bootstrap: str, topic: str) -> None:
    with connected(bootstrap) as client:
        client.create_topic(topic)
        named = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        sent: list[tuple[Api[Any, Any], int, int]] = []
        for number in range(PIPELINED):
            turn: list[tuple[Api[Any, Any], int, Struct]] = [
                (PRODUCE, PRODUCE_VERSION, produce_request(topic, batch_of(b"%d" % number))),
                (METADATA, METADATA_VERSION, named),
                (FETCH, FETCH_VERSION, fetch_request(topic, 0, max_wait_ms=10, min_bytes=10**8)),
            ]
            api, version, request = turn[number % len(turn)]
            sent.append((api, version, client.send(api, version, request)))

        answered = [client.receive(api, version) for api, version, _ in sent]

        assert [number for number, _ in answered] == [number for _, _, number in sent]
        offsets = [
            reply.responses[0].partition_responses[0].base_offset
            for (api, _, _), (_, reply) in zip(sent, answered, strict=True)
            if api is PRODUCE
        ]
        assert offsets == list(range(len(offsets))), "and written in order"


def test_acks_0_is_never_answered(bootstrap: str, topic: str) -> None:
    with connected(bootstrap) as client:
        client.create_topic(topic)
        for number in range(20):
            silent = produce_request(topic, batch_of(b"%d" % number), acks=0)
            client.send(PRODUCE, PRODUCE_VERSION, silent)

        # Were there an answer to any of them, it would come before this one.
        assert client.fetch(topic, 0).responses[0].partitions[0].error_code == 0
        assert client.produce(topic, batch_of(b"end")).base_offset == 20


def test_acks_0_that_cannot_be_written_closes_the_connection(bootstrap: str, topic: str) -> None:
    """The only way to tell a client that waits for no answer."""
    with connected(bootstrap) as client:
        broken = bytearray(batch_of(b"x"))
        broken[-1] ^= 1
        client.create_topic(topic)
        client.send(PRODUCE, PRODUCE_VERSION, produce_request(topic, bytes(broken), acks=0))

        assert client.is_closed_by_broker()


def test_a_client_that_takes_no_replies_is_paused_and_others_served(
    own_broker: BrokerProcess,
) -> None:
    with connected(own_broker.bootstrap) as greedy:
        greedy.create_topic("large")
        for _ in range(6):
            assert greedy.produce("large", batch_of(os.urandom(900_000))).error_code == 0
        before = resident_bytes(own_broker.pid)
        for _ in range(GREEDY_FETCHES):  # 300 MB of replies, if they were all made
            greedy.send(FETCH, FETCH_VERSION, fetch_request("large", 0))

        assert_serves(own_broker.bootstrap, "other")
        assert resident_bytes(own_broker.pid) - before < 100 * 2**20

        for _ in range(GREEDY_FETCHES):
            _, reply = greedy.receive(FETCH, FETCH_VERSION)
            assert reply.responses[0].partitions[0].high_watermark == 6


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("piece", [b"\x00", b"\x00\x00\x10\x00", b"\x00\x00\x10\x00\x00\x12\x00\x03abc"])
def test_half_a_request_and_then_silence_stops_nobody(bootstrap: str, topic: str, piece: bytes) -> None:
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(connected(bootstrap)).socket.sendall(piece)

        assert_serves(bootstrap, topic)


def test_a_request_that_comes_byte_by_byte_is_answered(bootstrap: str) -> None:
    with connected(bootstrap) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = struct.pack(">hhih", API_VERSIONS.key, 0, 77, -1)
        for byte in struct.pack(">i", len(body)) + body:
            client.socket.sendall(bytes([byte]))

        number, reply = client.receive(API_VERSIONS, 0)

        assert number == 77
        assert reply.error_code == 0


def test_five_hundred_connections_are_served(bootstrap: str, topic: str) -> None:
    with ExitStack() as stack:
        clients: list[RawClient] = [stack.enter_context(connected(bootstrap)) for _ in range(CONNECTIONS)]
        clients[0].create_topic(topic)
        for client in clients:
            client.send(PRODUCE, PRODUCE_VERSION, produce_request(topic, batch_of(b"one each")))
        replies = [client.receive(PRODUCE, PRODUCE_VERSION)[1] for client in clients]

    offsets = [reply.responses[0].partition_responses[0].base_offset for reply in replies]
    assert sorted(offsets) == list(range(CONNECTIONS))


def test_more_connections_than_allowed_are_closed_and_the_rest_goes_on() -> None:
    with broker(**{"max.connections": 3}) as running, ExitStack() as stack:
        clients = [stack.enter_context(connected(running.bootstrap)) for _ in range(3)]
        for client in clients:
            client.ask(API_VERSIONS, 0, ApiVersionsRequest())
        one_too_many = stack.enter_context(connected(running.bootstrap))

        assert one_too_many.is_closed_by_broker()
        for client in clients:
            assert client.ask(API_VERSIONS, 0, ApiVersionsRequest()).error_code == 0


def test_a_request_larger_than_allowed_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    with broker(**SMALL_REQUESTS) as running:
        with connected(running.bootstrap) as client:
            client.socket.sendall(struct.pack(">i", 10_001))
            assert client.is_closed_by_broker()
        with connected(running.bootstrap) as client:
            client.create_topic("fits")
            assert client.produce("fits", batch_of(bytes(9_000))).error_code == 0
    assert "10001" in caplog.text


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x08" + struct.pack(">hhi", 0, 99, 1),
        b"\x00\x00\x00\x0a" + struct.pack(">hhih", 32_000, 0, 1, -1),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32),
    ],
    ids=["http", "negative size", "empty", "short header", "unknown api", "tls hello"],
)
def test_what_is_no_request_closes_the_connection_and_nothing_else(
    bootstrap: str, topic: str, garbage: bytes
) -> None:
    with connected(bootstrap) as client:
        client.socket.sendall(garbage)
        assert client.is_closed_by_broker()

    assert_serves(bootstrap, topic)
