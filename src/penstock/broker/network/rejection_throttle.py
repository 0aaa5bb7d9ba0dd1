"""Pauses for a connection that repeats a request which is rejected.

A client without a pause of its own between attempts sends a rejected request again as fast as it is
answered: thousands of times a second, for minutes, at the cost of all other clients. So after a number of
rejections of the same request in a row, the broker takes up the next copy of it only some time after the last
rejection. The time doubles with each rejection up to a bound that no client's own backoff is below, so
that clients which do pause are not held up.

Rule 1: only copies of one request count: the same API, version and body. A tool that asks for a thousand
        different things and is told of each that it does not exist is not held up. Beyond that many
        rejections in a second all count, whatever their requests: a loop over two requests is a loop, too.
Rule 2: each API is counted for itself, and one request that is not rejected ends its count. Other
        connections are not held up. Requests that the client has pipelined behind one that waits are: replies
        have the order of requests.
Rule 3: replies are never delayed: the pause is before the next request.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.limits import REJECTION_PAUSE_MS_MAX, REJECTIONS_BEFORE_PAUSE, REJECTIONS_PER_SECOND
from penstock.protocol.rejections import is_rejection
from penstock.protocol.schema import Struct

_CORRELATION_ID: Final = slice(4, 8)
"""Where a frame has the number that differs in each copy of a request."""
_OVERDRAFT_MAX: Final = REJECTIONS_PER_SECOND * REJECTION_PAUSE_MS_MAX / 1000
_COMPARED_BYTES: Final = 4096
"""Of a longer request its beginning and its length are compared: no reason to read a megabyte twice."""


class _Streak(NamedTuple):
    """Rejections of one API in a row."""

    rejections: int
    rejected_at: float
    """When the last of them was sent."""
    request: tuple[int, int] | None
    """What was rejected, as length and checksum; None: not known yet."""


class RejectionThrottle:
    __slots__ = ("_allowance", "_allowance_at", "_clock", "_streaks")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._allowance = float(REJECTIONS_PER_SECOND)
        """How many more requests may be rejected now; it grows by REJECTIONS_PER_SECOND, up to as many."""
        self._allowance_at = clock()
        self._streaks: dict[int, _Streak] = {}
        """By API key."""

    def note(self, api_key: int, reply: Struct) -> None:
        """Count a reply that is sent now."""
        if is_rejection(reply):
            count, _, request = self._streaks.get(api_key, _Streak(0, 0.0, None))
            now = self._clock()
            self._streaks[api_key] = _Streak(count + 1, now, request)
            grown = self._allowance + (now - self._allowance_at) * REJECTIONS_PER_SECOND
            # Pipelined requests overdraw it at once. The floor bounds what the next request waits for that.
            self._allowance = max(min(grown, REJECTIONS_PER_SECOND) - 1, -_OVERDRAFT_MAX)
            self._allowance_at = now
        elif self._streaks:
            self._streaks.pop(api_key, None)

    def wait_s(self, frame: memoryview) -> float:
        """For how long the request in a frame must not be taken up yet; 0 almost always."""
        overdrawn_s = 0.0
        if self._allowance < 0:
            overdrawn_s = self._allowance_at - self._allowance / REJECTIONS_PER_SECOND - self._clock()
        if not self._streaks:
            return max(0.0, overdrawn_s)
        return max(0.0, overdrawn_s, self._wait_of_copies_s(frame))

    def _wait_of_copies_s(self, frame: memoryview) -> float:
        api_key = int.from_bytes(frame[:2], signed=True)
        streak = self._streaks.get(api_key)
        if streak is None:
            return 0.0
        request = _fingerprint(frame)
        if request != streak.request:
            # The first copy, or another request of the same API: what was rejected before is not repeated.
            self._streaks[api_key] = _Streak(1, streak.rejected_at, request)
            return 0.0
        if streak.rejections <= REJECTIONS_BEFORE_PAUSE:
            return 0.0
        pause_ms = min(1 << min(streak.rejections - REJECTIONS_BEFORE_PAUSE, 10), REJECTION_PAUSE_MS_MAX)
        return streak.rejected_at + pause_ms / 1000 - self._clock()


def _fingerprint(frame: memoryview) -> tuple[int, int]:
    before, after = frame[: _CORRELATION_ID.start], frame[_CORRELATION_ID.stop : _COMPARED_BYTES]
    return len(frame), crc32c(after, crc32c(before))
