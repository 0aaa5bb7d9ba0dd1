"""What an archive's tasks hand each other: ranges, from which the records are read."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.errors import CommandFailed
from penstock.protocol.compression import Codec
from penstock.spark.lake.description import open_table
from penstock.spark.lake.lake_sink import WrittenFiles
from penstock.spark.lake.lake_table import LakeTableError, OffsetSpan, PlannedRange
from penstock.spark.lake.task_files import FileLayout, TaskFiles, write_all
from penstock.spark.lake.time_partitioning import PartitionBy
from penstock.spark.pipelines.archive.archive import ArchiveSettings, check, run_archive
from penstock.spark.pipelines.archive.archive_tasks import (
    COLUMNS,
    RANGE_SCHEMA,
    ArchiveSink,
    ArchiveWriter,
    RangeSource,
)
from penstock.spark.pipelines.common.query_run import StopRequest
from penstock.spark.pipelines.common.run_lock import run_lock
from penstock.spark.records.encode import encode
from penstock.spark.source.discovery import DataLost
from penstock.spark.source.offsets import OffsetRange
from penstock.spark.source.source import OffsetRangePartition
from penstock.testing import Broker, broker
from penstock.types import NO_TOPIC_ID, Offset, TopicId, TopicPartition
from tests.spark.topics import client_of, create, fill, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITION = TopicPartition("gone", 0)


@pytest.fixture(scope="module")
def running() -> Iterator[Broker]:
    with broker() as started:
        yield started


def test_a_range_goes_in_at_one_end_and_its_records_come_out_at_the_other(
    running: Broker, tmp_path: Path
) -> None:
    create(running, "ranges")
    fill(running, "ranges", numbered(50))
    options = {"kafka.bootstrap.servers": running.bootstrap, "subscribe": "ranges"}
    source = RangeSource(options)
    reader = source.streamReader(RANGE_SCHEMA)
    with client_of(running) as client:
        topic_id = client.topics(["ranges"])["ranges"].id
    wanted = OffsetRange(TopicPartition("ranges", 0), Offset(10), Offset(30), topic_id)
    (handed,) = reader.read(OffsetRangePartition(wanted, 2))
    row = {"topic": "ranges", "partition": 0, "start": 10, "end": 30, "topicId": topic_id, "count": 2}
    assert handed.to_pylist() == [row]
    for_sink = {f"read.{name}": value for name, value in options.items()}
    sink = ArchiveSink({**for_sink, "path": str(tmp_path / "lake"), "partitionBy": "none"})
    writer = sink.streamWriter(RANGE_SCHEMA, overwrite=False)
    files = TaskFiles(tmp_path, FileLayout(PartitionBy.NONE), batch=0, task=0, flat=True)
    (file,) = write_all(writer.rows(iter([handed]), files), files)
    rows: pa.Table = pq.ParquetFile(tmp_path / file.name).read()
    assert tuple(rows.column_names) == COLUMNS
    assert rows.column("offset").to_pylist() == list(range(10, 30))


def writer_for(running: Broker, folder: Path, topic: str, **more: str) -> ArchiveWriter:
    read = {"kafka.bootstrap.servers": running.bootstrap, "subscribe": topic, **more}
    options = {"path": str(folder), "partitionBy": "none", "lakeFormat": "delta"}
    return ArchiveWriter({**options, **{f"read.{name}": value for name, value in read.items()}})


def ranges(topic: str, *spans: tuple[int, int], topic_id: TopicId = NO_TOPIC_ID) -> Iterator[pa.RecordBatch]:
    place = {"topic": topic, "partition": 0, "topicId": topic_id, "count": len(spans)}
    rows = [{**place, "start": start, "end": end} for start, end in spans]
    yield pa.RecordBatch.from_pylist(rows, to_arrow_schema(RANGE_SCHEMA, timezone="UTC"))


def task(
    writer: ArchiveWriter, folder: Path, batch: int, *spans: tuple[int, int], topic: str = "gone"
) -> WrittenFiles:
    """What Spark's task does, without Spark."""
    files = TaskFiles(folder, FileLayout(PartitionBy.NONE), batch=batch, task=0, flat=True)
    done = write_all(writer.rows(ranges(topic, *spans), files), files)
    return WrittenFiles("query", done, files.spans, files.schema, files.lost, files.planned_ranges)


def test_records_that_are_gone_are_counted_and_the_archive_goes_on(running: Broker, tmp_path: Path) -> None:
    create(running, "gone")
    fill(running, "gone", numbered(50))
    lake = tmp_path / "lake"
    strict = writer_for(running, lake, "gone")
    strict.commit([task(strict, lake, 0, (0, 10))], 0)
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    (deleted,) = admin.delete_records([KafkaPartition("gone", 0, 30)]).values()
    deleted.result()
    with pytest.raises(DataLost, match="failOnDataLoss"):
        task(strict, lake, 1, (10, 40))
    lenient = writer_for(running, lake, "gone", failOnDataLoss="false")
    done = task(lenient, lake, 1, (10, 20), (20, 40))
    assert done.lost == 20
    lenient.commit([done], 1)
    with open_table(lake) as table:
        assert table.recorded_query("query")[:2] == (1, 20)
        assert table.recorded_query("query").lost == 20
        assert table.ends([PARTITION]) == {PARTITION: 40}


def test_a_time_that_no_timestamp_can_hold_is_archived_as_a_number(running: Broker, tmp_path: Path) -> None:
    create(running, "far", message_timestamp_after_max_ms=str(2**63 - 1))
    times = [1_000, 10**16, -(10**17)]
    values = pa.array([b"v"] * len(times), pa.binary())
    stamps = pa.array(times, pa.int64())
    batches = encode(values, values, None, stamps, codec=Codec.NONE, batch_bytes_max=1_000_000)
    with client_of(running) as client:
        client.produce(TopicPartition("far", 0), batches)
    writer = writer_for(running, tmp_path / "lake", "far")
    files = TaskFiles(tmp_path, FileLayout(PartitionBy.NONE), batch=0, task=0, flat=True)
    (file,) = write_all(writer.rows(ranges("far", (0, 3)), files), files)
    rows: pa.Table = pq.ParquetFile(tmp_path / file.name).read()
    assert rows.column("timestamp").is_null().to_pylist() == [False, True, True]
    assert rows.column("timestampBeyond").to_pylist() == [None, 10**16, -(10**17)]


def test_records_of_a_topic_made_anew_after_the_plan_are_not_archived(
    running: Broker, tmp_path: Path
) -> None:
    create(running, "anew")
    with client_of(running) as client:
        planned = client.topics(["anew"])["anew"].id
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    (deleted,) = admin.delete_topics(["anew"]).values()
    deleted.result()
    create(running, "anew")
    fill(running, "anew", numbered(50))
    files = TaskFiles(tmp_path, FileLayout(PartitionBy.NONE), batch=0, task=0, flat=True)
    soon = {"kafka.default.api.timeout.ms": "2000"}
    strict = writer_for(running, tmp_path / "lake", "anew", **soon)
    with pytest.raises(DataLost, match=r"anew-0.*was deleted and made anew"):
        write_all(strict.rows(ranges("anew", (0, 50), topic_id=planned), files), files)
    lenient = writer_for(running, tmp_path / "lake", "anew", failOnDataLoss="false", **soon)
    assert write_all(lenient.rows(ranges("anew", (0, 50), topic_id=planned), files), files) == ()
    assert files.lost == 50


def test_offsets_of_which_none_is_left_are_a_batch_too(running: Broker, tmp_path: Path) -> None:
    """Else nobody would hear of them."""
    create(running, "emptied")
    fill(running, "emptied", numbered(50))
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    (deleted,) = admin.delete_records([KafkaPartition("emptied", 0, 50)]).values()
    deleted.result()
    lake = tmp_path / "lake"
    lenient = writer_for(running, lake, "emptied", failOnDataLoss="false")
    lenient.commit([task(lenient, lake, 0, (0, 50), topic="emptied")], 0)
    with open_table(lake) as table:
        assert table.files() == []
        assert table.recorded_query("query").lost == 50


def test_what_was_not_read_again_is_told_by_its_range(running: Broker, tmp_path: Path) -> None:
    writer = writer_for(running, tmp_path / "lake", "gone")
    assert writer.spans(ranges("gone", (0, 10), (10, 99))) == {PARTITION: OffsetSpan(0, 99)}


@pytest.mark.parametrize(
    ("spans", "problem"),
    [
        ([(0, 10), (20, 30)], r"up to offset 10 and then from offset 20 on: records would be left out"),
        ([(0, 10), (5, 30)], r"up to offset 10 and then from offset 5 on: records would be .* there twice"),
        ([(0, 30)], r"planned as 2 ranges of offsets and tasks report 1"),
    ],
)
def test_a_batch_with_a_hole_is_not_committed(
    running: Broker, tmp_path: Path, spans: list[tuple[int, int]], problem: str
) -> None:
    writer = writer_for(running, tmp_path / "lake", "gone")
    schema = pa.schema([("offset", pa.int64())])
    planned_ranges = [PlannedRange(PARTITION, OffsetSpan(*span), 2) for span in spans]
    whole = {PARTITION: OffsetSpan(0, 30)}
    messages = [WrittenFiles("query", (), whole, schema, planned_ranges=[each]) for each in planned_ranges]
    with pytest.raises(LakeTableError, match=problem):
        writer.commit([*messages], 0)
    with pytest.raises(LakeTableError, match="1 of 2 tasks of batch 0 do not say what they wrote"):
        writer.commit([messages[0], None], 0)


def test_a_table_that_is_older_than_its_checkpoint_is_refused(running: Broker, tmp_path: Path) -> None:
    strict = writer_for(running, tmp_path / "lake", "gone")
    strict.commit(told({PARTITION: OffsetSpan(0, 10)}), 0)
    strict.commit(told({PARTITION: OffsetSpan(10, 20)}), 1)
    with pytest.raises(
        LakeTableError, match=r"the table lacks 5 offsets of gone/0 before 25, .* is older than"
    ):
        strict.commit(told({PARTITION: OffsetSpan(25, 30)}), 2)
    lenient = writer_for(running, tmp_path / "lake", "gone", failOnDataLoss="false")
    lenient.commit(told({PARTITION: OffsetSpan(25, 30)}), 2)
    with open_table(tmp_path / "lake") as table:
        assert table.recorded_query("query").lost == 5


def told(spans: dict[TopicPartition, OffsetSpan]) -> list[WriterCommitMessage | None]:
    """What a task says that has read these offsets and found no rows."""
    return [WrittenFiles("query", (), spans, pa.schema([("offset", pa.int64())]))]


def test_a_table_from_before_a_partition_was_archived_is_refused(running: Broker, tmp_path: Path) -> None:
    create(running, "restored", partitions=2)
    fill(running, "restored", numbered(100))
    fill(running, "restored", numbered(60), partition=1)
    first, second = TopicPartition("restored", 0), TopicPartition("restored", 1)
    lake, backup = tmp_path / "lake", tmp_path / "backup"
    strict = writer_for(running, lake, "restored")
    strict.commit(told({first: OffsetSpan(0, 100)}), 0)
    shutil.copytree(lake, backup)
    strict.commit(told({second: OffsetSpan(0, 50)}), 1)
    shutil.rmtree(lake)
    shutil.copytree(backup, lake)
    with pytest.raises(LakeTableError, match=r"the table lacks 50 offsets of restored/1 before 50, .* older"):
        strict.commit(told({second: OffsetSpan(50, 60)}), 2)
    lenient = writer_for(running, lake, "restored", failOnDataLoss="false")
    lenient.commit(told({second: OffsetSpan(50, 60)}), 2)
    with open_table(lake) as table:
        assert table.recorded_query("query").lost == 50
        assert table.ends([first, second]) == {first: 100, second: 60}


def test_a_table_whose_log_is_gone_is_refused(running: Broker, tmp_path: Path) -> None:
    create(running, "forgotten")
    fill(running, "forgotten", numbered(50))
    partition = TopicPartition("forgotten", 0)
    strict = writer_for(running, tmp_path / "lake", "forgotten")
    strict.commit(told({partition: OffsetSpan(0, 40)}), 0)
    shutil.rmtree(tmp_path / "lake" / "_delta_log")
    with pytest.raises(LakeTableError, match=r"the table lacks 40 offsets of forgotten/0 before 40"):
        strict.commit(told({partition: OffsetSpan(40, 50)}), 1)


def test_an_archive_begins_where_the_topic_begins(running: Broker, tmp_path: Path) -> None:
    create(running, "later")
    fill(running, "later", numbered(50))
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    (deleted,) = admin.delete_records([KafkaPartition("later", 0, 30)]).values()
    deleted.result()
    strict = writer_for(running, tmp_path / "lake", "later")
    strict.commit(told({TopicPartition("later", 0): OffsetSpan(30, 50)}), 0)
    with open_table(tmp_path / "lake") as table:
        assert table.recorded_query("query").lost == 0


def test_what_retention_removed_before_the_first_batch_is_counted(running: Broker, tmp_path: Path) -> None:
    """A first batch that is run again after a crash starts where the topic begins by then."""
    create(running, "trimmed")
    fill(running, "trimmed", numbered(50))
    settings = ArchiveSettings(
        ("trimmed",), tmp_path / "lake", {"kafka.bootstrap.servers": running.bootstrap}, format="delta"
    )
    partition = TopicPartition("trimmed", 0)
    assert check(settings) == {partition: 0}
    (settings.checkpoint_folder / "metadata").write_text("a query was started, and died")
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    (deleted,) = admin.delete_records([KafkaPartition("trimmed", 0, 30)]).values()
    deleted.result()
    assert check(settings) == {partition: 0}
    starts = {"archiveStarts": '{"trimmed":{"0":0}}', "path": str(settings.folder), "lakeFormat": "delta"}
    access = {"read.kafka.bootstrap.servers": running.bootstrap, "read.subscribe": "trimmed"}
    strict = ArchiveWriter({**starts, **access})
    with pytest.raises(
        LakeTableError, match=r"lacks 30 offsets of trimmed/0 before 30.* or retention removed"
    ):
        strict.commit(told({partition: OffsetSpan(30, 50)}), 0)
    lenient = ArchiveWriter({**starts, **access, "read.failOnDataLoss": "false"})
    lenient.commit(told({partition: OffsetSpan(30, 50)}), 0)
    with open_table(settings.folder) as table:
        assert table.recorded_query("query").lost == 30


def test_a_second_run_of_an_archive_is_refused(running: Broker, tmp_path: Path) -> None:
    create(running, "one-run")
    access = {"kafka.bootstrap.servers": running.bootstrap}
    settings = ArchiveSettings(("one-run",), tmp_path / "lake", access)
    check(settings)
    spark = cast("SparkSession", None)  # a run that is refused starts no query
    with (
        run_lock(settings.checkpoint_folder, "archive", ""),
        pytest.raises(CommandFailed, match="another run of this archive is under way"),
    ):
        run_archive(spark, settings, StopRequest(), print)


def test_an_archive_is_only_appended_to(tmp_path: Path) -> None:
    sink = ArchiveSink({"path": str(tmp_path / "lake"), "read.subscribe": "ranges"})
    with pytest.raises(LakeTableError, match="append"):
        sink.streamWriter(RANGE_SCHEMA, overwrite=True)
