"""Spark's own Kafka connector, from its published jars.

Maven is asked for them once; they stay in `.cache/spark-kafka-<version>` under the working directory. The
version is Spark's own if it can be had, else an older one, which can read and write batches all the same.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

import pyspark

CACHE = Path(".cache")
OLDER = ("4.2.0", "4.1.1", "4.1.0", "4.0.1", "4.0.0")
NEEDED = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
MAVEN_SECONDS_MAX = 300

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>spark-kafka-jars</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.spark</groupId><artifactId>spark-sql-kafka-0-10_2.13</artifactId><version>{version}</version>
  </dependency></dependencies>
</project>
"""


class NotToBeHad(Exception):
    """Why there is no connector."""


def jars() -> tuple[str, list[Path]]:
    """The version, and its jars."""
    versions = (pyspark.__version__, *(each for each in OLDER if each != pyspark.__version__))
    for version in versions:
        folder = CACHE / f"spark-kafka-{version}"
        if folder.is_dir():
            return version, sorted(folder.glob("*.jar"))
    if shutil.which("mvn") is None:
        raise NotToBeHad("mvn is not installed, which would fetch Spark's Kafka connector")
    problems = []
    for version in versions:
        folder = CACHE / f"spark-kafka-{version}"
        if (problem := _fetch(version, folder)) is None:
            return version, sorted(folder.glob("*.jar"))
        problems.append(f"{version}: {problem}")
    raise NotToBeHad("Maven resolves no version of Spark's Kafka connector; " + "; ".join(problems))


def _fetch(version: str, folder: Path) -> str | None:
    """Fetches into a neighbouring folder and renames it at the end: a folder that is there is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        pom, found = Path(temporary) / "pom.xml", Path(temporary) / "jars"
        pom.write_text(POM.format(version=version))
        command = ["mvn", "--quiet", "--batch-mode", "--file", str(pom), "dependency:copy-dependencies"]
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
        for jar in found.glob("*.jar"):
            if not jar.name.startswith(NEEDED):  # the rest comes with Spark
                jar.unlink()
        found.rename(folder)
    return None
