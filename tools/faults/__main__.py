"""`python -m tools.faults`: runs a cluster of real processes under faults and checks what clients saw.

Three brokers and etcd each have a network and a disk of their own. Producers write and consumers and groups
read all the time. At the end the faults are healed, every record is read, and the history is checked. Exit
code 1: the history has an anomaly. 2: this host cannot run the faults. 130: interrupted.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Final

from penstock.sim.options import count, duration
from tools.faults.checker import NO_PARTITION, Anomaly, anomalies, log_anomalies
from tools.faults.cluster import ETCD, Cluster, broker_names
from tools.faults.history import write_down
from tools.faults.lab import Lab, UnsupportedHost
from tools.faults.machines import NamespaceLab, in_own_namespaces
from tools.faults.proxies import ProxyLab
from tools.faults.report import missing_coverage, report
from tools.faults.run import BROKERS, Amount, run
from tools.faults.schedule import FAULTS, Fault, draw_steps

TIMES: Final = 2
"""How often each kind of fault is injected by default."""
LABS: Final = ("namespaces", "proxies")

MakesLab = Callable[[Path, Sequence[str]], Lab]


def main() -> int:
    options = options_of(sys.argv[1:])
    install_signal_handlers()
    try:
        if options.lab == "proxies":
            return _run(options, ProxyLab)
        outside = _in_namespaces(may_fail=options.lab is None)
        if isinstance(outside, int):
            return outside
        return _run(options, ProxyLab if outside else NamespaceLab)
    except UnsupportedHost as problem:
        print(f"NOT TRIED: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _in_namespaces(*, may_fail: bool) -> int | str | None:
    """Run this program again in its own namespaces and return its exit code.

    None: this process is the one in the namespaces. A text: the reason why this host has no namespaces.
    """
    try:
        return in_own_namespaces("tools.faults", sys.argv[1:])
    except UnsupportedHost as problem:
        if not may_fail:
            raise
        print(f"NO NAMESPACES: {problem}. Proxies are used instead.", flush=True)
        return str(problem)


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    kinds = [fault.kind for fault in FAULTS]
    parser = argparse.ArgumentParser(prog="faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="decides which faults come when, and to whom")
    parser.add_argument("--faults", type=count, help="how many (default: each kind twice, about six minutes)")
    parser.add_argument("--minutes", type=duration, help="no fault begins later than this")
    parser.add_argument(
        "--only", action="append", choices=kinds, default=[], help="this kind; may be repeated"
    )
    parser.add_argument(
        "--hurried",
        action="store_true",
        help="strike again before the cluster has recovered; times then say little",
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of every broker")
    parser.add_argument("--lab", choices=LABS, help="default: namespaces, and proxies where there are none")
    parser.add_argument(
        "--keep", type=Path, help="a folder for the logs of all processes, which is not removed"
    )
    return parser.parse_args(arguments)


def install_signal_handlers() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    """End the run on the first signal. Later signals are ignored, so that machines and disks are removed."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.write(sys.stderr.fileno(), b"interrupted: everything is being taken down\n")
    raise KeyboardInterrupt


def _run(options: argparse.Namespace, make_lab: MakesLab) -> int:
    with tempfile.TemporaryDirectory(prefix="penstock-faults-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with closing(make_lab(folder, [*broker_names(BROKERS), ETCD])) as lab:
            return _run_in(lab, options)


def _run_in(lab: Lab, options: argparse.Namespace) -> int:
    chosen = [fault for fault in FAULTS if not options.only or fault.kind in options.only]
    not_tried = {f.kind: lab.cannot[f.needs] for f in chosen if f.needs is not None and f.needs in lab.cannot}
    possible = [fault for fault in chosen if fault.kind not in not_tried]
    if not possible:
        raise UnsupportedHost("; ".join(f"{kind}: {reason}" for kind, reason in not_tried.items()))
    amount = _amount(options, possible)
    cluster = Cluster(lab, BROKERS, options.set)
    began = time.monotonic()
    try:
        cluster.start()
        history, unresolved = run(cluster, draw_steps(options.seed, possible), amount)
        logs = {broker.name: broker.log.read_text(errors="replace") for broker in cluster.brokers.values()}
    finally:
        cluster.stop()
    found = [
        *anomalies(history),
        *chain.from_iterable(log_anomalies(name, log) for name, log in logs.items()),
        *(Anomaly("ended", NO_PARTITION, ending) for ending in cluster.endings),
    ]
    if options.keep:
        write_down(history, options.keep / "history.jsonl")
    print(f"lab            {type(lab).__name__}, seed {options.seed}, {time.monotonic() - began:.0f} s")
    print(*report(history, found, unresolved, not_tried), sep="\n")
    return int(bool(found) or unresolved > 0 or bool(missing_coverage(history)))


def _amount(options: argparse.Namespace, possible: Sequence[Fault]) -> Amount:
    is_open = options.minutes is not None and options.faults is None
    faults = None if is_open else options.faults or TIMES * len(possible)
    seconds = None if options.minutes is None else options.minutes * 60
    return Amount(faults, seconds, options.hurried)


if __name__ == "__main__":
    sys.exit(main())
