"""A connection with a transport that does what the test says: reading, waiting, stalling, ending."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.apis.metadata import Metadata
from penstock.broker.context import RequestContext
from penstock.broker.network.connection import Connection, ConnectionLimits, ConnectionResources
from penstock.broker.network.memory_budget import MEMORY_LIMITS, MemoryLimits
from penstock.broker.quotas import NoQuotas
from penstock.broker.router import DeferredReply, NoReply, Route, Router
from penstock.errors import ProtocolError
from penstock.host.tasks import Tasks
from penstock.limits import (
    CONNECTION_REQUESTS_IN_FLIGHT_MAX,
    FRAME_COMPLETION_MS_MAX,
    FRAME_FIRST_BYTES,
    REPLY_BYTES_PAUSE_AT,
    SLOW_READER_MS_MAX,
)
from penstock.metadata.cluster_image import ClusterImage
from penstock.protocol.frames import decode_response, encode_request
from penstock.protocol.messages.api_versions import API_VERSIONS, ApiVersionsRequest
from penstock.protocol.messages.metadata import (
    METADATA,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from penstock.security.access import ANONYMOUS, AllowEverything
from penstock.types import NO_TOPIC_ID

VERSION = 12
SHARED_BYTES = 4096
REQUEST_BYTES_MAX = 8 * 1024 * 1024
IN_FLIGHT_BYTES_MAX = 4 * FRAME_FIRST_BYTES
POISON = b"\xaa" * SHARED_BYTES
NO_IDLE_LIMIT = -1
TURNS_MAX = 5_000


class FakeTransport:
    """Sends nothing until told to, and says how much it holds."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.unsent = 0
        self.takes_everything = True
        self.reading = True
        self.ending: str | None = None

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        assert low < high

    def get_extra_info(self, name: str) -> None:
        return None

    def write(self, data: bytes) -> None:
        self.sent += data
        if not self.takes_everything:
            self.unsent += len(data)

    def writelines(self, buffers: list[bytes]) -> None:
        for buffer in buffers:
            self.write(buffer)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.ending is not None

    def close(self) -> None:
        self.ending = self.ending or "closed"

    def abort(self) -> None:
        self.ending = "aborted"


class Client:
    """One connection, fed by hand. The shared buffer is spoilt after every read."""

    def __init__(self, world: "Wiring") -> None:
        self.transport = FakeTransport()
        self.complaints: list[str | None] = []
        self.connection = Connection(
            world.shared,
            lambda transport: RequestContext(ANONYMOUS, "PLAINTEXT", "peer", AllowEverything()),
            lambda connection: True,
            lambda connection, close_reason: self.complaints.append(close_reason),
        )
        self.connection.connection_made(cast(asyncio.Transport, self.transport))
        self._shared_buffer = world.buffer

    def receives(self, data: bytes) -> int:
        """As much as the connection reads before it stops or is closed. Returns how much that was."""
        taken = 0
        while taken < len(data) and self.transport.reading and self.transport.ending is None:
            buffer = self.connection.get_buffer(-1)
            count = min(len(buffer), len(data) - taken)
            buffer[:count] = data[taken : taken + count]
            del buffer
            self.connection.buffer_updated(count)
            self._shared_buffer[:] = POISON
            taken += count
        return taken

    def leaves(self) -> None:
        self.connection.connection_lost(None)

    def replies(self) -> list[tuple[int, MetadataResponse]]:
        found, data = [], bytes(self.transport.sent)
        while data:
            end = 4 + int.from_bytes(data[:4], "big")
            found.append(decode_response(METADATA, VERSION, data[4:end]))
            data = data[end:]
        return found


class Wiring:
    """What connections share, and a handler that the test finishes."""

    def __init__(
        self, *, in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX, memory: MemoryLimits = MEMORY_LIMITS
    ) -> None:
        self.buffer = bytearray(SHARED_BYTES)
        self.bugs: list[str] = []
        self.waiting: dict[str, DeferredReply] = {}
        self.abandoned: list[str] = []
        self.reply_of: Callable[[str], MetadataResponse] = echo
        router = Router(
            [Route(Metadata.api, self.answer)],
            AllowEverything(),
            NoQuotas(),
            lambda: ClusterImage(cluster_id="c"),
        )
        self.shared = ConnectionResources(
            router,
            Tasks(lambda name, failure: self.bugs.append(f"{name}: {failure!r}")),
            self.buffer,
            REQUEST_BYTES_MAX,
            in_flight_bytes_max,
            lambda name, failure: self.bugs.append(f"{name}: {failure!r}"),
            ConnectionLimits(memory=memory),
        )

    def answer(self, request: MetadataRequest, context: RequestContext) -> Any:
        """By the name of the first topic: at once, later, never, or with a mistake of ours."""
        topics = request.topics
        assert topics is not None
        name = topics[0].name or ""
        if name.startswith("later"):
            self.waiting[name] = DeferredReply(lambda: self.abandoned.append(name))
            return self.waiting[name]
        if name.startswith("bug"):
            raise KeyError("a mistake of ours")
        if name.startswith("wait"):
            return self._slowly(name)
        return self.reply_of(name)

    async def _slowly(self, name: str) -> MetadataResponse:
        await asyncio.sleep(0)
        return self.reply_of(name)

    def finish(self, name: str) -> None:
        self.waiting.pop(name).finish(self.reply_of(name))


def echo(name: str) -> MetadataResponse:
    return MetadataResponse(topics=[MetadataResponseTopic(name=name, topic_id=NO_TOPIC_ID)])


def large(name: str) -> MetadataResponse:
    return MetadataResponse(cluster_id="x" * 30_000, topics=[MetadataResponseTopic(name=name)])


def ask(name: str, correlation_id: int = 1) -> bytes:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
    return b"".join(encode_request(METADATA, VERSION, correlation_id, "tests", request))


def names(replies: list[tuple[int, MetadataResponse]]) -> list[str | None]:
    return [reply.topics[0].name for _, reply in replies]


async def turn() -> None:
    """Let what was put off to the next turn of the loop happen."""
    for _ in range(3):
        await asyncio.sleep(0)


# Order, and whose memory it is


@given(
    kinds=st.lists(st.sampled_from(["now", "later", "wait", "large"]), min_size=1, max_size=12),
    cuts=st.lists(st.integers(30, 3000), min_size=1, max_size=8),
    order=st.randoms(use_true_random=False),
)
@settings(max_examples=80, deadline=None)
def test_replies_keep_the_order_of_requests_however_bytes_and_replies_arrive(
    kinds: list[str], cuts: list[int], order: Any
) -> None:
    async def play() -> None:
        world = Wiring()
        client = Client(world)
        wanted = [
            f"{kind}-{number}" + "x" * (6000 if kind == "large" else 0) for number, kind in enumerate(kinds)
        ]
        stream = b"".join(ask(name, number) for number, name in enumerate(wanted))
        position = number = 0
        while len(client.replies()) < len(wanted):
            assert number < TURNS_MAX, "the connection stands still"
            size = cuts[number % len(cuts)]
            position += client.receives(stream[position : position + size])
            number += 1
            if world.waiting and (position >= len(stream) or order.random() < 0.3):
                world.finish(order.choice(sorted(world.waiting)))
            await turn()
        assert [correlation_id for correlation_id, _ in client.replies()] == list(range(len(wanted)))
        assert names(client.replies()) == wanted
        assert world.bugs == []
        client.leaves()

    asyncio.run(play())


async def test_replies_behind_an_unfinished_one_are_counted_and_stop_the_reading() -> None:
    world = Wiring()
    world.reply_of = large
    client = Client(world)
    client.receives(ask("later"))
    accepted = 0
    while client.transport.reading and accepted < CONNECTION_REQUESTS_IN_FLIGHT_MAX - 2:
        client.receives(ask(f"now-{accepted}"))
        accepted += 1
    assert not client.transport.reading
    assert REPLY_BYTES_PAUSE_AT <= world.shared.reply_bytes_queued < REPLY_BYTES_PAUSE_AT + 40_000
    world.finish("later")
    await turn()
    assert client.transport.reading
    assert world.shared.reply_bytes_queued == 0
    assert len(client.replies()) == accepted + 1


async def test_small_replies_that_the_client_does_not_read_count_when_the_read_ends() -> None:
    world = Wiring()
    client = Client(world)
    client.transport.takes_everything = False
    client.receives(ask("now-1") + ask("now-2"))
    assert client.transport.unsent > 0
    assert world.shared.reply_bytes_queued == client.transport.unsent


async def test_a_request_without_an_answer_keeps_its_place_and_sends_nothing() -> None:
    world = Wiring()
    client = Client(world)
    client.receives(ask("later-silent") + ask("now", 2))
    assert client.replies() == []
    world.waiting.pop("later-silent").finish(NoReply.DONE)
    assert [correlation_id for correlation_id, _ in client.replies()] == []
    await turn()
    assert [correlation_id for correlation_id, _ in client.replies()] == [2]
    assert not client.connection.is_waiting


async def test_a_request_that_fails_later_without_an_answer_closes_the_connection() -> None:
    world = Wiring()
    client = Client(world)
    client.receives(ask("later-silent"))
    world.waiting.pop("later-silent").finish(ProtocolError("it failed"))
    assert client.transport.ending == "closed"
    client.leaves()
    assert client.complaints == ["it failed"]
    assert world.shared.decoded.free_bytes == world.shared.decoded.total_bytes


async def test_replies_that_nobody_will_fetch_are_not_counted_for_ever() -> None:
    world = Wiring()
    world.reply_of = large
    client = Client(world)
    client.receives(ask("later") + ask("now"))
    assert world.shared.reply_bytes_queued > 30_000
    client.leaves()
    assert world.shared.reply_bytes_queued == 0
    assert world.abandoned == ["later"]
    world.finish("later")
    assert world.shared.reply_bytes_queued == 0


async def test_reading_stops_at_so_many_unanswered_requests_and_goes_on_at_half() -> None:
    world = Wiring()
    client = Client(world)
    for number in range(CONNECTION_REQUESTS_IN_FLIGHT_MAX + 5):
        client.receives(ask(f"later-{number}"))
    assert len(world.waiting) == CONNECTION_REQUESTS_IN_FLIGHT_MAX
    for number in range(CONNECTION_REQUESTS_IN_FLIGHT_MAX // 2):
        world.finish(f"later-{number}")
        await turn()
    assert not client.transport.reading
    world.finish(f"later-{CONNECTION_REQUESTS_IN_FLIGHT_MAX // 2}")
    await turn()
    assert client.transport.reading


# Memory


def half_of(size: int, have: int = 100) -> bytes:
    return size.to_bytes(4, "big") + bytes(have)


async def test_who_finds_no_memory_waits_and_goes_on_when_another_leaves() -> None:
    world = Wiring()
    stalled = [Client(world) for _ in range(2)]
    for client in stalled:
        client.receives(half_of(REQUEST_BYTES_MAX))
    patient = Client(world)
    request = ask("now-" + "x" * 9000)
    taken = patient.receives(request)
    assert taken < len(request)
    assert not patient.transport.reading
    stalled[0].leaves()
    await turn()
    patient.receives(request[taken:])
    assert len(patient.replies()) == 1


async def test_a_shortage_does_not_keep_the_loop_busy() -> None:
    """Whoever could only wait again is not woken."""
    world = Wiring()
    clients = [Client(world) for _ in range(30)]
    for client in clients:
        client.receives(half_of(REQUEST_BYTES_MAX))
    short = Client(world)
    short.receives(half_of(200))
    short.leaves()
    scheduled: list[object] = []
    loop = asyncio.get_running_loop()
    ordinary = loop.call_soon
    loop.call_soon = lambda *args, **kwargs: scheduled.append(args) or ordinary(*args, **kwargs)  # type: ignore[func-returns-value,method-assign]
    try:
        await turn()
    finally:
        loop.call_soon = ordinary  # type: ignore[method-assign]
    assert [args for args in scheduled if "resume" in repr(args)] == []
    for client in clients:
        client.leaves()
    assert world.shared.small_frames.try_take(IN_FLIGHT_BYTES_MAX // 2), "everything was given back"


async def test_large_requests_wait_for_each_other_and_not_for_small_ones() -> None:
    world = Wiring(in_flight_bytes_max=2 * REQUEST_BYTES_MAX + 4 * FRAME_FIRST_BYTES)
    first, second = Client(world), Client(world)
    for client in (first, second):
        client.receives(half_of(REQUEST_BYTES_MAX, FRAME_FIRST_BYTES))
    assert first.transport.reading
    assert not second.transport.reading
    small = Client(world)
    small.receives(ask("now"))
    assert len(small.replies()) == 1
    first.leaves()
    await turn()
    assert second.transport.reading
    second.leaves()
    assert world.shared.large_frames.try_take(REQUEST_BYTES_MAX)
    assert world.shared.small_frames.try_take(REQUEST_BYTES_MAX)


# Stalling


def later(ms: int) -> float:
    return asyncio.get_running_loop().time() + ms / 1000


async def test_a_request_that_is_not_completed_in_time_ends_the_connection() -> None:
    client = Client(Wiring())
    client.receives(half_of(1000))
    client.connection.check(later(FRAME_COMPLETION_MS_MAX - 1000), NO_IDLE_LIMIT)
    assert client.transport.ending is None
    client.connection.check(later(FRAME_COMPLETION_MS_MAX + 1000), NO_IDLE_LIMIT)
    assert client.transport.ending == "closed"
    client.leaves()
    assert client.complaints == ["a request was begun and not completed in time"]


async def test_so_does_one_that_waits_for_memory_for_so_long() -> None:
    world = Wiring()
    clients = [Client(world) for _ in range(4)]
    for client in clients:
        client.receives(half_of(REQUEST_BYTES_MAX))
    assert not clients[-1].transport.reading
    clients[-1].connection.check(later(FRAME_COMPLETION_MS_MAX + 1000), NO_IDLE_LIMIT)
    assert clients[-1].transport.ending == "closed"


async def test_a_client_that_keeps_completing_requests_is_never_stalled() -> None:
    client = Client(Wiring())
    stream = ask("now-1") + ask("now-2")
    client.receives(stream[:30])
    client.receives(stream[30:])
    client.connection.check(later(FRAME_COMPLETION_MS_MAX + 1000), NO_IDLE_LIMIT)
    assert client.transport.ending is None


async def test_replies_that_are_not_taken_in_time_end_the_connection() -> None:
    client = Client(Wiring())
    client.transport.takes_everything = False
    client.receives(ask("now"))
    client.connection.check(later(SLOW_READER_MS_MAX - 1000), NO_IDLE_LIMIT)
    assert client.transport.ending is None
    client.transport.unsent -= 1
    client.connection.check(later(0), NO_IDLE_LIMIT)
    client.connection.check(later(SLOW_READER_MS_MAX + 1000), NO_IDLE_LIMIT)
    assert client.transport.ending == "aborted"


async def test_waiting_for_an_earlier_reply_is_not_slow_reading() -> None:
    world = Wiring()
    client = Client(world)
    client.receives(ask("later") + ask("now"))
    client.connection.check(later(SLOW_READER_MS_MAX * 10), NO_IDLE_LIMIT)
    assert client.transport.ending is None


async def test_an_idle_connection_is_closed_and_one_that_waits_for_an_answer_is_not() -> None:
    world = Wiring()
    idle, waiting = Client(world), Client(world)
    waiting.receives(ask("later"))
    for client in (idle, waiting):
        client.connection.check(later(2000), 1000)
    assert idle.transport.ending == "closed"
    assert waiting.transport.ending is None


# What is no request


@pytest.mark.parametrize(
    "frame",
    [
        b"\x00\x00\x00\x08" + b"\x7f\xff\x00\x00\x00\x00\x00\x01",
        b"\x00\x00\x00\x0a" + b"\x00\x03\x7f\xff\x00\x00\x00\x01\xff\xff",
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        ask("now")[:4] + b"\x00" * 4 + ask("now")[8:12] + b"\xff" * (len(ask("now")) - 12),
    ],
    ids=["unknown key", "unknown version", "negative size", "huge size", "nonsense"],
)
async def test_what_is_no_request_closes_the_connection_after_earlier_answers(frame: bytes) -> None:
    client = Client(Wiring())
    client.receives(ask("now") + frame)
    assert client.transport.ending == "closed"
    assert len(client.replies()) == 1
    client.leaves()
    assert client.complaints[0]


async def test_an_unknown_version_of_api_versions_gets_the_list_of_versions() -> None:
    client = Client(Wiring())
    frame = bytearray(b"".join(encode_request(API_VERSIONS, 4, 9, "tests", ApiVersionsRequest())))
    frame[6:8] = (99).to_bytes(2, "big")
    client.receives(bytes(frame))
    correlation_id, reply = decode_response(API_VERSIONS, 0, bytes(client.transport.sent[4:]))
    assert (correlation_id, reply.error_code) == (9, 35)
    assert client.transport.ending is None


async def test_a_mistake_of_ours_is_reported_and_costs_one_connection() -> None:
    world = Wiring()
    victim, other = Client(world), Client(world)
    victim.receives(ask("bug"))
    assert victim.transport.ending == "closed"
    assert len(world.bugs) == 1
    assert "a mistake of ours" in world.bugs[0]
    other.receives(ask("now"))
    assert len(other.replies()) == 1
