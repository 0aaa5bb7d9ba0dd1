"""Waiting in a test for what another task or thread brings about."""

import asyncio
from collections.abc import Callable


async def until(look: Callable[[], bool], *, seconds_max: float) -> None:
    ends_at = asyncio.get_running_loop().time() + seconds_max
    while not look():
        assert asyncio.get_running_loop().time() < ends_at, "it never came to that"
        await asyncio.sleep(0.001)
