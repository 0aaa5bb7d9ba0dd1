"""How benchmark figures are chosen, judged and shown."""

import pytest

from benchmarks.figures import Better, Choice, Figure, percentile, shown, table
from benchmarks.phase import Phase


def figure(*samples: float, better: Better = Better.LOWER, target: float | None = None) -> Figure:
    return Figure(name="wait", unit="ms", samples=samples, better=better, target=target)


@pytest.mark.parametrize(
    ("better", "expected"),
    [(Better.LOWER, 1.0), (Better.HIGHER, 9.0)],
)
def test_the_value_is_the_sample_least_disturbed(better: Better, expected: float) -> None:
    assert figure(4.0, 1.0, 9.0, better=better).value == expected


def test_a_wait_is_judged_by_its_median() -> None:
    waited = Figure(name="start", unit="s", samples=(0.9, 0.4, 0.6), choice=Choice.MEDIAN, target=0.5)
    assert waited.value == 0.6
    assert waited.is_met is False


def test_what_must_hold_at_every_moment_is_judged_by_its_worst_sample() -> None:
    pause = Figure(name="pause", unit="ms", samples=(3.0, 250.0, 8.0), choice=Choice.WORST, target=200.0)
    assert pause.value == 250.0
    assert pause.is_met is False


@pytest.mark.parametrize(
    ("better", "value", "is_met"),
    [
        (Better.LOWER, 10.0, True),
        (Better.LOWER, 10.1, False),
        (Better.HIGHER, 10.0, True),
        (Better.HIGHER, 9.9, False),
    ],
)
def test_a_target_is_met_from_the_right_side(better: Better, value: float, is_met: bool) -> None:
    assert figure(value, better=better, target=10.0).is_met is is_met


def test_without_a_target_nothing_is_judged() -> None:
    assert figure(1.0).is_met is None
    assert figure(1.0).ratio is None


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0), (0.001, 1.0)])
def test_a_percentile_is_a_sample(share: float, expected: float) -> None:
    assert percentile([float(number) for number in range(1, 101)], share) == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.01234, "0.0123"), (1.2345, "1.23"), (123.4, "123"), (1_234_567.0, "1,234,567")],
)
def test_numbers_show_three_digits(value: float, text: str) -> None:
    assert shown(value) == text


def test_the_table_says_which_targets_are_missed() -> None:
    lines = table([figure(12.0, 15.0, target=10.0), figure(8.0, target=10.0)]).splitlines()
    assert "12.0 to 15.0 (2)" in lines[2]
    assert "NO" in lines[2]
    assert "1.20" in lines[2]
    assert "yes" in lines[3]


@pytest.mark.parametrize(
    ("broker_s", "client_s", "machine_s", "expected"),
    [
        (9.5, 5.0, 14.5, "broker CPU"),
        (5.0, 9.5, 14.5, "client CPU"),
        (5.0, 5.0, 19.0, "cores of the machine"),
        (2.0, 2.0, 4.0, "waiting"),
    ],
)
def test_what_work_waited_for_follows_from_who_was_busy(
    broker_s: float, client_s: float, machine_s: float, expected: str
) -> None:
    phase = Phase(10.0, broker_s, client_s, machine_s, 100)
    assert phase.limited_by(cores=2).startswith(expected)


@pytest.mark.parametrize(("machine_busy_s", "expected"), [(2.5, 1.7), (0.5, 1.0)])
def test_threads_of_the_kernel_count_beside_the_broker(machine_busy_s: float, expected: float) -> None:
    phase = Phase(wall_s=2.0, broker_cpu_s=1.0, client_cpu_s=0.8, machine_busy_s=machine_busy_s, work=10)
    assert phase.system_cpu_s == pytest.approx(expected)
