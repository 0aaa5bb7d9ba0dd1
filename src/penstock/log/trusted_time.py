"""Wall clock time without recent forward jumps, for decisions to delete tombstones.

A tombstone is removed when its delete horizon is past, and the horizon was computed from a clock that may
have been set since. A clock that goes back only keeps the tombstone longer. A clock that jumps forward would
end the retention at once. So a jump counts only after as long as tombstones are to be kept: then every
tombstone written before it has had its retention, whichever of the two times was right.

Rule 1: no tombstone is removed before its retention has passed on the monotonic clock, as long as the process
        that first cleaned it lives. Jumps while no process runs cannot be detected.
Rule 2: steps of up to a second between two observations are normal for a synchronised clock.
"""

from typing import Final

from penstock.limits import SECOND_MS

LEAP_MS_MIN: Final = 1 * SECOND_MS
LEAPS_MAX: Final = 100


class TrustedTime:
    """Wall clock of one process, with its recent forward jumps."""

    def __init__(self, wall_ms: int, monotonic: float) -> None:
        self._wall_ms = wall_ms
        self._monotonic = monotonic
        self._leaps: list[tuple[float, int]] = []
        """Time at which each jump was noticed, and its size; the latest at the end."""

    def observe(self, wall_ms: int, monotonic: float) -> None:
        """Read both clocks. To be called often: a jump counts from the moment when it is noticed."""
        passed_ms = int((monotonic - self._monotonic) * 1000)
        leap_ms = wall_ms - self._wall_ms - passed_ms
        self._wall_ms, self._monotonic = wall_ms, monotonic
        if leap_ms < LEAP_MS_MIN:
            return
        self._leaps.append((monotonic, leap_ms))
        if len(self._leaps) > LEAPS_MAX:
            # Merge the two oldest at the later of their times: both are distrusted for longer, not shorter.
            (_, first_ms), (noticed, second_ms) = self._leaps[:2]
            self._leaps[:2] = [(noticed, first_ms + second_ms)]

    def now_ms(self, retention_ms: int) -> int:
        """Time of the last observation, without the jumps that are younger than `retention_ms`."""
        young = (leap for noticed, leap in self._leaps if (self._monotonic - noticed) * 1000 < retention_ms)
        return self._wall_ms - sum(young)
