"""How far a group is behind."""

import pytest

from penstock.groups.offsets.lag import (
    LagStatus,
    LogSpan,
    PartitionLag,
    compute_lag,
    compute_totals,
    drain_ms,
)
from penstock.types import Offset


def lag(committed: int | None, start: int, end: int, rate: float = 0.0) -> PartitionLag:
    place = None if committed is None else Offset(committed)
    return compute_lag(place, LogSpan(Offset(start), Offset(end)), rate)


def test_a_group_that_has_read_everything_is_not_behind() -> None:
    found = lag(100, 0, 100, rate=5.0)
    assert (found.standing, found.behind, found.age_ms, found.drain_ms) == (LagStatus.OK, 0, 0, 0)


def test_what_waits_is_counted_from_the_committed_offset() -> None:
    found = lag(40, 0, 100, rate=20.0)
    assert (found.standing, found.behind) == (LagStatus.OK, 60)
    assert found.drain_ms == 3_000
    assert found.age_ms is None, "it has to be read from the log"


def test_the_age_is_that_of_the_first_record_that_waits() -> None:
    assert lag(40, 0, 100).with_age(1_000, 5_500).age_ms == 4_500
    assert lag(40, 0, 100).with_age(None, 5_500).age_ms is None


def test_a_record_from_a_clock_that_is_ahead_has_no_negative_age() -> None:
    assert lag(40, 0, 100).with_age(9_000, 5_500).age_ms == 0


def test_records_deleted_unread_are_said_to_be_lost_and_not_to_be_behind() -> None:
    found = lag(40, 70, 100)
    assert (found.standing, found.lost, found.behind) == (LagStatus.RECORDS_LOST, 30, 30)


def test_when_everything_was_deleted_nothing_is_behind_but_all_of_it_is_lost() -> None:
    found = lag(40, 100, 100)
    assert (found.standing, found.lost, found.behind, found.age_ms) == (LagStatus.RECORDS_LOST, 60, 0, 0)


def test_an_offset_beyond_the_end_is_told() -> None:
    found = lag(101, 0, 100)
    assert (found.standing, found.behind) == (LagStatus.BEYOND_END, 0)


def test_nothing_is_known_of_a_partition_without_a_commit() -> None:
    found = lag(None, 0, 100)
    assert (found.standing, found.behind, found.age_ms) == (LagStatus.NO_COMMIT, None, None)


@pytest.mark.parametrize(
    ("behind", "rate", "expected"), [(0, 0.0, 0), (10, 0.0, None), (10, 3.0, 3_334), (2**62, 1e-9, 2**63 - 1)]
)
def test_time_to_drain(behind: int, rate: float, expected: int | None) -> None:
    assert drain_ms(behind, rate) == expected


def test_a_group_is_as_old_as_its_oldest_partition_and_drains_with_its_slowest() -> None:
    lags = [
        lag(0, 0, 60, 20.0).with_age(1_000, 2_000),
        lag(0, 0, 10, 1.0).with_age(500, 2_000),
        lag(None, 0, 9),
    ]
    totals = compute_totals(lags)
    assert (totals.behind, totals.age_ms_max, totals.rate, totals.drain_ms) == (70, 1_500, 21.0, 10_000)


def test_a_group_with_one_stuck_partition_never_drains() -> None:
    assert compute_totals([lag(0, 0, 60, 20.0), lag(0, 0, 1)]).drain_ms is None


def test_a_group_without_partitions_is_not_behind() -> None:
    assert compute_totals([]) == (0, 0, 0, 0, 0, 0)
