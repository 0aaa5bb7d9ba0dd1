"""What an archive's tasks hand each other: ranges, from which the records are read."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.spark.lake.files import Shape, TaskFiles, written
from penstock.spark.lake.partitioning import PartitionBy
from penstock.spark.lake.table import LakeRefused
from penstock.spark.offsets import Range
from penstock.spark.pipelines.archive_tasks import COLUMNS, RANGE, ArchiveSink, RangeSource
from penstock.spark.source import RangePartition
from penstock.testing import Broker, broker
from penstock.types import Offset, TopicPartition
from tests.spark.topics import create, fill, numbered


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
    reader = source.streamReader(RANGE)
    wanted = Range(TopicPartition("ranges", 0), Offset(10), Offset(30))
    (handed,) = reader.read(RangePartition(wanted))
    assert handed.to_pylist() == [{"topic": "ranges", "partition": 0, "start": 10, "end": 30}]
    for_sink = {f"read.{name}": value for name, value in options.items()}
    sink = ArchiveSink({**for_sink, "path": str(tmp_path / "lake"), "partitionBy": "none"})
    writer = sink.streamWriter(RANGE, overwrite=False)
    files = TaskFiles(tmp_path, Shape(PartitionBy.NONE), batch=0, task=0, flat=True)
    (file,) = written(writer.rows(iter([handed])), files)
    rows: pa.Table = pq.ParquetFile(tmp_path / file.name).read()
    assert tuple(rows.column_names) == COLUMNS
    assert rows.column("offset").to_pylist() == list(range(10, 30))


def test_an_archive_is_only_appended_to(tmp_path: Path) -> None:
    sink = ArchiveSink({"path": str(tmp_path / "lake"), "read.subscribe": "ranges"})
    with pytest.raises(LakeRefused, match="append"):
        sink.streamWriter(RANGE, overwrite=True)
