"""Compares Penstock with its peers on this machine: `make bench-peers`, or `python -m benchmarks.peers
--help`.

A peer that cannot be had is reported as missing, with the remedy, in the table, in the JSON and on the
page. Results are kept in benchmarks/results/peers-<time>.json and .html.
"""

import argparse
import json
import resource
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.machine import facts
from benchmarks.peers import contenders
from benchmarks.peers.contenders import Contender
from benchmarks.peers.questions import DEFAULT, GROWTH, QUESTIONS
from benchmarks.peers.questions.limits import MACHINE
from benchmarks.peers.report.page import page
from benchmarks.peers.report.table import table
from benchmarks.peers.results import Missing, Run, rows_of
from benchmarks.peers.schedule import Schedule
from benchmarks.peers.sizes import FULL, QUICK, Sizes

OPEN_FILES = 16_384
RESULTS = Path("benchmarks") / "results"
EXAMPLES = """examples:
  python -m benchmarks.peers --list                     questions and contenders, and what is missing here
  python -m benchmarks.peers --quick                    everything, small and once: does it work here?
  python -m benchmarks.peers --only batched             one question to all contenders
  python -m benchmarks.peers --only latency --peer kafka --peer penstock
  python -m benchmarks.peers --peer nats-always         one contender
  python -m benchmarks.peers --only growth_partitions   how Penstock's cost grows
"""


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line. Exit code 1: a question failed; a missing peer is reported and is no failure."""
    arguments = _parser().parse_args(words)
    if arguments.list:
        print(_listed())
        return 0
    allow_open_files()
    # A run that is stopped must still end its servers: the blocks they run in see this. A hangup does not
    # reach the servers, which have sessions of their own. `nohup` has it ignored, and it stays ignored.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    sizes = QUICK if arguments.quick else FULL
    if arguments.repetitions:
        sizes = replace(sizes, repetitions=arguments.repetitions)
    chosen = contenders.chosen(arguments.peer or ())
    run = compare(chosen, arguments.only or DEFAULT, sizes, is_quick=arguments.quick)
    print(table(run))
    for path in keep(run, arguments.out):
        print(f"kept in {path}")
    return 1 if any(each.reason.startswith("FAILED") for each in run.missing) else 0


def allow_open_files() -> None:
    """Let servers and clients, which inherit it, have the open files that many connections need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def compare(chosen: Sequence[Contender], questions: Sequence[str], sizes: Sizes, *, is_quick: bool) -> Run:
    began, machine = time.monotonic(), facts()
    problems = {each.name: each.peer.missing() for each in chosen}
    missing = [Missing(name, "", problem) for name, problem in problems.items() if problem is not None]
    for each in missing:
        print(f"{each.contender} is MISSING: {each.reason}", file=sys.stderr, flush=True)
    present = [each for each in chosen if problems[each.name] is None]
    described = tuple(each.as_json(each.peer.version() if each in present else None) for each in chosen)
    schedule = Schedule(present, questions, sizes)
    try:
        schedule.run()
    except KeyboardInterrupt:
        missing.append(Missing("this run", "", "FAILED: interrupted; what had been found by then is shown"))
    steps = dict.fromkeys(sample.contender for sample in schedule.samples)  # of curves; in their order
    return Run(
        machine=machine,
        contenders=described,
        questions={name: QUESTIONS[name] for name in questions},
        rows=tuple(rows_of(schedule.samples, [MACHINE, *contenders.NAMES, *steps])),
        missing=(*missing, *schedule.missing),
        took_s=time.monotonic() - began,
        is_quick=is_quick,
    )


def keep(run: Run, folder: Path) -> tuple[Path, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"peers-{time.strftime('%Y-%m-%dT%H%M%S')}"
    as_json, as_page = folder / f"{stem}.json", folder / f"{stem}.html"
    as_json.write_text(json.dumps(run.as_json(), indent=1, ensure_ascii=False) + "\n")
    as_page.write_text(page(run))
    return as_json, as_page


def _listed() -> str:
    lines = ["questions (those with * only with --only)"]
    lines += [f"  {name + ('*' if name in GROWTH else ''):<20} {asks}" for name, asks in QUESTIONS.items()]
    lines += ["", "contenders"]
    for each in contenders.CONTENDERS:
        problem = each.peer.missing()
        state = f"version {each.peer.version()}" if problem is None else f"MISSING: {problem}"
        lines.append(f"  {each.name:<20} acknowledged: {each.acknowledged}; {state}")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description="Compare Penstock with Kafka, NATS JetStream, RabbitMQ and Redis Streams here.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="small and once: shows that everything works")
    parser.add_argument(
        "--only",
        action="append",
        choices=QUESTIONS,
        metavar="QUESTION",
        help="one question; may be repeated. --list names them",
    )
    parser.add_argument(
        "--peer",
        action="append",
        choices=(*contenders.PEERS, *contenders.NAMES),
        metavar="NAME",
        help="a peer, or one contender; may be repeated. --list names them",
    )
    parser.add_argument(
        "--repetitions",
        type=int,
        choices=range(1, 21),
        metavar="COUNT",
        help=f"samples of each figure (default: {FULL.repetitions}; with --quick {QUICK.repetitions})",
    )
    parser.add_argument("--list", action="store_true", help="show questions and contenders, and end")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, metavar="DIR", help="where JSON and page are kept (%(default)s)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
