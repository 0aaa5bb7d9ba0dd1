"""The command line of `python -m penstock.sim`: which seeds of which simulation, and how they are run.

Rule: An option that would have no effect is rejected, so that a run is not mistaken for another kind of
      run.
"""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

from penstock.sim.cluster.plan import BROKERS_MAX, BROKERS_MIN, SECONDS, WITHOUT_NAMES
from penstock.sim.cluster.shrinking import ClusterRecipe

DESCRIPTION = """Run seeds of a simulated world, and say which one breaks a promise, and how to see it again.
A cluster of brokers by default; `--what log` for one broker's log and its disk."""
CLUSTER_OPTIONS = ("brokers", "seconds", "faults", "without", "shrink")


class LogRecipe(NamedTuple):
    """The seed of a simulation of one broker's log."""

    seed: int

    def command(self) -> str:
        return f"python -m penstock.sim --what log --seed {self.seed}"


class SimOptions(NamedTuple):
    recipes: Sequence[ClusterRecipe | LogRecipe]
    jobs: int
    traces: bool
    shrinks: bool
    is_log_run: bool


def parse_options(arguments: Sequence[str] | None) -> SimOptions:
    """The parsed options. Exits with a message if they contradict each other."""
    parser = _parser()
    given = parser.parse_args(arguments)
    seeds = range(given.seed, given.seed + given.seeds)
    is_log_run = given.what == "log"
    if is_log_run:
        for name in CLUSTER_OPTIONS:
            if getattr(given, name) not in (None, False):
                parser.error(f"--{name} is for a cluster: leave it out, or --what log")
        return SimOptions([LogRecipe(seed) for seed in seeds], given.jobs, given.trace, False, is_log_run)
    seconds = SECONDS if given.seconds is None else given.seconds
    recipes = [
        ClusterRecipe(seed, given.brokers, seconds, given.faults, given.without or ()) for seed in seeds
    ]
    if given.faults is not None:
        for recipe in recipes:
            _require_known_faults(parser, recipe)
    return SimOptions(recipes, given.jobs, given.trace, given.shrink, is_log_run)


def _require_known_faults(parser: argparse.ArgumentParser, recipe: ClusterRecipe) -> None:
    known = [fault.number for fault in recipe._replace(faults=None).plan().faults]
    unknown = [number for number in recipe.faults or () if number not in known]
    if unknown:
        has = f"faults {known[0]} to {known[-1]}" if known else "no faults"
        parser.error(
            f"--faults: there is no {unknown[0]}; in {recipe.seconds:g} s seed {recipe.seed} has {has}"
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="penstock.sim", description=DESCRIPTION)
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default: %(default)s)")
    parser.add_argument(
        "--seeds", type=count, default=1, metavar="COUNT", help="how many, upwards (default: %(default)s)"
    )
    parser.add_argument(
        "--jobs", type=count, default=1, metavar="COUNT", help="so many processes (default: %(default)s)"
    )
    parser.add_argument("--what", choices=("cluster", "log"), default="cluster", help="default: %(default)s")
    parser.add_argument("--trace", action="store_true", help="print every event, one seed after another")
    cluster = parser.add_argument_group("of a cluster")
    brokers = range(BROKERS_MIN, BROKERS_MAX + 1)
    cluster.add_argument("--brokers", type=int, choices=brokers, help="default: as many as the seed says")
    cluster.add_argument(
        "--seconds", type=duration, help=f"how long there are faults, simulated (default: {SECONDS:g})"
    )
    cluster.add_argument("--shrink", action="store_true", help="make the first failing seed smaller")
    cluster.add_argument(
        "--faults",
        type=_numbers,
        metavar="N,N,...",
        help="only these of the seed's faults, by their numbers, or none (default: all)",
    )
    cluster.add_argument(
        "--without", type=_names, metavar="NAME,NAME,...", help=f"of {', '.join(WITHOUT_NAMES)}"
    )
    return parser


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no count: give 1 or more")
    return int(text)


def duration(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no duration: give a number above 0")
    return value


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return () if text == "none" else tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: give numbers of faults as in 3,7, or none") from None


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not set(names) <= set(WITHOUT_NAMES):
        raise argparse.ArgumentTypeError(f"{text}: these are known: {', '.join(WITHOUT_NAMES)}")
    return names
