"""`python -m tools.compat --suite FOLDER`: runs another project's test suite against a Penstock broker."""

import argparse
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from tools.compat.environment import interpreter_with
from tools.compat.lists import ListError, read_list
from tools.compat.report import judge, summary
from tools.compat.run import Choice, run
from tools.compat.suites import SuiteError, recognise
from tools.differential.broker import BrokerFailed

ROOT = Path(__file__).parents[2]
_LISTS = ROOT / "tests" / "compat"
_CACHE = ROOT / ".cache" / "compat"


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _compare(options)
    except (SuiteError, ListError, BrokerFailed) as problem:
        print(f"failed: {problem}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as problem:
        print(f"failed: the suite's interpreter could not be made: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="compat", description=__doc__)
    parser.add_argument("--suite", type=Path, required=True, help="a checkout of the project")
    parser.add_argument("--environments", type=Path, default=_CACHE, help="where interpreters are made")
    parser.add_argument("--only", default="", help="tests to run, as pytest's -k takes them")
    parser.add_argument("--everything", action="store_true", help="also run what is listed as not applicable")
    parser.add_argument("--seconds", type=int, default=60, help="after which a test is ended")
    parser.add_argument("--keep", type=Path, help="a folder for the outcomes and the broker's log")
    return parser.parse_args()


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _compare(options: argparse.Namespace) -> int:
    suite = recognise(options.suite)
    list_path = _LISTS / f"{suite.name}.toml"
    listed = read_list(list_path.read_text())
    program = interpreter_with(options.environments.resolve() / suite.name, suite.requirements)
    choice = Choice(list_path, options.only, everything=options.everything, test_s_max=options.seconds)
    finished = run(suite, options.suite, program, choice, options.keep)
    verdict = judge(finished.outcomes, listed, whole=not options.only)
    print("\n".join(summary(suite.name, verdict)))
    print("\n".join(f"  BROKER: {line}" for line in finished.complaints))
    return 0 if verdict.is_as_listed and not finished.complaints else 1


if __name__ == "__main__":
    sys.exit(main())
