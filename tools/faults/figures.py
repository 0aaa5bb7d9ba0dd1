"""How long clients waited, computed from the history. Pure functions.

    silence   of writes: the longest time without an acknowledgement for a partition
              of reads: the longest time without a new record for a reader of a partition
    lag       time between the acknowledgement of a record and its read

Silence counts from the beginning of the fault, on the partitions whose clients are affected. The silence of
reads includes that of writes: a partition without writes has nothing to read.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, zip_longest
from math import inf
from typing import NamedTuple

from tools.faults.history import FaultSpan, History, Outcome

AFTER_S = 12.0
"""Silence up to this long after a fault counts for the fault, unless the end of its recovery is known."""


class Outage(NamedTuple):
    writes_s: float
    reads_s: float


class Timeline:
    """Times of the events of one partition."""

    def __init__(self, times: Iterable[float]) -> None:
        self._times = sorted(times)

    def longest_gap_s(self, began: float, ended: float, limit: float = inf) -> float:
        """The longest gap without an event that begins between `began` and `ended`; it ends at `limit` at the
        latest.
        """
        first = bisect_left(self._times, began)
        longest, before = 0.0, began
        for after in self._times[first:]:
            longest = max(longest, min(after, limit) - before)
            if after > ended:
                break
            before = after
        return longest


def outages(history: History) -> dict[str, list[Outage]]:
    """Outages by kind of fault. Silence after the beginning of the next fault counts for that one."""
    writes, reads = _writes(history), _reads(history)
    found: dict[str, list[Outage]] = defaultdict(list)
    for span, following in zip_longest(history.faults, history.faults[1:]):
        limit = inf if following is None else following.began
        found[span.kind].append(Outage(_longest_s(writes, span, limit), _longest_s(reads, span, limit)))
    return found


def _longest_s(timelines: dict[int, list[Timeline]], span: FaultSpan, limit: float) -> float:
    until = min(span.until or span.ended + AFTER_S, limit)
    partitions = span.partitions or tuple(timelines)
    concerned = chain.from_iterable(timelines.get(partition, ()) for partition in partitions)
    return max((timeline.longest_gap_s(span.began, until, limit) for timeline in concerned), default=0.0)


def _writes(history: History) -> dict[int, list[Timeline]]:
    told: dict[int, list[float]] = defaultdict(list)
    for write in history.writes:
        if write.outcome is Outcome.ACKNOWLEDGED:
            told[write.partition].append(write.ended)
    return {partition: [Timeline(times)] for partition, times in told.items()}


def _reads(history: History) -> dict[int, list[Timeline]]:
    given: dict[tuple[int, str], list[float]] = defaultdict(list)
    for read in history.reads:
        given[read.partition, read.consumer].append(read.at)
    found: dict[int, list[Timeline]] = defaultdict(list)
    for (partition, _), times in given.items():
        found[partition].append(Timeline(times))
    return found


def lag_s_max(history: History) -> float:
    """The longest time between the acknowledgement of a record and its read."""
    told = {
        (write.partition, write.value): write.ended
        for write in history.writes
        if write.outcome is Outcome.ACKNOWLEDGED
    }
    lags = (read.at - told.get((read.partition, read.value), read.at) for read in history.reads)
    return max(lags, default=0.0)


def repeated(history: History) -> dict[str, int]:
    """Number of records that were read again, by group."""
    found: dict[str, int] = {}
    for group, reads in history.group_reads.items():
        counts = Counter((read.partition, read.offset) for read in reads)
        found[group] = sum(count - 1 for count in counts.values())
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """The lowest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    rank = -(-len(ordered) * share // 1)
    return ordered[max(int(rank), 1) - 1]
