"""Calls of the operating system that fail for chosen files, beneath a broker in this process.

The faults are put under the broker, into the module `os`, so that a test holds whichever way the
broker comes to make the call. Every fault counts how often it struck: a test whose fault never did
would prove nothing.

For a broker in a process of its own: `no_descriptor_free` is the real thing.
"""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

PathFilter = Callable[[str], bool]


class Fault:
    """Raised instead of the call, for the files it concerns, until it is lifted."""

    def __init__(
        self, applies_to: PathFilter, problem: Callable[[], Exception], times_max: int | None
    ) -> None:
        self.hits = 0
        self._concerns = applies_to
        self._problem = problem
        self._times_max = times_max
        self._is_lifted = False

    def lift(self) -> None:
        self._is_lifted = True

    def strike(self, path: str) -> None:
        has_struck_enough = self._times_max is not None and self.hits >= self._times_max
        if not self._is_lifted and not has_struck_enough and self._concerns(path):
            self.hits += 1
            raise self._problem()


def system_error(number: int) -> Callable[[], OSError]:
    return lambda: OSError(number, os.strerror(number))


class OsFaults:
    """Made before the broker: reads are known by the name under which their file was opened."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._by_call: dict[str, list[Fault]] = {"open": [], "pread": [], "rename": []}
        self._names: dict[int, str] = {}
        self._open, self._pread, self._rename = os.open, os.pread, os.rename
        patch.setattr(os, "open", self._opened)
        patch.setattr(os, "pread", self._read)
        patch.setattr(os, "rename", self._renamed)

    def add(
        self,
        call: str,
        applies_to: PathFilter,
        problem: Callable[[], Exception],
        *,
        times_max: int | None = None,
    ) -> Fault:
        fault = Fault(applies_to, problem, times_max)
        self._by_call[call].append(fault)
        return fault

    def _strike(self, call: str, path: str) -> None:
        for fault in self._by_call[call]:
            fault.strike(path)

    def _opened(self, path: Any, *arguments: Any, **named: Any) -> int:
        self._strike("open", str(path))
        descriptor = self._open(path, *arguments, **named)
        self._names[descriptor] = str(path)
        return descriptor

    def _read(self, descriptor: int, *arguments: Any) -> bytes:
        self._strike("pread", self._names.get(descriptor, ""))
        return self._pread(descriptor, *arguments)

    def _renamed(self, source: Any, *arguments: Any, **named: Any) -> None:
        self._strike("rename", str(source))
        self._rename(source, *arguments, **named)


@contextmanager
def no_descriptor_free(pid: int) -> Iterator[None]:
    """The process may keep what it has open, and open nothing more."""
    if not hasattr(resource, "prlimit"):
        pytest.skip("this host cannot change the limits of another process")
    used = {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()}
    lowest_free = next(number for number in count() if number not in used)
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest_free, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
