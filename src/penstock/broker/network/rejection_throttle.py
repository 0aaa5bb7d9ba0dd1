"""Delays a connection that repeats a request which is rejected.

A client without a backoff of its own repeats a rejected request as fast as the broker replies: thousands of
times a second, for minutes, at the cost of all other clients. So after a number of rejections of the same
request in a row, the broker handles the next copy of the request only some time after the last rejection. The
delay doubles with each rejection. Its upper bound is not above any client's own backoff, so clients that back
off are not delayed.

Rule 1: only copies of one request count: the same API, version and body. A tool that requests a thousand
        different names and gets an error for each is not delayed. Above REJECTIONS_PER_SECOND all rejections
        count, whatever their requests: a loop over two requests is a loop, too.
Rule 2: each API is counted on its own, and one request that is not rejected resets the count. Other
        connections are not delayed. Requests that the client has pipelined behind a delayed one are delayed
        too, because replies have the order of requests.
Rule 3: replies are never delayed: the delay is before the next request.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.limits import REJECTION_PAUSE_MS_MAX, REJECTIONS_BEFORE_PAUSE, REJECTIONS_PER_SECOND
from penstock.protocol.rejections import is_rejection
from penstock.protocol.schema import Struct

_CORRELATION_ID: Final = slice(4, 8)
"""The position of the correlation id in a frame, which differs in each copy of a request."""
_OVERDRAFT_MAX: Final = REJECTIONS_PER_SECOND * REJECTION_PAUSE_MS_MAX / 1000
_COMPARED_BYTES: Final = 4096
"""Only the first bytes and the length of a longer request are compared: reading a megabyte twice is not worth
it.
"""


class _Streak(NamedTuple):
    """Consecutive rejections of one API."""

    rejections: int
    rejected_at: float
    """When the last rejection was sent."""
    request: tuple[int, int] | None
    """Length and checksum of the rejected request; None: not known yet."""


class RejectionThrottle:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._allowance = float(REJECTIONS_PER_SECOND)
        """How many more requests may be rejected without delay. It grows by REJECTIONS_PER_SECOND per second,
        up to the same number.
        """
        self._allowance_at = clock()
        self._streaks: dict[int, _Streak] = {}
        """Streaks by API key."""

    def note(self, api_key: int, reply: Struct) -> None:
        """Count a reply that is about to be sent."""
        if is_rejection(reply):
            count, _, request = self._streaks.get(api_key, _Streak(0, 0.0, None))
            now = self._clock()
            self._streaks[api_key] = _Streak(count + 1, now, request)
            grown = self._allowance + (now - self._allowance_at) * REJECTIONS_PER_SECOND
            # Pipelined requests may overdraw the allowance at once. The floor bounds the delay of the next
            # request.
            self._allowance = max(min(grown, REJECTIONS_PER_SECOND) - 1, -_OVERDRAFT_MAX)
            self._allowance_at = now
        elif self._streaks:
            self._streaks.pop(api_key, None)

    def wait_s(self, frame: memoryview) -> float:
        """How many seconds the request in a frame must still wait; almost always 0."""
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
            # First copy, or another request of the same API: the rejected request is not repeated, so the
            # streak restarts.
            self._streaks[api_key] = _Streak(1, streak.rejected_at, request)
            return 0.0
        if streak.rejections <= REJECTIONS_BEFORE_PAUSE:
            return 0.0
        pause_ms = min(1 << min(streak.rejections - REJECTIONS_BEFORE_PAUSE, 10), REJECTION_PAUSE_MS_MAX)
        return streak.rejected_at + pause_ms / 1000 - self._clock()


def _fingerprint(frame: memoryview) -> tuple[int, int]:
    before, after = frame[: _CORRELATION_ID.start], frame[_CORRELATION_ID.stop : _COMPARED_BYTES]
    return len(frame), crc32c(after, crc32c(before))
