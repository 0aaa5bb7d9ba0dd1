"""Read barrier: concurrent requests for a current image share one linearizable read.

A request that arrives during a read waits for the next one, because the running read may have begun before a
commit that the request must see. All requests that have arrived when a read begins share it, and its failure.
"""

import asyncio
from collections.abc import Awaitable, Callable

from penstock.errors import ApiError


class ReadBarrier:
    def __init__(self, catch_up: Callable[[], Awaitable[None]]) -> None:
        """`catch_up` does the read. It raises only ApiError."""
        self._catch_up = catch_up
        self._lock = asyncio.Lock()
        self._requested = 0
        self._completed = 0
        self._problem: ApiError | None = None

    async def __call__(self) -> None:
        self._requested += 1
        number = self._requested
        async with self._lock:
            # While this request waited for the lock, another one may have run a read that covers it.
            if self._completed < number:
                await self._complete_all()
            if self._problem is not None:
                raise self._problem.again()

    async def _complete_all(self) -> None:
        asked, problem = self._requested, None  # before the await: later requests need a later read
        try:
            await self._catch_up()
        except ApiError as failure:
            problem = failure
        self._completed, self._problem = asked, problem
