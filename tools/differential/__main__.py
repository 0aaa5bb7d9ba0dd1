"""`python -m tools.differential`: runs the scenarios on both brokers, and fails on unexpected differences."""

import argparse
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from types import FrameType

from tools.differential.broker import Broker, BrokerFailed
from tools.differential.compare import Plain
from tools.differential.dump import dump_problems
from tools.differential.gaps import GAPS
from tools.differential.kafka import fetch_jars, missing_programs, running_kafka
from tools.differential.penstock import running_penstock
from tools.differential.report import difference_lines, gaps_without_effect, table
from tools.differential.run import Case, Kafka, run
from tools.differential.scenarios import ALL
from tools.differential.stories import run_on_both

CACHE = Path(".cache")
_RECORDED = CACHE / "kafka-answers.json"


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, _interrupt)
    missing = missing_programs()
    if missing and not options.replay:
        print(f"skipped: no Kafka to ask, since this machine lacks {' and '.join(missing)}")
        return 0
    if options.replay and not _RECORDED.exists():
        print(f"skipped: there are no recorded answers in {_RECORDED}; run once where Java is installed")
        return 0
    try:
        return _compare(options)
    except BrokerFailed as problem:
        print(f"failed: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="differential", description=__doc__)
    parser.add_argument("--only", default="*", help="scenarios to run, as a shell pattern")
    parser.add_argument("--replay", action="store_true", help="compare with the answers recorded last time")
    parser.add_argument(
        "--kafka-twice", action="store_true", help="compare Kafka with itself: nothing may differ"
    )
    return parser.parse_args()


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _compare(options: argparse.Namespace) -> int:
    scenarios = [scenario for scenario in ALL if fnmatchcase(scenario.name, options.only)]
    gaps = () if options.kafka_twice else GAPS
    with _brokers(replay=options.replay, twice=options.kafka_twice) as (kafka, penstock):
        cases: list[Case] = []
        for case in run(scenarios, kafka, penstock, gaps):
            cases.append(case)
            if case.unexpected:
                print("\n".join(difference_lines(case)), flush=True)
        if isinstance(kafka, Broker) and fnmatchcase("stories", options.only):
            for case in run_on_both(kafka, penstock, gaps):
                cases.append(case)
                if case.unexpected:
                    print("\n".join(difference_lines(case)), flush=True)
    print("\n".join(table(cases)))
    if isinstance(kafka, Broker) and not options.kafka_twice and options.only == "*":
        _RECORDED.write_text(json.dumps({case.name: case.kafka for case in cases}, indent=1))
        for gap in gaps_without_effect(cases, gaps):
            print(f"gap {gap.id} covers nothing any more: {gap.case} {gap.path}")
    problems = [] if options.replay or options.kafka_twice else _dump(options.only)
    return 1 if problems or any(case.unexpected for case in cases) else 0


def _dump(only: str) -> list[str]:
    if not fnmatchcase("dump", only):
        return []
    problems = dump_problems(fetch_jars(CACHE)[1].resolve())
    print("\n".join(problems) or "Kafka's dump tool reads our segments, indexes, snapshots and groups")
    return problems


@contextmanager
def _brokers(*, replay: bool, twice: bool) -> Iterator[tuple[Kafka, Broker]]:
    with ExitStack() as stack:
        if replay:
            answers: dict[str, Plain] = json.loads(_RECORDED.read_text())
            print("comparing with the recorded answers of a Kafka")
            yield answers, stack.enter_context(running_penstock())
            return
        version, jars = fetch_jars(CACHE)
        print(f"comparing with Apache Kafka {version}", flush=True)
        kafka = stack.enter_context(running_kafka(jars.resolve()))
        yield kafka, stack.enter_context(running_kafka(jars.resolve()) if twice else running_penstock())


if __name__ == "__main__":
    sys.exit(main())
