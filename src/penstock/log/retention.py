"""Retention: which segments may be deleted. Pure: a list of facts in, a number of segments out.

Rule 1: whole segments only, oldest first, so that the rest has no hole.
Rule 2: never past the high watermark: a record that is not committed cannot be too old.
Rule 3: the active segment is never counted. If it alone is too old, `must_roll` requires a roll first, so
        that a topic without producers empties as well.
"""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.types import NO_TIMESTAMP, Offset

UNLIMITED = -1


class SegmentFacts(NamedTuple):
    """Facts about one segment that decide about its retention and its cleaning."""

    base_offset: Offset
    end_offset: Offset
    size_bytes: int
    newest_timestamp: int
    first_timestamp: int = NO_TIMESTAMP
    """NO_TIMESTAMP where it is not needed."""


class RetentionPolicy(NamedTuple):
    """Retention settings of a topic, and the bounds of its log."""

    retention_ms: int
    """-1: no limit."""
    retention_bytes: int
    """-1: no limit."""
    start_offset: Offset
    """Log start: segments wholly below it have no readable record."""
    high_watermark: Offset


def segments_to_drop(segments: Sequence[SegmentFacts], policy: RetentionPolicy, now_ms: int) -> int:
    """Number of oldest segments that may be deleted. The last segment given is the active one and stays."""
    bytes_over = sum(segment.size_bytes for segment in segments) - policy.retention_bytes
    count = 0
    for segment in segments[:-1]:
        too_much = policy.retention_bytes != UNLIMITED and bytes_over >= segment.size_bytes
        unreadable = segment.end_offset <= policy.start_offset
        if segment.end_offset > policy.high_watermark or not (
            too_much or unreadable or is_too_old(segment, policy, now_ms)
        ):
            break
        count += 1
        bytes_over -= segment.size_bytes
    return count


def must_roll(segments: Sequence[SegmentFacts], policy: RetentionPolicy, now_ms: int) -> bool:
    """Whether the active segment itself holds nothing that should be kept."""
    active = segments[-1]
    if active.size_bytes == 0 or active.end_offset > policy.high_watermark:
        return False
    return active.end_offset <= policy.start_offset or is_too_old(active, policy, now_ms)


def is_too_old(segment: SegmentFacts, policy: RetentionPolicy, now_ms: int) -> bool:
    if policy.retention_ms == UNLIMITED or segment.newest_timestamp == NO_TIMESTAMP:
        return False
    return now_ms - segment.newest_timestamp > policy.retention_ms
