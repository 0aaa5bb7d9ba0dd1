"""The command line of `python -m penstock.sim`: which seeds, how much of them, and how they are run.

Rule: An option that would have no effect is rejected, so that a run is not mistaken for another kind of
      run.
"""

import argparse
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from penstock.sim.cluster.plan import BROKER_COUNTS, SECONDS, WITHOUT_NAMES
from penstock.sim.cluster.shrinking import ClusterRecipe

DESCRIPTION = """Run seeds of the simulator, and say which one breaks a promise, and how to see it again.
A seed is a cluster of brokers, or a single broker on a bad disk."""


class SimOptions(NamedTuple):
    recipes: Sequence[ClusterRecipe]
    jobs: int
    traces: bool
    shrinks: bool


def parse_options(arguments: Sequence[str] | None) -> SimOptions:
    """The parsed options. Exits with a message if they contradict each other."""
    parser = _parser()
    given = parser.parse_args(arguments)
    seeds = range(given.seed, given.seed + given.seeds)
    recipes = [
        ClusterRecipe(seed, given.brokers, given.seconds, given.faults, given.without) for seed in seeds
    ]
    if given.faults is not None:
        for recipe in recipes:
            _require_known_faults(parser, recipe)
    return SimOptions(recipes, given.jobs, given.trace, given.shrink)


def _require_known_faults(parser: argparse.ArgumentParser, recipe: ClusterRecipe) -> None:
    known = [fault.number for fault in recipe._replace(faults=None).plan().faults]
    unknown = [number for number in recipe.faults or () if number not in known]
    if unknown:
        has = f"faults {_ranges(known)}" if known else "no faults"
        parser.error(
            f"--faults: there is no {unknown[0]}; in {recipe.seconds:g} s seed {recipe.seed} has {has}"
        )


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as text: "0 to 5, 1000 to 1004". Faults of extras have numbers of their own."""
    # In a run of consecutive numbers the difference between number and position stays the same.
    runs = groupby(enumerate(numbers), key=lambda each: each[1] - each[0])
    spans = [[number for _, number in run] for _, run in runs]
    return ", ".join(f"{span[0]} to {span[-1]}" if len(span) > 1 else str(span[0]) for span in spans)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="penstock.sim", description=DESCRIPTION)
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default: %(default)s)")
    parser.add_argument(
        "--seeds", type=count, default=1, metavar="COUNT", help="how many, upwards (default: %(default)s)"
    )
    parser.add_argument(
        "--jobs", type=count, default=1, metavar="COUNT", help="so many processes (default: %(default)s)"
    )
    parser.add_argument("--trace", action="store_true", help="print every event, one seed after another")
    parser.add_argument(
        "--brokers", type=int, choices=BROKER_COUNTS, help="default: as many as the seed says"
    )
    parser.add_argument(
        "--seconds",
        type=duration,
        default=SECONDS,
        help="how long there are faults, simulated (default: %(default)g)",
    )
    parser.add_argument("--shrink", action="store_true", help="make the first failing seed smaller")
    parser.add_argument(
        "--faults",
        type=_numbers,
        metavar="N,N,...",
        help="only these of the seed's faults, by their numbers, or none (default: all)",
    )
    parser.add_argument(
        "--without", type=_names, default=(), metavar="NAME,NAME,...", help=f"of {', '.join(WITHOUT_NAMES)}"
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
