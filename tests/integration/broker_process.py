"""A real `penstock serve` in a process of its own, as an operator would run it.

Rule 1: a process that was started here is ended here, by its pid, however the test ends.
Rule 2: nothing waits without a deadline, and nothing sleeps to hope: the ready line says when.
"""

import os
import re
import select
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from tests.integration.stopped_process import stop_process

READY_SECONDS_MAX = 20.0
STOP_SECONDS_MAX = 10.0
READY_LINE = re.compile(r"penstock ready kafka=(?P<kafka>\S+) http=(?P<http>\S+)\n")
ON_FREE_PORTS = ("--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0")

Found = TypeVar("Found")


def eventually(look: Callable[[], Found], *, seconds_max: float = 10.0, every: float = 0.01) -> Found:
    """What `look` returns, as soon as it is true."""
    deadline = time.monotonic() + seconds_max
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {seconds_max} s: {look.__name__}"
        time.sleep(every)
    return found


class Finished(NamedTuple):
    """A command that ended by itself."""

    exit_code: int
    stdout: str
    stderr: str


def penstock(*arguments: str, cwd: Path | None = None) -> Finished:
    """Run a command of `penstock` that is expected to end."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        capture_output=True,
        text=True,
        timeout=READY_SECONDS_MAX,
        cwd=cwd,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


class BrokerProcess:
    """May be started and stopped again and again over the same data directory."""

    def __init__(
        self,
        data_dir: Path,
        *flags: str,
        settings: Mapping[str, object] | None = None,
        addresses: Sequence[str] = ON_FREE_PORTS,
        stderr_path: Path | None = None,
    ) -> None:
        """`stderr_path`: where the broker's log goes, if not beside its data."""
        self.data_dir = data_dir
        self._flags = [*addresses, *flags]
        for key, value in (settings or {}).items():
            self._flags += ["--set", f"{key}={value}"]
        self.program = [sys.executable, "-m", "penstock"]
        """Which release it is."""
        self._process: subprocess.Popen[bytes] | None = None
        self._stdout = ""
        self._stderr_path = stderr_path or data_dir.with_name(f"{data_dir.name}.stderr")
        self.addresses: list[str] = []
        """host:port of each Kafka listener, in the order they were given."""
        self.http = ""

    @property
    def bootstrap(self) -> str:
        return self.addresses[0]

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker was not started"
        return self._process.pid

    @property
    def stdout(self) -> str:
        return self._stdout

    @property
    def stderr(self) -> str:
        """Standard error of every start of this broker."""
        return self._stderr_path.read_text()

    def start(self) -> "BrokerProcess":
        """Returns when it is ready."""
        assert self._process is None, "the broker runs already"
        self._stdout = ""
        command = [*self.program, "serve", "--data-dir", str(self.data_dir), *self._flags]
        with self._stderr_path.open("ab") as stderr:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr
            )
        try:
            ready = self._wait_until_ready()
        except BaseException:
            self.kill()
            raise
        self.addresses = ready["kafka"].split(",")
        self.http = ready["http"]
        return self

    def _wait_until_ready(self) -> re.Match[str]:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while (ready := READY_LINE.search(self._stdout)) is None:
            more = self._read_stdout(deadline - time.monotonic())
            assert more, f"penstock serve did not become ready:\n{self._stdout}\n{self.stderr}"
        return ready

    def _read_stdout(self, seconds_max: float) -> bool:
        """False at its end, or if nothing came in time."""
        assert self._process is not None
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], max(0.0, seconds_max))
        data = os.read(self._process.stdout.fileno(), 65_536) if readable else b""
        self._stdout += data.decode()
        return bool(data)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop, and return its exit code."""
        process = self._process
        assert process is not None, "the broker does not run"
        process.send_signal(number)
        try:
            exit_code = process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        self._forget()
        return exit_code

    def kill(self) -> None:
        """As a crash would: no warning, no last words."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._forget()

    def pause(self) -> None:
        stop_process(self.pid)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _forget(self) -> None:
        while self._read_stdout(seconds_max=0):
            pass
        process, self._process = self._process, None
        assert process is not None
        assert process.stdout is not None
        process.stdout.close()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def get(self, path: str, timeout_s: float = 5) -> tuple[int, str]:
        """Status and body of an HTTP request to it."""
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=timeout_s) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, refusal.read().decode()

    def size_on_disk(self, under: str = "") -> int:
        """Bytes of all files below the data directory."""
        return size_of_files(self.data_dir / under)


def size_of_files(folder: Path, ending: str = "") -> int:
    """Bytes of all files below a folder whose names end so; some may be vanishing."""
    total = 0
    for parent, _, names in os.walk(folder):  # unlike rglob, it passes over a folder that is gone
        for name in filter(lambda name: name.endswith(ending), names):
            with suppress(FileNotFoundError):
                total += os.stat(f"{parent}/{name}").st_size
    return total


@contextmanager
def serving(
    data_dir: Path,
    *flags: str,
    settings: Mapping[str, object] | None = None,
    addresses: Sequence[str] = ON_FREE_PORTS,
) -> Iterator[BrokerProcess]:
    """A broker process that serves within the block and is gone after it, whatever happened."""
    broker = BrokerProcess(data_dir, *flags, settings=settings, addresses=addresses)
    try:
        yield broker.start()
    finally:
        broker.kill()
