"""Long computations come back in order, key by key, and never more of them than fit."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from penstock.host.keyed_jobs import KeyedJob, KeyedJobQueue
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
    def __init__(self, bytes_max: int = 100, jobs_per_key_max: int = 100) -> None:
        self.steps = Steps()
        self.job_queue = KeyedJobQueue(lambda: self.steps, bytes_max, jobs_per_key_max)
        self.done: list[object] = []

    def add(self, key: str, name: str, size: int = 1) -> KeyedJob | None:
        return self.job_queue.add(key, size, lambda: name, lambda result, error: self.done.append(result))

    def run_all(self) -> None:
        while self.steps.jobs:
            self.steps.step()


def test_jobs_of_one_key_come_back_in_order_and_keys_take_turns() -> None:
    wiring = Wiring()
    for name in ("a1", "a2", "a3"):
        assert wiring.add("a", name)
    wiring.add("b", "b1")
    wiring.run_all()
    assert wiring.done == ["a1", "b1", "a2", "a3"]


def test_what_waits_is_bounded_and_room_comes_back() -> None:
    wiring = Wiring(bytes_max=100)
    assert wiring.add("a", "first", size=60)
    assert not wiring.add("b", "too much", size=60)
    wiring.steps.step()
    assert wiring.add("b", "now", size=60)


def test_one_key_cannot_take_all_the_room() -> None:
    wiring = Wiring(bytes_max=100)
    assert wiring.add("a", "a1", size=20)
    assert not wiring.add("a", "more than its share", size=20)
    assert wiring.add("a", "a2", size=5)
    assert wiring.add("b", "b1", size=60)


def test_the_number_of_jobs_of_a_key_is_bounded_and_dropped_ones_make_room() -> None:
    wiring = Wiring(bytes_max=10_000, jobs_per_key_max=3)
    jobs = [wiring.add("a", f"a{number}") for number in range(3)]
    assert not wiring.add("a", "a3")
    assert wiring.add("b", "b1")
    assert jobs[1] is not None
    assert wiring.job_queue.drop(jobs[1])
    assert wiring.add("a", "a3")


def test_dropped_jobs_are_not_reported_and_the_others_keep_their_order() -> None:
    wiring = Wiring()
    jobs = [wiring.add("a", f"a{number}") for number in range(6)]
    for number in (0, 2, 5):
        job = jobs[number]
        assert job is not None
        assert wiring.job_queue.drop(job)
        assert not wiring.job_queue.drop(job), "only once"
    wiring.run_all()
    assert wiring.done == ["a1", "a3", "a4"]
    assert jobs[1] is not None
    assert not wiring.job_queue.drop(jobs[1]), "it was reported"
    assert (len(wiring.job_queue), wiring.job_queue.has_room("a", 100)) == (0, True), "all room came back"


def test_a_job_that_is_dropped_before_the_thread_comes_to_it_is_not_run() -> None:
    wiring = Wiring()
    ran: list[str] = []
    job = wiring.job_queue.add("a", 1, lambda: ran.append("ran"), lambda *_: None)
    assert job is not None
    wiring.job_queue.drop(job)
    wiring.run_all()
    assert ran == []


async def test_draining_ends_when_everything_was_reported() -> None:
    wiring = Wiring()
    await wiring.job_queue.drain()
    for name in ("a", "b"):
        wiring.add(name, name)
    draining = asyncio.create_task(wiring.job_queue.drain())
    await asyncio.sleep(0)
    wiring.steps.step()
    await asyncio.sleep(0)
    assert not draining.done()
    wiring.steps.step()
    async with asyncio.timeout(5):
        await draining
    assert wiring.done == ["a", "b"]


def test_one_that_is_alone_is_taken_however_large_it_is() -> None:
    assert Wiring(bytes_max=100).add("a", "large", size=1_000)


def test_a_failed_job_is_reported_and_the_next_begins() -> None:
    wiring = Wiring()
    errors: list[BaseException | None] = []

    def fail() -> None:
        raise ValueError("no")

    wiring.job_queue.add("a", 1, fail, lambda result, error: errors.append(error))
    wiring.add("a", "after")
    wiring.steps.step()
    wiring.steps.step()
    assert [str(error) for error in errors] == ["no"]
    assert wiring.done == ["after"]


def test_after_a_stop_nothing_is_computed_or_reported() -> None:
    wiring = Wiring()
    ran: list[str] = []
    wiring.job_queue.add("a", 1, lambda: ran.append("ran"), lambda result, error: wiring.done.append(result))
    wiring.job_queue.stop()
    wiring.steps.step()
    assert (ran, wiring.done, wiring.steps.is_stopped) == ([], [], True)
    assert not wiring.add("a", "late")


async def test_the_thread_begins_with_the_first_job_and_ends_with_the_stop() -> None:
    loop = asyncio.get_running_loop()
    job_queue = KeyedJobQueue(lambda: Worker("computes", loop), 100)
    assert not any(thread.name == "computes" for thread in threading.enumerate())
    named: asyncio.Future[str | None] = loop.create_future()
    job_queue.add("a", 1, lambda: threading.current_thread().name, lambda name, error: named.set_result(name))
    assert await named == "computes"
    job_queue.stop()
    assert not any(thread.name == "computes" for thread in threading.enumerate())
