"""RabbitMQ, with the plugin for streams. Its nodes find each other through an epmd of their own.

The wrapper on PATH wants to become the user `rabbitmq`; the script behind it runs as the user of this run.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from benchmarks.peers.servers.process import (
    LOOPBACK,
    Server,
    ServerFailed,
    accepts,
    child,
    family_of,
    free_ports,
    tail,
    wait_until,
)

SCRIPTS = Path("/usr/lib/rabbitmq/bin")
"""Where Debian's package keeps the scripts."""
MEMBERS = 3
PLUGIN = "rabbitmq_stream"
COMMAND_S_MAX = 60


def scripts(packaged: Path = SCRIPTS) -> Path | None:
    """Folder of the scripts: the one on PATH before the system's package, whose link leads there as well."""
    on_path = shutil.which("rabbitmq-server")
    folders = [Path(on_path).resolve().parent] if on_path else []
    return next((each for each in (*folders, packaged) if (each / "rabbitmq-server").exists()), None)


def missing(packaged: Path = SCRIPTS) -> str | None:
    if scripts(packaged) is None or shutil.which("epmd") is None:
        return "rabbitmq-server not found: install Debian's package rabbitmq-server"
    for module in ("pika", "rstream"):
        if find_spec(module) is None:
            return f"the client {module} is not installed: pip install 'penstock[peers]'"
    return None


def version() -> str:
    folder = scripts()
    assert folder is not None
    # An archive is unpacked to a folder with the version; the package has that folder beside its scripts.
    found = [folder.parent, *sorted(folder.parent.glob("lib/rabbitmq_server-*"))]
    named = [each.name.partition("-")[2] for each in found if each.name.startswith("rabbitmq_server-")]
    return named[-1] if named else "unknown"


@contextmanager
def running_queues(home: Path, settings: Sequence[str]) -> Iterator[Server]:
    with _nodes(home, settings, 1, is_stream=False) as server:
        yield server


@contextmanager
def running_streams(home: Path, settings: Sequence[str]) -> Iterator[Server]:
    with _nodes(home, settings, 1, is_stream=True) as server:
        yield server


@contextmanager
def running_queues_cluster(home: Path, settings: Sequence[str]) -> Iterator[Server]:
    with _nodes(home, settings, MEMBERS, is_stream=False) as server:
        yield server


@contextmanager
def running_streams_cluster(home: Path, settings: Sequence[str]) -> Iterator[Server]:
    with _nodes(home, settings, MEMBERS, is_stream=True) as server:
        yield server


@contextmanager
def _nodes(home: Path, settings: Sequence[str], count: int, *, is_stream: bool) -> Iterator[Server]:
    """Start the nodes one after the other; each joins the first."""
    folder = scripts()
    assert folder is not None
    names_port, *ports = free_ports(1 + 3 * count)
    (home / "plugins").write_text(f"[{PLUGIN}].\n" if is_stream else "[].\n")
    amqp, streams = ports[:count], ports[count : 2 * count]
    began = time.monotonic()
    with ExitStack() as stack:
        names = stack.enter_context(
            child(["epmd", "-port", str(names_port), "-address", LOOPBACK], home / "epmd-output")
        )
        wait_until(partial(accepts, names_port), names, home / "epmd-output")
        processes = []
        for number in range(count):
            environment = _environment(home, number, names_port, ports[2 * count + number])
            config = home / f"rabbitmq-{number}.conf"
            config.write_text(_config(amqp[number], streams[number], settings, is_stream=is_stream))
            output = home / f"output-{number}"
            process = stack.enter_context(child([str(folder / "rabbitmq-server")], output, environment))
            port = streams[number] if is_stream else amqp[number]
            wait_until(partial(accepts, port), process, output)
            if number and not (home / f"joined-{number}").exists():
                _join(folder, environment, home, number)
            processes.append(process)
        chosen = streams if is_stream else amqp
        addresses = ",".join(f"{LOOPBACK}:{port}" for port in chosen)
        members = tuple(_virtual_machine(process.pid) for process in processes)
        yield Server(addresses, members, home / "data", began, (names.pid,))


def _virtual_machine(script: int) -> int:
    """Process id of the node itself: the start script waits for it as its parent."""
    for pid in family_of(script):
        if Path(f"/proc/{pid}/comm").read_text().startswith("beam"):
            return pid
    raise ServerFailed(f"the script {script} has no process of a node")


def _environment(home: Path, number: int, names_port: int, distribution_port: int) -> Mapping[str, str]:
    return {
        "HOME": str(home),  # the nodes' shared secret is made there
        "ERL_EPMD_PORT": str(names_port),
        "RABBITMQ_NODENAME": f"bench{number}@localhost",
        "RABBITMQ_DIST_PORT": str(distribution_port),
        "RABBITMQ_MNESIA_BASE": str(home / "data" / str(number)),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_CONFIG_FILE": str(home / f"rabbitmq-{number}.conf"),
        "RABBITMQ_CONF_ENV_FILE": str(home / "no-such-file"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
        "RABBITMQ_PID_FILE": str(home / f"pid-{number}"),
        "RABBITMQ_GENERATED_CONFIG_DIR": str(home / f"generated-{number}"),
    }


def _config(amqp: int, stream: int, settings: Sequence[str], *, is_stream: bool) -> str:
    lines = ["listeners.tcp.default = " + f"{LOOPBACK}:{amqp}", "log.console.level = error", *settings]
    if is_stream:
        lines += [f"stream.listeners.tcp.1 = {LOOPBACK}:{stream}"]
        lines += ["stream.advertised_host = " + LOOPBACK, f"stream.advertised_port = {stream}"]
    return "\n".join(lines) + "\n"


def _join(folder: Path, environment: Mapping[str, str], home: Path, number: int) -> None:
    output = home / f"join-{number}"
    for words in (["stop_app"], ["join_cluster", "bench0@localhost"], ["start_app"]):
        with output.open("ab") as sink:
            done = subprocess.run(
                [str(folder / "rabbitmqctl"), "-n", environment["RABBITMQ_NODENAME"], *words],
                env={**os.environ, **environment},
                stdout=sink,
                stderr=subprocess.STDOUT,
                timeout=COMMAND_S_MAX,
                check=False,
            )
        if done.returncode != 0:
            raise ServerFailed(f"node {number} could not join the cluster: {tail(output)}")
    (home / f"joined-{number}").touch()
