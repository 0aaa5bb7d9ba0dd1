"""Group commit: decides how long a flush is delayed because more appends are about to arrive.

A client with several requests in flight sends its next requests when the earlier ones are acknowledged, one
after the other. Without a delay the first of them would start a flush alone, and the others would need a
second flush. Broker, kernel and client would spend the processor time of two flushes on the same records.

So a flush is delayed until as many appends have arrived as were unacknowledged when the previous flush ended:
those that it flushed, whose clients will send again, and those that arrived while it ran. Clients that send
one request at a time, to one partition each, are never delayed.

Rule 1: a delay is at most the mean duration of the latest flushes, and at most GROUP_COMMIT_DELAY_MS_MAX.
Rule 2: a flush of GROUP_COMMIT_APPENDS_MAX appends is not delayed: they share its cost well enough.
Rule 3: if the expected appends do not arrive during a delay, some of the next flushes are not delayed. So
        clients that send without waiting for acknowledgements, whose appends cannot be predicted, are
        rarely delayed in vain.
"""

from typing import Final

from penstock.limits import FLUSHES_WITHOUT_DELAY_MAX, GROUP_COMMIT_APPENDS_MAX, GROUP_COMMIT_DELAY_MS_MAX

NEWEST_SHARE: Final = 0.1
"""Weight of the newest flush in the mean duration."""
DELAYS_BEFORE_TRUST: Final = 8
"""After so many delays in a row that brought the expected appends, a delay in vain counts as an exception."""


class GroupCommit:
    def __init__(self) -> None:
        self._expected = 1
        """Number of appends for which the next flush is delayed."""
        self._flush_s = 0.0
        """Mean duration of a flush."""
        self._successes = 0
        """Delays since the last delay in vain."""
        self._undelayed = 1
        """Flushes that are not delayed after a delay in vain."""
        self._flushes_since = 0
        """Flushes since the last delay in vain, with the one that was delayed."""

    def is_complete(self, appends: int) -> bool:
        """Whether so many appends are as many as the next flush expects."""
        return appends >= self._expected

    def delay_s(self, appends: int) -> float:
        """How long a flush of so many appends may be delayed. 0: it starts now."""
        if self.is_complete(appends) or self._flushes_since <= self._undelayed:
            return 0.0
        return min(self._flush_s, GROUP_COMMIT_DELAY_MS_MAX / 1000)

    def delayed(self, appends: int) -> None:
        """Note that a delayed flush starts, with so many appends."""
        if self.is_complete(appends):
            self._successes += 1
            return
        is_exception = self._successes >= DELAYS_BEFORE_TRUST
        self._undelayed = 1 if is_exception else min(2 * self._undelayed, FLUSHES_WITHOUT_DELAY_MAX)
        self._successes = self._flushes_since = 0

    def flushed(self, took_s: float, *, appends: int, arrived: int) -> None:
        """Note that a flush of so many appends has ended, and how many appends arrived while it ran."""
        self._flush_s += (took_s - self._flush_s) * NEWEST_SHARE
        self._expected = min(appends + arrived, GROUP_COMMIT_APPENDS_MAX)
        self._flushes_since += 1
