"""Real brokers: `penstock serve` on free loopback ports, with data in a temporary folder.

Rule 1: when a block ends, for whatever reason, its broker has ended and its folder is removed.
Rule 2: a process is ended by its handle, never by its name.
"""

import os
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

READY = re.compile(rb"penstock ready kafka=(?P<kafka>\S+) http=(?P<http>\S+)")
MEMORY_LINE = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)
START_S_MAX = 600
"""Time limit of a start: recovery of many gigabytes may take minutes."""
STOP_S_MAX = 60


class BrokerFailed(Exception):
    """The broker did not start, or did not stop."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory in bytes, from /proc/PID/status."""

    resident: int
    anonymous: int


@dataclass(frozen=True, slots=True)
class Broker:
    process: subprocess.Popen[bytes]
    bootstrap: str
    start_s: float
    """Seconds from the start of the process to its ready line."""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def pids(self) -> tuple[int, ...]:
        return (self.pid,)

    def memory(self) -> Memory:
        return memory_of(self.pid)

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))


def memory_of(pid: int) -> Memory:
    status = Path(f"/proc/{pid}/status").read_text()
    kilobytes = {name: int(number) for name, number in MEMORY_LINE.findall(status)}
    return Memory(kilobytes["VmRSS"] * 1024, kilobytes["RssAnon"] * 1024)


def environment() -> dict[str, str]:
    """Environment of an installed broker: Python caches its byte code, whatever this shell has set."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _spawned(command: Sequence[str], home: Path) -> tuple[subprocess.Popen[bytes], float]:
    began = time.monotonic()
    with (home / "stderr").open("ab") as complaints:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, env=environment())
    return process, began


def _wait_for_ready(process: subprocess.Popen[bytes], home: Path, deadline: float) -> re.Match[bytes]:
    assert process.stdout is not None
    output = b""
    while (ready := READY.search(output)) is None:
        readable, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        piece = os.read(process.stdout.fileno(), 4096) if readable else b""
        if not piece:
            complaints = (home / "stderr").read_text(errors="replace")[-2000:]
            raise BrokerFailed(f"the broker did not become ready\n{complaints}")
        output += piece
    return ready


@contextmanager
def running_broker(home: Path, settings: Sequence[str] = ()) -> Iterator[Broker]:
    """Run a broker with its data and its stderr in `home`. SIGTERM ends it at the end of the block."""
    program = Path(sys.executable).with_name("penstock")
    command = [str(program), "serve", "--data-dir", str(home / "data"), "--kafka", "127.0.0.1:0"]
    command += ["--http", "127.0.0.1:0"]
    for setting in settings:
        command += ["--set", setting]
    with running_command(command, home) as broker:
        yield broker


@contextmanager
def running_command(command: Sequence[str], home: Path) -> Iterator[Broker]:
    """Run a command that prints a broker's ready line."""
    process, began = _spawned(command, home)
    try:
        ready = _wait_for_ready(process, home, began + START_S_MAX)
        yield Broker(process, ready["kafka"].decode(), time.monotonic() - began)
    finally:
        process.terminate()
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired as late:
            raise BrokerFailed(f"the broker had not stopped after {STOP_S_MAX} s") from late
        finally:
            process.kill()  # does nothing to one that has ended
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@contextmanager
def temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        yield Path(folder)


@contextmanager
def fresh_broker(settings: Sequence[str] = ()) -> Iterator[Broker]:
    """Run an empty broker in a temporary folder."""
    with temporary_folder() as folder, running_broker(folder, settings) as broker:
        yield broker
