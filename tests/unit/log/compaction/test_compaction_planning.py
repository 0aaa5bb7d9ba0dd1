"""What may be cleaned, whether it is worth it, which log comes first, and in which pieces."""

import pytest

from penstock.limits import LONG_MAX, SEGMENT_OFFSETS_MAX
from penstock.log.compaction.cleanable import (
    CleaningPolicy,
    LogToClean,
    SegmentGroupLimits,
    SegmentToClean,
    group_segments,
    is_worth_cleaning,
    measure_log_to_clean,
    must_roll,
    ranked,
)
from penstock.log.retention import SegmentFacts
from penstock.types import NO_TIMESTAMP, Offset

NOW_MS = 1_700_000_000_000
POLICY = CleaningPolicy(dirty_ratio_min=0.5, lag_ms_min=0, lag_ms_max=LONG_MAX)
LIMITS = SegmentGroupLimits(
    segment_bytes=1_000, index_bytes_max=12_000, index_interval_bytes=10, segments_max=8
)


def ages(*newest: int) -> list[SegmentFacts]:
    """Segments of ten offsets and a hundred bytes, and an active one of five offsets behind them."""
    sealed = [
        SegmentFacts(Offset(10 * n), Offset(10 * n + 10), 100, time, time) for n, time in enumerate(newest)
    ]
    base = 10 * len(sealed)
    return [*sealed, SegmentFacts(Offset(base), Offset(base + 5), 50, NO_TIMESTAMP)]


def log_to_clean(
    clean_to: int | None,
    safe_end: int = 1_000,
    policy: CleaningPolicy = POLICY,
    ages_ms: tuple[int, ...] = (0, 0, 0, 0),
) -> LogToClean:
    segments = ages(*(NOW_MS - age for age in ages_ms))
    return measure_log_to_clean(
        segments, None if clean_to is None else Offset(clean_to), Offset(safe_end), policy, NOW_MS
    )


def test_a_log_that_was_never_cleaned_is_dirty_up_to_the_segment_being_written() -> None:
    found = log_to_clean(None)
    assert (found.first_dirty_offset, found.end_offset, found.dirty_bytes) == (0, 40, 400)
    assert found.ratio == 1.0


def test_what_was_cleaned_is_not_dirty_again() -> None:
    found = log_to_clean(30)
    assert (found.first_dirty_offset, found.end_offset) == (30, 40)
    assert (found.clean_bytes, found.dirty_bytes) == (300, 100)
    assert not is_worth_cleaning(found, POLICY)
    assert is_worth_cleaning(found, POLICY._replace(dirty_ratio_min=0.2))


@pytest.mark.parametrize(("safe_end", "end"), [(0, 0), (9, 0), (10, 10), (25, 20), (45, 40)])
def test_a_segment_that_reaches_what_is_not_safe_is_left_alone(safe_end: int, end: int) -> None:
    assert log_to_clean(None, safe_end=safe_end).end_offset == end


@pytest.mark.parametrize("checkpoint", [41, 10_000])
def test_a_checkpoint_past_the_log_begins_anew(checkpoint: int) -> None:
    assert log_to_clean(checkpoint).first_dirty_offset == 0


def test_a_checkpoint_that_retention_has_passed_begins_at_the_start_of_the_log() -> None:
    segments = ages(NOW_MS, NOW_MS, NOW_MS)[1:]
    assert measure_log_to_clean(segments, Offset(5), Offset(99), POLICY, NOW_MS).first_dirty_offset == 10


def test_records_that_are_too_young_stop_the_cleaning_before_their_segment() -> None:
    policy = POLICY._replace(lag_ms_min=60)
    assert log_to_clean(None, policy=policy, ages_ms=(100, 61, 59, 100)).end_offset == 20
    assert log_to_clean(None, policy=policy, ages_ms=(60, 60, 60, 60)).end_offset == 40


def test_a_record_that_waited_too_long_is_cleaned_whatever_the_ratio() -> None:
    policy = POLICY._replace(lag_ms_max=60)
    late = log_to_clean(30, policy=policy, ages_ms=(0, 0, 0, 61))
    assert late.is_overdue
    assert is_worth_cleaning(late, policy)
    assert not log_to_clean(30, policy=policy, ages_ms=(500, 500, 500, 60)).is_overdue


def test_nothing_dirty_is_never_worth_cleaning() -> None:
    policy = CleaningPolicy(0.0, 0, 1)
    assert not is_worth_cleaning(log_to_clean(40, policy=policy, ages_ms=(9, 9, 9, 9)), policy)


def test_the_active_segment_is_rolled_when_a_record_in_it_waited_too_long() -> None:
    policy = POLICY._replace(lag_ms_max=60)
    first = NOW_MS - 61
    assert must_roll(first, policy, NOW_MS)
    assert not must_roll(first, policy, NOW_MS - 1)
    assert not must_roll(first, POLICY, NOW_MS)
    assert not must_roll(None, policy, NOW_MS), "nothing is in it"


def test_the_dirtiest_log_comes_first_and_an_overdue_one_before_it() -> None:
    half = LogToClean(Offset(0), Offset(10), 100, 100, is_overdue=False)
    most = half._replace(dirty_bytes=900)
    late = half._replace(dirty_bytes=1, is_overdue=True)
    logs = [("half", half), ("most", most), ("late", late), ("other half", half)]
    assert [name for name, _ in ranked(logs)] == ["late", "most", "half", "other half"]


def pieces(*sizes: int, span: int = 10) -> list[SegmentToClean]:
    return [SegmentToClean(Offset(span * n), Offset(span * n + span), size) for n, size in enumerate(sizes)]


def grouped_sizes(
    segments: list[SegmentToClean], limits: SegmentGroupLimits = LIMITS, end: int = LONG_MAX
) -> list[list[int]]:
    return [[piece.size_bytes for piece in group] for group in group_segments(segments, Offset(end), limits)]


def test_neighbours_become_one_segment_as_long_as_they_fit_it() -> None:
    assert grouped_sizes(pieces(400, 600, 1, 999, 5_000, 7)) == [[400, 600], [1, 999], [5_000], [7]]


def test_a_group_never_needs_a_larger_index_than_there_may_be() -> None:
    limits = LIMITS._replace(index_bytes_max=120, index_interval_bytes=50)  # ten entries, each 50 bytes
    assert grouped_sizes(pieces(300, 200, 100), limits) == [[300, 200], [100]]


def test_a_group_never_spans_more_offsets_than_an_index_can_say() -> None:
    assert grouped_sizes(pieces(1, 1, 1, span=SEGMENT_OFFSETS_MAX // 2)) == [[1, 1], [1]]


def test_a_group_is_small_enough_to_be_taken_over_in_one_turn() -> None:
    assert grouped_sizes(pieces(*[1] * 20)) == [[1] * 8, [1] * 8, [1] * 4]


def test_segments_past_what_was_learned_are_left_alone() -> None:
    assert grouped_sizes(pieces(1, 1, 1), end=11) == [[1, 1]]
