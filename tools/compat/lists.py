"""The list for a suite, tests/compat/<suite>.toml: known failures, and tests that do not apply.

An entry names a test as pytest does, or everything below it: a file, a class, a folder that ends in a
slash, or all parameters of a test. Its reason is counted in docs/compatibility.md.

This file is also read by plugin.py in a suite's interpreter, so it imports the standard library alone.
"""

import tomllib
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Entry(NamedTuple):
    test: str
    reason: str


class SuiteList(NamedTuple):
    not_applicable: tuple[Entry, ...]
    """Tests that are not run: they need a feature that this broker does not offer."""
    known_failures: tuple[Entry, ...]
    """Tests that are run and expected to fail."""


class ListError(Exception):
    """The list contradicts itself or cannot be read."""


def read_list(text: str) -> SuiteList:
    tables = tomllib.loads(text)
    unknown = sorted(set(tables) - set(SuiteList._fields))
    if unknown:
        raise ListError(f"unknown tables: {', '.join(unknown)}")
    found = SuiteList(*(_entries(tables.get(name, [])) for name in SuiteList._fields))
    names = [entry.test for entry in (*found.not_applicable, *found.known_failures)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ListError(f"listed twice: {', '.join(twice)}")
    return found


def _entries(tables: Iterable[dict[str, object]]) -> tuple[Entry, ...]:
    entries: list[Entry] = []
    for table in tables:
        reason, tests = table.get("reason"), table.get("tests")
        if not (isinstance(reason, str) and reason and isinstance(tests, list) and tests):
            raise ListError(f"an entry needs a reason and tests: {table}")
        entries += [Entry(str(test), reason) for test in tests]
    return tuple(entries)


def entry_for(test: str, entries: Sequence[Entry]) -> Entry | None:
    """The most specific entry that names this test."""
    covering = [entry for entry in entries if covers(entry.test, test)]
    return max(covering, key=lambda entry: len(entry.test), default=None)


def covers(name: str, test: str) -> bool:
    if name.endswith("/"):
        return test.startswith(name)
    return test == name or test.startswith((f"{name}::", f"{name}["))
