"""The output of a starting Java and Spark: hidden from the terminal, and reported only after a failure.

A start prints a dozen lines about modules, host names and native libraries, which mean nothing to the user
of a pipeline. If the start fails, one of them is the reason.

Java keeps the stderr that it was started with for its whole life. So that stderr is a pipe, which a thread
reads until no process can write to it any more. Java's later output fills no disk and never blocks Java.
"""

import os
import re
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

CAPTURED_BYTES_MAX: Final = 64 * 1024
_PIECE_BYTES: Final = 16 * 1024
_RAISED: Final = re.compile(
    r"^(?:Exception in thread \"[^\"]*\" )?[\w.$]+(?:Exception|Error): (?P<reason>.+)$"
)
_REFUSED: Final = re.compile(
    r"^(?:Error: )?(?P<reason>(?:Invalid|Unrecognized|Could not|Cannot|Improperly).+)$"
)
_STDERR: Final = 2
"""The descriptor that child processes inherit, whatever sys.stderr is."""
_NOISE: Final = re.compile(r"^(?:\s|WARNING|Caused by|Using Spark|Setting default|To adjust|\d\d/\d\d/\d\d )")


class CapturedOutput:
    """The end of the captured output, read by a thread for as long as any process can write more."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._ended = False
        self._last = bytearray()
        self._lock = threading.Lock()
        threading.Thread(target=self._drain, name="penstock-stderr", daemon=True).start()

    def _drain(self) -> None:
        waiting = _poll(self._pipe)
        while not self._ended:
            waiting.poll()
            with self._lock:
                self._take()
        os.close(self._pipe)

    def _take(self) -> None:
        """Read what is available now, but not after the end: the pipe is closed then."""
        ready = _poll(self._pipe)
        while not self._ended and ready.poll(0):
            piece = os.read(self._pipe, _PIECE_BYTES)
            self._ended = not piece
            self._last += piece
            # Only the end is kept, because Java may write for hours.
            del self._last[:-CAPTURED_BYTES_MAX]

    def text(self) -> str:
        with self._lock:
            if not self._ended:
                self._take()
            return self._last.decode(errors="replace")


def _poll(pipe: int) -> "select.poll":
    made = select.poll()
    made.register(pipe, select.POLLIN)
    return made


@contextmanager
def stderr_kept() -> Iterator[CapturedOutput | None]:
    """Let programs that are started in this block write to a pipe. None if stderr is closed."""
    try:
        terminal = os.dup(_STDERR)
    except OSError:  # stderr is closed
        yield None
        return
    reader, writer = os.pipe()
    captured = CapturedOutput(reader)
    sys.stderr.flush()
    # Descriptor 2 itself is replaced, because child processes inherit it and not sys.stderr.
    os.dup2(writer, _STDERR)
    os.close(writer)
    try:
        yield captured
    finally:
        sys.stderr.flush()
        os.dup2(terminal, _STDERR)
        os.close(terminal)


def failure_reason(text: str) -> str | None:
    """The line of a failed start that names the reason. None if there is none."""
    lines = text.splitlines()
    for pattern in (_REFUSED, _RAISED):
        for line in lines:
            if found := pattern.match(line):
                return found["reason"].strip()
    return next((line.strip() for line in reversed(lines) if line.strip() and not _NOISE.match(line)), None)
