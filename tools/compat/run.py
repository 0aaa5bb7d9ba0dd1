"""One run: copies the suite, starts a broker, runs pytest in the suite's environment, reads the outcomes.

Rule 1: the checkout is only read. All files are written to a temporary folder.
Rule 2: a run that did not finish proves nothing: it is an error and not a result.
Rule 3: a run fails if the broker died or logged an error, whatever the outcomes of the tests.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from tools.compat.broker import RunningBroker, running_broker
from tools.compat.report import Outcome, read_outcomes
from tools.compat.suites import Suite, SuiteError

_ROOT = Path(__file__).parents[2]
_PLUGINS = ("tools.compat.plugin", "tools.compat.stand_ins")
_LOG_LINES_MAX = 20
_RAN_TO_THE_END = (0, 1)
"""Exit codes of pytest for complete runs. A client library that crashes ends pytest with another code."""


class Choice(NamedTuple):
    """Selection of the suite's tests."""

    list_path: Path
    only: str = ""
    """Expression for pytest's -k; empty: all tests."""
    everything: bool = False
    """Whether tests that do not apply are run, too."""
    test_s_max: int = 60
    """Time limit of each test."""


class SuiteRun(NamedTuple):
    outcomes: list[Outcome]
    complaints: list[str]
    """Errors in the broker's log."""


def run(suite: Suite, source: Path, program: Path, choice: Choice, keep: Path | None = None) -> SuiteRun:
    with tempfile.TemporaryDirectory(prefix="penstock-compat-") as temporary:
        home = Path(temporary)
        copy = _copied(suite, source, home / "suite")
        outcomes = home / "outcomes.jsonl"
        outcomes.touch()
        with running_broker(home / "broker", suite.settings) as broker:
            variables = _variables(suite, broker, home, choice)
            variables["PENSTOCK_COMPAT_OUTCOMES"] = str(outcomes)
            done = subprocess.run(_command(suite, program, choice), cwd=copy, env=variables, check=False)
            complaints = _complaints(broker)
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            shutil.copy2(outcomes, keep)
            shutil.copy2(broker.output, keep)
        if done.returncode not in _RAN_TO_THE_END:
            raise SuiteError(f"pytest ended with {done.returncode}: not every test of {suite.name} was run")
        return SuiteRun(read_outcomes(outcomes.read_text()), complaints)


def _copied(suite: Suite, source: Path, target: Path) -> Path:
    target.mkdir()
    for name in suite.copied:
        copy = shutil.copytree if (source / name).is_dir() else shutil.copy2
        copy(source / name, target / name)
    return target


def _variables(suite: Suite, broker: RunningBroker, home: Path, choice: Choice) -> dict[str, str]:
    return {
        **os.environ,
        **suite.environment(broker, home),
        "PYTHONPATH": str(_ROOT),
        "PENSTOCK_COMPAT_LIST": str(choice.list_path),
        "PENSTOCK_COMPAT_BROKER_FIXTURE": suite.broker_fixture,
        "PENSTOCK_COMPAT_EVERYTHING": "yes" if choice.everything else "",
        "PENSTOCK_COMPAT_KAFKA": broker.kafka,
        "PENSTOCK_COMPAT_TLS": broker.tls,
        "PENSTOCK_COMPAT_CERTIFICATES": str(broker.certificates),
    }


def _command(suite: Suite, program: Path, choice: Choice) -> list[str]:
    command = [
        str(program),
        "-m",
        "pytest",
        "-q",
        "--tb=short",
        "--show-capture=no",
        "-rN",
        "--disable-warnings",
    ]
    command += [f"--timeout={choice.test_s_max}", "--timeout-method=signal", "-p", "no:cacheprovider"]
    for plugin in _PLUGINS:
        command += ["-p", plugin]
    if choice.only:
        command += ["-k", choice.only]
    return command + list(suite.tests)


def _complaints(broker: RunningBroker) -> list[str]:
    lines = broker.output.read_text(errors="replace").splitlines()
    errors = [line for line in lines if " ERROR " in line or line.startswith("Traceback")]
    died = [] if broker.is_running() else ["it stopped before the suite did"]
    return died + errors[:_LOG_LINES_MAX]
