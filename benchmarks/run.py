"""Runs the benchmarks, prints their figures and stores them.

    python -m benchmarks.run                     everything, about half an hour
    python -m benchmarks.run --quick             a tenth of the records, once each
    python -m benchmarks.run --only requests     one question; may be repeated
    python -m benchmarks.run --large             the restart with 10 GB instead of 1 GB

Figures are stored in benchmarks/results/<time>.json with a description of the machine.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks import (
    bare,
    compaction,
    end_to_end,
    fetches,
    groups_commits,
    groups_many,
    groups_rebalance,
    latency,
    many_partitions,
    memory,
    replication,
    requests,
    restart,
    start,
    throughput,
)
from benchmarks.figures import Figure, shown, table
from benchmarks.machine import facts
from benchmarks.settings import FULL, QUICK, Settings

BENCHMARKS: dict[str, Callable[[Settings], Iterator[Figure]]] = {
    "start": start.measure,
    "memory": memory.measure,
    "requests": requests.measure,
    "fetches": fetches.measure,
    "latency": latency.measure,
    "end_to_end": end_to_end.measure,
    "throughput": throughput.measure,
    "bare": bare.measure,
    "restart": restart.measure,
    "replication": replication.measure,
    "many_partitions": many_partitions.measure,
    "rebalance": groups_rebalance.measure,
    "commits": groups_commits.measure,
    "many_groups": groups_many.measure,
    "compaction": compaction.measure,
}
RESULTS = Path(__file__).parent / "results"
LARGE_BYTES = 10_000_000_000


def main() -> int:
    """Run the command line. Exit code 1: a measured figure missed its target."""
    arguments = _arguments()
    settings = QUICK if arguments.quick else FULL
    if arguments.large:
        settings = replace(settings, restart_bytes=LARGE_BYTES)
    if arguments.partitions:
        settings = replace(settings, partition_counts=tuple(arguments.partitions))
    # A benchmark that is stopped must still end its brokers: the blocks they run in see this.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    machine = facts()
    print(" ".join(f"{name}={value}" for name, value in machine.items()), flush=True)
    figures: list[Figure] = []
    try:
        for name in arguments.only or BENCHMARKS:
            for figure in BENCHMARKS[name](settings):
                figures.append(figure)
                print(f"  {figure.name}: {shown(figure.value)} {figure.unit}", file=sys.stderr, flush=True)
    finally:
        _report(machine, figures)  # also what was found before something failed
    return 0 if all(figure.is_met is not False for figure in figures) else 1


def _report(machine: dict[str, object], figures: list[Figure]) -> None:
    print(table(figures))
    if judged := [figure for figure in figures if figure.target is not None]:
        print("\nTargets\n" + table(judged))
    print(f"\nkept in {_keep(machine, figures).relative_to(RESULTS.parent.parent)}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.run", description="Measure Penstock on this machine.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the records, once each")
    parser.add_argument("--large", action="store_true", help="restart with 10 GB instead of 1 GB")
    parser.add_argument("--only", action="append", choices=BENCHMARKS, help="one question; may be repeated")
    parser.add_argument(
        "--partitions", action="append", type=int, help="instead of 1, 100 and 1000; may be repeated"
    )
    return parser.parse_args()


def _keep(machine: dict[str, object], figures: list[Figure]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{time.strftime('%Y-%m-%dT%H%M%S')}.json"
    content = {"machine": machine, "figures": [figure.as_json() for figure in figures]}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return path


if __name__ == "__main__":
    sys.exit(main())
