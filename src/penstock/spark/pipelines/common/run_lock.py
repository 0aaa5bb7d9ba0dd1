"""One run at a time of whatever keeps its position in a folder.

Two would both send what comes next. The lock is the kernel's: a process that dies lets go of it, in whatever
way it died.
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
    """Held until the process ends or the block does. `remedy` is what to do if somebody else holds it."""
    with (folder / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            raise CommandFailed(
                f"another run of this {what} is under way: {folder} is in use. {remedy}"
            ) from problem
        yield
