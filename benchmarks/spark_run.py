"""Benchmarks of topics in Spark, compared with Spark's own sources and sinks.

    python -m benchmarks.spark_run                    everything; a quarter of an hour on a busy machine
    python -m benchmarks.spark_run --quick            a fifth of the records, two pairs instead of three
    python -m benchmarks.spark_run --only archive     one question; may be repeated

Figures are stored in benchmarks/results/spark-<time>.json with a description of the machine.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

from benchmarks import spark_archive, spark_reading, spark_streaming, spark_writing
from benchmarks.figures import Figure, shown, table
from benchmarks.machine import facts
from benchmarks.spark_setting import FULL, QUICK, SparkBenchmark, setting

BENCHMARKS: dict[str, Callable[[SparkBenchmark], Iterator[Figure]]] = {
    "reading": spark_reading.measure,
    "writing": spark_writing.measure,
    "archive": spark_archive.measure,
    "streaming": spark_streaming.measure,
}
RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Run the command line. Exit code 1: a measured figure missed its target."""
    arguments = _arguments()
    # A benchmark that is stopped must still end its broker and Spark: the blocks they run in see this.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    machine = facts() | {"pyspark": version("pyspark"), "pyarrow": version("pyarrow")}
    print(" ".join(f"{name}={value}" for name, value in machine.items()), flush=True)
    began = time.monotonic()
    figures: list[Figure] = []
    remarks: list[str] = []
    try:
        with setting(QUICK if arguments.quick else FULL, remarks.append) as given:
            for name in arguments.only or BENCHMARKS:
                for figure in BENCHMARKS[name](given):
                    figures.append(figure)
                    print(
                        f"  {figure.name}: {shown(figure.value)} {figure.unit}", file=sys.stderr, flush=True
                    )
    finally:
        machine["load_average_after"] = os.getloadavg()[0]
        print(table(figures))  # also what was found before something failed
        for remark in remarks:
            print(remark)
        loads = f"{machine['load_average_before']:.1f} before, {machine['load_average_after']:.1f} after"
        print(f"{time.monotonic() - began:.0f} s; load average {loads}")
        print(f"kept in {_keep(machine, figures, remarks).relative_to(RESULTS.parent.parent)}", flush=True)
    return 0 if all(figure.is_met is not False for figure in figures) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.spark_run", description="Measure Penstock in Spark on this machine."
    )
    parser.add_argument("--quick", action="store_true", help="a fifth of the records, two pairs")
    parser.add_argument("--only", action="append", choices=BENCHMARKS, help="one question; may be repeated")
    return parser.parse_args()


def _keep(machine: dict[str, object], figures: list[Figure], remarks: list[str]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"spark-{time.strftime('%Y-%m-%dT%H%M%S')}.json"
    content = {"machine": machine, "remarks": remarks, "figures": [figure.as_json() for figure in figures]}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return path


if __name__ == "__main__":
    sys.exit(main())
