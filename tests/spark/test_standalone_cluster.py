"""Pipelines on a Spark cluster: a master and two workers, each a process of its own, as are their executors.

An executor is killed with signal 9 while `archive` runs. Spark gives its tasks to the other one, and starts a
new one; what the killed one left behind must be neither lost nor there twice, as `audit` tells.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from penstock.spark.lake.description import open_table
from penstock.spark.pipelines.audit.audit import AuditSettings, run_audit
from penstock.spark.pipelines.common.query_run import StopRequest
from tests.integration.broker_process import BrokerProcess, eventually, serving
from tests.spark.archive_topics import Connected
from tests.spark.spark_cluster import SparkCluster, kill_session, spark_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS_MAX = 240.0
TOPIC = "payments"
PARTITIONS = 2
ROWS = 6_000
ROWS_PER_BATCH = 500
BATCHES_BEFORE_THE_KILL = 2
SPEC = """
name = "large"
key = "id"
[extract]
from = "topic"
topic = "payments"
schema = "id bigint, amount int"
[transform]
sql = "select id, amount * 2 as doubled from rows where amount >= 50"
[load]
to = "parquet"
path = "large"
"""


class Pipeline:
    """`penstock pipeline ...` on the cluster, in a session of its own."""

    def __init__(self, cluster: SparkCluster, broker: BrokerProcess, folder: Path, *words: str) -> None:
        self.cluster = cluster
        self.log = folder / f"{words[0]}.log"
        command = [sys.executable, "-m", "penstock", "pipeline", *words, "--json"]
        command += ["--bootstrap", broker.bootstrap, "--master", cluster.url, *cluster.settings()]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
                start_new_session=True,
            )

    def __enter__(self) -> "Pipeline":
        return self

    def __exit__(self, *failure: object) -> None:
        kill_session(self.process.pid)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def report(self) -> dict[str, Any]:
        """What it prints when it has ended well."""
        output, _ = self.process.communicate(timeout=SECONDS_MAX)
        assert self.process.returncode == 0, f"{output!r}\n{self.log.read_text()}\n{self.cluster.logs()}"
        report = json.loads(output)
        assert isinstance(report, dict)
        return report


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with serving(tmp_path / "data") as running:
        yield running


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path / "cluster") as ready:
        yield ready


def produce(bootstrap: str) -> None:
    from confluent_kafka import Producer

    with Connected(bootstrap) as client:
        client.create_topic(TOPIC, PARTITIONS, {})
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for number in range(ROWS):
        value = json.dumps({"id": number, "amount": number % 100})
        producer.produce(TOPIC, value, f"card-{number % 50}", number % PARTITIONS)
    assert producer.flush(60) == 0


def kill_an_executor(cluster: SparkCluster, archiving: Pipeline, lake: Path) -> int:
    """In the middle of a batch. Returns how many batches were committed by then."""

    def is_in_the_middle() -> bool:
        assert archiving.runs, f"it ended before:\n{archiving.log.read_text()}\n{cluster.logs()}"
        return len(list(lake.glob("_penstock/log/*.json"))) >= BATCHES_BEFORE_THE_KILL

    eventually(is_in_the_middle, seconds_max=SECONDS_MAX)
    launched = cluster.executors_launched()
    victim, other = cluster.executors()
    written = len(list(lake.rglob("*.parquet")))
    eventually(lambda: len(list(lake.rglob("*.parquet"))) > written, seconds_max=SECONDS_MAX, every=0.001)
    os.kill(victim, signal.SIGKILL)
    committed = len(list(lake.glob("_penstock/log/*.json")))
    eventually(lambda: len(cluster.executors_launched()) > len(launched), seconds_max=SECONDS_MAX)
    assert other in cluster.executors()
    return committed


def rows_of(folder: Path) -> list[tuple[int, int]]:
    with open_table(folder) as table:
        rows = [pq.ParquetFile(path).read(["id", "doubled"]) for path in table.files()]
    return [pair for each in rows for pair in zip(*(c.to_pylist() for c in each.columns), strict=True)]


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_pipelines_run_on_a_cluster_that_loses_an_executor(
    spark: "SparkSession", broker: BrokerProcess, cluster: SparkCluster, tmp_path: Path
) -> None:
    produce(broker.bootstrap)
    lake = tmp_path / "lake"
    words = ("--topic", TOPIC, "--to", str(lake), "--once", "--max-rows-per-batch", str(ROWS_PER_BATCH))
    with Pipeline(cluster, broker, tmp_path, "archive", *words) as archiving:
        committed = kill_an_executor(cluster, archiving, lake)
        archived = archiving.report()
    assert (archived["rows"], archived["batches"]) == (ROWS, ROWS // ROWS_PER_BATCH)
    assert committed < archived["batches"], "it was killed while there was work"

    (tmp_path / "etl.toml").write_text(SPEC)
    with Pipeline(cluster, broker, tmp_path, "etl", "--spec", str(tmp_path / "etl.toml"), "--once") as etl:
        stages = {stage: told["rows"] for stage, told in etl.report()["stages"].items()}
    assert stages == {"extract": ROWS, "transform": ROWS, "load": ROWS // 2}
    wanted = [(number, 2 * (number % 100)) for number in range(ROWS) if number % 100 >= 50]
    assert sorted(rows_of(tmp_path / "large")) == wanted

    access = {"kafka.bootstrap.servers": broker.bootstrap}
    wanted_of_lake = AuditSettings((TOPIC,), access, lake, complete=True, strict=True)
    audited = run_audit(spark, wanted_of_lake, StopRequest(), lambda line: None).document()
    assert audited["checked"] == {"records of topics": ROWS, "rows of the table": ROWS}
    assert (audited["lost"], audited["duplicated"], audited["violations"]) == (0, 0, [])
