"""`python -m penstock.sim`: run seeds, print the one that breaks an invariant, and how to repeat it."""

import gc
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from penstock.cli.output import counted
from penstock.sim.cluster.cluster import SimCluster
from penstock.sim.cluster.plan import ClusterPlan
from penstock.sim.cluster.shrinking import ClusterRecipe, shrink
from penstock.sim.options import SimOptions, parse_options

INTERRUPTED = 130


class RunResult(NamedTuple):
    """The result of one plan, or the sum of several."""

    steps: int
    """Callbacks and timers of the event loop that ran."""
    acknowledged: int
    seconds: float
    """The simulated time."""
    fault_counts: Counter[str]
    """By fault, and by other things that a run causes: how often it had an effect."""
    failure: str | None

    def combined_with(self, other: "RunResult") -> "RunResult":
        return RunResult(
            self.steps + other.steps,
            self.acknowledged + other.acknowledged,
            self.seconds + other.seconds,
            self.fault_counts + other.fault_counts,
            self.failure or other.failure,
        )


EMPTY_RESULT = RunResult(0, 0, 0.0, Counter(), None)


def run_cluster(plan: ClusterPlan, *, trace: bool = False) -> SimCluster:
    """Run a plan. Raises the violation that it finds."""
    return SimCluster(plan, on_trace=print if trace else None).run()


def run_plan(plan: ClusterPlan, *, trace: bool = False) -> RunResult:
    """Run a plan. A violation is returned, not raised."""
    gc.disable()  # a simulation is dropped as a whole after its run
    gc.freeze()
    try:
        return _run_guarded(SimCluster(plan, on_trace=print if trace else None))
    finally:
        # The simulation is unreferenced now. What is not collected here would be frozen with the next one.
        gc.enable()
        gc.collect()
        gc.unfreeze()


def _run_guarded(cluster: SimCluster) -> RunResult:
    failure = None
    try:
        cluster.run()
    except Exception:
        failure = traceback.format_exc()
    return RunResult(
        cluster.loop.steps, cluster.acknowledged, cluster.loop.now, cluster.fault_counts, failure
    )


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_options(arguments)
    began, count, total = time.monotonic(), 0, EMPTY_RESULT
    try:
        for recipe, ran in zip(options.recipes, _run_all(options), strict=True):
            if ran.failure is not None:
                _print_failure(recipe, ran, shrinks=options.shrinks)
                return 1
            count, total = count + 1, total.combined_with(ran)
    except KeyboardInterrupt:
        print(f"interrupted: {_passed_seeds(options, count)}")
        return INTERRUPTED
    _print_success(options, total, time.monotonic() - began)
    return 0


def _run_all(options: SimOptions) -> Iterator[RunResult]:
    if options.jobs == 1 or options.traces:
        for recipe in options.recipes:
            yield run_plan(recipe.plan(), trace=options.traces)
        return
    # Ctrl-C reaches all processes. Only this one handles it, because it reports how many seeds have passed.
    ignoring = (signal.SIGINT, signal.SIG_IGN)
    pool = ProcessPoolExecutor(options.jobs, initializer=signal.signal, initargs=ignoring)
    try:
        for future in [pool.submit(run_plan, recipe.plan()) for recipe in options.recipes]:
            yield future.result()
    except KeyboardInterrupt:
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _passed_seeds(options: SimOptions, count: int) -> str:
    if count == 0:
        return "no seed has ended"
    first = options.recipes[0].seed
    which = f"seed {first}" if count == 1 else f"seeds {first} to {first + count - 1}"
    return f"{which} of {len(options.recipes)} ended, and no promise was broken"


def _print_success(options: SimOptions, total: RunResult, took_s: float) -> None:
    seeds = counted(len(options.recipes), "seed")
    print(
        f"{seeds}, {total.steps} steps, {total.acknowledged} batches acknowledged, {total.seconds:.0f} s "
        f"simulated in {took_s:.1f} s, {_processor_seconds():.1f} s of a processor: no promise was broken"
    )
    if options.shrinks:
        print("there is nothing to make smaller: no seed fails")
    fault_counts = sorted(total.fault_counts.items())
    print("faults:", ", ".join(f"{name} {number}" for name, number in fault_counts) or "none")


def _processor_seconds() -> float:
    """The processor time of this process and of its child processes that have ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _print_failure(recipe: ClusterRecipe, ran: RunResult, *, shrinks: bool) -> None:
    print(ran.failure)
    # Flushed at once: the process ends only when seeds that have begun have ended.
    print(f"seed {recipe.seed} fails; see all of it with: {recipe.command()} --trace", flush=True)
    if not shrinks:
        print(f"and make it smaller with: {recipe.command()} --shrink", flush=True)
        return

    def fails(plan: ClusterPlan) -> float | None:
        again = run_plan(plan)
        return None if again.failure is None else again.seconds

    try:
        smallest = shrink(recipe, ran.seconds, fails, print)
    except KeyboardInterrupt:
        print("interrupted: the last one above that still fails is the smallest so far")
        return
    print("faults left:", *(str(fault) for fault in smallest.plan().faults), sep="\n  ")
    print(f"as small as it gets: {smallest.command()} --trace")


if __name__ == "__main__":
    sys.exit(main())
