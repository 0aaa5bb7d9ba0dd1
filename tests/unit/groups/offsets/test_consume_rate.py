"""How fast groups read, from their commits."""

from penstock.groups.offsets.committed_offsets import OffsetAndMetadata
from penstock.groups.offsets.consume_rate import ConsumeRates, RateKey
from penstock.types import LeaderEpoch, Offset

WINDOW_MS = 60_000
KEY = RateKey("g", "t", 0)


def committed(offset: int, at_ms: int) -> OffsetAndMetadata:
    return OffsetAndMetadata(Offset(offset), LeaderEpoch(-1), "", at_ms)


class Reading:
    """A group that commits again and again, as the coordinator sees it."""

    def __init__(self, rates: ConsumeRates, key: RateKey = KEY) -> None:
        self._rates = rates
        self._key = key
        self._before: OffsetAndMetadata | None = None

    def commit(self, offset: int, at_ms: int) -> None:
        self._rates.record_commit(self._key, self._before, Offset(offset), at_ms)
        self._before = committed(offset, at_ms)

    def rate(self, now_ms: int) -> float:
        return self._rates.rate(self._key, now_ms)


def reading() -> Reading:
    return Reading(ConsumeRates(WINDOW_MS, 100))


def test_a_steady_reader_has_a_steady_rate() -> None:
    group = reading()
    for second in range(0, 601, 5):
        group.commit(second * 20, second * 1000)
    assert group.rate(600_000) == 20.0


def test_one_commit_says_nothing_about_speed() -> None:
    group = reading()
    group.commit(1_000, 0)
    assert group.rate(1_000) == 0.0


def test_a_change_of_pace_shows_within_a_window() -> None:
    group = reading()
    for second in range(0, 301, 5):
        group.commit(second * 100, second * 1000)
    for second in range(305, 366, 5):
        group.commit(30_000 + (second - 300), second * 1000)
    assert group.rate(365_000) < 2.0


def test_a_reader_that_stops_slows_down_and_then_stands_still() -> None:
    group = reading()
    group.commit(0, 0)
    group.commit(1_000, 10_000)
    rates = [group.rate(10_000), group.rate(40_000), group.rate(70_001)]
    assert rates == [100.0, 25.0, 0.0]


def test_the_first_commit_after_a_long_pause_does_not_average_over_the_pause() -> None:
    group = reading()
    group.commit(0, 0)
    group.commit(3_600, 3_600_000)
    assert group.rate(3_600_000) == 0.0
    group.commit(3_700, 3_610_000)
    assert group.rate(3_610_000) == 10.0


def test_commits_within_a_moment_are_not_blown_up() -> None:
    group = reading()
    group.commit(0, 0)
    group.commit(50, 1)
    assert group.rate(1) == 50.0


def test_a_replay_is_not_reading() -> None:
    group = reading()
    group.commit(0, 0)
    group.commit(1_000, 10_000)
    group.commit(200, 20_000)
    assert group.rate(20_000) == 0.0
    group.commit(300, 30_000)
    assert group.rate(30_000) == 10.0


def test_committing_the_same_place_again_counts_as_nothing_read() -> None:
    rates = ConsumeRates(WINDOW_MS, 100)
    group = Reading(rates)
    for second in range(0, 30, 5):
        group.commit(7, second * 1000)
    assert len(rates) == 0, "what stands still is not followed"
    assert group.rate(30_000) == 0.0


def test_a_clock_that_goes_back_does_no_harm() -> None:
    group = reading()
    group.commit(0, 100_000)
    group.commit(100, 110_000)
    group.commit(200, 50_000)
    assert group.rate(50_000) == 0.0
    group.commit(300, 60_000)
    assert group.rate(60_000) == 10.0


def test_what_is_kept_is_bounded_and_the_latest_movers_stay() -> None:
    rates = ConsumeRates(WINDOW_MS, 10)
    groups = [Reading(rates, RateKey(f"g{number}", "t", 0)) for number in range(25)]
    for group in groups:
        group.commit(0, 0)
    for group in groups:
        group.commit(100, 5_000)
    assert len(rates) == 10
    assert [group.rate(5_000) > 0 for group in groups] == [False] * 15 + [True] * 10


def test_what_stands_still_makes_room_by_itself() -> None:
    rates = ConsumeRates(WINDOW_MS, 10)
    for number in range(5):
        group = Reading(rates, RateKey(f"old{number}", "t", 0))
        group.commit(0, 0)
        group.commit(1, 1_000)
    fresh = Reading(rates)
    fresh.commit(0, 100_000)
    fresh.commit(1, 101_000)
    assert len(rates) == 1
