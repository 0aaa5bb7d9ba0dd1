"""What `make compat` makes of a suite's outcomes, and that docs/compatibility.md tells the truth."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.testing import broker
from tools.compat.lists import Entry, ListError, SuiteList, covers, entry_for, read_list
from tools.compat.report import Outcome, judge, read_outcomes, summary
from tools.compat.served import PAGE, advertised, table, table_in, with_table
from tools.compat.suites import SUITES, Suite, SuiteError, recognise

ROOT = Path(__file__).parents[3]
LISTS = ROOT / "tests" / "compat"
LIST = SuiteList(
    not_applicable=(Entry("tests/test_group.py", "needs consumer groups"),),
    known_failures=(Entry("tests/test_topic.py::test_delete", "a reason"),),
)

SUITE = """
import pytest

@pytest.fixture
def broker():
    return "here"

@pytest.fixture
def leftover(broker):
    yield
    raise RuntimeError("left over")

def test_passes(broker): pass
def test_fails(broker): assert 1 == 2
def test_fails_to_clean_up(leftover): pass
def test_skipped(broker): pytest.skip("too old")
def test_group(broker): raise AssertionError("is not run")
def test_of_something_else(): raise AssertionError("is not run")
"""


def outcome(test: str, result: str, detail: str = "") -> Outcome:
    return Outcome(test, result, detail, 0.1)


AS_LISTED = (
    outcome("tests/test_topic.py::test_create", "passed"),
    outcome("tests/test_topic.py::test_delete", "failed", "call: boom"),
    outcome("tests/test_group.py::test_join", "not applicable", "needs consumer groups"),
    outcome("tests/test_topic.py::test_ancient", "skipped", "only before 0.10"),
)


def test_a_run_that_went_as_listed_is_accepted() -> None:
    verdict = judge(AS_LISTED, LIST)
    assert verdict.is_as_listed
    assert (verdict.passed, verdict.applicable, verdict.collected) == (1, 2, 4)
    assert verdict.not_applicable == {
        "needs consumer groups": 1,
        "the suite skips it: only before 0.10": 1,
    }


def test_a_new_failure_is_refused() -> None:
    failed = outcome("tests/test_topic.py::test_create", "failed", "call: boom")
    verdict = judge([failed, *AS_LISTED[1:]], LIST)
    assert verdict.new_failures == (failed,)
    assert not verdict.is_as_listed


def test_a_listed_failure_that_passes_is_refused() -> None:
    passed = outcome("tests/test_topic.py::test_delete", "passed")
    verdict = judge([AS_LISTED[0], passed, *AS_LISTED[2:]], LIST)
    assert verdict.now_passing == (passed,)
    assert not verdict.is_as_listed


def test_what_does_not_apply_may_fail_but_not_pass_when_everything_is_run() -> None:
    failing = [*AS_LISTED, outcome("tests/test_group.py::test_leave", "failed")]
    assert judge(failing, LIST).is_as_listed
    passing = [*AS_LISTED, outcome("tests/test_group.py::test_leave", "passed")]
    assert not judge(passing, LIST).is_as_listed


def test_an_entry_that_names_no_test_is_refused_unless_only_some_were_run() -> None:
    without_groups = [each for each in AS_LISTED if "group" not in each.test]
    assert judge(without_groups, LIST).stale == LIST.not_applicable
    assert not judge(without_groups, LIST).is_as_listed
    assert judge(without_groups, LIST, whole=False).is_as_listed


def test_the_summary_states_the_figure_and_names_what_is_new() -> None:
    lines = summary("some-client", judge([*AS_LISTED, outcome("t.py::test_x", "failed", "call: why")], LIST))
    assert lines[0] == "some-client: 1 passed of 3 that apply (5 collected, 2 not applicable)"
    assert "  NEW FAILURE: t.py::test_x call: why" in lines


def test_outcomes_are_read_from_the_lines_that_the_plugin_writes() -> None:
    line = json.dumps({"test": "a", "outcome": "passed", "detail": "", "seconds": 0.1})
    assert read_outcomes(f"{line}\n{line}\n") == [outcome("a", "passed")] * 2


@pytest.mark.parametrize(
    ("name", "test", "expected"),
    [
        ("a/test_b.py", "a/test_b.py::test_c", True),
        ("a/test_b.py", "a/test_b.pyc::test_c", False),
        ("a/test_b.py::C", "a/test_b.py::C::test_d", True),
        ("a/test_b.py::test_c", "a/test_b.py::test_c[1]", True),
        ("a/test_b.py::test_c", "a/test_b.py::test_cd", False),
        ("a/test_b.py::test_c[1]", "a/test_b.py::test_c[2]", False),
        ("a/", "a/test_b.py::test_c", True),
        ("a/", "ab/test_b.py::test_c", False),
    ],
)
def test_an_entry_covers_what_is_below_it(name: str, test: str, expected: bool) -> None:
    assert covers(name, test) is expected


def test_the_most_precise_entry_gives_the_reason() -> None:
    entries = [Entry("a/", "wide"), Entry("a/test_b.py::test_c", "narrow")]
    assert entry_for("a/test_b.py::test_c", entries) == entries[1]
    assert entry_for("a/test_b.py::test_d", entries) == entries[0]
    assert entry_for("b/test_b.py::test_d", entries) is None


@pytest.mark.parametrize(
    "text",
    [
        '[[not_applicable]]\ntests = ["a"]',
        '[[not_applicable]]\nreason = "r"\ntests = []',
        '[[knwon_failures]]\nreason = "r"\ntests = ["a"]',
        '[[not_applicable]]\nreason = "r"\ntests = ["a", "a"]',
    ],
    ids=["no reason", "no tests", "misspelt", "twice"],
)
def test_a_list_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(ListError):
        read_list(text)


def test_the_plugin_records_every_test_that_concerns_a_broker(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "list.toml").write_text(
        '[[not_applicable]]\nreason = "needs groups"\ntests = ["test_suite.py::test_group"]\n'
    )
    variables = {
        "PYTHONPATH": str(ROOT),
        "PENSTOCK_COMPAT_OUTCOMES": str(tmp_path / "outcomes"),
        "PENSTOCK_COMPAT_LIST": str(tmp_path / "list.toml"),
        "PENSTOCK_COMPAT_BROKER_FIXTURE": "broker",
    }
    command = [sys.executable, "-m", "pytest", "-p", "tools.compat.plugin", "-p", "no:cacheprovider", "."]
    subprocess.run(command, cwd=tmp_path, env=variables, stdout=subprocess.DEVNULL, check=False)
    found = {
        each.test.partition("::")[2]: (each.outcome, each.detail)
        for each in read_outcomes((tmp_path / "outcomes").read_text())
    }
    assert found == {
        "test_passes": ("passed", ""),
        "test_fails": ("failed", "call: assert 1 == 2"),
        "test_fails_to_clean_up": ("failed", "teardown: RuntimeError: left over"),
        "test_skipped": ("skipped", "too old"),
        "test_group": ("not applicable", "needs groups"),
    }


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_each_suite_has_a_list_and_a_row_on_the_page(suite: Suite) -> None:
    listed = read_list((LISTS / f"{suite.name}.toml").read_text())
    page = PAGE.read_text()
    assert f"| {suite.name} |" in page
    for entry in (*listed.not_applicable, *listed.known_failures):
        assert entry.reason in page, f"docs/compatibility.md does not say: {entry.reason}"


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_a_checkout_is_recognised_by_the_package_it_builds(suite: Suite, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[project]\nname = "{suite.name}"\n')
    assert recognise(tmp_path) is suite


def test_another_project_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="holds no Python project"):
        recognise(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "flask"\n')
    with pytest.raises(SuiteError, match="flask, which is not one of"):
        recognise(tmp_path)


def test_the_page_lists_the_apis_that_a_broker_advertises() -> None:
    with broker() as running:
        current = table(advertised(running.bootstrap))
    assert table_in(PAGE.read_text()) == current, "run: python -m tools.compat.served"


def test_only_the_table_of_a_page_is_replaced() -> None:
    page = "before\n<!-- served: begin -->\nold\n<!-- served: end -->\nafter\n"
    new = with_table(page, "new")
    assert new == page.replace("old", "new")
    assert table_in(new) == "new"
