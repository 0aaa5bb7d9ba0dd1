"""Standard streams with reliable error handling for commands.

A failed write to stdout raises `OutputFailed` wherever it happens in a command or a library, which
distinguishes it from other OSErrors. So one place (main.py) handles it.

Rule 1: stdout fails once. After that, stdout is redirected to /dev/null, so that later flushes do not fail
        again.
Rule 2: a stream that the parent process closed is opened on /dev/null. Otherwise the next file or socket
        would get its descriptor, and output for stdout would be written to that file.
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
    """Stdout accepts no more output."""

    def __init__(self, problem: OSError) -> None:
        self.reason = problem.strerror or str(problem)
        self.reader_closed = isinstance(problem, BrokenPipeError)
        super().__init__(f"cannot write the output: {self.reason}.")


@contextmanager
def reliable_streams() -> Iterator[None]:
    """Make stdout raise OutputFailed within the block, at the latest at its end."""
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
    """Buffered stdout on top of a raw file implemented in C.

    With a raw file implemented in Python, Ctrl-C between its write and its return would leave the bytes in
    the buffer, and they would be written twice.
    """

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
        # dup2 replaces the descriptor itself: the interpreter's final flush must not fail again (rule 1).
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
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - open until the process ends


def _is_of_the_system(stream: TextIO) -> bool:
    """Return whether the stream has a descriptor, unlike a stream that a test installed."""
    try:
        return stream.fileno() >= 0
    except OSError:
        return False
