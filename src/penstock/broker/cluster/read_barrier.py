"""Something that several want to have done after they asked for it, and that is done once for all of them.

Whoever asks while it is being done waits for the next time: the one under way may have begun too early for
him. Everybody who has asked by then shares that one, and its failure.
"""

import asyncio
from collections.abc import Awaitable, Callable

from penstock.errors import ApiError


class ReadBarrier:
    def __init__(self, catch_up: Callable[[], Awaitable[None]]) -> None:
        """`catch_up` raises nothing but ApiError."""
        self._catch_up = catch_up
        self._lock = asyncio.Lock()
        self._requested = 0
        self._completed = 0
        self._problem: ApiError | None = None

    async def __call__(self) -> None:
        self._requested += 1
        number = self._requested
        async with self._lock:
            if self._completed < number:
                await self._complete_all()
            if self._problem is not None:
                raise self._problem.again()

    async def _complete_all(self) -> None:
        asked, problem = self._requested, None
        try:
            await self._catch_up()
        except ApiError as failure:
            problem = failure
        self._completed, self._problem = asked, problem
