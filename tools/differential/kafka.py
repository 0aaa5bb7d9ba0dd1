"""Apache Kafka from its published jars: one node that is broker and controller at once.

Maven is asked for the jars once; they stay in `.cache/kafka-<version>` under the working directory.
"""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tools.differential.broker import LOOPBACK, Broker, BrokerFailed, child_process, free_ports, tail
from tools.differential.coordinators import GROUP, has_coordinators
from tools.differential.wire import is_answering

VERSIONS = ("4.2.0", "4.1.1", "4.1.0", "4.0.1", "4.0.0")
"""Versions in the order of preference: the first one that Maven can resolve is used."""

NODE_ID = 1
_CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
_START_S_MAX = 60
_START_POLL_S = 0.1
_MAVEN_S_MAX = 600
_TRANSACTION = 1
_SERVER = "kafka_2.13"
_TOOLS = "kafka-tools"

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>kafka-jars</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.kafka</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
  </dependency></dependencies>
</project>
"""

_PROPERTIES = """process.roles=broker,controller
node.id={node}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.quorum.voters={node}@{host}:{controller_port}
log.dirs={data}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""

_QUIET_LOG = """rootLogger.level=ERROR
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%p %c %m%n
"""


def missing_programs() -> list[str]:
    """Programs that Kafka needs and that are not installed here."""
    return [program for program in ("java", "mvn") if shutil.which(program) is None]


def fetch_jars(cache: Path) -> tuple[str, Path]:
    """Return the newest version that Maven can resolve, and the folder with its jars."""
    problems: list[str] = []
    for version in VERSIONS:
        folder = cache / f"kafka-{version}"
        if folder.is_dir():
            return version, folder
        problem = _copy_jars(_SERVER, version, folder)
        if problem is None:
            return version, folder
        problems.append(f"{version}: {problem}")
    raise BrokerFailed("Maven resolved no version of Kafka\n" + "\n".join(problems))


def fetch_perf_tools(cache: Path) -> Path:
    """Return the folder with the jars of Kafka's command-line tools, in the version of `fetch_jars`."""
    version, _ = fetch_jars(cache)
    folder = cache / f"kafka-tools-{version}"
    if not folder.is_dir() and (problem := _copy_jars(_TOOLS, version, folder)) is not None:
        raise BrokerFailed(f"Maven could not resolve the tools of Kafka {version}: {problem}")
    return folder


def _copy_jars(artifact: str, version: str, folder: Path) -> str | None:
    """Fetch into another folder and rename it at the end, so that an existing folder is always complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        pom = Path(temporary) / "pom.xml"
        pom.write_text(_POM.format(artifact=artifact, version=version))
        # Maven takes a relative folder to be beside the pom, not below the working directory.
        jars = Path(temporary).resolve() / "jars"
        command = ["mvn", "--quiet", "--batch-mode", "--file", str(pom)]
        command += ["dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_MAVEN_S_MAX, check=False)
        if done.returncode != 0:
            lines = (done.stdout + done.stderr).strip().splitlines()
            return lines[0] if lines else f"mvn ended with {done.returncode}"
        jars.rename(folder)
    return None


@contextmanager
def running_kafka(jars: Path) -> Iterator[Broker]:
    """Run an empty Kafka; stop it and remove its data when the block ends."""
    with tempfile.TemporaryDirectory(prefix="penstock-kafka-") as temporary:
        home = Path(temporary)
        port, controller_port = free_ports(2)
        properties = home / "server.properties"
        properties.write_text(
            _PROPERTIES.format(
                node=NODE_ID, host=LOOPBACK, port=port, controller_port=controller_port, data=home / "data"
            )
        )
        (home / "log4j2.properties").write_text(_QUIET_LOG)
        java = ["java", "-Xmx512m", f"-Dlog4j2.configurationFile={home / 'log4j2.properties'}"]
        java += ["-cp", f"{jars}/*"]
        format_storage([*java, "kafka.tools.StorageTool"], properties)
        output = home / "output"
        with child_process([*java, "kafka.Kafka", str(properties)], output) as process:
            broker = Broker("kafka", LOOPBACK, port, process)
            _await(partial(is_answering, broker.host, broker.port), broker, output)
            _await(partial(has_coordinators, broker, GROUP, _TRANSACTION), broker, output)
            yield broker


def format_storage(tool: list[str], properties: Path) -> None:
    command = [*tool, "format", "--cluster-id", _CLUSTER_ID, "--config", str(properties)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BrokerFailed(f"Kafka's storage could not be formatted\n{done.stdout}{done.stderr}")


def _await(condition: Callable[[], bool], broker: Broker, output: Path) -> None:
    deadline = time.monotonic() + _START_S_MAX
    while not condition():
        if broker.process.poll() is not None or time.monotonic() > deadline:
            raise BrokerFailed(f"Kafka did not start\n{tail(output)}")
        time.sleep(_START_POLL_S)
