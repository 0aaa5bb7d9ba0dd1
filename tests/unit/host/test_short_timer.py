"""Timers for waits below a millisecond, on a real event loop."""

import asyncio
import os
import sys
import time
from collections.abc import Callable

import pytest
import uvloop

from penstock.host.syscalls.short_timer import KernelTimer, LoopTimer, NewTimer, short_timer

TIMERS = [
    LoopTimer,
    pytest.param(KernelTimer, marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux")),
]


def on_loop(scenario: Callable[[], "asyncio.Future[None] | object"]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())  # type: ignore[arg-type]


@pytest.mark.parametrize("new_timer", TIMERS)
def test_a_timer_calls_back_once_and_can_be_started_again(new_timer: NewTimer) -> None:
    async def scenario() -> None:
        timer, calls = new_timer(asyncio.get_running_loop()), asyncio.Queue[float]()
        for _ in range(3):
            began = time.monotonic()
            timer.start(0.002, lambda: calls.put_nowait(time.monotonic()))
            assert await asyncio.wait_for(calls.get(), 5) - began >= 0.001
        await asyncio.sleep(0.01)
        assert calls.empty()
        timer.close()

    on_loop(scenario)


@pytest.mark.parametrize("new_timer", TIMERS)
def test_a_cancelled_timer_does_not_call_back(new_timer: NewTimer) -> None:
    async def scenario() -> None:
        timer, calls = new_timer(asyncio.get_running_loop()), list[str]()
        timer.start(0.001, lambda: calls.append("cancelled"))
        timer.cancel()
        timer.cancel()
        timer.start(0.002, lambda: calls.append("second"))
        await asyncio.sleep(0.02)
        assert calls == ["second"]
        timer.close()

    on_loop(scenario)


@pytest.mark.parametrize("new_timer", TIMERS)
def test_a_timer_cancelled_after_its_end_does_not_call_back(new_timer: NewTimer) -> None:
    """Its end is noticed by the loop only later, because the loop is busy."""

    async def scenario() -> None:
        timer, calls = new_timer(asyncio.get_running_loop()), list[str]()
        timer.start(0.001, lambda: calls.append("cancelled"))
        time.sleep(0.01)  # noqa: ASYNC251 (the busy loop that this test is about)
        timer.cancel()
        await asyncio.sleep(0.01)
        assert calls == []
        timer.close()

    on_loop(scenario)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these timers")
def test_linux_has_timers_finer_than_a_millisecond() -> None:
    async def scenario() -> None:
        loop, took = asyncio.get_running_loop(), list[float]()
        timer = short_timer(loop)
        for _ in range(20):
            ended, began = loop.create_future(), time.monotonic()
            timer.start(0.0001, lambda: ended.set_result(None))  # noqa: B023 (awaited in this iteration)
            await ended
            took.append(time.monotonic() - began)
        assert 0.0001 <= min(took) < 0.001
        timer.close()

    on_loop(scenario)


def test_without_such_timers_the_loops_own_is_used() -> None:
    async def scenario() -> None:
        assert isinstance(short_timer(asyncio.get_running_loop(), object()), LoopTimer)

    on_loop(scenario)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these timers")
def test_a_sandbox_that_sets_no_timer_leaves_it_to_the_loop() -> None:
    """Otherwise the first delayed flush would wait for ever."""

    class Sandbox:
        def __init__(self) -> None:
            self.descriptor, self.write_end = os.pipe()

        def timerfd_create(self, clock: int, flags: int) -> int:
            return self.descriptor

        def timerfd_settime(self, *arguments: object) -> int:
            return -1

    async def scenario() -> None:
        sandbox = Sandbox()
        assert isinstance(short_timer(asyncio.get_running_loop(), sandbox), LoopTimer)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(sandbox.descriptor)
        os.close(sandbox.write_end)

    on_loop(scenario)
