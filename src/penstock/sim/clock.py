"""Time as the simulated broker reads it: the loop's time, and a wall clock that begins in 2023."""

from penstock.sim.scheduler import VirtualTimeLoop

WALL_BEGINS_MS = 1_700_000_000_000


class SimClock:
    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._loop = loop

    def wall_ms(self) -> int:
        return WALL_BEGINS_MS + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()
