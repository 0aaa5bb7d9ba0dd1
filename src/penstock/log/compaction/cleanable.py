"""Selection of the part of a compacted log to clean, whether it is worth it, and its segment groups. Pure.

From its start a log has segments that were cleaned before, then dirty ones, then uncleanable ones:

    clean             below the first dirty offset; one record for each key
    dirty             from there to the end of the cleanable part
    uncleanable       not committed yet, too young, or the active segment

A cleaning collects the last offset of every key in the dirty part and rewrites all segments up to its end
without the records that are not the last of their key.

Rule 1: whole segments only, and never one that reaches past the high watermark, the last stable offset or the
        recovery point: `safe_end` is the smallest of them.
Rule 2: a cleaned segment never spans more offsets than an index can represent (KAFKA-5413).
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from penstock.limits import LONG_MAX, SEGMENT_OFFSETS_MAX
from penstock.log.index.time_index import ENTRY_BYTES as INDEX_ENTRY_BYTES_MAX
from penstock.log.retention import SegmentFacts
from penstock.types import NO_TIMESTAMP, Offset

Subject = TypeVar("Subject")


class CleaningPolicy(NamedTuple):
    """Compaction settings of a topic."""

    dirty_ratio_min: float
    lag_ms_min: int
    lag_ms_max: int
    """LONG_MAX: no limit."""


class LogToClean(NamedTuple):
    """Work of a cleaning of one log."""

    first_dirty_offset: Offset
    end_offset: Offset
    """End of the last segment that may be cleaned."""
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    """A record is older than max.compaction.lag.ms allows."""

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def first_dirty_offset(checkpoint: Offset | None, segments: Sequence[SegmentFacts]) -> Offset:
    """Offset at which cleaning continues. A checkpoint outside of the log is ignored."""
    start, active = segments[0].base_offset, segments[-1].base_offset
    if checkpoint is None or not start <= checkpoint <= active:
        return start
    return checkpoint


def measure_log_to_clean(
    segments: Sequence[SegmentFacts],
    checkpoint: Offset | None,
    safe_end: Offset,
    policy: CleaningPolicy,
    now_ms: int,
) -> LogToClean:
    """Measure the work of a cleaning. The last segment given is the active one, which is never cleaned."""
    dirty_from = first_dirty_offset(checkpoint, segments)
    end = segments[0].base_offset
    clean_bytes = dirty_bytes = 0
    oldest = now_ms
    for segment in segments[:-1]:
        is_dirty = segment.end_offset > dirty_from
        too_young = policy.lag_ms_min > 0 and segment.newest_timestamp > now_ms - policy.lag_ms_min
        if segment.end_offset > safe_end or (is_dirty and too_young):
            break
        end = segment.end_offset
        if not is_dirty:
            clean_bytes += segment.size_bytes
            continue
        dirty_bytes += segment.size_bytes
        if segment.first_timestamp != NO_TIMESTAMP:
            oldest = min(oldest, segment.first_timestamp)
    is_overdue = dirty_bytes > 0 and now_ms - oldest > policy.lag_ms_max
    return LogToClean(dirty_from, max(end, dirty_from), clean_bytes, dirty_bytes, is_overdue)


def is_worth_cleaning(log_to_clean: LogToClean, policy: CleaningPolicy) -> bool:
    return log_to_clean.dirty_bytes > 0 and (
        log_to_clean.is_overdue or log_to_clean.ratio > policy.dirty_ratio_min
    )


def must_roll(first_timestamp: int | None, policy: CleaningPolicy, now_ms: int) -> bool:
    """Whether the active segment must be rolled, because a record in it waits too long for its cleaning.

    The cleaner rolls it, even if no producer writes to it any more. `first_timestamp`: that of the segment;
    None: the segment is empty.
    """
    if first_timestamp is None or policy.lag_ms_max == LONG_MAX or first_timestamp == NO_TIMESTAMP:
        return False
    return now_ms - first_timestamp > policy.lag_ms_max


def ranked(candidates: Iterable[tuple[Subject, LogToClean]]) -> list[tuple[Subject, LogToClean]]:
    """Sort candidates: overdue ones first, then by dirty ratio; equal ones keep their order."""
    return sorted(
        candidates, key=lambda candidate: (candidate[1].is_overdue, candidate[1].ratio), reverse=True
    )


class SegmentToClean(NamedTuple):
    """A segment before its cleaning."""

    base_offset: Offset
    end_offset: Offset
    size_bytes: int


class SegmentGroupLimits(NamedTuple):
    """Maximum size of a cleaned segment."""

    segment_bytes: int
    index_bytes_max: int
    index_interval_bytes: int
    segments_max: int
    """Limits the time that the swap of one group takes on the event loop."""


def group_segments(
    segments: Sequence[SegmentToClean], end_offset: Offset, limits: SegmentGroupLimits
) -> list[list[SegmentToClean]]:
    """Group neighbours that become one segment, which fits size, index and offset limits even if nothing
    goes.

    Only segments that begin below `end_offset`.
    """
    # An index has at most one entry for each interval of bytes.
    indexed_bytes = limits.index_bytes_max // INDEX_ENTRY_BYTES_MAX * max(limits.index_interval_bytes, 1)
    bytes_max = min(limits.segment_bytes, indexed_bytes)
    groups: list[list[SegmentToClean]] = []
    group_bytes = 0
    for segment in segments:
        if segment.base_offset >= end_offset:
            break
        fits = (
            groups
            and len(groups[-1]) < limits.segments_max
            and group_bytes + segment.size_bytes <= bytes_max
            and segment.end_offset - groups[-1][0].base_offset <= SEGMENT_OFFSETS_MAX
        )
        if fits:
            groups[-1].append(segment)
            group_bytes += segment.size_bytes
        else:
            groups.append([segment])
            group_bytes = segment.size_bytes
    return groups
