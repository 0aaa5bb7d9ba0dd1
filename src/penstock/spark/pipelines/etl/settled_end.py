"""Up to which value of a growing column no new row can come. Pure.

A row can still come at or below the largest value that is visible: its transaction has drawn a number or
taken a time and has not committed yet, or it gets the same value as another row. So the largest value of each
look at the table is kept, and becomes the settled end when nothing can come at or below it any more:

    a value never comes twice           all transactions that ran at the look are over
    the same value comes for a while    as above, for those that ran that long after the look
    nobody knows how long               as for the first, but for the largest value *below* the largest one

No database knows how long rows with the same time keep coming: a column may be stamped by the minute, or by a
job that loads for an hour. So a while counts only if the user has said it.

Rule: looks are settled in their order, and at most LOOKS_MAX are kept. While the oldest is waited for and so
      many are kept, new ones are not, and the settled end stays where it is.
"""

from collections import deque
from typing import Final, NamedTuple

UNSETTLED_ENDS_MAX: Final = 100


class OpenTransactions(NamedTuple):
    """Transactions that are not over, by names that no later one has."""

    open: frozenset[str] = frozenset()
    prepared: frozenset[str] = frozenset()
    """For a two-phase commit: these are in no session any more, and can still commit."""


class ObservedEnd(NamedTuple):
    end: str | None
    """The largest value; the one below it if the largest is held back. None if there is none."""
    running: OpenTransactions
    """What ran after `end` was read, so that what is over was visible."""


class _UnsettledEnd(NamedTuple):
    end: str
    settles_from_s: float
    waits_for: frozenset[str] | None
    """None until it is ripe."""


class SettledEndTracker:
    def __init__(self, same_value_s: float = 0.0) -> None:
        """`same_value_s` is how long rows with the same value keep coming."""
        self._delay_s = same_value_s
        self._waiting: deque[_UnsettledEnd] = deque()
        self.end: str | None = None

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def waits_for(self) -> int:
        """How many transactions hold back the oldest look."""
        return len(self._waiting[0].waits_for or ()) if self._waiting else 0

    def observe(self, observed_end: ObservedEnd, now_s: float) -> None:
        if observed_end.end is not None and len(self._waiting) < UNSETTLED_ENDS_MAX:
            self._waiting.append(_UnsettledEnd(observed_end.end, now_s + self._delay_s, None))
        self._waiting = deque(_after(each, observed_end.running, now_s) for each in self._waiting)
        while self._waiting and self._waiting[0].waits_for == frozenset():
            self.end = self._waiting.popleft().end


def _after(waiting: _UnsettledEnd, running: OpenTransactions, now_s: float) -> _UnsettledEnd:
    if waiting.waits_for is None:
        if now_s < waiting.settles_from_s:
            return waiting
        return waiting._replace(waits_for=running.open | running.prepared)
    return waiting._replace(waits_for=still_open(waiting.waits_for, running))


def still_open(waits_for: frozenset[str], running: OpenTransactions) -> frozenset[str]:
    left = waits_for & (running.open | running.prepared)
    # A transaction that is in no session any more is over, or is one of those that were prepared. Only
    # those that leave `open` count: their number is finite, and prepared ones may follow each other for ever.
    return left | running.prepared if waits_for - left - running.prepared else left
