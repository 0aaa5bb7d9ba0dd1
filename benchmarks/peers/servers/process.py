"""Server processes on loopback, and what they use.

Rule 1: when a block ends, for whatever reason, its process and that process's children have ended.
Rule 2: a process is ended by its id, never by its name. Each has a session of its own, so that Ctrl-C reaches
this program alone, which then ends the servers in order.
Rule 3: every wait has a limit.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

LOOPBACK = "127.0.0.1"
START_S_MAX = 60.0
GRACE_S = 1.0
"""A server is asked to stop and then killed: what it has kept is thrown away."""
STOP_S_MAX = 15.0
POLL_S = 0.005
DELETED = ("-delete", ".deleted")
"""How Kafka and Penstock name what they are about to delete."""
DISK_SETTLES_S = 0.1
DISK_SETTLES_S_MAX = 3.0


class ServerFailed(Exception):
    """A server did not start, or ended during its work."""


@dataclass(frozen=True, slots=True)
class Server:
    """One running server, or several that are one cluster."""

    address: str
    """host:port for clients; of a cluster all of them, separated by commas."""
    members: tuple[int, ...]
    """Process id of each member, in the order of the addresses."""
    data: Path
    began: float
    """Monotonic time at which its first process was started: what prepares its folder comes before."""
    helpers: tuple[int, ...] = ()
    """Process ids that the members need: a store, a name service."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Ids of the processes that serve as long as the server runs: their CPU time is counted."""
        return (*self.members, *self.helpers)

    def family(self) -> tuple[int, ...]:
        """Ids of all processes that serve at this moment, with their children: their memory is counted."""
        found = (pid for root in self.pids for pid in family_of(root))
        return tuple(pid for pid in dict.fromkeys(found) if is_running(pid))

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(self.address.split(","))

    def kill(self, member: int = 0) -> None:
        """End a member as a crash would, and return when it has ended."""
        pid = self.members[member]
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + STOP_S_MAX
        while is_running(pid):
            if time.monotonic() > deadline:
                raise ServerFailed(f"process {pid} had not ended {STOP_S_MAX:.0f} s after it was killed")
            time.sleep(POLL_S)


def is_running(pid: int) -> bool:
    """Whether the process exists and is not waiting for its parent to take notice of its end."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")


@contextmanager
def child(
    command: Sequence[str], output: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command; its output is appended to a file."""
    with output.open("ab") as sink:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=None if environment is None else {**os.environ, **environment},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        family = tuple(family_of(process.pid))
        try:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
        finally:  # also when a second Ctrl-C ends the wait
            _signal_group(process, signal.SIGKILL)
            process.wait()
        deadline = time.monotonic() + STOP_S_MAX
        while any(is_running(pid) for pid in family) and time.monotonic() < deadline:
            time.sleep(POLL_S)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # the whole group has ended
        os.killpg(process.pid, number)


def family_of(pid: int) -> Iterator[int]:
    """The process and all its descendants."""
    yield pid
    with suppress(OSError):  # a process that has ended has no children
        for tasks in Path(f"/proc/{pid}/task").iterdir():
            for descendant in (tasks / "children").read_text().split():
                yield from family_of(int(descendant))


def free_ports(count: int) -> list[int]:
    """Loopback ports that were free a moment ago."""
    sockets = [socket.create_server((LOOPBACK, 0)) for _ in range(count)]
    ports: list[int] = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def free_row(count: int) -> int:
    """The first of so many loopback ports in a row that were free a moment ago."""
    while True:
        (first,) = free_ports(1)
        with suppress(OSError, OverflowError):  # one of them is taken, or there is no such port
            for port in range(first, first + count):
                socket.create_server((LOOPBACK, port)).close()
            return first


def accepts(port: int) -> bool:
    """Whether a server listens on the port."""
    try:
        socket.create_connection((LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True


def wait_until(
    condition: Callable[[], bool],
    process: subprocess.Popen[bytes],
    output: Path,
    limit_s: float = START_S_MAX,
) -> None:
    """Wait until a starting server meets the condition; its last lines are in the error otherwise."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            state = "ended" if process.poll() is not None else f"was not ready after {limit_s:.0f} s"
            raise ServerFailed(f"the server {state}: {tail(output)}")
        time.sleep(POLL_S)


def tail(output: Path, lines: int = 12) -> str:
    return "\n".join(output.read_text(errors="replace").splitlines()[-lines:]) if output.exists() else ""


def memory_bytes(pids: Sequence[int]) -> int:
    """Memory of the processes; what several of them share is counted once (proportional set size)."""
    total = 0
    for pid in pids:
        with suppress(OSError):  # a helper that has just ended
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def disk_bytes(folder: Path) -> int:
    """Bytes that the files of a folder occupy on disk: blocks, not lengths, so that holes are free.

    What Kafka and Penstock have renamed for deletion does not count.
    """
    total = 0
    for parent, folders, names in os.walk(folder):  # which goes on when a server removes a folder meanwhile
        folders[:] = [name for name in folders if not name.endswith(DELETED)]
        for name in names:
            with suppress(OSError):  # or a file
                if not name.endswith(DELETED):
                    total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total


def settled_disk_bytes(folder: Path) -> int:
    """The same once everything is written, and nothing is removed any more."""
    os.sync()  # the system assigns blocks when it writes
    deadline, now = time.monotonic() + DISK_SETTLES_S_MAX, disk_bytes(folder)
    while time.monotonic() < deadline:
        time.sleep(DISK_SETTLES_S)
        before, now = now, disk_bytes(folder)
        if now == before:
            break
    return now
