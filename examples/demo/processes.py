"""The demo's programs: started, awaited, and ended with their child processes.

Each program runs in its own session, so that Ctrl-C reaches only the demo, which then ends them in order.

Rule 1: a signal sets a flag that the demo checks between two steps. So no started process is left behind.
Rule 2: a program that was asked to end has some seconds, and is killed after them.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

TURN_S = 0.05
END_SECONDS_MAX = 5.0
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java options for runs of seconds: less compilation and a simple collector. Wrong for long runs."""


class DemoFailed(Exception):
    """The demo failed; the message is for the user."""


class Interrupted(Exception):
    """The user asked the demo to end."""


class Interruption:
    """Whether the demo received SIGINT or SIGTERM."""

    def __init__(self) -> None:
        self._is_asked = False

    def hear_signals(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._is_asked = True

    def check(self) -> None:
        if self._is_asked:
            raise Interrupted

    def wait(self, seconds: float) -> None:
        """Sleep in short steps: a signal does not interrupt a sleep."""
        until = time.monotonic() + seconds
        self.check()
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, TURN_S))
            self.check()


class Program:
    """A running `penstock` command."""

    def __init__(self, arguments: Sequence[str], stdout: Path, stderr: Path) -> None:
        self._paths = (stdout, stderr)
        with stdout.open("wb") as out, stderr.open("wb") as err:
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "penstock", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, "JDK_JAVA_OPTIONS": JAVA_OPTIONS},
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        """Exit code; None while the command runs."""
        return self._process.poll()

    @property
    def stdout(self) -> str:
        return self._paths[0].read_text()

    def output(self) -> str:
        """All output of the command, for finding the cause of a failure."""
        return "\n".join(text for path in self._paths if (text := path.read_text(errors="replace").strip()))

    def end(self) -> None:
        """End the command and all processes of its group, such as a JVM."""
        self._signal(signal.SIGTERM)
        until = time.monotonic() + END_SECONDS_MAX
        while self._is_there() and time.monotonic() < until:
            time.sleep(TURN_S)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _is_there(self) -> bool:
        self._process.poll()  # one that ended is there until somebody has asked
        return self._signal(0)

    def _signal(self, number: int) -> bool:
        """Send a signal to the group. False if no process is left."""
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return False
        return True


@contextmanager
def running(arguments: Sequence[str], stdout: Path, stderr: Path) -> Iterator[Program]:
    program = Program(arguments, stdout, stderr)
    try:
        yield program
    finally:
        program.end()


def typed(arguments: Sequence[str]) -> str:
    """The command line as a user would type it."""
    return shlex.join(["penstock", *arguments])
