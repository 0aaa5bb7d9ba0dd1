"""Reduction of a failing plan to a smaller one that still fails.

First the time after the failure is removed, then faults, in halves and one by one, then clients. After each
success the rest is tried again, until nothing more can be left out. Each attempt is a whole run.

Rule: A smaller plan that fails in another way counts: it is a failure too, and a smaller one.
"""

from collections.abc import Callable
from typing import NamedTuple

from penstock.sim.cluster.plan import WITHOUT_NAMES, ClusterPlan, draw_plan

FailureCheck = Callable[[ClusterPlan], float | None]
"""Returns when a plan fails, or None if it does not."""


class ClusterRecipe(NamedTuple):
    """The options from which a plan is made."""

    seed: int
    brokers: int | None
    seconds: float
    faults: tuple[int, ...] | None = None
    """None: all of them."""
    without: tuple[str, ...] = ()

    def plan(self) -> ClusterPlan:
        plan = draw_plan(self.seed, brokers=self.brokers, seconds=self.seconds)
        if self.faults is not None:
            plan = plan.with_faults(self.faults)
        for name in self.without:
            plan = plan.without(name)
        return plan

    def command(self) -> str:
        words = [f"python -m penstock.sim --seed {self.seed}"]
        if self.brokers is not None:
            words.append(f"--brokers {self.brokers}")
        words.append(f"--seconds {self.seconds:g}")
        if self.faults is not None:
            numbers = ",".join(str(fault.number) for fault in self.plan().faults)  # within these seconds
            words.append(f"--faults {numbers or 'none'}")
        if self.without:
            words.append(f"--without {','.join(self.without)}")
        return " ".join(words)


def shrink(
    recipe: ClusterRecipe, failed_at: float, fails: FailureCheck, report: Callable[[str], None]
) -> ClusterRecipe:
    """The smallest failing recipe that was found."""
    best = recipe

    def still_fails(candidate: ClusterRecipe) -> bool:
        nonlocal best
        at = fails(candidate.plan())
        report(f"{'still fails' if at is not None else 'does not'}: {candidate.command()}")
        if at is not None:
            best = candidate
        return at is not None

    shorter = round(failed_at + 0.1, 1)
    if shorter < recipe.seconds:
        still_fails(recipe._replace(seconds=shorter))
    _remove_faults(lambda: best, still_fails)
    for name in WITHOUT_NAMES:
        if best.plan().without(name) != best.plan():
            still_fails(best._replace(without=(*best.without, name)))
    return best


def _remove_faults(best: Callable[[], ClusterRecipe], still_fails: Callable[[ClusterRecipe], bool]) -> None:
    size = max(1, len(best().plan().faults) // 2)
    while True:
        removed, at = False, 0
        while True:
            numbers = tuple(fault.number for fault in best().plan().faults)
            if at >= len(numbers):
                break
            left = numbers[:at] + numbers[at + size :]
            if still_fails(best()._replace(faults=left)):
                removed = True
            else:
                at += size
        if size == 1 and not removed:
            return
        size = max(1, size // 2)
