"""`python -m penstock.sim`: what it refuses, and what it tells of runs that found nothing."""

from collections import Counter

import pytest

from penstock.sim import run
from penstock.sim.cluster.plan import ClusterPlan, draw_plan
from penstock.sim.cluster.shrinking import ClusterRecipe
from penstock.sim.run import RunResult, main

Screen = pytest.CaptureFixture[str]
PASSED = RunResult(10, 2, 5.0, Counter(kill=1), None)


def refusal(screen: Screen, *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    return screen.readouterr().err.splitlines()[-1]


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "run_plan", lambda _, **__: PASSED)


@pytest.mark.parametrize("option", ["--seeds", "--jobs"])
@pytest.mark.parametrize("count", ["0", "-1", "many"])
def test_a_count_is_one_or_more(capsys: Screen, option: str, count: str) -> None:
    said = refusal(capsys, f"{option}={count}")
    assert f"argument {option}: {count} is no count: give 1 or more" in said


@pytest.mark.parametrize("seconds", ["-5", "0", "nan", "inf", "long"])
def test_a_duration_is_more_than_nothing(capsys: Screen, seconds: str) -> None:
    assert f"{seconds} is no duration: give a number above 0" in refusal(capsys, f"--seconds={seconds}")


def test_faults_are_given_by_numbers_that_the_seed_has(capsys: Screen) -> None:
    numbers = [fault.number for fault in draw_plan(3).faults]
    assert numbers == [*range(6), *range(1000, 1005), *range(2000, 2004)], "three kinds of numbers"
    assert "abc: give numbers of faults as in 3,7, or none" in refusal(capsys, "--faults", "abc")
    said = refusal(capsys, "--seed", "3", "--faults", "0,999")
    assert "there is no 999; in 60 s seed 3 has faults 0 to 5, 1000 to 1004, 2000 to 2003" in said


def test_the_help_says_what_holds_if_nothing_is_said(capsys: Screen) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "simulated (default: 60)" in said
    assert "--faults N,N,... only these of the seed's faults, by their numbers, or none" in said


@pytest.mark.usefixtures("passing")
def test_seeds_that_pass_are_counted_in_words(capsys: Screen) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("1 seed, 10 steps, 2 batches acknowledged, 5 s simulated ")
    assert main(["--seeds", "3"]) == 0
    assert capsys.readouterr().out.startswith("3 seeds, 30 steps, 6 batches acknowledged, 15 s simulated ")


@pytest.mark.usefixtures("passing")
def test_a_seed_that_passes_is_not_made_smaller(capsys: Screen) -> None:
    assert main(["--shrink"]) == 0
    assert "there is nothing to make smaller: no seed fails" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        (0, "no seed has ended"),
        (1, "seed 5 of 9 ended, and no promise was broken"),
        (3, "seeds 5 to 7 of 9 ended, and no promise was broken"),
    ],
)
def test_an_interrupted_run_says_how_far_it_came(
    monkeypatch: pytest.MonkeyPatch, capsys: Screen, ended: int, told: str
) -> None:
    def interrupted(plan: ClusterPlan, **_: bool) -> RunResult:
        if plan.seed == 5 + ended:
            raise KeyboardInterrupt
        return PASSED

    monkeypatch.setattr(run, "run_plan", interrupted)
    assert main(["--seed", "5", "--seeds", "9"]) == 130
    assert capsys.readouterr().out == f"interrupted: {told}\n"


def test_a_failure_stays_one_if_making_it_smaller_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: Screen
) -> None:
    def interrupted(*_: object) -> ClusterRecipe:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "run_plan", lambda _, **__: PASSED._replace(failure="lost"))
    monkeypatch.setattr(run, "shrink", interrupted)
    assert main(["--shrink"]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("interrupted: the last one above")


def test_the_command_of_a_shorter_run_names_no_fault_that_comes_later() -> None:
    late = draw_plan(3).faults[-1]
    recipe = ClusterRecipe(3, None, late.at - 0.1, (0, late.number))
    assert recipe.command().endswith("--faults 0")
