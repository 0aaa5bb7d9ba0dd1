"""`python -m penstock.sim`: run seeds, and say which one breaks what, and how to see it again."""

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
from penstock.sim.cluster.plan import Plan
from penstock.sim.cluster.shrinking import Recipe, shrink
from penstock.sim.options import LogRecipe, Options, parsed
from penstock.sim.world import World

INTERRUPTED = 130


class Ran(NamedTuple):
    """What became of one plan, or of several."""

    events: int
    acknowledged: int
    seconds: float
    """How much time was simulated."""
    struck: Counter[str]
    """How often which fault did something."""
    failure: str | None

    def and_then(self, other: "Ran") -> "Ran":
        return Ran(
            self.events + other.events,
            self.acknowledged + other.acknowledged,
            self.seconds + other.seconds,
            self.struck + other.struck,
            self.failure or other.failure,
        )


NOTHING = Ran(0, 0, 0.0, Counter(), None)


def run_seed(seed: int, *, trace: bool = False) -> World:
    """Of the log. Raises whatever the seed breaks."""
    return World(seed, on_trace=print if trace else None).run()


def run_cluster(plan: Plan, *, trace: bool = False) -> SimCluster:
    """Raises whatever the plan breaks."""
    return SimCluster(plan, on_trace=print if trace else None).run()


def run_recipe(recipe: Recipe | LogRecipe, *, trace: bool = False) -> Ran:
    """Whatever it breaks is told, not raised."""
    if isinstance(recipe, Recipe):
        return run_plan(recipe.plan(), trace=trace)
    try:
        return NOTHING._replace(events=run_seed(recipe.seed, trace=trace).events)
    except Exception:
        return NOTHING._replace(failure=traceback.format_exc())


def run_plan(plan: Plan, *, trace: bool = False) -> Ran:
    """Whatever it breaks is told, not raised."""
    gc.disable()  # a world is dropped as a whole, after its run, without a look at what was there before
    gc.freeze()
    try:
        return _ran(SimCluster(plan, on_trace=print if trace else None))
    finally:
        # Nobody has the world any more. What is not collected now would be frozen with the next one.
        gc.enable()
        gc.collect()
        gc.unfreeze()


def _ran(cluster: SimCluster) -> Ran:
    failure = None
    try:
        cluster.run()
    except Exception:
        failure = traceback.format_exc()
    return Ran(cluster.loop.events, cluster.acknowledged, cluster.loop.now, cluster.struck, failure)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    began, count, total = time.monotonic(), 0, NOTHING
    try:
        for recipe, ran in zip(options.recipes, _each(options), strict=True):
            if ran.failure is not None:
                _tell(recipe, ran, shrinks=options.shrinks)
                return 1
            count, total = count + 1, total.and_then(ran)
    except KeyboardInterrupt:
        print(f"interrupted: {_those_that_passed(options, count)}")
        return INTERRUPTED
    _tell_all_passed(options, total, time.monotonic() - began)
    return 0


def _each(options: Options) -> Iterator[Ran]:
    if options.jobs == 1 or options.traces:
        for recipe in options.recipes:
            yield run_recipe(recipe, trace=options.traces)
        return
    # Ctrl-C reaches all processes, and is for this one, which tells how far they came.
    ignoring = (signal.SIGINT, signal.SIG_IGN)
    pool = ProcessPoolExecutor(options.jobs, initializer=signal.signal, initargs=ignoring)
    try:
        for future in [pool.submit(run_recipe, recipe) for recipe in options.recipes]:
            yield future.result()
    except KeyboardInterrupt:
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _those_that_passed(options: Options, count: int) -> str:
    if count == 0:
        return "no seed has ended"
    first = options.recipes[0].seed
    which = f"seed {first}" if count == 1 else f"seeds {first} to {first + count - 1}"
    return f"{which} of {len(options.recipes)} ended, and no promise was broken"


def _tell_all_passed(options: Options, total: Ran, took_s: float) -> None:
    seeds = counted(len(options.recipes), "seed")
    if options.is_of_log:
        print(f"{seeds}, {total.events} events, {took_s:.1f} s: no promise was broken")
        return
    print(
        f"{seeds}, {total.events} events, {total.acknowledged} batches acknowledged, {total.seconds:.0f} s "
        f"simulated in {took_s:.1f} s, {_processor_seconds():.1f} s of a processor: no promise was broken"
    )
    if options.shrinks:
        print("there is nothing to make smaller: no seed fails")
    struck = sorted(total.struck.items())
    print("faults:", ", ".join(f"{name} {number}" for name, number in struck) or "none")


def _processor_seconds() -> float:
    """Of this process, and of those that it had started and that have ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _tell(recipe: Recipe | LogRecipe, ran: Ran, *, shrinks: bool) -> None:
    print(ran.failure)
    # At once: the process ends only when seeds that have begun have ended.
    print(f"seed {recipe.seed} fails; see all of it with: {recipe.command()} --trace", flush=True)
    if isinstance(recipe, LogRecipe):
        return
    if not shrinks:
        print(f"and make it smaller with: {recipe.command()} --shrink", flush=True)
        return

    def fails(plan: Plan) -> float | None:
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
