"""`python -m tools.mutants`: are the simulator and the tests any good? They have to notice known mistakes.

Each mutant is one line of the source, changed as an engineer might have got it wrong. The tool puts it into a
copy and runs seeds of the simulator against that copy until one fails: the mutant is killed. A mutant that
survives its bound is a hole in the simulator, or shows that the line does nothing. Some mistakes are outside
of what the simulator checks, such as the work that one request may cost: those mutants name the tests that
have to fail instead.

Rule 1: a mutant whose line is no longer there as it is written is an error: an engineer has to look at it.
Rule 2: a mutant that uses an attribute of `self` that its file does not know is an error. It raises
        AttributeError wherever it runs, which kills it without anybody having noticed the mistake.
Rule 3: a seed, or a test, kills a mutant only if the code without the mistake passes it. That is looked at
        after a seed has failed, so that it costs one seed for each mutant that is killed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tools.known_mistakes import MUTANTS
from tools.mutant import Mutant

SOURCE = Path(__file__).parents[1] / "src"
SEEDS_MAX = 150
SECONDS_MAX = 900
PYTEST = ("pytest", "-q", "-x", "-p", "no:cacheprovider")
PYTEST_FAILED = 1


_ATTRIBUTE = re.compile(r"\bself\.(\w+)")
_KNOWN_NAME = re.compile(r"\bself\.(\w+)|^ +(?:async )?def (\w+)|^    (\w+):", re.MULTILINE)
"""What an object of a class has, or is used as if it had."""


class Outcome(NamedTuple):
    killed_by: str | None
    """None: the mutant survived."""
    reason: str


class Control:
    """The code without a mistake: what fails there is a false alarm, and kills nothing."""

    def __init__(self) -> None:
        self.alarms: set[int] = set()
        """Seeds that fail."""
        self._passed: set[tuple[int, bool]] = set()

    def passes_seed(self, seed: int, *, is_of_one_broker: bool) -> bool:
        if (seed, is_of_one_broker) not in self._passed and seed not in self.alarms:
            command = ["penstock.sim", *_brokers(is_of_one_broker), "--seed", str(seed)]
            if run_module(command, SOURCE, folder=SOURCE.parent).returncode == 0:
                self._passed.add((seed, is_of_one_broker))
            else:
                self.alarms.add(seed)
        return (seed, is_of_one_broker) in self._passed

    def passes_test(self, test: str) -> bool:
        return run_module([*PYTEST, test], SOURCE, folder=SOURCE.parent).returncode == 0


class Killed(NamedTuple):
    by: str | None
    reason: str
    seconds: float


def _brokers(is_of_one_broker: bool) -> Sequence[str]:
    return ("--brokers", "1") if is_of_one_broker else ()


def mutated(mutant: Mutant, source: Path = SOURCE) -> str:
    """The text of its file with the mistake in it. LookupError if that is not possible (Rules 1 and 2)."""
    text = (source / "penstock" / mutant.file).read_text()
    count = text.count(mutant.old)
    if count != 1:
        raise LookupError(f"{mutant.name}: {mutant.file} has its line {count} times, not once")
    known = {name for names in _KNOWN_NAME.findall(text) for name in names}
    if unknown := set(_ATTRIBUTE.findall(mutant.new)) - known:
        raise LookupError(f"{mutant.name}: {mutant.file} knows no self.{', self.'.join(sorted(unknown))}")
    return text.replace(mutant.old, mutant.new)


def mutated_copy(mutant: Mutant, folder: Path) -> Path:
    """A copy of the source with the mistake in it."""
    copy = folder / "src"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__", "spark"))
    (copy / "penstock" / mutant.file).write_text(mutated(mutant))
    return copy


def kill(mutant: Mutant, options: argparse.Namespace, control: Control) -> Killed:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        copy = mutated_copy(mutant, Path(folder))
        try:
            outcome = (
                _tested(mutant, copy, control) if mutant.tests else _simulated(mutant, copy, options, control)
            )
        except subprocess.TimeoutExpired:
            outcome = Outcome(None, f"still running after {SECONDS_MAX} s")
    return Killed(*outcome, time.monotonic() - began)


def _simulated(mutant: Mutant, copy: Path, options: argparse.Namespace, control: Control) -> Outcome:
    """Goes on behind seeds that fail without the mistake, too."""
    first, end = options.seed, options.seed + options.seeds
    said = "no seed"
    while first < end:
        seeds = ["--seed", str(first), "--seeds", str(end - first), "--jobs", str(options.jobs)]
        done = run_module(
            ["penstock.sim", *_brokers(mutant.is_of_one_broker), *seeds], copy, folder=copy.parent
        )
        said = (done.stdout + done.stderr).strip()
        failing = re.search(r"^seed (\d+) fails", said, re.MULTILINE)
        if failing is None:
            break
        seed = int(failing[1])
        if control.passes_seed(seed, is_of_one_broker=mutant.is_of_one_broker):
            return Outcome(f"seed {seed - options.seed + 1}", _reason(done.stdout))
        first, said = seed + 1, f"seed {seed} fails without the mistake, too"
    return Outcome(None, said.rpartition("\n")[2])


def _tested(mutant: Mutant, copy: Path, control: Control) -> Outcome:
    done = run_module([*PYTEST, mutant.tests], copy, folder=SOURCE.parent)
    failing = re.search(r"^FAILED ([^\s\[]+)", done.stdout, re.MULTILINE)
    # Any other exit code, an import that fails for example, says nothing of the tests.
    if done.returncode != PYTEST_FAILED or failing is None:
        return Outcome(None, (done.stdout + done.stderr).strip().rpartition("\n")[2])
    test = failing[1]
    if not control.passes_test(test):
        return Outcome(None, f"{test} fails without the mistake, too")
    return Outcome("a test", test.rpartition("::")[2])


def run_module(module: Sequence[str], copy: Path, *, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-m", *module],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def _reason(said: str) -> str:
    errors = re.findall(
        r"^(?:\w+\.)*\w*(?:Violation|Error|Deadlock|Exception|Lost|Data): (.*)$", said, re.MULTILINE
    )
    return errors[-1][:120] if errors else ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="how many each mutant may survive")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    chosen = [mutant for mutant in MUTANTS if not options.names or mutant.name in options.names]
    survivors, control = [], Control()
    for mutant in chosen:
        killed = kill(mutant, options, control)
        by = f"by {killed.by}" if killed.by is not None else "SURVIVES"
        print(f"{mutant.name:44} {by:12} {killed.seconds:6.1f} s  {killed.reason}", flush=True)
        if killed.by is None:
            survivors.append(mutant.name)
    print(
        f"{len(chosen) - len(survivors)} of {len(chosen)} killed; survivors: {', '.join(survivors) or 'none'}"
    )
    if control.alarms:
        print("seeds that fail without a mistake, too:", *sorted(control.alarms))
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
