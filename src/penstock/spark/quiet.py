"""What Java and Spark say while they start: kept from the terminal, and told only if they do not.

A start prints a dozen lines about modules, host names and native libraries, which mean nothing to whoever
runs a pipeline. If it fails, one of them is the reason.
"""

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final

_RAISED: Final = re.compile(
    r"^(?:Exception in thread \"[^\"]*\" )?[\w.$]+(?:Exception|Error): (?P<reason>.+)$"
)
_REFUSED: Final = re.compile(
    r"^(?:Error: )?(?P<reason>(?:Invalid|Unrecognized|Could not|Cannot|Improperly).+)$"
)
_STDERR: Final = 2
"""What programs inherit, whatever sys.stderr is."""
_NOISE: Final = re.compile(r"^(?:\s|WARNING|Caused by|Using Spark|Setting default|To adjust|\d\d/\d\d/\d\d )")


@contextmanager
def stderr_kept() -> Iterator[IO[bytes]]:
    """Programs that are started within the block write to this file, for as long as they run."""
    with tempfile.TemporaryFile() as kept:
        sys.stderr.flush()
        terminal = os.dup(_STDERR)
        os.dup2(kept.fileno(), _STDERR)
        try:
            yield kept
        finally:
            sys.stderr.flush()
            os.dup2(terminal, _STDERR)
            os.close(terminal)


def said(kept: IO[bytes]) -> str:
    kept.seek(0)
    return kept.read().decode(errors="replace")


def reason_in(text: str) -> str | None:
    """The line of a failed start that says why; None if none does."""
    lines = text.splitlines()
    for pattern in (_REFUSED, _RAISED):
        for line in lines:
            if found := pattern.match(line):
                return found["reason"].strip()
    return next((line.strip() for line in reversed(lines) if line.strip() and not _NOISE.match(line)), None)
