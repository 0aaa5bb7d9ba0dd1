"""Long computations come back in order, key by key, and never more of them than fit."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from penstock.host.turns import Turns
from penstock.host.worker import Worker


class Steps(Worker):
    """A worker whose jobs are run when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []
        self.is_stopped = False

    def submit(self, function: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self.jobs.append((function, done))

    def step(self) -> None:
        function, done = self.jobs.pop(0)
        try:
            result = function()
        except ValueError as error:
            done(None, error)
        else:
            done(result, None)

    def stop(self) -> None:
        self.is_stopped = True


class Wiring:
    def __init__(self, bytes_max: int = 100) -> None:
        self.steps = Steps()
        self.turns = Turns(lambda: self.steps, bytes_max)
        self.done: list[object] = []

    def add(self, key: str, name: str, size: int = 1) -> bool:
        return self.turns.add(key, size, lambda: name, lambda result, error: self.done.append(result))


def test_jobs_of_one_key_come_back_in_order_and_keys_take_turns() -> None:
    wiring = Wiring()
    for name in ("a1", "a2", "a3"):
        assert wiring.add("a", name)
    wiring.add("b", "b1")
    while wiring.steps.jobs:
        wiring.steps.step()
    assert wiring.done == ["a1", "b1", "a2", "a3"]


def test_what_waits_is_bounded_and_room_comes_back() -> None:
    wiring = Wiring(bytes_max=100)
    assert wiring.add("a", "first", size=60)
    assert not wiring.add("b", "too much", size=60)
    wiring.steps.step()
    assert wiring.add("b", "now", size=60)


def test_one_that_is_alone_is_taken_however_large_it_is() -> None:
    assert Wiring(bytes_max=100).add("a", "large", size=1_000)


def test_a_failed_job_is_reported_and_the_next_begins() -> None:
    wiring = Wiring()
    errors: list[BaseException | None] = []

    def fail() -> None:
        raise ValueError("no")

    wiring.turns.add("a", 1, fail, lambda result, error: errors.append(error))
    wiring.add("a", "after")
    wiring.steps.step()
    wiring.steps.step()
    assert [str(error) for error in errors] == ["no"]
    assert wiring.done == ["after"]


def test_after_a_stop_nothing_is_computed_or_reported() -> None:
    wiring = Wiring()
    ran: list[str] = []
    wiring.turns.add("a", 1, lambda: ran.append("ran"), lambda result, error: wiring.done.append(result))
    wiring.turns.stop()
    wiring.steps.step()
    assert (ran, wiring.done, wiring.steps.is_stopped) == ([], [], True)
    assert not wiring.add("a", "late")


async def test_the_thread_begins_with_the_first_job_and_ends_with_the_stop() -> None:
    loop = asyncio.get_running_loop()
    turns = Turns(lambda: Worker("computes", loop), 100)
    assert not any(thread.name == "computes" for thread in threading.enumerate())
    named: asyncio.Future[str | None] = loop.create_future()
    turns.add("a", 1, lambda: threading.current_thread().name, lambda name, error: named.set_result(name))
    assert await named == "computes"
    turns.stop()
    assert not any(thread.name == "computes" for thread in threading.enumerate())
