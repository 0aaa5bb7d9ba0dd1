"""Simulated connections behave as sockets do: in order, late, stalled, refused, reset."""

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest

from penstock.sim.network import NetworkConditions, NetworkLoop, SimNetwork, SimTransport
from penstock.sim.processes import SimProcess

PORT = 9092


class Recorder(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = b""
        self.lost: list[Exception | None] = []
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class Echo(Recorder):
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.transport.write(data)


class Small(asyncio.BufferedProtocol):
    """Takes seven bytes at a time, and rests after each."""

    def __init__(self) -> None:
        self.buffer = bytearray(7)
        self.received = b""
        self.transport: Any = None
        self.is_resting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        assert not self.is_resting, "it was given bytes although it had asked for none"
        self.received += self.buffer[:nbytes]
        self.is_resting = True
        self.transport.pause_reading()
        asyncio.get_running_loop().call_later(0.001, self.go_on)

    def go_on(self) -> None:
        self.is_resting = False
        self.transport.resume_reading()


class Two:
    """A server and a client, on hosts a and b."""

    def __init__(self, *, slow_share: float = 0.2) -> None:
        self.loop = NetworkLoop(Random(1))
        self.network = SimNetwork(self.loop, Random(2), NetworkConditions(slow_share=slow_share, slow_s=0.5))
        self.loop.network = self.network
        self.a, self.b = SimProcess("a"), SimProcess("b")
        self.served: list[Any] = []

    def run(self, test: Coroutine[Any, Any, None]) -> None:
        asyncio.set_event_loop(None)
        try:
            self.loop.run_until_complete(test)
        finally:
            self.loop.close()

    async def serve(self, kind: type[Any] = Echo) -> None:
        def made() -> Any:
            self.served.append(kind())
            return self.served[-1]

        async def listen() -> None:
            server = await self.loop.create_server(made, "a", PORT)
            await server.start_serving()

        await self.a.run(self.loop.create_task, listen())

    async def connect(self) -> tuple[SimTransport, Recorder]:
        connecting = self.b.run(self.loop.create_task, self.loop.create_connection(Recorder, "a", PORT))
        transport, protocol = await connecting
        return transport, protocol


def test_bytes_arrive_in_order_however_late() -> None:
    two = Two()

    async def test() -> None:
        await two.serve()
        transport, client = await two.connect()
        sent = b"".join(b"%05d" % number for number in range(200))
        for start in range(0, len(sent), 10):
            transport.write(sent[start : start + 10])
        await asyncio.sleep(20)
        assert two.served[0].received == sent
        assert client.received == sent

    two.run(test())


def test_what_is_lost_arrives_later_and_in_its_place() -> None:
    two = Two(slow_share=0.0)

    async def test() -> None:
        await two.serve()
        transport, client = await two.connect()
        two.network.conditions = NetworkConditions(lost_share=0.5)
        began, sent = two.loop.now, b"".join(b"%05d" % number for number in range(20))
        for start in range(0, len(sent), 5):
            transport.write(sent[start : start + 5])
        await asyncio.sleep(0.1)
        assert client.received != sent, "nothing was lost"
        while client.received != sent and two.loop.now < began + 60:
            assert sent.startswith(client.received)
            await asyncio.sleep(0.1)
        assert client.received == sent

    two.run(test())


def test_a_reader_that_rests_is_given_nothing() -> None:
    two = Two()

    async def test() -> None:
        await two.serve(Small)
        transport, _ = await two.connect()
        transport.write(bytes(range(200)))
        await asyncio.sleep(5)
        assert two.served[0].received == bytes(range(200))

    two.run(test())


def test_nobody_listening_is_a_refusal() -> None:
    two = Two()

    async def test() -> None:
        with pytest.raises(ConnectionRefusedError, match="nothing listens on a:9092"):
            await two.connect()

    two.run(test())


def test_what_is_sent_into_a_cut_arrives_when_it_is_healed() -> None:
    two = Two()

    async def test() -> None:
        await two.serve()
        transport, client = await two.connect()
        two.network.cut("a", "b")
        transport.write(b"hello")
        await asyncio.sleep(30)
        assert two.served[0].received == b"hello"
        assert client.received == b""
        assert client.lost == []
        two.network.heal()
        await asyncio.sleep(1)
        assert client.received == b"hello"

    two.run(test())


def test_connecting_into_a_cut_takes_until_it_is_healed() -> None:
    two = Two()

    async def test() -> None:
        await two.serve()
        two.network.cut("b", "a")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(two.connect(), 10)
        two.network.heal()
        await asyncio.wait_for(two.connect(), 10)

    two.run(test())


def test_both_ends_hear_of_a_reset() -> None:
    two = Two()

    async def test() -> None:
        await two.serve()
        transport, client = await two.connect()
        transport.write(b"lost")
        two.network.reset()
        await asyncio.sleep(1)
        assert [type(reason) for reason in client.lost] == [ConnectionResetError]
        assert [type(reason) for reason in two.served[0].lost] == [ConnectionResetError]
        transport.write(b"nobody hears this")

    two.run(test())


def test_a_closed_connection_delivers_what_was_written() -> None:
    two = Two()

    async def test() -> None:
        await two.serve()
        transport, client = await two.connect()
        transport.write(b"goodbye")
        transport.close()
        await asyncio.sleep(3)
        assert two.served[0].received == b"goodbye"
        assert client.lost == [None]
        assert two.served[0].lost == [None]

    two.run(test())


def test_a_paused_process_gets_everything_late() -> None:
    two = Two(slow_share=0.0)

    async def test() -> None:
        await two.serve()
        transport, client = await two.connect()
        two.loop.pause(two.a)
        transport.write(b"one")
        transport.write(b"two")
        await asyncio.sleep(10)
        assert two.served[0].received == b""
        assert client.received == b""
        two.loop.go_on(two.a)
        await asyncio.sleep(1)
        assert client.received == b"onetwo"

    two.run(test())


def test_the_machine_of_a_killed_process_resets_and_refuses() -> None:
    two = Two()

    async def test() -> None:
        await two.serve()
        _, client = await two.connect()
        two.a.is_dead = True
        two.network.kill(two.a)
        await asyncio.sleep(2)
        assert [type(reason) for reason in client.lost] == [ConnectionResetError]
        assert two.served[0].lost == []
        with pytest.raises(ConnectionRefusedError):
            await two.connect()

    two.run(test())
