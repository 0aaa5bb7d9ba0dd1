"""Memory runs short: frames get it in steps, who stalls is ended for who waits, and all is given back."""

import asyncio

import pytest

from penstock.broker.network.memory_budget import MEMORY_LIMITS, MemoryBudget, MemoryLimits
from penstock.broker.network.server import Server
from penstock.config.broker import BrokerConfig
from penstock.limits import (
    DECODED_BYTES_MAX,
    DECODED_BYTES_PER_BYTE,
    DECODED_BYTES_WHEN_FULL,
    DECODED_REQUEST_BYTES,
    FRAME_BYTES_PER_SECOND_MIN,
    FRAME_FIRST_BYTES,
    FRAME_STEP_BYTES,
    MEMORY_GRACE_MS,
)
from penstock.observability.logs import NullLog
from penstock.security.access import AllowEverything
from tests.unit.broker.network.test_broker_connection import (
    IN_FLIGHT_BYTES_MAX,
    REQUEST_BYTES_MAX,
    Client,
    Wiring,
    ask,
    half_of,
    turn,
)

SMALL_TOTAL = IN_FLIGHT_BYTES_MAX // 2
TEN_REQUESTS_BYTES = 10 * (DECODED_REQUEST_BYTES + DECODED_BYTES_PER_BYTE * 50)
ROOM_FOR_TEN = MemoryLimits(decoded_bytes_max=TEN_REQUESTS_BYTES)
"""Or about as many requests that wait for their answer."""


class Hall:
    """Connections with a server that ends some of them for others, when the test says so."""

    def __init__(self, memory: MemoryLimits = MEMORY_LIMITS) -> None:
        self.world = Wiring(memory=memory)
        self.server = Server(self.world.shared, BrokerConfig.of().network, AllowEverything(), NullLog())
        self.clients: list[Client] = []

    def client(self) -> Client:
        client = Client(self.world)
        self.clients.append(client)
        self.server.connections[client.connection] = None
        return client

    def relieve(self, budget: MemoryBudget, later_ms: int = 0) -> list[Client]:
        """What a relief at that time ends; the transports then say goodbye."""
        now = asyncio.get_running_loop().time() + later_ms / 1000
        self.server.relieve(budget, budget.missing_bytes, now)
        ended = [client for client in self.clients if client.transport.ending == "aborted"]
        for client in ended:
            self.clients.remove(client)
            self.server.connections.pop(client.connection, None)
            client.leaves()
        return ended


def fill(hall: Hall) -> list[Client]:
    """Two that announce much and stall take all there is."""
    stalled = [hall.client() for _ in range(2)]
    for client in stalled:
        client.receives(half_of(REQUEST_BYTES_MAX))
    return stalled


async def test_in_a_shortage_a_frame_is_given_memory_as_it_comes() -> None:
    world = Wiring(in_flight_bytes_max=20 * FRAME_FIRST_BYTES)
    world.shared.small_frames.try_take(8 * FRAME_FIRST_BYTES)
    client = Client(world)
    before = world.shared.small_frames.free_bytes
    client.receives(half_of(REQUEST_BYTES_MAX, 10))
    assert before - world.shared.small_frames.free_bytes == FRAME_STEP_BYTES
    client.receives(bytes(FRAME_STEP_BYTES))
    assert before - world.shared.small_frames.free_bytes < 10 * FRAME_STEP_BYTES
    request = ask("now-" + "x" * 30_000)
    other = Client(world)
    for start in range(0, len(request), 1_000):
        other.receives(request[start : start + 1_000])
    assert len(other.replies()) == 1


async def test_who_stalls_is_ended_for_who_waits_and_not_before_its_grace() -> None:
    hall = Hall()
    stalled = fill(hall)
    patient = hall.client()
    request = ask("now-" + "x" * 9_000)
    taken = patient.receives(request)
    assert not patient.transport.reading
    budget = hall.world.shared.small_frames
    assert hall.relieve(budget, MEMORY_GRACE_MS - 100) == []
    ended = hall.relieve(budget, MEMORY_GRACE_MS + 100)
    assert len(ended) == 1
    assert ended[0] in stalled
    await turn()
    patient.receives(request[taken:])
    assert len(patient.replies()) == 1
    assert "memory was short" in (ended[0].complaints[0] or "")


async def test_who_has_held_most_for_longest_is_ended_first() -> None:
    hall = Hall()
    little, much = hall.client(), hall.client()
    little.receives(half_of(50_000))
    much.receives(half_of(REQUEST_BYTES_MAX))
    budget = hall.world.shared.small_frames
    budget.overdraw(budget.free_bytes)
    hall.client().receives(half_of(50_000))
    assert hall.relieve(budget, 2 * MEMORY_GRACE_MS) == [much]


async def test_who_sends_steadily_is_not_ended() -> None:
    hall = Hall()
    steady = hall.client()
    steady.receives(half_of(REQUEST_BYTES_MAX, FRAME_FIRST_BYTES - 4))
    steady.receives(bytes(FRAME_BYTES_PER_SECOND_MIN))
    second = hall.client()
    second.receives(half_of(REQUEST_BYTES_MAX, FRAME_FIRST_BYTES - 4))
    assert not second.transport.reading
    budget = hall.world.shared.large_frames
    assert hall.relieve(budget, 900) == []
    assert hall.relieve(budget, 2_000) == [steady]


async def test_when_all_wait_for_each_other_the_first_goes_on() -> None:
    hall = Hall()
    budget = hall.world.shared.small_frames
    budget.try_take(budget.free_bytes)
    first, second = hall.client(), hall.client()
    for client in (first, second):
        client.receives(half_of(50_000))
    assert not first.transport.reading
    assert hall.relieve(budget) == []
    await turn()
    assert first.transport.reading
    assert not second.transport.reading


async def test_a_shortage_is_relieved_without_anybody_asking() -> None:
    hall = Hall(MemoryLimits(relief_ms=1, grace_ms=2))
    stalled = fill(hall)
    hall.client().receives(half_of(50_000))
    ended = asyncio.Event()
    for client in stalled:
        client.transport.abort = ended.set  # type: ignore[method-assign]
    async with asyncio.timeout(5):
        await ended.wait()


async def test_a_rejected_connection_frees_its_memory_although_replies_are_unread() -> None:
    world = Wiring()
    client = Client(world)
    client.transport.takes_everything = False
    client.receives(ask("now") + half_of(REQUEST_BYTES_MAX))
    assert world.shared.small_frames.free_bytes < SMALL_TOTAL
    client.connection.close_rejected("for a test")
    assert world.shared.small_frames.free_bytes == SMALL_TOTAL
    client.connection.check(asyncio.get_running_loop().time() + 3600, -1)
    assert client.transport.ending == "aborted", "who takes no replies is not waited for for ever"


# Requests that wait for their answer


async def test_a_request_is_counted_until_it_is_answered_or_given_up() -> None:
    world = Wiring()
    free = DECODED_BYTES_MAX
    assert world.shared.decoded.free_bytes == free
    client, leaving = Client(world), Client(world)
    client.receives(ask("later-1"))
    charged = free - world.shared.decoded.free_bytes
    assert charged == DECODED_REQUEST_BYTES + DECODED_BYTES_PER_BYTE * (len(ask("later-1")) - 4)
    leaving.receives(ask("later-2"))
    world.finish("later-1")
    leaving.leaves()
    assert world.shared.decoded.free_bytes == free
    client.receives(ask("wait"))
    assert world.shared.decoded.free_bytes < free
    await turn()
    assert world.shared.decoded.free_bytes == free
    client.receives(ask("now"))
    assert world.shared.decoded.free_bytes == free


def use_up(world: Wiring) -> Client:
    """One client keeps so many requests waiting that there is no room for another."""
    greedy = Client(world)
    for number in range(1_000):
        if world.shared.decoded.free_bytes < 0:
            return greedy
        greedy.receives(ask(f"later-{number}"))
    raise AssertionError("there is always room")


async def test_while_too_many_requests_wait_small_ones_are_still_answered() -> None:
    world = Wiring(memory=ROOM_FOR_TEN)
    other, begun, whole = Client(world), Client(world), Client(world)
    in_pieces = ask("now-" + "x" * 9_000)
    begun.receives(in_pieces[:3_000])
    use_up(world)
    other.receives(ask("now-1"))
    other.receives(ask("now-2") + ask("now-3"))
    assert len(other.replies()) == 3
    assert other.transport.reading
    begun.receives(in_pieces[3_000:])
    assert begun.replies() == []
    whole.receives(ask("now") + ask("now-" + "x" * 2_000) + ask("now"))
    assert len(whole.replies()) == 1, "what came before the large one"
    for name in list(world.waiting):
        world.finish(name)
    await turn()
    assert (len(begun.replies()), len(whole.replies())) == (1, 3)
    assert world.shared.decoded.free_bytes == TEN_REQUESTS_BYTES
    assert world.shared.small_frames.free_bytes == SMALL_TOTAL


async def test_while_too_many_wait_each_connection_may_add_one_small_request() -> None:
    world = Wiring(memory=ROOM_FOR_TEN)
    greedy = use_up(world)
    waiting = len(world.waiting)
    assert greedy.receives(ask("later-more")) == 0, "it is not read"
    others = [Client(world) for _ in range(5)]
    for number, client in enumerate(others):
        client.receives(ask(f"later-{number}-first") + ask(f"later-{number}-second"))
        assert client.receives(ask(f"later-{number}-third")) == 0
    assert len(world.waiting) == waiting + len(others)
    assert world.shared.decoded.free_bytes >= -(len(others) + 1) * DECODED_BYTES_WHEN_FULL
    for _ in range(3):
        for name in list(world.waiting):
            world.finish(name)
        await turn()
    assert [len(client.replies()) for client in others] == [2] * len(others)


async def test_while_too_many_wait_who_is_answered_goes_on() -> None:
    world = Wiring(memory=ROOM_FOR_TEN)
    use_up(world)
    honest = Client(world)
    for number in range(3):
        honest.receives(ask(f"later-honest-{number}"))
        assert not honest.transport.reading
        world.finish(f"later-honest-{number}")
        await turn()
        assert honest.transport.reading, "although there is no room yet"


async def test_a_connection_resumes_when_there_is_room_before_its_request_is_answered() -> None:
    world = Wiring(memory=ROOM_FOR_TEN)
    use_up(world)
    honest = Client(world)
    honest.receives(ask("later-honest"))
    for name in list(world.waiting):
        if name != "later-honest":
            world.finish(name)
    await turn()
    assert honest.transport.reading


@pytest.mark.parametrize("ends", ["leaves", "is refused"])
async def test_nobody_is_ended_for_who_added_a_request_and_has_gone(ends: str) -> None:
    world = Wiring(memory=ROOM_FOR_TEN)
    world.shared.decoded.overdraw(TEN_REQUESTS_BYTES + 1)
    client = Client(world)
    client.receives(ask("later"))
    assert world.shared.decoded.missing_bytes > 0
    if ends == "leaves":
        client.leaves()
    else:
        client.connection.close_rejected("for a test")
    assert world.shared.decoded.missing_bytes == 0


async def test_who_leaves_while_it_waits_for_its_turn_is_not_waited_for() -> None:
    world = Wiring(memory=ROOM_FOR_TEN)
    use_up(world)
    leaving, other = Client(world), Client(world)
    for client in (leaving, other):
        client.receives(ask("now-" + "x" * 2_000))
    leaving.leaves()
    for name in list(world.waiting):
        world.finish(name)
    await turn()
    assert leaving.replies() == []
    assert len(other.replies()) == 1
    assert world.shared.decoded.free_bytes == TEN_REQUESTS_BYTES, "nothing was set aside for who has left"


async def test_a_large_request_that_cannot_be_decoded_closes_the_connection_also_now() -> None:
    world = Wiring(memory=ROOM_FOR_TEN)
    use_up(world)
    client = Client(world)
    request = ask("now-" + "x" * 2_000)
    client.receives(request[:20] + b"\xff" * (len(request) - 20))
    assert client.transport.ending == "closed"


async def test_who_keeps_many_requests_waiting_is_ended_for_who_waits() -> None:
    hall = Hall(ROOM_FOR_TEN)
    modest, greedy, honest = hall.client(), hall.client(), hall.client()
    modest.receives(ask("later-modest"))
    number = 0
    while hall.world.shared.decoded.free_bytes >= 0:
        greedy.receives(ask(f"later-{number}"))
        number += 1
    honest.receives(ask("now-" + "x" * 2_000))
    assert honest.replies() == []
    budget = hall.world.shared.decoded
    assert hall.relieve(budget) == []
    assert hall.relieve(budget, MEMORY_GRACE_MS + 100) == [greedy]
    await turn()
    assert len(honest.replies()) == 1
    assert len(hall.world.abandoned) == number


async def test_work_that_has_not_begun_when_its_client_leaves_never_begins() -> None:
    world = Wiring()
    begun: list[str] = []
    ordinary = world.reply_of

    def note(name: str) -> object:
        begun.append(name)
        return ordinary(name)

    world.reply_of = note  # type: ignore[assignment]
    client = Client(world)
    client.receives(ask("wait-1") + ask("wait-2"))
    client.leaves()
    await turn()
    await turn()
    assert begun == []
    assert world.bugs == []
    assert world.shared.decoded.free_bytes == DECODED_BYTES_MAX


async def test_what_tls_hands_on_after_the_end_is_not_looked_at() -> None:
    client = Client(Wiring())
    client.connection.close_rejected("for a test")
    client.transport.ending = None
    client.receives(ask("now"))
    assert client.replies() == []
