"""The list of connections: how many there may be, and how much is said about those refused."""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from penstock.broker.network.connection import ConnectionResources
from penstock.broker.network.server import SERVER_LIMITS, Server, ServerLimits
from penstock.broker.quotas import NoQuotas
from penstock.broker.router import Router
from penstock.config.sources import load
from penstock.errors import ConfigError
from penstock.host.tasks import Tasks
from penstock.limits import REJECTIONS_LOGGED_PER_SECOND_MAX
from penstock.metadata.cluster_image import ClusterImage
from penstock.security.access import AllowEverything
from tests.unit.broker.waiting import until

NONSENSE = b"\xff\xff\xff\xff"


class Lines:
    def __init__(self) -> None:
        self.said: list[tuple[str, Mapping[str, object]]] = []

    def info(self, event: str, **fields: object) -> None:
        self.said.append((event, fields))

    warning = error = info


class Serving:
    def __init__(self, server: Server, lines: Lines, address: tuple[str, int]) -> None:
        self.server = server
        self.lines = lines
        self._address = address

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self._address)

    async def until_there_are(self, count: int) -> None:
        await until(lambda: self.server.connection_count == count, seconds_max=5)


@asynccontextmanager
async def serving(
    *settings: str, host: str | None = None, limits: ServerLimits = SERVER_LIMITS
) -> AsyncIterator[Serving]:
    config = load({"data_dir": "unused"}, ["listeners=PLAINTEXT://127.0.0.1:0", *settings])
    image = ClusterImage(cluster_id="c")
    router = Router((), AllowEverything(), NoQuotas(), lambda: image)
    failures: list[str] = []
    tasks = Tasks(lambda name, failure: failures.append(name))
    shared = ConnectionResources(
        router, tasks, bytearray(4096), 1000, 100_000, lambda name, bug: failures.append(name)
    )
    lines = Lines()
    server = Server(shared, config.network, AllowEverything(), lines, limits)
    (listener,) = config.listeners
    bound = await server.bind(listener._replace(host=host or listener.host), None)
    tasks.start(server.sweep(), "sweep")
    await server.serve()
    try:
        yield Serving(server, lines, (bound.host, bound.port))
    finally:
        server.stop_listening()
        await server.stop()
        await tasks.stop()
        assert failures == []


async def closed(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(5):
        try:
            return await reader.read() == b""
        except ConnectionResetError:
            return True


@pytest.mark.parametrize("setting", ["max.connections=2", "max.connections.per.ip=2"])
async def test_more_connections_than_allowed_are_closed_and_their_place_is_given_back(setting: str) -> None:
    async with serving(setting) as world:
        first, second = await world.connect(), await world.connect()
        await world.until_there_are(2)
        third = await world.connect()
        assert await closed(third[0])
        await world.until_there_are(2)
        first[1].close()
        await world.until_there_are(1)
        fourth = await world.connect()
        await world.until_there_are(2)
        for _, writer in (second, third, fourth):
            writer.close()
        reasons = [
            str(fields["reason"]) for event, fields in world.lines.said if event == "connection.rejected"
        ]
        assert len(reasons) == 1
        assert setting.partition("=")[0] in reasons[0]


@pytest.mark.parametrize("setting", ["max.connections=2", "max.connections.per.ip=2"])
async def test_each_connection_beyond_a_limit_is_counted(setting: str) -> None:
    async with serving(setting) as world:
        allowed = [await world.connect() for _ in range(2)]
        await world.until_there_are(2)
        for _ in range(3):
            reader, writer = await world.connect()
            assert await closed(reader)
            writer.close()
        for _, writer in allowed:
            writer.close()
        assert world.server.connections_rejected == 3


async def test_a_connection_that_sends_nonsense_is_not_one_too_many() -> None:
    async with serving("max.connections=2") as world:
        reader, writer = await world.connect()
        writer.write(NONSENSE)
        assert await closed(reader)
        writer.close()
        await world.until_there_are(0)
        assert world.server.connections_rejected == 0


async def test_a_flood_of_nonsense_is_said_a_few_times_and_then_counted() -> None:
    flood = 5 * REJECTIONS_LOGGED_PER_SECOND_MAX
    async with serving(limits=ServerLimits(connection_sweep_ms=400)) as world:
        clients = [await world.connect() for _ in range(flood)]
        for reader, writer in clients:
            writer.write(NONSENSE)
            assert await closed(reader)
            writer.close()
        lines = world.lines.said
        await until(lambda: any(event == "connection.rejected_more" for event, _ in lines), seconds_max=5)
        said = [event for event, _ in world.lines.said]
        counted = [
            int(str(fields["count"]))
            for event, fields in world.lines.said
            if event == "connection.rejected_more"
        ]
        assert said.count("connection.rejected") <= 2 * REJECTIONS_LOGGED_PER_SECOND_MAX
        assert said.count("connection.rejected") + sum(counted) <= flood


async def test_a_taken_port_is_a_problem_of_the_configuration() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            async with serving(f"listeners=PLAINTEXT://127.0.0.1:{port}"):
                pass


async def test_a_host_that_nobody_knows_is_named_as_such() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on no\.such\.invalid:0 .*: no such host\. Choose"):
        async with serving(host="no.such.invalid"):
            pass


async def test_a_stop_waits_for_who_takes_its_answers_and_ends_who_does_not() -> None:
    async with serving(limits=ServerLimits(last_replies_ms_max=200)) as served:
        (reader, writer), (_, deaf) = await served.connect(), await served.connect()
        await served.until_there_are(2)
        answer = bytes(20_000_000)
        for connection in served.server.connections:
            connection._transport.write(answer)
        reading = asyncio.ensure_future(reader.read(-1))
        served.server.stop_listening()
        await served.server.stop()
        assert served.server.connection_count == 0
        assert await reading == answer
        for each in (writer, deaf):
            each.close()
