"""Many who begin and do not go on, so that memory runs short. An honest client goes on being served."""

import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from penstock.broker.broker import BrokerLimits
from penstock.broker.network.connection import ConnectionLimits
from penstock.broker.network.memory_budget import MemoryLimits
from penstock.protocol.frames import encode_request
from penstock.protocol.messages.fetch import FETCH
from penstock.testing.in_process import broker_with
from tests.integration.broker_process import BrokerProcess
from tests.integration.hostile import hostile_socket, peak_memory_mib, unharmed
from tests.integration.raw_client import FETCH_VERSION, RawClient, batch_of, connected, fetch_request

KIB = 1024
CONNECTIONS = 2_000
PEAK_MIB_MAX = 512
WAITING_PER_CONNECTION = 120
ANSWER_SECONDS_MAX = 20.0
LARGE_VALUE = bytes(900 * KIB)
INT_MAX = 2**31 - 1


class Siege:
    """Many connections that send the same and wait; who is thrown out comes again."""

    def __init__(self, bootstrap: str, data: bytes, connections: int) -> None:
        self._bootstrap = bootstrap
        self._data = data
        self._sockets: list[socket.socket] = [self._besiege() for _ in range(connections)]
        self.thrown_out = 0

    def _besiege(self) -> socket.socket:
        attacker = hostile_socket(self._bootstrap)
        attacker.setblocking(False)
        with suppress(BlockingIOError, ConnectionError):
            attacker.send(self._data)
        return attacker

    def renew(self, wait_ms: int = 0) -> None:
        numbers = {attacker.fileno(): number for number, attacker in enumerate(self._sockets)}
        poll = select.poll()
        for descriptor in numbers:
            poll.register(descriptor, select.POLLRDHUP)
        for descriptor, _ in poll.poll(wait_ms):
            number = numbers[descriptor]
            self._sockets[number].close()
            self._sockets[number] = self._besiege()
            self.thrown_out += 1

    def lift(self) -> None:
        for attacker in self._sockets:
            attacker.close()


@contextmanager
def besieged(bootstrap: str, data: bytes, connections: int = CONNECTIONS) -> Iterator[Siege]:
    siege = Siege(bootstrap, data, connections)
    try:
        yield siege
    finally:
        siege.lift()


def begun(announced_bytes: int, sent_bytes: int) -> bytes:
    return struct.pack(">i", announced_bytes) + bytes(sent_bytes)


def assert_is_served(client: RawClient, siege: Siege, times: int) -> None:
    """With requests that come in many pieces, and so need memory that others hold."""
    client.socket.settimeout(ANSWER_SECONDS_MAX)
    for _ in range(times):
        assert client.produce("honest", batch_of(LARGE_VALUE)).error_code == 0
        siege.renew()


@pytest.mark.parametrize(
    ("announced_bytes", "sent_bytes"),
    [(2_000, 100), (1024 * KIB, 8), (1024 * KIB, 150 * KIB)],
    ids=["small", "hardly begun", "begun"],
)
def test_two_thousand_unfinished_requests_keep_nobody_out(
    own_broker: BrokerProcess, topic: str, announced_bytes: int, sent_bytes: int
) -> None:
    with unharmed(own_broker, topic) as honest, connected(own_broker.bootstrap) as client:
        client.create_topic("honest")
        with besieged(own_broker.bootstrap, begun(announced_bytes, sent_bytes)) as siege:
            assert_is_served(client, siege, 2)
            honest.writes()
        assert peak_memory_mib(own_broker.pid) < PEAK_MIB_MAX


def test_fetches_that_wait_by_the_thousand_keep_nobody_out() -> None:
    memory = MemoryLimits(decoded_bytes_max=2 * 1024 * KIB)
    limits = BrokerLimits(connection=ConnectionLimits(memory=memory))
    asked = fetch_request("honest", 0, max_wait_ms=INT_MAX, min_bytes=INT_MAX)
    frame = b"".join(encode_request(FETCH, FETCH_VERSION, 1, "x", asked))
    with broker_with(limits=limits) as running, connected(running.bootstrap) as client:
        client.create_topic("honest")
        with besieged(running.bootstrap, frame * WAITING_PER_CONNECTION, connections=20) as siege:
            assert_is_served(client, siege, 2)
            ends_at = time.monotonic() + ANSWER_SECONDS_MAX
            while not siege.thrown_out:
                assert time.monotonic() < ends_at, "they keep the memory for ever"
                siege.renew(wait_ms=100)
