"""Real clusters: `penstock cluster up` on free loopback ports, with everything in a temporary folder.

etcd and all brokers share the machine with the clients. Rule: when a block ends, for whatever reason, all of
its processes have ended.
"""

import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.brokers import START_S_MAX, STOP_S_MAX, BrokerFailed, Memory, environment, memory_of

READY = re.compile(rb"node (\d+) ready kafka=(\S+) http=(\S+) pid=(\d+)")


@dataclass(frozen=True, slots=True)
class Cluster:
    folder: Path
    addresses: tuple[str, ...]
    """Kafka address of each broker, in the order of node ids."""
    pids: tuple[int, ...]
    start_s: float
    """Seconds from the start of the command to the last broker's ready line."""

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses)

    @property
    def etcd_pid(self) -> int:
        return int((self.folder / "etcd.pid").read_text())

    def memory(self, node: int) -> Memory:
        return memory_of(self.pids[node])

    def kill(self, node: int) -> None:
        os.kill(self.pids[node], signal.SIGKILL)


@contextmanager
def running_cluster(folder: Path, brokers: int = 3) -> Iterator[Cluster]:
    """Run a cluster in `folder`; a cluster that is there already is started again."""
    program = Path(sys.executable).with_name("penstock")
    kafka, http = _free_ports(brokers), _free_ports(brokers)
    command = [str(program), "cluster", "up", "--brokers", str(brokers), "--data-dir", str(folder)]
    command += ["--kafka-port", str(kafka), "--http-port", str(http)]
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment()) as up:
        try:
            found = _wait_for_ready(up, brokers, began + START_S_MAX)
            took_s = time.monotonic() - began
            yield Cluster(folder, tuple(each[0] for each in found), tuple(each[1] for each in found), took_s)
        finally:
            up.terminate()
            try:
                up.wait(STOP_S_MAX)
            finally:
                up.kill()  # does nothing to one that has ended


def _wait_for_ready(up: "subprocess.Popen[bytes]", brokers: int, deadline: float) -> list[tuple[str, int]]:
    """Address and process id of each broker."""
    assert up.stdout is not None
    output = b""
    while len(set(READY.findall(output))) < brokers:
        readable, _, _ = select.select([up.stdout], [], [], max(0.0, deadline - time.monotonic()))
        piece = os.read(up.stdout.fileno(), 4096) if readable else b""
        if not piece:
            raise BrokerFailed(f"the cluster did not become ready\n{output.decode(errors='replace')}")
        output += piece
    ready = {int(node): (kafka.decode(), int(pid)) for node, kafka, _, pid in READY.findall(output)}
    return [ready[node] for node in sorted(ready)]


def _free_ports(count: int) -> int:
    """The first of `count` consecutive ports that are free."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            first: int = taken.getsockname()[1]
        with suppress(OSError, OverflowError):
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
            return first
