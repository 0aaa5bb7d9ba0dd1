"""Settled end of a growing column: the value up to which no new row can appear. Pure.

A row can still appear at or below the largest visible value: its transaction has taken a sequence number or a
time and has not committed yet, or the row gets the same value as another row. So the largest value of each
observation of the table is kept, and becomes the settled end when nothing can appear at or below it any more:

    a value is never used twice          after all transactions open at the observation have ended
    a value repeats for a known time     as above, for the transactions open that long after the observation
    a value repeats for an unknown time  as the first, but for the largest value *below* the largest one

No database knows how long rows with the same time keep appearing: a job may set a column to the current
minute, or to the time of an hour-long load. So the known time applies only if the user declares it.

Rule: observations settle in their order, and at most UNSETTLED_ENDS_MAX are kept. While so many wait for the
oldest, new observations are dropped, and the settled end stays unchanged.
"""

from collections import deque
from typing import Final, NamedTuple

UNSETTLED_ENDS_MAX: Final = 100


class OpenTransactions(NamedTuple):
    """Transactions that have not ended, by names that no later transaction reuses."""

    open: frozenset[str] = frozenset()
    prepared: frozenset[str] = frozenset()
    """Prepared transactions (two-phase commit): they belong to no session any more and can still commit."""


class ObservedEnd(NamedTuple):
    """End of a table, as one query saw it."""

    end: str | None
    """Largest value, or the value below it if the largest is held back. None for an empty table."""
    running: OpenTransactions
    """Transactions that ran after `end` was read, so that the rows of ended transactions were visible."""


class _UnsettledEnd(NamedTuple):
    end: str
    settles_from_s: float
    waits_for: frozenset[str] | None
    """Transactions to wait for; None until `settles_from_s`."""


class SettledEndTracker:
    """Tracker of the settled end, from observations of the end and of open transactions."""

    def __init__(self, same_value_s: float = 0.0) -> None:
        """Create the tracker; `same_value_s` is how long rows with the same value keep appearing."""
        self._delay_s = same_value_s
        self._waiting: deque[_UnsettledEnd] = deque()
        self.end: str | None = None

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def waits_for(self) -> int:
        """Return the number of transactions that hold back the oldest observation."""
        return len(self._waiting[0].waits_for or ()) if self._waiting else 0

    def observe(self, observed_end: ObservedEnd, now_s: float) -> None:
        if observed_end.end is not None and len(self._waiting) < UNSETTLED_ENDS_MAX:
            self._waiting.append(_UnsettledEnd(observed_end.end, now_s + self._delay_s, None))
        self._waiting = deque(_advance(each, observed_end.running, now_s) for each in self._waiting)
        while self._waiting and self._waiting[0].waits_for == frozenset():
            self.end = self._waiting.popleft().end


def _advance(waiting: _UnsettledEnd, running: OpenTransactions, now_s: float) -> _UnsettledEnd:
    if waiting.waits_for is None:
        if now_s < waiting.settles_from_s:
            return waiting
        return waiting._replace(waits_for=running.open | running.prepared)
    return waiting._replace(waits_for=transactions_left(waiting.waits_for, running))


def transactions_left(waits_for: frozenset[str], running: OpenTransactions) -> frozenset[str]:
    left = waits_for & (running.open | running.prepared)
    # A transaction that has left its session has ended or is one of the prepared ones, whose names differ.
    # Prepared ones are added only when a transaction leaves `open`: that happens a finite number of times,
    # while new prepared transactions could follow each other forever.
    return left | running.prepared if waits_for - left - running.prepared else left
