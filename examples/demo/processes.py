"""Programs of the demo: started, waited for, and ended with all that they started.

Each runs in a session of its own, so that Ctrl-C reaches the demo alone, which then ends them in order.

Rule 1: a signal is noted, and acted on between two steps. So no process can be started and forgotten.
Rule 2: whoever is asked to end has some seconds, and is killed after them.
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
"""Java compiles less and collects simply: less work in runs of seconds, and wrong for long ones."""


class DemoFailed(Exception):
    """The message is what the user is told."""


class Interrupted(Exception):
    """The user wants the demo to end."""


class Interruption:
    """Whether Ctrl-C was pressed, or an end was asked for in another way."""

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
        """In short turns: a signal does not cut a sleep short."""
        until = time.monotonic() + seconds
        self.check()
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, TURN_S))
            self.check()


class Program:
    """A command of `penstock`, running."""

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
        """None while it runs."""
        return self._process.poll()

    @property
    def stdout(self) -> str:
        return self._paths[0].read_text()

    def output(self) -> str:
        """All that it wrote, for somebody who has to find out why it failed."""
        return "\n".join(text for path in self._paths if (text := path.read_text(errors="replace").strip()))

    def end(self) -> None:
        """It and the processes of its group, such as a JVM, are gone afterwards."""
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
        """False if there is nobody left to hear it."""
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
    """As a user would type it."""
    return shlex.join(["penstock", *arguments])
