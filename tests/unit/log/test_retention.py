"""Which segments may go."""

import pytest

from penstock.log.retention import RetentionPolicy, SegmentFacts, must_roll, segments_to_drop
from penstock.types import Offset

KEEP = RetentionPolicy(
    retention_ms=-1, retention_bytes=-1, start_offset=Offset(0), high_watermark=Offset(999)
)


def segments(*newest: int) -> list[SegmentFacts]:
    """A hundred bytes and ten offsets each."""
    return [
        SegmentFacts(Offset(10 * number), Offset(10 * number + 10), 100, time)
        for number, time in enumerate(newest)
    ]


def test_without_limits_everything_stays() -> None:
    assert segments_to_drop(segments(1, 2, 3), KEEP, 10**9) == 0


@pytest.mark.parametrize(("now", "count"), [(100, 0), (111, 1), (112, 2), (500, 3)])
def test_what_is_older_than_the_limit_goes(now: int, count: int) -> None:
    assert segments_to_drop(segments(10, 11, 12, 13), KEEP._replace(retention_ms=100), now) == count


@pytest.mark.parametrize(("limit", "count"), [(400, 0), (301, 0), (300, 1), (250, 1), (100, 3), (0, 3)])
def test_so_much_goes_that_the_limit_is_not_undershot(limit: int, count: int) -> None:
    assert segments_to_drop(segments(1, 1, 1, 1), KEEP._replace(retention_bytes=limit), 0) == count


def test_what_lies_below_the_start_goes() -> None:
    assert segments_to_drop(segments(1, 1, 1), KEEP._replace(start_offset=Offset(19)), 0) == 1
    assert segments_to_drop(segments(1, 1, 1), KEEP._replace(start_offset=Offset(20)), 0) == 2


def test_nothing_past_the_high_watermark_goes() -> None:
    policy = KEEP._replace(retention_ms=1, high_watermark=Offset(15))
    assert segments_to_drop(segments(1, 1, 1), policy, 10**6) == 1


def test_a_young_segment_keeps_the_old_ones_behind_it() -> None:
    assert segments_to_drop(segments(1, 900, 1, 1), KEEP._replace(retention_ms=100), 950) == 1


def test_records_without_a_time_are_never_too_old() -> None:
    assert segments_to_drop(segments(-1, 5, 5), KEEP._replace(retention_ms=1), 10**6) == 0


def test_an_active_segment_rolls_when_all_of_it_is_too_old_or_deleted() -> None:
    aged = KEEP._replace(retention_ms=100)
    assert must_roll(segments(10), aged, 111)
    assert not must_roll(segments(10), aged, 110)
    assert must_roll(segments(10), KEEP._replace(start_offset=Offset(10)), 0)
    assert not must_roll(segments(10), aged._replace(high_watermark=Offset(9)), 500)
    assert not must_roll([SegmentFacts(Offset(0), Offset(0), 0, -1)], aged, 500)
