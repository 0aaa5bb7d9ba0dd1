"""Work that nobody awaits any more: begun where it changes something, dropped where it only looks."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

from penstock.host.worker import Worker, WorkerPool


async def cancelled_in_the_queue(run: Callable[[Callable[[], None]], Awaitable[None]]) -> list[str]:
    """What was begun after its caller left, behind a job that takes as long as the test wants."""
    begun: list[str] = []
    release = threading.Event()

    def first() -> None:
        release.wait(10)

    blocking = asyncio.ensure_future(run(first))
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(run(lambda: begun.append("begun")))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    release.set()
    await blocking
    await run(lambda: begun.append("last"))
    return begun


async def test_a_read_that_nobody_awaits_any_more_is_not_begun() -> None:
    pool = WorkerPool("reads", 1, asyncio.get_running_loop())
    assert await cancelled_in_the_queue(pool.run) == ["last"]
    pool.stop()


async def test_what_changes_something_is_done_although_its_caller_left() -> None:
    worker = Worker("writes", asyncio.get_running_loop())
    assert await cancelled_in_the_queue(worker.run) == ["begun", "last"]
    worker.stop()
