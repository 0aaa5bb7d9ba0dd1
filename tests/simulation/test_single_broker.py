"""Seeds of a single broker on a bad disk that run with every change, and proof that they would notice.

Each mistake of `tools/known_mistakes.py` that only a single broker shows is one that storage engines have
shipped with. Here a few seeds must notice it, from a seed on from which it does not take long.
"""

from argparse import Namespace

import pytest

from penstock.sim.cluster.cluster import SimCluster
from penstock.sim.cluster.extras import Extras
from penstock.sim.cluster.plan import (
    KINDS_OF_SINGLE_BROKERS,
    SINGLE_BROKER_EVERY,
    ClusterPlan,
    Fault,
    FaultKind,
    draw_plan,
)
from penstock.sim.run import main, run_cluster
from tools.known_mistakes import MUTANTS
from tools.mutants import Control, kill

SEEDS = range(500, 512)
SECONDS = 30.0
BATCHES_MIN = 20
MUTANT_SEEDS_MAX = 10
FIRST_SEEDS = {
    "failed_sync_is_believed_after_a_restart": 3,
    "folder_of_a_killed_process_is_believed": 3,
    "full_disk_leaves_a_part_of_a_batch": 16,
    "tombstones_do_not_stay": 1,
    "records_that_are_not_safe_are_cleaned": 53,
    "decided_swap_is_forgotten": 2,
    "tombstone_goes_before_what_it_deletes": 1,
}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_single_broker_breaks_no_promise(seed: int) -> None:
    """A broken one is raised. A seed in which nothing is written would prove nothing."""
    assert run_cluster(draw_plan(seed, brokers=1, seconds=SECONDS)).acknowledged > BATCHES_MIN


def test_every_fifth_seed_is_a_single_broker() -> None:
    assert [draw_plan(seed).brokers == 1 for seed in range(SINGLE_BROKER_EVERY)] == [True, *[False] * 4]
    assert draw_plan(3, brokers=1).log is not None
    assert draw_plan(5, brokers=3).log is None


def test_a_hundred_seeds_draw_what_only_a_single_broker_has() -> None:
    plans = [draw_plan(seed, brokers=1) for seed in range(1, 101)]
    assert {plan.flush_policy for plan in plans} == {"before_ack", "interval", "os"}
    assert {fault.kind for plan in plans for fault in plan.faults} >= KINDS_OF_SINGLE_BROKERS
    assert 0 < sum(bool(plan.compacted_topics) for plan in plans) < 100


def quiet(**changes: object) -> ClusterPlan:
    plan = draw_plan(9_400, brokers=1, seconds=15.0)
    return plan._replace(faults=(), extras=Extras(), topics=1, **changes)  # type: ignore[arg-type]


def run_with(plan: ClusterPlan, *kinds: FaultKind) -> SimCluster:
    faults = [Fault(number, kind, 3.0 + 3 * number, 0.5, (1,)) for number, kind in enumerate(kinds)]
    return run_cluster(plan._replace(faults=tuple(faults)))


def test_the_power_fails_during_a_disk_call() -> None:
    assert run_with(quiet(), *[FaultKind.POWER_AT_CALL] * 4).fault_counts[FaultKind.POWER_AT_CALL] > 0


def test_a_broker_runs_out_of_files() -> None:
    assert run_with(quiet(), FaultKind.FEW_FILES).fault_counts[FaultKind.FEW_FILES] == 1


def test_a_swap_is_interrupted() -> None:
    cluster = run_with(quiet()._replace(extras=Extras(compacts=True)), *[FaultKind.SWAP] * 3)
    assert cluster.fault_counts["cleaned"] > 3
    assert cluster.fault_counts[FaultKind.SWAP] > 0


def test_a_broker_is_killed_when_it_creates_a_log() -> None:
    plan = quiet(partitions=24, careless=1)
    assert run_with(plan, FaultKind.NEW_LOG).fault_counts[FaultKind.NEW_LOG] == 2


def test_power_takes_acknowledged_records_that_were_not_flushed() -> None:
    """The clients of the broker go on without them."""
    plan = quiet()._replace(extras=Extras(flushes_before_ack=False))
    cluster = run_with(plan, *[FaultKind.POWER] * 3)
    assert cluster.fault_counts[FaultKind.POWER] == 3
    assert cluster.acknowledged > BATCHES_MIN


def test_a_failing_seed_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: SimCluster) -> None:
        raise AssertionError("topic-1-0: lost")

    monkeypatch.setattr(SimCluster, "run_phases", broken)
    assert main(["--brokers", "1", "--seed", "42"]) == 1
    assert "--seed 42 --brokers 1 --seconds 60 --trace" in capsys.readouterr().out


@pytest.mark.parametrize("name", FIRST_SEEDS)
def test_the_simulator_notices(name: str) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    options = Namespace(seed=FIRST_SEEDS[name], seeds=MUTANT_SEEDS_MAX, jobs=1)
    killed = kill(mutant, options, Control())
    assert killed.by is not None, killed.reason
