"""What the wall clock says, as far as it may be believed by whoever is about to delete.

A tombstone goes when its horizon is past, and the horizon was written by a clock that somebody may
have set since. A clock that goes back only keeps it longer. A clock that leaps forward would end its
time at once, so a leap counts only after as long as the tombstones were to be kept: then all that
were written before it have had their time, whichever of the two times was right.

Rule 1: no tombstone goes before its retention has passed on the clock that never leaps, as long as
        the process that first passed it lives. Of leaps while no process runs nothing can be known.
Rule 2: steps of up to a second between two looks are the daily business of a clock that is kept right.
"""

from typing import Final

from penstock.limits import SECOND_MS

LEAP_MS_MIN: Final = 1 * SECOND_MS
LEAPS_MAX: Final = 100


class TrustedTime:
    def __init__(self, wall_ms: int, monotonic: float) -> None:
        self._wall_ms = wall_ms
        self._monotonic = monotonic
        self._leaps: list[tuple[float, int]] = []
        """When each was noticed, and how far it went; the last at the end."""

    def observe(self, wall_ms: int, monotonic: float) -> None:
        """To be called often: a leap counts from the moment it is noticed."""
        passed_ms = int((monotonic - self._monotonic) * 1000)
        leap_ms = wall_ms - self._wall_ms - passed_ms
        self._wall_ms, self._monotonic = wall_ms, monotonic
        if leap_ms < LEAP_MS_MIN:
            return
        self._leaps.append((monotonic, leap_ms))
        if len(self._leaps) > LEAPS_MAX:
            # Two of the oldest as one, at the later of their moments: distrusted for longer, not shorter.
            (_, first_ms), (noticed, second_ms) = self._leaps[:2]
            self._leaps[:2] = [(noticed, first_ms + second_ms)]

    def now_ms(self, retention_ms: int) -> int:
        """As of the last look, without the leaps that are younger than `retention_ms`."""
        young = (leap for noticed, leap in self._leaps if (self._monotonic - noticed) * 1000 < retention_ms)
        return self._wall_ms - sum(young)
