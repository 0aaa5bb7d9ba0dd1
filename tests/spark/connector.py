"""Spark's own Kafka connector, from its published jars.

Maven is asked for them once; they stay in `.cache/spark-kafka-<version>` under the working directory. The
version is Spark's own if it can be had, else the newest that is older. The jar that deals with delegation
tokens, which are not used here, may be older than the rest: not every repository has each version of it.

Each jar is named here and its dependencies are left out: they come with Spark, and Spark's own POM would have
Maven look for them in a repository of Spark's choice before the one it is set up for.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

import pyspark

CACHE = Path(".cache")
OLDER = ("4.2.0", "4.1.2", "4.0.2", "4.0.0")
TOKENS_OLDEST = "4.0.0"
STREAMS_SINCE = (4, 2)
# Those that connector 4.2.0 was made with.
KAFKA_CLIENTS, COMMONS_POOL = "3.9.2", "2.13.1"
MAVEN_SECONDS_MAX = 300

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>spark-kafka-jars</artifactId><version>1</version>
  <dependencies>{dependencies}
  </dependencies>
</project>
"""
DEPENDENCY = """
    <dependency>
      <groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>"""


class ConnectorUnavailable(Exception):
    """Why there is no connector."""


def jars() -> tuple[str, list[Path]]:
    """The version, and its jars."""
    versions = (pyspark.__version__, *(each for each in OLDER if each != pyspark.__version__))
    for version in versions:
        folder = CACHE / f"spark-kafka-{version}"
        if folder.is_dir():
            return version, sorted(folder.glob("*.jar"))
    if shutil.which("mvn") is None:
        raise ConnectorUnavailable("mvn is not installed, which would fetch Spark's Kafka connector")
    problems = []
    for version in versions:
        folder = CACHE / f"spark-kafka-{version}"
        for tokens in dict.fromkeys((version, TOKENS_OLDEST)):
            if (problem := _fetch(version, tokens, folder)) is None:
                return version, sorted(folder.glob("*.jar"))
        problems.append(f"{version}: {problem}")
    raise ConnectorUnavailable("Maven resolves no version of Spark's Kafka connector; " + "; ".join(problems))


def streams(version: str) -> bool:
    """Whether its streams are known to run on a newer Spark: those of 4.2.0 do on 4.3.0, of 4.0.0 not."""
    return tuple(map(int, version.split(".")[:2])) >= STREAMS_SINCE


def _dependencies(version: str, tokens: str) -> list[str]:
    wanted = (
        ("org.apache.spark", "spark-sql-kafka-0-10_2.13", version),
        ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", tokens),
        ("org.apache.kafka", "kafka-clients", KAFKA_CLIENTS),
        ("org.apache.commons", "commons-pool2", COMMONS_POOL),
    )
    return [DEPENDENCY.format(group=group, artifact=name, version=each) for group, name, each in wanted]


def _fetch(version: str, tokens: str, folder: Path) -> str | None:
    """Fetches into a neighbouring folder and renames it at the end: a folder that is there is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        pom, found = Path(temporary) / "pom.xml", Path(temporary) / "jars"
        pom.write_text(POM.format(dependencies="".join(_dependencies(version, tokens))))
        # What could not be had the last time may be there now.
        command = ["mvn", "--quiet", "--batch-mode", "--update-snapshots", "--file", str(pom)]
        command += ["dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={found.resolve()}"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=MAVEN_SECONDS_MAX, check=False
            )
        except subprocess.TimeoutExpired:
            return "no answer in time"
        if done.returncode != 0:
            lines = (done.stdout + done.stderr).strip().splitlines()
            return lines[0][:200] if lines else f"mvn ended with {done.returncode}"
        found.rename(folder)
    return None
