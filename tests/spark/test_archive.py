"""Topics in a lake: every record once, with all of its columns, whatever the format."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from penstock.errors import CommandFailed
from penstock.spark.lake import lake_sink
from penstock.spark.lake.description import FORMATS, open_table, read_description
from penstock.spark.lake.time_partitioning import PartitionBy
from penstock.spark.pipelines.archive.archive import ArchiveReport, ArchiveSettings, check, run_archive
from penstock.spark.pipelines.archive.archive_tasks import COLUMNS
from penstock.spark.pipelines.common.query_run import StopRequest, reporting_spark_errors
from penstock.testing import Broker
from tests.integration.broker_process import eventually, penstock
from tests.spark.archive_topics import Audit, Connected, Producing, audited, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS_MAX = 120


def settings(running: Broker, topic: str, folder: Path, **more: object) -> ArchiveSettings:
    access = {"kafka.bootstrap.servers": running.bootstrap}
    return ArchiveSettings((topic,), folder, access, once=True)._replace(**more)  # type: ignore[arg-type]


def archived(spark: "SparkSession", wanted: ArchiveSettings) -> ArchiveReport:
    return run_archive(spark, wanted, StopRequest(), lambda line: None)


@pytest.mark.parametrize("form", FORMATS)
def test_every_record_is_there_once_also_after_more_came(
    spark: "SparkSession", running: Broker, tmp_path: Path, form: str
) -> None:
    topic = Producing(running.bootstrap, f"archive-{form}")
    wanted = settings(running, topic.topic, tmp_path / "lake", format=form, rows_per_batch=1_500)
    topic.produce(4_000)
    first = archived(spark, wanted)
    assert (first.rows, first.batches, first.lag) == (4_000, 3, 0)
    topic.produce(1_000)
    second = archived(spark, wanted._replace(compact=True))
    assert (second.rows, second.lag) == (1_000, 0)
    assert second.compacted.files_after == 1
    assert audited(tmp_path / "lake", topic.ends()) == Audit(5_000, 0, 0)
    assert archived(spark, wanted).rows == 0


def test_rows_have_all_that_records_have(spark: "SparkSession", running: Broker, tmp_path: Path) -> None:
    topic = Producing(running.bootstrap, "archive-columns", partitions=1)
    topic.produce(15)
    wanted = settings(running, topic.topic, tmp_path / "lake", partition_by=PartitionBy.HOUR)
    report = archived(spark, wanted)
    with open_table(tmp_path / "lake") as table:
        (path,) = table.files()
    rows = pq.ParquetFile(path).read()
    assert rows.column_names == [*COLUMNS, "ingestBatch"]
    assert rows.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
    first, second = rows.to_pylist()[:2]
    assert (first["key"], first["value"]) == (None, None)
    assert (second["key"], second["value"].strip()) == (b"key-1", b"value 1")
    assert second["headers"] == [{"key": "number", "value": b"1"}]
    assert (second["topic"], second["partition"], second["offset"]) == ("archive-columns", 0, 1)
    assert (second["timestampType"], second["ingestBatch"]) == (0, 0)
    written = second["timestamp"]
    assert abs((datetime.now(UTC) - written).total_seconds()) < 600
    assert f"date={written:%Y-%m-%d}/hour={written.hour}/" in path
    assert json.loads(json.dumps(report.document()))["ends"] == {"archive-columns": {"0": 15}}


def test_several_topics_share_a_table(spark: "SparkSession", running: Broker, tmp_path: Path) -> None:
    topics = [Producing(running.bootstrap, f"archive-many-{number}") for number in range(2)]
    for topic in topics:
        topic.produce(300)
    names = tuple(topic.topic for topic in topics)
    report = archived(spark, settings(running, "", tmp_path / "lake", topics=names))
    assert report.rows == 600
    ends = topics[0].ends() | topics[1].ends()
    assert audited(tmp_path / "lake", ends) == Audit(600, 0, 0)


def test_another_checkpoint_does_not_bring_the_same_records_again(
    spark: "SparkSession", running: Broker, tmp_path: Path
) -> None:
    topic = Producing(running.bootstrap, "archive-again")
    topic.produce(100)
    wanted = settings(running, topic.topic, tmp_path / "lake")
    archived(spark, wanted)
    with pytest.raises(CommandFailed, match=r"already holds archive-again/0 up to offset \d+"):
        archived(spark, wanted._replace(name="another"))
    # Nor does a query that did not ask: the table itself refuses.
    lake_sink.register(spark)
    query = (
        spark.readStream.format("penstock")
        .options(**wanted.read_options)
        .load()
        .writeStream.format("penstock-lake")
        .option("path", str(tmp_path / "lake"))
        .option("checkpointLocation", str(tmp_path / "elsewhere"))
        .trigger(availableNow=True)
        .start()
    )
    with (
        pytest.raises(CommandFailed, match=r"^the table holds archive-again/.* twice"),
        reporting_spark_errors(),
    ):
        query.awaitTermination()
    assert audited(tmp_path / "lake", topic.ends()) == Audit(100, 0, 0)


def test_a_commit_that_seemed_to_fail_is_neither_undone_nor_done_again(
    spark: "SparkSession", running: Broker, tmp_path: Path
) -> None:
    """Spark's own record of the batch is removed, as if it had died between the table's and its own."""
    topic = Producing(running.bootstrap, "archive-replay")
    topic.produce(500)
    for form in FORMATS:
        wanted = settings(running, topic.topic, tmp_path / form, format=form)
        archived(spark, wanted)
        for path in (wanted.checkpoint_folder / "commits").iterdir():
            path.unlink()
        before = set((tmp_path / form).rglob("*.parquet"))
        assert archived(spark, wanted).rows == 0
        assert set((tmp_path / form).rglob("*.parquet")) == before
        assert audited(tmp_path / form, topic.ends()) == Audit(500, 0, 0)


def test_an_old_checkpoint_an_old_table_and_a_new_topic_are_refused(
    spark: "SparkSession", running: Broker, tmp_path: Path
) -> None:
    topic = Producing(running.bootstrap, "archive-old", partitions=1)
    wanted = settings(running, topic.topic, tmp_path / "lake", checkpoint=tmp_path / "checkpoint")
    topic.produce(100)
    archived(spark, wanted)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "checkpoint-1")
    shutil.copytree(tmp_path / "lake", tmp_path / "lake-1")
    topic.produce(100)
    archived(spark, wanted)
    topic.produce(100)

    shutil.move(tmp_path / "checkpoint", tmp_path / "checkpoint-2")
    shutil.copytree(tmp_path / "checkpoint-1", tmp_path / "checkpoint")
    with pytest.raises(CommandFailed, match=r"^the table holds batch \d, .* checkpoint is older than"):
        archived(spark, wanted)
    assert audited(tmp_path / "lake", topic.ends()) == Audit(200, 100, 0)

    shutil.rmtree(tmp_path / "checkpoint")
    shutil.move(tmp_path / "checkpoint-2", tmp_path / "checkpoint")
    shutil.move(tmp_path / "lake", tmp_path / "lake-2")
    with pytest.raises(CommandFailed, match="is in use and there is no table in"):
        check(wanted)
    shutil.move(tmp_path / "lake-1", tmp_path / "lake")
    with pytest.raises(CommandFailed, match=r"^the table lacks 100 offsets of archive-old/0 before 200"):
        archived(spark, wanted)
    shutil.rmtree(tmp_path / "lake" / "_penstock" / "log")
    with pytest.raises(CommandFailed, match=r"^the table lacks 200 offsets of archive-old/0 before 200"):
        archived(spark, wanted)

    shutil.rmtree(tmp_path / "lake")
    shutil.move(tmp_path / "lake-2", tmp_path / "lake")
    assert archived(spark, wanted).rows == 100
    assert audited(tmp_path / "lake", topic.ends()) == Audit(300, 0, 0)

    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    admin.delete_topics([topic.topic])[topic.topic].result()
    Producing(running.bootstrap, topic.topic, partitions=1).produce(500)
    with pytest.raises(CommandFailed, match=r"topic archive-old was deleted and made anew .* another --to"):
        archived(spark, wanted)


def test_with_loss_allowed_it_goes_on_and_tells_what_was_lost(
    spark: "SparkSession", running: Broker, tmp_path: Path
) -> None:
    topic = Producing(running.bootstrap, "archive-gone", partitions=1)
    wanted = settings(running, topic.topic, tmp_path / "lake")
    topic.produce(100)
    archived(spark, wanted)
    topic.produce(100)
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    (deleted,) = admin.delete_records([KafkaPartition(topic.topic, 0, 150)]).values()
    deleted.result()
    with pytest.raises(CommandFailed, match=r"To go on with what is there, give --allow-loss$"):
        archived(spark, wanted)
    report = archived(spark, wanted._replace(allow_loss=True))
    assert (report.rows, report.lost, report.lag) == (50, 50, 0)
    assert any("50 offsets were gone before they were archived" in line for line in report.lines())
    topic.produce(10)
    report = archived(spark, wanted)
    assert (report.rows, report.lost) == (10, 0)
    with open_table(tmp_path / "lake") as table:
        assert sorted(offset for _, offset in rows_of(table.files())) == [*range(100), *range(150, 210)]


@pytest.mark.parametrize("form", FORMATS)
def test_any_stream_can_be_written_to_a_lake(spark: "SparkSession", tmp_path: Path, form: str) -> None:
    lake_sink.register(spark)
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    query = (
        source.writeStream.format("penstock-lake")
        .option("path", str(tmp_path / "lake"))
        .option("lakeFormat", form)
        .option("partitionBy", "none")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        eventually(lambda: len(values_in(tmp_path / "lake")) >= 20, seconds_max=SECONDS_MAX, every=0.1)
    finally:
        query.stop()
    values = values_in(tmp_path / "lake")
    assert sorted(values) == list(range(len(values)))


def values_in(folder: Path) -> list[int]:
    if read_description(folder) is None:
        return []
    with open_table(folder) as table:
        return [value for path in table.files() for value in pq.ParquetFile(path).read()["value"].to_pylist()]


def test_what_is_wrong_is_said_before_spark_starts(running: Broker, tmp_path: Path) -> None:
    topic = Producing(running.bootstrap, "archive-wrong")
    Producing(running.bootstrap, "archive-other")
    with pytest.raises(CommandFailed, match="there is no topic nowhere: `penstock topic list` shows"):
        check(settings(running, "nowhere", tmp_path / "lake"))
    wanted = settings(running, topic.topic, tmp_path / "lake", checkpoint=tmp_path / "checkpoint")
    check(wanted)
    with pytest.raises(
        CommandFailed, match="was made for topics archive-wrong, not for topics archive-other"
    ):
        check(wanted._replace(topics=("archive-other",)))
    with pytest.raises(CommandFailed, match="was made for table"):
        check(wanted._replace(folder=tmp_path / "lake2"))
    with pytest.raises(CommandFailed, match="holds a table in the format parquet, not iceberg"):
        check(wanted._replace(format="iceberg"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    with pytest.raises(CommandFailed, match=r"holds no table of ours but other files \(notes.txt\)"):
        check(wanted._replace(folder=tmp_path / "full"))


def test_the_command_says_what_is_wrong_in_one_sentence(running: Broker, tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        words = ("pipeline", "archive", "--bootstrap", running.bootstrap, "--to", str(tmp_path / "lake"))
        done = penstock(*words, *arguments)
        assert (done.exit_code, done.stdout) == (1, "")
        assert "Traceback" not in done.stderr
        return done.stderr

    assert run("--topic", "nowhere").startswith("penstock: there is no topic nowhere")
    (tmp_path / "lake").touch()
    Producing(running.bootstrap, "archive-sentence")
    assert "is a file: name a folder" in run("--topic", "archive-sentence")


@pytest.fixture
def archiving(running: Broker, tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """The command, running on and on, in a process group of its own as in a terminal."""
    Producing(running.bootstrap, "archive-signals").produce(2_000)
    command = [sys.executable, "-m", "penstock", "pipeline", "archive", "--topic", "archive-signals"]
    command += ["--to", str(tmp_path / "lake"), "--bootstrap", running.bootstrap, "--master", "local[2]"]
    command += ["--every", "0.5", "--json", "--max-rows-per-batch", "1000"]
    with (tmp_path / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_ctrl_c_ends_it_with_a_report_and_the_next_run_goes_on(
    archiving: "subprocess.Popen[str]", spark: "SparkSession", running: Broker, tmp_path: Path
) -> None:
    topic = Producing(running.bootstrap, "archive-signals")

    def is_under_way() -> bool:
        assert archiving.poll() is None, (tmp_path / "stderr").read_text()
        return "so far" in (tmp_path / "stderr").read_text()

    eventually(is_under_way, seconds_max=SECONDS_MAX, every=0.1)
    os.killpg(archiving.pid, signal.SIGINT)  # as a terminal does: to Spark's processes as well
    stdout, _ = archiving.communicate(timeout=SECONDS_MAX)
    stderr = (tmp_path / "stderr").read_text()
    assert archiving.returncode == 0, stderr
    assert "SIGINT: stopping when the batch that runs is done" in stderr
    assert "Traceback" not in stderr
    report = json.loads(stdout)
    assert report["pipeline"] == "archive"
    assert report["rows"] in (1_000, 2_000)
    assert report["lag"] == 2_000 - report["rows"]
    topic.produce(500)
    rest = archived(spark, settings(running, topic.topic, tmp_path / "lake"))
    assert rest.rows == 2_500 - report["rows"]
    assert audited(tmp_path / "lake", topic.ends()) == Audit(2_500, 0, 0)


def test_a_client_sees_the_pipeline_as_a_group(
    spark: "SparkSession", running: Broker, tmp_path: Path
) -> None:
    topic = Producing(running.bootstrap, "archive-group")
    topic.produce(100)
    archived(spark, settings(running, topic.topic, tmp_path / "lake"))
    with Connected(running.bootstrap) as client:
        committed = client.committed("archive-archive-group", topic.ends())
    assert committed == topic.ends()
