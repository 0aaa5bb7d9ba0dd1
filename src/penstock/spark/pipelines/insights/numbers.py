"""Numbers that `insights` measures, and their derived values. Pure.

Delays and latencies are counted in bins, each five per cent wider than the one before. So any number of rows
becomes a few hundred counts, and percentiles of any subset are known to within five per cent.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.limits import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS

BIN_GROWTH: Final = 1.05
SLICES_MAX: Final = 60
_STEPS_MS: Final = (
    *(count * SECOND_MS for count in (1, 2, 5, 10, 15, 30)),
    *(count * MINUTE_MS for count in (1, 2, 5, 10, 15, 30)),
    *(count * HOUR_MS for count in (1, 2, 3, 6, 12)),
    *(count * DAY_MS for count in (1, 2, 7, 14, 28)),
)


class PartitionLoad(NamedTuple):
    """Rows and bytes of one partition."""

    partition: int
    rows: int = 0
    bytes: int = 0
    """Size of keys and values, uncompressed."""
    keyless: int = 0
    oldest_ms: int | None = None
    newest_ms: int | None = None


class KeyLoad(NamedTuple):
    """Rows and bytes of one key."""

    key: bytes
    rows: int
    bytes: int
    partitions: tuple[int, ...]
    """Partitions that have the key; in more than one, records of the key have no order."""


class DurationStats(NamedTuple):
    """Statistics of a duration over many rows."""

    rows: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: int


class TimeSlice(NamedTuple):
    """Interval of time with the length `TopicMeasurements.slice_ms`."""

    start_ms: int
    rows: int = 0
    bytes: int = 0
    behind: DurationStats | None = None
    latency: DurationStats | None = None


class BatchSample(NamedTuple):
    """Batches as producers sent them, from a sample of each partition."""

    batches: int = 0
    records: int = 0
    bytes: int = 0
    codecs: Mapping[str, int] = {}
    plain_bytes: int = 0
    """Size of uncompressed batches; `compressed_bytes` is their size after zstd."""
    compressed_bytes: int = 0


class GroupBacklog(NamedTuple):
    """Records of one partition that a group has not committed."""

    group: str
    partition: int
    waiting: int
    age_ms: int | None
    """Age of the oldest record that waits; None if no record waits."""


class TopicMeasurements(NamedTuple):
    """Everything that `insights` measured of one topic."""

    topic: str
    read_at_ms: int
    ranges: Mapping[int, tuple[int, int]]
    """Start and end offset of each partition."""
    partitions: tuple[PartitionLoad, ...]
    keys: tuple[KeyLoad, ...]
    """Keys with the most bytes, largest first."""
    distinct_keys: int
    scattered_keys: int
    """Number of keys in more than one partition."""
    slice_ms: int
    slices: tuple[TimeSlice, ...]
    behind: DurationStats | None
    """How far a record's time is behind the newest time before it in its partition."""
    late_rows: Mapping[int, int]
    """Number of rows that are behind by at least so many milliseconds."""
    latency: DurationStats | None
    """Time from the message's creation, as the message states it, to the record's timestamp."""
    from_the_future: int
    """Rows whose stated creation time is after the record's timestamp."""
    without_made: int
    append_time: bool
    """Whether the brokers set the records' timestamps."""
    batches: BatchSample = BatchSample()
    groups: tuple[GroupBacklog, ...] = ()

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.partitions)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.partitions)

    @property
    def peak(self) -> TimeSlice:
        return max(self.slices, key=lambda each: each.bytes, default=TimeSlice(0))

    @property
    def peak_bytes_per_s(self) -> float:
        return self.peak.bytes * 1000 / self.slice_ms


def skew(loads: Sequence[float]) -> float:
    """Return the largest load divided by the mean; 1 is even."""
    total = sum(loads)
    return max(loads) * len(loads) / total if total else 1.0


def slice_width(first_ms: int, last_ms: int) -> int:
    """Return a round duration such that at most SLICES_MAX slices cover the time range."""
    for step in _STEPS_MS:
        if last_ms // step - first_ms // step < SLICES_MAX:
            return step
    return -(-(last_ms - first_ms + 1) // ((SLICES_MAX - 1) * DAY_MS)) * DAY_MS


def every_slice(found: Mapping[int, TimeSlice], slice_ms: int) -> tuple[TimeSlice, ...]:
    """Return all slices from the first to the last, including empty ones."""
    if not found:
        return ()
    return tuple(
        found.get(start, TimeSlice(start)) for start in range(min(found), max(found) + slice_ms, slice_ms)
    )


def duration_bin(milliseconds: int) -> int:
    """Return the bin of a duration, as the SQL in measures.py does."""
    return 0 if milliseconds < 1 else math.floor(math.log(milliseconds) / math.log(BIN_GROWTH)) + 1


def bin_end(number: int) -> float:
    """Return the largest duration in the bin."""
    return 0.0 if number == 0 else BIN_GROWTH**number


def duration_stats(bins: Mapping[int, int], max_ms: int) -> DurationStats | None:
    rows = sum(bins.values())
    if not rows:
        return None
    p50, p95, p99 = (min(each, float(max_ms)) for each in percentiles(bins, (0.5, 0.95, 0.99)))
    return DurationStats(rows, p50, p95, p99, max_ms)


def percentiles(bins: Mapping[int, int], wanted: Iterable[float]) -> list[float]:
    rows = sum(bins.values())
    found = []
    for share in wanted:
        left = math.ceil(share * rows)
        for number in sorted(bins):
            left -= bins[number]
            if left <= 0:
                found.append(bin_end(number))
                break
    return found
