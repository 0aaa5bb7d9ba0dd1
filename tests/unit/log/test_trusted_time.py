"""How far a wall clock is believed by whoever is about to delete tombstones."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.log.trusted_time import LEAP_MS_MIN, LEAPS_MAX, TrustedTime

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
STEPS = st.lists(
    st.tuples(
        st.integers(1, DAY_MS), st.sampled_from([0, 0, 0, HOUR_MS, 400 * DAY_MS, -HOUR_MS, -400 * DAY_MS])
    ),
    min_size=1,
    max_size=2 * LEAPS_MAX,
)


def test_a_clock_that_does_not_leap_is_believed() -> None:
    time = TrustedTime(NOW_MS, 100.0)
    time.observe(NOW_MS + DAY_MS, 100.0 + DAY_MS / 1000)
    assert time.now_ms(DAY_MS) == NOW_MS + DAY_MS
    time.observe(NOW_MS + DAY_MS + LEAP_MS_MIN - 1, 100.0 + DAY_MS / 1000)
    assert time.now_ms(DAY_MS) == NOW_MS + DAY_MS + LEAP_MS_MIN - 1


def test_a_leap_forward_counts_when_the_retention_has_passed_since() -> None:
    time = TrustedTime(NOW_MS, 0.0)
    time.observe(NOW_MS + DAY_MS, 0.0)
    assert time.now_ms(HOUR_MS) == NOW_MS
    time.observe(NOW_MS + DAY_MS + HOUR_MS - 1, (HOUR_MS - 1) / 1000)
    assert time.now_ms(HOUR_MS) == NOW_MS + HOUR_MS - 1
    time.observe(NOW_MS + DAY_MS + HOUR_MS, HOUR_MS / 1000)
    assert time.now_ms(HOUR_MS) == NOW_MS + DAY_MS + HOUR_MS
    assert time.now_ms(DAY_MS) == NOW_MS + HOUR_MS


def test_a_leap_back_is_believed_at_once() -> None:
    time = TrustedTime(NOW_MS, 0.0)
    time.observe(NOW_MS - DAY_MS, 1.0)
    assert time.now_ms(HOUR_MS) == NOW_MS - DAY_MS


def test_of_more_leaps_than_are_remembered_none_counts_too_early() -> None:
    time = TrustedTime(NOW_MS, 0.0)
    for second in range(LEAPS_MAX + 1):
        time.observe(NOW_MS + second * 1000 + (second + 1) * HOUR_MS, float(second))
    passed_ms = LEAPS_MAX * 1000
    assert time.now_ms(passed_ms - 500) == NOW_MS + passed_ms, "the second of the two oldest is too young"
    assert time.now_ms(passed_ms - 1_500) == NOW_MS + passed_ms + 2 * HOUR_MS


@given(steps=STEPS, retention_ms=st.sampled_from([1, HOUR_MS, 30 * DAY_MS]))
def test_no_horizon_is_past_before_its_retention_has_really_passed(
    steps: list[tuple[int, int]], retention_ms: int
) -> None:
    """However often the clock leaps, also more often than is remembered."""
    wall_ms, really_ms = NOW_MS, 0
    time = TrustedTime(wall_ms, 0.0)
    horizons: list[tuple[int, int]] = []
    for passed_ms, leap_ms in steps:
        horizons.append((wall_ms + retention_ms, really_ms + retention_ms))
        wall_ms, really_ms = wall_ms + passed_ms + leap_ms, really_ms + passed_ms
        time.observe(wall_ms, really_ms / 1000)
        now_ms = time.now_ms(retention_ms)
        rounding_ms = len(steps)
        assert all(really_ms >= real - rounding_ms for horizon, real in horizons if now_ms >= horizon)
