"""Penstock: `penstock serve`, and `penstock cluster up` with etcd for three brokers."""

import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version as installed
from pathlib import Path

from benchmarks.brokers import READY
from benchmarks.clusters import READY as NODE_READY
from benchmarks.peers.servers.process import LOOPBACK, Server, child, free_row, wait_until

MEMBERS = 3


def missing() -> str | None:
    return None


def version() -> str:
    return installed("penstock")


def _program() -> str:
    return str(Path(sys.executable).with_name("penstock"))


@contextmanager
def running(home: Path, settings: Sequence[str]) -> Iterator[Server]:
    command = [_program(), "serve", "--data-dir", str(home / "data"), "--kafka", f"{LOOPBACK}:0"]
    command += ["--http", f"{LOOPBACK}:0"]
    for setting in settings:
        command += ["--set", setting]
    output = home / "output"
    began = time.monotonic()
    output.unlink(missing_ok=True)  # the ready line of an earlier start would be found again
    with child(command, output, {"PYTHONDONTWRITEBYTECODE": ""}) as process:
        wait_until(lambda: READY.search(output.read_bytes()) is not None, process, output)
        ready = READY.search(output.read_bytes())
        assert ready is not None
        yield Server(ready["kafka"].decode(), (process.pid,), home / "data", began)


@contextmanager
def running_cluster(home: Path, settings: Sequence[str]) -> Iterator[Server]:
    """Three brokers; etcd counts as a helper."""
    kafka = free_row(2 * MEMBERS)  # each broker listens on the first port plus its number
    http = kafka + MEMBERS
    command = [_program(), "cluster", "up", "--brokers", str(MEMBERS), "--data-dir", str(home / "cluster")]
    command += ["--kafka-port", str(kafka), "--http-port", str(http)]
    command += [word for setting in settings for word in ("--set", setting)]
    output = home / "output"
    began = time.monotonic()
    with ExitStack() as stack:
        process = stack.enter_context(child(command, output, {"PYTHONDONTWRITEBYTECODE": ""}))
        wait_until(lambda: len(_nodes(output)) == MEMBERS, process, output)
        nodes = _nodes(output)
        etcd = int((home / "cluster" / "etcd.pid").read_text())
        addresses = ",".join(address for address, _ in nodes)
        yield Server(addresses, tuple(pid for _, pid in nodes), home / "cluster", began, (etcd,))


def _nodes(output: Path) -> list[tuple[str, int]]:
    """Address and process id of each broker that is ready."""
    found: list[tuple[bytes, bytes, bytes, bytes]] = re.findall(NODE_READY, output.read_bytes())
    ready = {int(node): (kafka.decode(), int(pid)) for node, kafka, _, pid in found}
    return [ready[node] for node in sorted(ready)]
