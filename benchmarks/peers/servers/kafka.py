"""Apache Kafka from its published jars, in KRaft mode: each node is broker and controller.

The Java options are those of Kafka's own start script (`kafka-server-start`), the heap included.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.peers.servers.process import LOOPBACK, Server, ServerFailed, child, free_ports, wait_until
from tools.differential.broker import BrokerFailed
from tools.differential.kafka import fetch_jars, fetch_perf_tools, format_storage, missing_programs
from tools.differential.wire import is_answering

CACHE = Path(".cache")
MEMBERS = 3
JAVA = (
    "java", "-Xms1G", "-Xmx1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
)  # fmt: skip

# Kafka's defaults, with the factors that one node or three allow.
_PROPERTIES = """process.roles=broker,controller
node.id={node}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.quorum.voters={voters}
log.dirs={data}
offsets.topic.replication.factor={factor}
transaction.state.log.replication.factor={factor}
transaction.state.log.min.isr={min_isr}
share.coordinator.state.topic.replication.factor={factor}
share.coordinator.state.topic.min.isr={min_isr}
min.insync.replicas={min_isr}
{more}
"""
_LOG = """rootLogger.level=ERROR
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%p %c %m%n
"""
_CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"


def missing() -> str | None:
    if programs := missing_programs():
        return f"{' and '.join(programs)} not found: install a Java (17 or newer) and Maven"
    try:
        fetch_jars(CACHE)
    except BrokerFailed as problem:
        return f"{str(problem).splitlines()[0]}: check the way to Maven's repository"
    return None


def version() -> str:
    return fetch_jars(CACHE)[0]


def perf_tools() -> Path:
    """Folder with the jars of Kafka's own performance tools."""
    try:
        return fetch_perf_tools(CACHE)
    except BrokerFailed as problem:
        raise ServerFailed(str(problem)) from problem


@contextmanager
def running(home: Path, settings: Sequence[str]) -> Iterator[Server]:
    with _nodes(home, settings, 1) as server:
        yield server


@contextmanager
def running_cluster(home: Path, settings: Sequence[str]) -> Iterator[Server]:
    with _nodes(home, settings, MEMBERS) as server:
        yield server


@contextmanager
def _nodes(home: Path, settings: Sequence[str], count: int) -> Iterator[Server]:
    _, jars = fetch_jars(CACHE)
    all_ports = free_ports(2 * count)
    ports, controllers = all_ports[:count], all_ports[count:]
    voters = ",".join(f"{node}@{LOOPBACK}:{port}" for node, port in enumerate(controllers, 1))
    (home / "log4j2.properties").write_text(_LOG)
    java = [*JAVA, f"-Dlog4j2.configurationFile={home / 'log4j2.properties'}", "-cp", f"{jars.resolve()}/*"]
    for node in range(1, count + 1):
        properties = home / f"server-{node}.properties"
        properties.write_text(
            _PROPERTIES.format(
                node=node,
                host=LOOPBACK,
                port=ports[node - 1],
                controller_port=controllers[node - 1],
                voters=voters,
                data=home / "data" / str(node),
                factor=count,
                min_isr=min(2, count),
                more="\n".join(settings),
            )
        )
        if not (home / "data" / str(node)).exists():
            _format([*java, "kafka.tools.StorageTool"], properties)
    began = time.monotonic()  # an operator formats the storage once, so no start includes that
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                child(
                    [*java, "kafka.Kafka", str(home / f"server-{node}.properties")], home / f"output-{node}"
                )
            )
            for node in range(1, count + 1)
        ]
        for node, process in enumerate(processes, 1):
            port = ports[node - 1]
            wait_until(partial(is_answering, LOOPBACK, port), process, home / f"output-{node}")
        addresses = ",".join(f"{LOOPBACK}:{port}" for port in ports)
        yield Server(addresses, tuple(process.pid for process in processes), home / "data", began)


def _format(tool: list[str], properties: Path) -> None:
    try:
        format_storage(tool, properties)
    except BrokerFailed as problem:
        raise ServerFailed(str(problem)) from problem
