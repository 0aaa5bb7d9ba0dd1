"""`python -m penstock.sim`: run seeds, and say which one breaks what."""

import argparse
import sys
import time
from collections.abc import Sequence

from penstock.sim.world import World


def run_seed(seed: int, *, trace: bool = False) -> World:
    """Raises whatever the seed breaks."""
    return World(seed, on_trace=print if trace else None).run()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="penstock.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many, one after another")
    parser.add_argument("--trace", action="store_true", help="print every event")
    options = parser.parse_args(arguments)
    began, events, seed = time.monotonic(), 0, options.seed
    try:
        for seed in range(options.seed, options.seed + options.seeds):
            events += run_seed(seed, trace=options.trace).events
    except BaseException:
        print(f"seed {seed} fails; see all of it with: python -m penstock.sim --seed {seed} --trace")
        raise
    seconds = time.monotonic() - began
    print(f"{options.seeds} seeds, {events} events, {seconds:.1f} s: no promise was broken")
    return 0


if __name__ == "__main__":
    sys.exit(main())
