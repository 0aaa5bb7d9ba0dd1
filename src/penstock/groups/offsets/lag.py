"""The consumer lag of a group: arithmetic on offsets and times that the callers looked up.

    records behind   from where the group would continue to the end of the log
    age              how long the first of those records has waited
    rate, drain      records a second, and the time that the rest takes at that rate

Rule 1: an unknown value is None, and never counts as 0.
"""

import math
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from penstock.limits import LONG_MAX, SECOND_MS
from penstock.types import Offset


class LagStatus(Enum):
    OK = "ok"
    RECORDS_LOST = "records_lost"
    """Records were deleted before the group read them."""
    BEYOND_END = "beyond_end"
    """The committed offset is above the log end: the log was truncated, or a client committed a wrong
    offset."""
    NO_COMMIT = "no_commit"
    OFFLINE = "offline"
    """The partition has no leader or cannot be read, so its lag is unknown."""
    UNKNOWN = "unknown"
    """The partition's leader did not reply."""

    def __str__(self) -> str:
        return self.value


class LogSpan(NamedTuple):
    """Readable range of a log: from the first offset, up to but not including the last."""

    start: Offset
    end: Offset


class PartitionLag(NamedTuple):
    standing: LagStatus
    committed: Offset | None = None
    span: LogSpan | None = None
    behind: int | None = None
    """Number of offsets behind. It is the number of records unless compaction or transactions left gaps."""
    lost: int = 0
    age_ms: int | None = None
    """0 if nothing is behind; None if unknown."""
    rate: float = 0.0
    drain_ms: int | None = None
    """None if the group does not advance."""

    def with_age(self, timestamp_ms: int | None, now_ms: int) -> "PartitionLag":
        """Set the age from the timestamp of the first unread record. Producer clocks may be ahead of ours."""
        age_ms = None if timestamp_ms is None else max(now_ms - timestamp_ms, 0)
        return self._replace(age_ms=age_ms)


OFFLINE = PartitionLag(LagStatus.OFFLINE)
UNKNOWN = PartitionLag(LagStatus.UNKNOWN)


def compute_lag(committed: Offset | None, span: LogSpan, rate: float = 0.0) -> PartitionLag:
    """Compute the lag without its age, which must be read from the log if records are behind."""
    if committed is None:
        return PartitionLag(LagStatus.NO_COMMIT, None, span)
    if committed > span.end:
        return PartitionLag(LagStatus.BEYOND_END, committed, span, 0, age_ms=0, rate=rate, drain_ms=0)
    behind = records_behind(committed, span)
    lost = max(span.start - committed, 0)
    return PartitionLag(
        LagStatus.RECORDS_LOST if lost else LagStatus.OK,
        committed,
        span,
        behind,
        lost,
        age_ms=None if behind else 0,
        rate=rate,
        drain_ms=drain_ms(behind, rate),
    )


def records_behind(committed: Offset, span: LogSpan) -> int:
    # Deleted records cannot be read any more, so they are lost and not behind.
    return max(span.end - max(committed, span.start), 0)


def drain_ms(behind: int, rate: float) -> int | None:
    if not behind:
        return 0
    if rate <= 0:
        return None
    return min(math.ceil(behind * SECOND_MS / rate), LONG_MAX)


class LagTotals(NamedTuple):
    """Totals over the partitions of a group whose lag is known."""

    behind: int
    lost: int
    age_ms_max: int | None
    """None if records are behind and no age is known."""
    rate: float
    drain_ms: int | None
    """Drain time of the slowest partition, which only one member reads; None if one does not advance."""
    unknown: int = 0
    """Number of partitions of unknown lag: offline, or their leader did not reply."""


def compute_totals(lags: Iterable[PartitionLag]) -> LagTotals:
    every = list(lags)
    known = [lag for lag in every if lag.behind is not None]
    waiting = [lag for lag in known if lag.behind]
    ages = [lag.age_ms for lag in waiting if lag.age_ms is not None]
    drains = [lag.drain_ms for lag in waiting if lag.drain_ms is not None]
    return LagTotals(
        behind=sum(lag.behind or 0 for lag in known),
        lost=sum(lag.lost for lag in known),
        age_ms_max=max(ages, default=None if waiting else 0),
        rate=sum(lag.rate for lag in known),
        # None if one partition never drains.
        drain_ms=max(drains, default=0) if len(drains) == len(waiting) else None,
        unknown=sum(lag.span is None for lag in every),
    )
