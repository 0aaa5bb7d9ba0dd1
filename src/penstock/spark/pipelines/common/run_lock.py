"""Lock that allows one run at a time for a folder that holds a position.

Two concurrent runs would both send the same next records. The kernel holds the lock (flock), so the lock is
released when its process ends, however the process ends.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.errors import CommandFailed

LOCK: Final = "lock"


@contextmanager
def run_lock(folder: Path, what: str, remedy: str) -> Iterator[None]:
    """Hold the lock until the block or the process ends. `remedy`: advice if another run holds the lock."""
    with (folder / LOCK).open("a") as lock:
        try:
            # Non-blocking: a second run must fail at once instead of waiting unnoticed.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            raise CommandFailed(
                f"another run of this {what} is under way: {folder} is in use. {remedy}"
            ) from problem
        yield
