"""Who is gone is noticed by a connection that broke and is refused then, and by nothing else."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, cast

import pytest

from penstock.broker.cluster.failure_detector import FailureDetector
from penstock.config.listeners import Address
from penstock.host.tasks import Tasks
from penstock.sim.store import SimStore
from tests.unit.broker.cluster.test_membership import Node, Warnings, nodes, play

Connect = Callable[[int, int], None]
"""Connect a broker to another. What it raises ends the attempt; a connection breaks after a while."""
LASTS_SECONDS = 1.0
BOTH = frozenset({1, 2})


class Watching(FailureDetector):
    def __init__(self, node: Node, connect: Connect) -> None:
        self.failures: list[BaseException] = []
        self.tasks = Tasks(lambda name, failure: self.failures.append(failure))
        self.log = Warnings()
        self._node_id = node.own.broker_id
        super().__init__(node.cluster, self._node_id, "PLAINTEXT", self.tasks, self.log)
        self._connect = connect
        self.looks = 0

    async def _until_over(self, address: Address, is_over: asyncio.Event) -> None:
        self.looks += 1
        self._connect(self._node_id, address.port - 9092)
        is_over.clear()
        await asyncio.wait([asyncio.ensure_future(is_over.wait())], timeout=LASTS_SECONDS)


class Seen(NamedTuple):
    registrations: tuple[int, ...]
    """How often each broker had to."""
    admitted: frozenset[int]
    warnings: frozenset[str]


def seen_after(seconds: float, connect: Connect, brokers: int = 2) -> Seen:
    """What brokers have seen after a while. The first broker is the controller."""
    seen: list[Seen] = []

    async def scene(store: SimStore) -> None:
        async with nodes(store, *range(1, brokers + 1)) as members:
            watching = [Watching(node, connect) for node in members]
            for each, node in zip(watching, members, strict=True):
                await each._follow(type(node.cluster.image)(cluster_id="c"), node.cluster.image)
            await asyncio.sleep(seconds)
            for each in watching:
                await each.tasks.stop()
                assert not each.failures
                assert each.looks
            warnings = frozenset(warning for each in watching for warning in each.log.warnings)
            registrations = tuple(node.drawn for node in members)
            seen.append(Seen(registrations, frozenset(members[0].cluster.image.admitted), warnings))

    play(scene)
    return seen[0]


def meets(problem: Exception, *, of: int, to: int, begins: int = 0, times: int = 1_000_000) -> Connect:
    """From one to another, after so many that were fine and for so many."""
    left = iter(range(begins + times))

    def connect(asks: int, asked: int) -> None:
        if (asks, asked) == (of, to):
            number = next(left, None)
            if number is not None and number >= begins:
                raise problem

    return connect


def test_a_broker_with_a_broken_connection_and_a_closed_port_is_fenced_soon() -> None:
    dies = meets(ConnectionRefusedError(), of=1, to=2, begins=1)
    assert seen_after(LASTS_SECONDS + 0.3, dies).registrations == (1, 2)


def test_a_lost_broker_is_fenced_once_and_admitted_at_any_new_address() -> None:
    """It lives, and is behind something that refuses: fenced and admitted for ever is no better."""
    refuses = meets(ConnectionRefusedError(), of=1, to=2, begins=1)
    assert seen_after(120, refuses) == Seen(
        (1, 2), BOTH, frozenset({"broker.found_gone", "broker.not_reached"})
    )


def test_a_controller_that_is_gone_is_deposed_within_moments() -> None:
    dies = meets(ConnectionRefusedError(), of=2, to=1, begins=1)
    assert seen_after(LASTS_SECONDS + 0.3, dies).registrations == (2, 1)


def test_who_was_never_reached_is_named_and_not_fenced() -> None:
    never = meets(ConnectionRefusedError(), of=1, to=2)
    assert seen_after(120, never) == Seen((1, 1), BOTH, frozenset({"broker.not_reached"}))


@pytest.mark.parametrize("alone", [1, 3])
def test_a_broker_that_is_refused_by_everybody_harms_nobody(alone: int) -> None:
    """Its own names or its firewall are wrong."""

    def connect(asks: int, asked: int) -> None:
        if asks == alone:
            raise ConnectionRefusedError

    seen = seen_after(120, connect, brokers=3)
    assert seen.registrations == (1, 1, 1)
    assert seen.admitted == {1, 2, 3}


def test_one_refusal_alone_proves_nothing() -> None:
    once = meets(ConnectionRefusedError(), of=1, to=2, begins=1, times=1)
    assert seen_after(60, once) == Seen((1, 1), BOTH, frozenset())


@pytest.mark.parametrize("problem", [OSError("no route"), TimeoutError(), ConnectionResetError()])
def test_whatever_else_fails_proves_nothing(problem: Exception) -> None:
    assert seen_after(60, meets(problem, of=1, to=2, begins=1)) == Seen((1, 1), BOTH, frozenset())


async def test_a_connection_is_over_when_the_other_side_ends_it_or_nobody_needs_it() -> None:
    ended: list[str] = []
    both_ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if ended:
            await reader.read()
        ended.append("by the client" if ended else "by the server")
        if len(ended) == 2:
            both_ended.set()
        writer.close()

    def until_over(is_over: asyncio.Event) -> Coroutine[Any, Any, None]:
        return FailureDetector._until_over(cast(Any, None), address, is_over)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
    async with asyncio.timeout(10):
        await until_over(asyncio.Event())
        is_over = asyncio.Event()
        waiting = asyncio.ensure_future(until_over(is_over))
        while not waiting.done():
            await asyncio.sleep(0.01)
            is_over.set()
        await both_ended.wait()
        server.close()
        await server.wait_closed()
        with pytest.raises(ConnectionRefusedError):
            await until_over(asyncio.Event())
    assert ended == ["by the server", "by the client"]
