"""What Java and Spark say while they start: kept from the terminal, and told only if they do not.

A start prints a dozen lines about modules, host names and native libraries, which mean nothing to whoever
runs a pipeline. If it fails, one of them is the reason.

Java has for its whole life the stderr that it was started with. So that is a pipe, which a thread reads until
nobody writes to it any more: what Java says later fills no disk, and never makes it wait.
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
"""What programs inherit, whatever sys.stderr is."""
_NOISE: Final = re.compile(r"^(?:\s|WARNING|Caused by|Using Spark|Setting default|To adjust|\d\d/\d\d/\d\d )")


class CapturedOutput:
    """The end of what was said, read by a thread for as long as anybody can say more."""

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
        """What is there now. Not after the end: the pipe is closed then."""
        ready = _poll(self._pipe)
        while not self._ended and ready.poll(0):
            piece = os.read(self._pipe, _PIECE_BYTES)
            self._ended = not piece
            self._last += piece
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
    """Programs that are started within the block write to a pipe. None if nobody would see what they say."""
    try:
        terminal = os.dup(_STDERR)
    except OSError:  # it is closed
        yield None
        return
    reader, writer = os.pipe()
    captured = CapturedOutput(reader)
    sys.stderr.flush()
    os.dup2(writer, _STDERR)
    os.close(writer)
    try:
        yield captured
    finally:
        sys.stderr.flush()
        os.dup2(terminal, _STDERR)
        os.close(terminal)


def failure_reason(text: str) -> str | None:
    """The line of a failed start that says why; None if none does."""
    lines = text.splitlines()
    for pattern in (_REFUSED, _RAISED):
        for line in lines:
            if found := pattern.match(line):
                return found["reason"].strip()
    return next((line.strip() for line in reversed(lines) if line.strip() and not _NOISE.match(line)), None)
