"""A broker under comparison, and the child processes that brokers are."""

import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

LOOPBACK = "127.0.0.1"
_STOP_S_MAX = 10


@dataclass(frozen=True)
class Broker:
    name: str
    host: str
    port: int
    process: subprocess.Popen[bytes]

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class BrokerFailed(Exception):
    """A broker did not start, or stopped while it was being asked."""


@contextmanager
def child_process(command: Sequence[str], output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of our own that is gone when the block ends, however it ends.

    It gets a session of its own: an interrupt at the terminal reaches only us, and we stop the child.
    """
    with output.open("wb") as sink:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listened on a moment ago."""
    sockets = [socket.create_server((LOOPBACK, 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def tail(output: Path, lines: int = 20) -> str:
    return "\n".join(output.read_text(errors="replace").splitlines()[-lines:])
