"""How far a group is behind, in numbers to act on. Plain arithmetic on what others have looked up.

    records behind   from where the group would go on to where the log ends
    age              how long the first of those records has waited
    rate, drain      records a second, and how long the rest takes at that rate

Rule: what is not known is None, and is not counted as nothing.
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
    """Records were deleted before the group had read them."""
    BEYOND_END = "beyond_end"
    """The committed offset does not exist yet: the log was cut, or somebody committed a wrong one."""
    NO_COMMIT = "no_commit"
    OFFLINE = "offline"
    """The partition has no leader, or cannot be read, so nothing is known."""
    UNKNOWN = "unknown"
    """Its leader did not answer."""

    def __str__(self) -> str:
        return self.value


class LogSpan(NamedTuple):
    """What consumers can read: from the first offset, up to but not including the last."""

    start: Offset
    end: Offset


class PartitionLag(NamedTuple):
    standing: LagStatus
    committed: Offset | None = None
    span: LogSpan | None = None
    behind: int | None = None
    """Offsets, which is records except where compaction or transactions left gaps."""
    lost: int = 0
    age_ms: int | None = None
    """0 when nothing is behind; None when it could not be found."""
    rate: float = 0.0
    drain_ms: int | None = None
    """None when it would take for ever."""

    @property
    def next_offset(self) -> Offset | None:
        """The first that waits to be read; None if none does."""
        if not self.behind or self.span is None or self.committed is None:
            return None
        return max(self.committed, self.span.start)

    def with_age(self, timestamp_ms: int | None, now_ms: int) -> "PartitionLag":
        """With the time of the first record that waits. Producers' clocks may be ahead of ours."""
        age_ms = None if timestamp_ms is None else max(now_ms - timestamp_ms, 0)
        return self._replace(age_ms=age_ms)


OFFLINE = PartitionLag(LagStatus.OFFLINE)
UNKNOWN = PartitionLag(LagStatus.UNKNOWN)


def compute_lag(committed: Offset | None, span: LogSpan, rate: float = 0.0) -> PartitionLag:
    """All but the age, which has to be read from the log where something is behind."""
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
    return max(span.end - max(committed, span.start), 0)


def drain_ms(behind: int, rate: float) -> int | None:
    if not behind:
        return 0
    if rate <= 0:
        return None
    return min(math.ceil(behind * SECOND_MS / rate), LONG_MAX)


class LagTotals(NamedTuple):
    """Of all partitions of a group, as far as they are known."""

    behind: int
    lost: int
    age_ms_max: int | None
    """None if there is something behind of which no age is known."""
    rate: float
    drain_ms: int | None
    """Of the partition that takes longest: one member reads it, however many there are."""
    unknown: int = 0
    """Partitions of which nothing is known, because they are offline or their leader did not answer."""


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
        drain_ms=max(drains, default=0) if len(drains) == len(waiting) else None,
        unknown=sum(lag.span is None for lag in every),
    )
