"""Compares the outcomes of a run with the list for the suite. Pure functions.

The published figure is

    passed / (collected - not applicable)

A test that the suite itself skips is not applicable, with the suite's reason.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tools.compat.lists import Entry, SuiteList, entry_for

FAILED, PASSED, SKIPPED, NOT_APPLICABLE = "failed", "passed", "skipped", "not applicable"


class Outcome(NamedTuple):
    test: str
    outcome: str
    detail: str
    seconds: float


class Verdict(NamedTuple):
    collected: int
    passed: int
    known_failures: tuple[Outcome, ...]
    new_failures: tuple[Outcome, ...]
    now_passing: tuple[Outcome, ...]
    """Tests that passed although they are listed as failing or as not applicable."""
    not_applicable: Counter[str]
    """Number of tests by reason."""
    stale: tuple[Entry, ...]
    """Entries of the list that match no test of the suite."""

    @property
    def applicable(self) -> int:
        return self.collected - self.not_applicable.total()

    @property
    def is_as_listed(self) -> bool:
        return not (self.new_failures or self.now_passing or self.stale)


def read_outcomes(text: str) -> list[Outcome]:
    return [Outcome(**json.loads(line)) for line in text.splitlines()]


def judge(outcomes: Sequence[Outcome], listed: SuiteList, *, whole: bool = True) -> Verdict:
    """`whole`: False if only some tests were selected: then no entry counts as stale."""
    known: list[Outcome] = []
    new: list[Outcome] = []
    now_passing: list[Outcome] = []
    not_applicable: Counter[str] = Counter()
    for outcome in outcomes:
        expected = entry_for(outcome.test, listed.known_failures)
        excused = entry_for(outcome.test, listed.not_applicable)
        if outcome.outcome == NOT_APPLICABLE:
            not_applicable[outcome.detail] += 1
        elif outcome.outcome == SKIPPED:
            not_applicable[f"the suite skips it: {outcome.detail}"] += 1
        elif outcome.outcome == PASSED:
            now_passing += [outcome] if expected or excused else []
        elif excused:
            not_applicable[excused.reason] += 1
        else:
            (known if expected else new).append(outcome)
    return Verdict(
        collected=len(outcomes),
        passed=sum(outcome.outcome == PASSED for outcome in outcomes),
        known_failures=tuple(known),
        new_failures=tuple(new),
        now_passing=tuple(now_passing),
        not_applicable=not_applicable,
        stale=_stale(outcomes, listed) if whole else (),
    )


def _stale(outcomes: Sequence[Outcome], listed: SuiteList) -> tuple[Entry, ...]:
    """Entries that are not the most specific one for any test."""
    used = {entry_for(outcome.test, entries) for entries in listed for outcome in outcomes}
    return tuple(entry for entries in listed for entry in entries if entry not in used)


def summary(suite: str, verdict: Verdict) -> list[str]:
    """Lines of the report."""
    lines = [
        f"{suite}: {verdict.passed} passed of {verdict.applicable} that apply"
        f" ({verdict.collected} collected, {verdict.not_applicable.total()} not applicable)"
    ]
    lines += [f"  {count:4} not applicable: {why}" for why, count in verdict.not_applicable.most_common()]
    lines += _section("fails as listed", verdict.known_failures)
    lines += _section("NEW FAILURE", verdict.new_failures)
    lines += _section("LISTED, BUT PASSES: take it off the list", verdict.now_passing)
    lines += [f"  NO SUCH TEST: {entry.test} ({entry.reason})" for entry in verdict.stale]
    return lines


def _section(title: str, outcomes: Iterable[Outcome]) -> list[str]:
    return [f"  {title}: {outcome.test} {outcome.detail}".rstrip() for outcome in outcomes]
