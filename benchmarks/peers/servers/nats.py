"""NATS with JetStream: the server on PATH, or the one of the wheel."""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from benchmarks.peers.servers.process import LOOPBACK, Server, accepts, child, free_ports, wait_until

MEMBERS = 3


def program() -> str | None:
    beside = Path(sys.executable).with_name("nats-server")  # where pip puts the wheel's
    return shutil.which("nats-server") or (str(beside) if beside.exists() else None)


def missing() -> str | None:
    if program() is None:
        return "nats-server not found: pip install 'penstock[peers]'"
    if find_spec("nats") is None:
        return "the client nats-py is not installed: pip install 'penstock[peers]'"
    return None


def version() -> str:
    done = subprocess.run(
        [program() or "", "--version"], capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip().rpartition("v")[2]


def _config(name: str, port: int, store: Path, settings: Sequence[str]) -> str:
    more = "\n".join(f"  {setting}" for setting in settings)
    return (
        f"server_name: {name}\nhost: {LOOPBACK}\nport: {port}\n"
        f'jetstream {{\n  store_dir: "{store}"\n{more}\n}}\n'
    )


@contextmanager
def running(home: Path, settings: Sequence[str]) -> Iterator[Server]:
    (port,) = free_ports(1)
    (home / "nats.conf").write_text(_config("single", port, home / "data", settings))
    output, began = home / "output", time.monotonic()
    with child([program() or "", "-c", str(home / "nats.conf")], output) as process:
        wait_until(partial(accepts, port), process, output)
        yield Server(f"{LOOPBACK}:{port}", (process.pid,), home / "data", began)


@contextmanager
def running_cluster(home: Path, settings: Sequence[str]) -> Iterator[Server]:
    ports = free_ports(2 * MEMBERS)
    clients, routes = ports[:MEMBERS], ports[MEMBERS:]
    urls = ", ".join(f"nats-route://{LOOPBACK}:{port}" for port in routes)
    began = time.monotonic()
    with ExitStack() as stack:
        processes = []
        for number, (port, route) in enumerate(zip(clients, routes, strict=True)):
            config = home / f"nats-{number}.conf"
            text = _config(f"node-{number}", port, home / "data" / str(number), settings)
            cluster = f"cluster {{\n  name: bench\n  listen: {LOOPBACK}:{route}\n  routes: [{urls}]\n}}\n"
            config.write_text(text + cluster)
            command = [program() or "", "-c", str(config)]
            processes.append(stack.enter_context(child(command, home / f"output-{number}")))
        for number, process in enumerate(processes):
            port = clients[number]
            wait_until(partial(accepts, port), process, home / f"output-{number}")
        addresses = ",".join(f"{LOOPBACK}:{port}" for port in clients)
        yield Server(addresses, tuple(process.pid for process in processes), home / "data", began)
