"""Clocks of simulated processes: each may run fast or slow, and nobody else's timers care."""

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest

from penstock.sim.processes import ProcessLoop, SimProcess


def run(loop: ProcessLoop, process: SimProcess, coroutine: Coroutine[Any, Any, None]) -> None:
    try:
        loop.run_until_complete(process.run(loop.create_task, coroutine))
    finally:
        loop.close()


@pytest.mark.parametrize("rate", [0.8, 1.0, 1.25])
def test_a_process_sleeps_by_its_own_clock(rate: float) -> None:
    loop, process = ProcessLoop(Random(1), now=100.0), SimProcess("a")

    async def test() -> None:
        process.drift(rate, loop.now)
        own, world = loop.time(), loop.now
        await asyncio.sleep(10.0)
        assert loop.time() - own == pytest.approx(10.0)
        assert loop.now - world == pytest.approx(10.0 / rate)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await asyncio.sleep(6.0)
        assert loop.now - world == pytest.approx(15.0 / rate)

    run(loop, process, test())


def test_a_clock_does_not_jump_when_its_rate_changes() -> None:
    loop, process = ProcessLoop(Random(1)), SimProcess("a")

    async def test() -> None:
        await asyncio.sleep(7.0)
        for rate in (1.25, 0.8, 1.0):
            before = loop.time()
            process.drift(rate, loop.now)
            assert loop.time() == before
            await asyncio.sleep(1.0)
            assert loop.time() - before == pytest.approx(1.0)

    run(loop, process, test())


def test_others_keep_their_time() -> None:
    loop, fast, other = ProcessLoop(Random(1)), SimProcess("fast"), SimProcess("other")
    fast.drift(2.0, loop.now)
    woke: list[tuple[str, float]] = []

    async def sleep(name: str) -> None:
        await asyncio.sleep(1.0)
        woke.append((name, round(loop.now, 6)))

    async def test() -> None:
        for process in (other, fast):
            process.run(asyncio.ensure_future, sleep(process.host))
        await asyncio.sleep(3.0)

    run(loop, SimProcess("test"), test())
    assert woke == [("fast", 0.5), ("other", 1.0)]


def test_no_timer_runs_before_its_own_time() -> None:
    """Who waits until a moment and finds that it has not come waits again, for ever if time stands still."""
    loop, process = ProcessLoop(Random(1)), SimProcess("a")

    async def test() -> None:
        random = Random(3)
        for _ in range(2_000):
            process.drift(random.choice((0.8, 0.95, 1.05, 1.25)), loop.now)
            until = loop.time() + random.random()
            woken = loop.create_future()
            if random.random() < 0.5:
                loop.call_at(until, woken.set_result, None)
            else:
                loop.call_later(until - loop.time(), woken.set_result, None)
            await woken
            assert loop.time() >= until

    run(loop, process, test())
