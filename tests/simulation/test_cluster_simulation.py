"""Seeds of whole clusters that run with every change, and what stands around them.

That the simulator would notice mistakes is asked by `make mutants`; here, that its mutants still apply, and
that the plainest is noticed.
"""

import os
import re
import shlex
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.replication.partition import Partition
from penstock.sim.cluster.cluster import SimCluster
from penstock.sim.cluster.plan import (
    KINDS_OF_EXTRAS,
    KINDS_OF_SINGLE_BROKERS,
    ClusterPlan,
    Fault,
    FaultKind,
    draw_plan,
)
from penstock.sim.cluster.shrinking import ClusterRecipe, shrink
from penstock.sim.run import main, run_cluster, run_plan
from penstock.sim.violation import InvariantViolation
from tools import mutants
from tools.known_mistakes import MUTANTS
from tools.mutant import Mutant
from tools.mutants import SOURCE, Control, kill, mutated, mutated_copy

SECONDS = 30.0
SEEDS = range(9_000, 9_008)
REGRESSIONS = Path(__file__).parent / "regressions.txt"
BATCHES_MIN = 20


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cluster_breaks_no_promise(seed: int) -> None:
    """A broken one is raised. A seed in which nothing is written would prove nothing."""
    assert run_cluster(draw_plan(seed, seconds=SECONDS)).acknowledged > BATCHES_MIN


def regressions() -> list[str]:
    lines = [line.partition("#")[0].strip() for line in REGRESSIONS.read_text().splitlines()]
    return [line for line in lines if line]


@pytest.mark.parametrize("arguments", regressions())
def test_what_failed_once_does_not_fail_again(arguments: str) -> None:
    assert main(shlex.split(arguments)) == 0


@pytest.mark.parametrize("seed", [9_100, 9_101])
def test_one_seed_is_one_run_whatever_the_hash_seed(seed: int) -> None:
    """Runs of a single broker, and of a cluster."""
    plan = f"draw_plan({seed}, seconds=12.0)"
    imports = "from penstock.sim.cluster.plan import draw_plan; from penstock.sim.run import run_cluster"
    other = "1" if os.environ.get("PYTHONHASHSEED") == "0" else "0"
    elsewhere = subprocess.run(
        [sys.executable, "-c", f"{imports}; print(run_cluster({plan}).hash)"],
        env={**os.environ, "PYTHONHASHSEED": other},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert elsewhere == f"{run_cluster(draw_plan(seed, seconds=12.0)).hash}\n"


def test_brokers_that_do_not_flush_are_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def advance(partition: Partition) -> None:
        if partition.leading is not None:
            partition._advance_high_watermark(partition.leading.reached(partition.log.log_end_offset))

    monkeypatch.setattr(Partition, "advance", advance)
    original = Partition._write

    def write(partition: Partition, *arguments: object) -> object:
        appended = original(partition, *arguments)  # type: ignore[arg-type]
        partition.advance()
        return appended

    monkeypatch.setattr(Partition, "_write", write)
    assert main(["--seed", "1", "--seeds", "20", "--seconds", "10"]) == 1
    said = capsys.readouterr().out
    found = re.search(r"^seed (\d+) fails", said, re.MULTILINE)
    assert found is not None
    assert f"python -m penstock.sim --seed {found[1]} --seconds 10 --trace" in said


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_every_mutant_still_applies(mutant: Mutant) -> None:
    compile(mutated(mutant), mutant.file, "exec")


def test_a_mutant_whose_line_is_gone_is_an_error() -> None:
    with pytest.raises(LookupError, match="0 times"):
        mutated(Mutant("gone", "replication/leading.py", "no such line", ""))


def test_a_mutant_that_uses_an_unknown_attribute_is_an_error() -> None:
    """It would be killed by an AttributeError, and not for its mistake."""
    with pytest.raises(LookupError, match=r"knows no self\.on_damage$"):
        mutated(
            Mutant(
                "dead", "broker/storage/cold_reads.py", "        log = partition.log\n", "self.on_damage()"
            )
        )


def test_a_seed_that_fails_without_the_mistake_kills_no_mutant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The seeds behind it are looked at."""
    failing = {"mutant": {3, 5}, "control": {3}}

    def run(module: Sequence[str], copy: Path, *, folder: Path) -> subprocess.CompletedProcess[str]:
        first = int(module[2])
        count = int(module[4]) if "--seeds" in module else 1
        mine = failing["control" if copy == SOURCE else "mutant"] & set(range(first, first + count))
        said = f"seed {min(mine)} fails; see" if mine else "no promise was broken"
        return subprocess.CompletedProcess(module, 1 if mine else 0, said, "")

    monkeypatch.setattr(mutants, "run_module", run)
    options = Namespace(seed=1, seeds=6, jobs=1)
    control = Control()
    assert kill(MUTANTS[0], options, control).by == "seed 5"
    assert control.alarms == {3}
    failing["mutant"] = {3}
    assert kill(MUTANTS[0], options, control).by is None


# Faults


def test_a_hundred_seeds_draw_every_kind_of_fault() -> None:
    assert {fault.kind for seed in range(1, 101) for fault in draw_plan(seed).faults} == set(FaultKind)


@pytest.mark.parametrize("kind", sorted(set(FaultKind) - KINDS_OF_EXTRAS - KINDS_OF_SINGLE_BROKERS))
def test_every_fault_strikes(kind: FaultKind) -> None:
    """And a cluster that has nothing else to bear comes through it."""
    quiet = draw_plan(9_200, brokers=3, seconds=9.0).without("extras").without("members")
    faults = [Fault(0, kind, 4.0, 3.0, (1,))]
    if kind is FaultKind.AMBUSH:
        faults.append(Fault(1, FaultKind.KILL, 4.5, 0.1, (2,)))  # somebody has to go into it
    assert run_cluster(quiet._replace(faults=tuple(faults))).fault_counts[kind] == 1


def test_what_struck_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "9200", "--seconds", "8", "--without", "repeats"]) == 0
    faults = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(r"faults: [a-z-]+ \d+(, [a-z-]+ \d+)*", faults), faults


# Shrinking


def test_a_failing_seed_of_broken_brokers_is_shrunk(tmp_path: Path) -> None:
    """What is left fails in brokers that are broken, and only there."""
    whole = ClusterRecipe(27, None, 12.0)
    broken = next(mutant for mutant in MUTANTS if mutant.name == "restarted_leader_leads_on")
    environment = {**os.environ, "PYTHONPATH": str(mutated_copy(broken, tmp_path))}

    def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "penstock.sim", *arguments]
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )

    shrunk = run(["--seed", "27", "--seconds", "12", "--shrink"])
    assert shrunk.returncode == 1
    found = re.search(
        r"^as small as it gets: python -m penstock.sim (.*) --trace$", shrunk.stdout, re.MULTILINE
    )
    assert found is not None, shrunk.stdout
    arguments = shlex.split(found[1])
    numbers = arguments[arguments.index("--faults") + 1].split(",")
    assert len(numbers) < len(whole.plan().faults)
    assert "--without" in arguments
    assert run(arguments).returncode == 1
    assert main(arguments) == 0


def test_what_a_failure_does_not_need_is_left_out() -> None:
    whole = ClusterRecipe(3, None, 60.0)
    faults = whole.plan().faults
    assert len(faults) > 3
    guilty = {faults[1].number, faults[3].number}

    def fails(plan: ClusterPlan) -> float | None:
        return 50.0 if guilty <= {fault.number for fault in plan.faults} else None

    smallest = shrink(whole, 49.0, fails, lambda _: None)
    assert set(smallest.faults or ()) == guilty
    plan = smallest.plan()
    assert (plan.members, plan.readers, plan.careless) == (0, 0, 0)
    assert smallest.command().startswith("python -m penstock.sim --seed 3 --seconds 49.1 --faults ")


def test_a_shorter_plan_has_the_first_faults_of_a_longer_one() -> None:
    short, long = draw_plan(6, seconds=20.0), draw_plan(6, seconds=60.0)
    assert short.faults == long.faults[: len(short.faults)]
    assert short._replace(faults=(), seconds=60.0) == long._replace(faults=())


def test_a_failure_is_told_and_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise InvariantViolation("lost")

    monkeypatch.setattr(SimCluster, "run_phases", broken)
    ran = run_plan(draw_plan(1, seconds=5.0))
    assert ran.failure is not None
    assert "lost" in ran.failure
