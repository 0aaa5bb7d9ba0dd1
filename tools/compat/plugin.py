"""pytest plugin for a suite's environment: selects the tests that run, and records their outcomes.

Penstock is not installed in that environment, so the plugin imports only lists.py.

Rule 1: every test that uses a broker is recorded in one line, whether it ran or not.
Rule 2: the outcome of a test is that of its worst phase: a test that passes and fails in teardown has failed.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.compat.lists import entry_for, read_list

_OUTCOMES_PATH = "PENSTOCK_COMPAT_OUTCOMES"
_LIST_PATH = "PENSTOCK_COMPAT_LIST"
_FIXTURE = "PENSTOCK_COMPAT_BROKER_FIXTURE"
_EVERYTHING = "PENSTOCK_COMPAT_EVERYTHING"

_WORST_FIRST = ("failed", "skipped", "passed")
_DETAIL_CHARACTERS_MAX = 300


class Recorder:
    """Writes a JSON line for each test as soon as its outcome is known."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parts: dict[str, list[tuple[str, str]]] = {}
        self._started: dict[str, float] = {}

    def write(self, test: str, outcome: str, detail: str, seconds: float) -> None:
        line = {"test": test, "outcome": outcome, "detail": detail, "seconds": round(seconds, 2)}
        with self._path.open("a") as lines:
            lines.write(json.dumps(line) + "\n")

    @pytest.hookimpl
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._parts[nodeid] = []
        self._started[nodeid] = time.monotonic()

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._parts[report.nodeid].append((report.outcome, _detail_of(report)))

    @pytest.hookimpl
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        parts = self._parts.pop(nodeid)
        outcome, detail = min(parts, key=lambda part: _WORST_FIRST.index(part[0]))
        self.write(nodeid, outcome, detail, time.monotonic() - self._started.pop(nodeid))


class Selector:
    """Keep the tests that use a broker and need only features that this broker offers."""

    def __init__(self, recorder: Recorder, list_path: Path) -> None:
        self._recorder = recorder
        self._not_applicable = read_list(list_path.read_text()).not_applicable

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        kept: list[pytest.Item] = []
        left_out: list[pytest.Item] = []
        for item in items:
            (kept if self._runs(item) else left_out).append(item)
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept

    def _runs(self, item: pytest.Item) -> bool:
        fixture = os.environ.get(_FIXTURE)
        if fixture and fixture not in getattr(item, "fixturenames", ()):
            return False
        entry = entry_for(item.nodeid, self._not_applicable)
        if entry is None or os.environ.get(_EVERYTHING):
            return True
        self._recorder.write(item.nodeid, "not applicable", entry.reason, 0)
        return False


def pytest_configure(config: pytest.Config) -> None:
    recorder = Recorder(Path(os.environ[_OUTCOMES_PATH]))
    config.pluginmanager.register(recorder, "penstock-compat-recorder")
    config.pluginmanager.register(
        Selector(recorder, Path(os.environ[_LIST_PATH])), "penstock-compat-selector"
    )


def _detail_of(report: pytest.TestReport) -> str:
    """Reason in one line why the test did not pass."""
    if report.passed:
        return ""
    if report.skipped and isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return " ".join(_error_line(report))[:_DETAIL_CHARACTERS_MAX]


def _error_line(report: pytest.TestReport) -> Iterator[str]:
    crash = getattr(report.longrepr, "reprcrash", None)
    yield f"{report.when}:"
    yield str(crash.message if crash is not None else report.longrepr).replace("\n", " ")
