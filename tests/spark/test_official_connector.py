"""Spark's own Kafka connector reads and writes our broker, and ours goes on from its checkpoints.

In a process of its own: jars are given to Spark when it starts.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.testing import Broker
from tests.spark.connector import ConnectorUnavailable, jars, streams
from tests.spark.topics import create, fill, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRAM_SECONDS_MAX = 240


def run_beside_the_connector(program: str, *arguments: str) -> dict[str, object]:
    """What `program` puts into `found`, run where `spark` has the connector."""
    try:
        version, files = jars()
    except ConnectorUnavailable as problem:
        pytest.skip(f"NOT TESTED: {problem}")
    setup = f"""
import json, sys
from penstock.spark.session import spark_session
bootstrap, topic, folder = sys.argv[1:4]
streams = {streams(version)}
found = {{}}
jars = {",".join(str(file.resolve()) for file in files)!r}
with spark_session("official", "local[2]", {{"spark.jars": jars}}, log_level="OFF") as spark:
    options = {{"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}}
"""
    body = "".join(f"    {line}\n" for line in program.strip().splitlines())
    command = [sys.executable, "-c", setup + body + "print(json.dumps(found))", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


def test_the_official_connector_reads_and_writes_our_broker(
    running: Broker, topic: str, tmp_path: Path
) -> None:
    create(running, topic, partitions=2)
    fill(running, topic, numbered(50), partition=0)
    fill(running, topic, numbered(50, 50), partition=1)
    program = """
spark.range(100, 150).selectExpr("cast(id as string) as key", "cast(id as string) as value").write.format(
    "kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", topic).save()
columns = ["cast(key as string)", "cast(value as string)", "topic", "partition", "offset"]
columns += ["timestamp", "timestampType"]
theirs = spark.read.format("kafka").options(**options).load().selectExpr(*columns)
ours = spark.read.format("penstock").options(**options).load().selectExpr(*columns)
found["theirs"], found["ours"] = theirs.count(), ours.count()
found["different"] = theirs.exceptAll(ours).count() + ours.exceptAll(theirs).count()
found["schemas"] = [
    spark.read.format(each).options(**options, includeHeaders="true").load().schema.simpleString()
    for each in ("kafka", "penstock")
]
if streams:
    query = spark.readStream.format("kafka").options(**options).load().writeStream.format("noop").option(
        "checkpointLocation", folder).trigger(availableNow=True).start()
    query.awaitTermination()
    found["streamed"] = query.lastProgress["numInputRows"]
    spark.range(7).selectExpr("cast(id as string) as value").write.format("penstock").mode("append").option(
        "bootstrap", bootstrap).option("topic", topic).save()
    query = spark.readStream.format("penstock").options(**options).load().writeStream.format("noop").option(
        "checkpointLocation", folder).trigger(availableNow=True).start()
    query.awaitTermination()
    found["went_on_with"] = query.lastProgress["numInputRows"]
"""
    found = run_beside_the_connector(program, running.bootstrap, topic, str(tmp_path / "checkpoint"))
    assert (found["theirs"], found["ours"], found["different"]) == (150, 150, 0)
    schemas = found["schemas"]
    assert isinstance(schemas, list)
    assert schemas[0] == schemas[1]
    assert found.get("streamed", 150) == 150
    assert found.get("went_on_with", 7) == 7


def test_a_checkpoint_written_by_the_official_source_is_gone_on_from(
    spark: "SparkSession", running: Broker, topic: str, checkpoint: str
) -> None:
    """Its form is known. Ours has the ids of topics beside it, as names without partitions."""
    create(running, topic)
    fill(running, topic, numbered(5))

    def stream() -> int:
        source = spark.readStream.format("penstock").options(
            bootstrap=running.bootstrap, subscribe=topic, startingOffsets="earliest", mirrorOffsets="false"
        )
        writer = source.load().writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(progress["numInputRows"] for progress in query.recentProgress)

    assert stream() == 5
    log = Path(checkpoint, "offsets", "0")
    *head, position = log.read_text().splitlines()
    written = json.loads(position)
    assert {name: places for name, places in written.items() if places} == {topic: {"0": 5}}
    log.write_text("\n".join([*head, f'{{"{topic}":{{"0":5}}}}']))
    Path(checkpoint, "offsets", ".0.crc").unlink()
    initial = Path(checkpoint, "sources", "0", "0")
    initial.parent.mkdir(parents=True)
    initial.write_text(f'v1\n{{"{topic}":{{"0":0}}}}')
    fill(running, topic, numbered(3))
    assert stream() == 3
