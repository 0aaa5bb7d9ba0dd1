"""The standard streams, as a command can rely on them.

A failed write to stdout is told apart from every other OSError by being `OutputFailed`, wherever in a
command or a library it happens. So one place (main.py) decides what it means.

Rule 1: stdout fails once. After that it leads nowhere, and nothing that still flushes it fails again.
Rule 2: a stream that was closed by whoever started us leads nowhere. Its descriptor must not be free:
        the next file or socket would get it, and be written to as if it were stdout.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class OutputFailed(Exception):
    """Stdout takes nothing more."""

    def __init__(self, problem: OSError) -> None:
        self.reason = problem.strerror or str(problem)
        self.reader_closed = isinstance(problem, BrokenPipeError)
        super().__init__(f"cannot write the output: {self.reason}.")


@contextmanager
def reliable_streams() -> Iterator[None]:
    """Within the block stdout fails with OutputFailed, at the latest at the end of the block."""
    _open_what_is_closed()
    before = sys.stdout
    if not _is_of_the_system(before):
        yield
        return
    sys.stdout = io.TextIOWrapper(
        _Stdout(io.FileIO(before.fileno(), "w", closefd=False)),
        encoding=before.encoding,
        errors=before.errors,
        line_buffering=before.isatty(),
    )
    try:
        yield
    finally:
        written, sys.stdout = sys.stdout, before
        written.flush()


class _Stdout(io.BufferedWriter):
    """Over a raw file of the system's own: were it ours, Ctrl-C between its write and its return would
    leave the bytes in the buffer, and they would be written twice."""

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data)
        except OSError as problem:
            raise self._failed(problem) from problem

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as problem:
            raise self._failed(problem) from problem

    def _failed(self, problem: OSError) -> OutputFailed:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        return OutputFailed(problem)


def _open_what_is_closed() -> None:
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - as long as we live


def _is_of_the_system(stream: TextIO) -> bool:
    """Not one that a test put in its place."""
    try:
        return stream.fileno() >= 0
    except OSError:
        return False
