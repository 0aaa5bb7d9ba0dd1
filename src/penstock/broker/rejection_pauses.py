"""Pauses for a connection that repeats requests which are rejected.

A client without a pause of its own between attempts sends a rejected request again as fast as it is
answered: thousands of times a second, for minutes, at the cost of everybody else. So after a number of
rejections of one API in a row, the next request of that API is looked at only some time after the last
rejection. The time doubles with each rejection up to a bound that no client's own backoff is below, so
that clients which do pause are not held up.

Rule 1: each API is counted for itself, and one request that is not rejected ends its count. Requests of
        other APIs on the connection, and other connections, are not held up.
Rule 2: replies are never delayed: the pause is before the next request.
"""

from collections.abc import Callable

from penstock.limits import REJECTION_PAUSE_MS_MAX, REJECTIONS_BEFORE_PAUSE
from penstock.protocol.rejections import is_rejection
from penstock.protocol.schema import Struct


class RejectionPauses:
    __slots__ = ("_clock", "_streaks")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._streaks: dict[int, tuple[int, float]] = {}
        """By API key: how many replies in a row were rejections, and when the last of them was sent."""

    def note(self, api_key: int, reply: Struct) -> None:
        """Count a reply that is sent now."""
        if is_rejection(reply):
            count, _ = self._streaks.get(api_key, (0, 0.0))
            self._streaks[api_key] = count + 1, self._clock()
        elif self._streaks:
            self._streaks.pop(api_key, None)

    def wait_s(self, frame: memoryview) -> float:
        """For how long the request in a frame must not be looked at yet; 0 almost always."""
        if not self._streaks:
            return 0.0
        streak = self._streaks.get(int.from_bytes(frame[:2], signed=True))
        if streak is None or streak[0] <= REJECTIONS_BEFORE_PAUSE:
            return 0.0
        count, rejected_at = streak
        pause_ms = min(1 << min(count - REJECTIONS_BEFORE_PAUSE, 10), REJECTION_PAUSE_MS_MAX)
        return max(0.0, rejected_at + pause_ms / 1000 - self._clock())
