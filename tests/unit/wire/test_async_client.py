"""The asynchronous wire client against a real broker, and against peers that misbehave."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from penstock.config.listeners import Address
from penstock.errors import ProtocolError
from penstock.protocol.messages.metadata import METADATA, MetadataRequest
from penstock.testing import Broker
from penstock.wire.async_client import connected


def address_of(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return Address(host, int(port))


async def test_questions_are_answered_in_their_order(penstock_broker: Broker) -> None:
    async with connected(address_of(penstock_broker.bootstrap), "test") as client:
        asked = [client.ask(METADATA, MetadataRequest(topics=None), 10) for _ in range(20)]
        answers = await asyncio.gather(*asked)
    assert {len(answer.brokers) for answer in answers} == {1}
    with pytest.raises(ConnectionError, match="the connection is closed"):
        await client.ask(METADATA, MetadataRequest(topics=None), 10)


@asynccontextmanager
async def peer(answer: bytes | None) -> AsyncIterator[Address]:
    """Somebody who says this and hangs up; None: who says nothing and waits."""
    has_ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1 if answer is None else 4)
        writer.write(answer or b"")
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
        has_ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield Address(*server.sockets[0].getsockname())
        await has_ended.wait()


async def test_a_silent_broker_is_given_up() -> None:
    async with peer(None) as address:
        with pytest.raises(TimeoutError):
            async with connected(address, "test", timeout_s=0.2):
                pass


@pytest.mark.parametrize(
    ("answer", "problem"),
    [(b"", ConnectionError), (b"\xff\xff\xff\xff", ProtocolError), (b"\0\0\0\4\0\0\0\x63", ProtocolError)],
)
async def test_who_waits_is_told_when_it_goes_wrong(answer: bytes, problem: type[Exception]) -> None:
    async with peer(answer) as address:
        with pytest.raises(problem):
            async with connected(address, "test", timeout_s=5):
                pass
