"""How rows are cut into files, and which files are put together."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.lake.compaction import merge_groups
from penstock.spark.lake.lake_table import DataFile, OffsetSpan
from penstock.spark.lake.task_files import FileLayout, TaskFiles, TaskResourceLimits, offset_spans, write_all
from penstock.spark.lake.time_partitioning import (
    PartitionBy,
    partition_folder,
    partition_values,
    split_by_partition,
)
from penstock.types import TopicPartition
from tests.unit.spark.lake.lake_tables import offsets_in, records

TIMES = st.lists(st.none() | st.integers(-(2**62), 2**62), max_size=50)


@given(TIMES, st.sampled_from(PartitionBy))
def test_split_rows_are_all_rows_in_order_each_with_its_day(times: list[int | None], by: PartitionBy) -> None:
    rows = pa.record_batch(
        [pa.array(times, pa.timestamp("us", tz="UTC")), pa.array(range(len(times)), pa.int64())],
        names=["timestamp", "row"],
    )
    cut = list(split_by_partition(rows, by, "timestamp"))
    together = [row for part in cut for row in part.rows["row"].to_pylist()]
    assert sorted(together) == list(range(len(times)))
    assert all(part.rows["row"].to_pylist() == sorted(part.rows["row"].to_pylist()) for part in cut)
    assert len({part.unit for part in cut}) == len(cut)


@pytest.mark.parametrize(
    ("unit", "by", "folder"),
    [
        (0, PartitionBy.DAY, "date=1970-01-01"),
        (-1, PartitionBy.DAY, "date=1969-12-31"),
        (20_772 * 24 + 7, PartitionBy.HOUR, "date=2026-11-15/hour=7"),
        (10**9, PartitionBy.DAY, "date=__HIVE_DEFAULT_PARTITION__"),
        (5, PartitionBy.NONE, ""),
    ],
)
def test_a_day_and_an_hour_have_a_folder(unit: int, by: PartitionBy, folder: str) -> None:
    assert partition_folder(unit, by) == folder


def test_a_folder_says_its_values() -> None:
    assert partition_values("date=2026-11-15/hour=7") == {"date": "2026-11-15", "hour": "7"}
    assert partition_values("data/date=__HIVE_DEFAULT_PARTITION__") == {"date": None}
    assert partition_values("") == {}


def test_rows_of_many_days_take_bounded_memory_and_few_open_files(tmp_path: Path) -> None:
    limits = TaskResourceLimits(gathered_bytes_max=2_000, open_files_max=3)
    files = TaskFiles(tmp_path, FileLayout(), batch=7, task=1, flat=False, limits=limits)
    for number in range(40):
        files.write(records(number * 10, number * 10 + 10, day=number % 8))
        assert len(files._open) <= 3
        assert sum(each.bytes for each in files._gathered.values()) <= 2_000
    done = files.close()
    assert sorted(offsets_in([tmp_path / file.path for file in done])) == list(range(400))
    assert sum(file.rows for file in done) == 400
    assert files.spans == {TopicPartition("orders", 0): OffsetSpan(0, 400)}


def test_two_attempts_never_share_a_name(tmp_path: Path) -> None:
    names = set()
    for _ in range(2):
        files = TaskFiles(tmp_path, FileLayout(), batch=7, task=1, flat=True)
        files.write(records(0, 10))
        names |= {file.name for file in files.close()}
    assert len(names) == 2


def test_a_task_that_fails_leaves_no_files(tmp_path: Path) -> None:
    def rows() -> object:
        yield records(0, 10)
        raise ConnectionError("the broker is gone")

    files = TaskFiles(tmp_path, FileLayout(), batch=7, task=1, flat=False)
    with pytest.raises(ConnectionError):
        write_all(rows(), files)  # type: ignore[arg-type]
    assert list(tmp_path.rglob("*.parquet")) == []


def test_the_number_of_the_batch_becomes_a_column(tmp_path: Path) -> None:
    files = TaskFiles(tmp_path, FileLayout(batch_column="ingestBatch"), batch=7, task=1, flat=True)
    files.write(records(0, 3))
    (file,) = files.close()
    read = pq.ParquetFile(tmp_path / file.name).read()
    assert read["ingestBatch"].to_pylist() == [7, 7, 7]
    assert read.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")


def test_rows_that_are_no_records_have_no_spans() -> None:
    assert offset_spans(pa.table({"city": ["Berlin"]})) == {}


def file(name: str, size: int, folder: str = "date=2026-11-15") -> DataFile:
    return DataFile(folder, name, size, size)


def names(groups: list[list[DataFile]]) -> list[list[str]]:
    return [[each.name for each in group] for group in groups]


def test_small_files_of_a_folder_are_put_together_up_to_the_target() -> None:
    small = [file(str(number), 40) for number in range(5)]
    assert names(merge_groups(small, 100)) == [["0", "1"], ["2", "3"]]


def test_large_files_and_lonely_ones_are_left() -> None:
    assert merge_groups([file("a", 60), file("b", 60), file("c", 1)], 100) == []
    assert merge_groups([file("a", 1), file("b", 1, "date=2026-11-16")], 100) == []


@given(st.lists(st.integers(1, 120), max_size=40))
def test_what_is_put_together_fits_and_comes_to_an_end(sizes: list[int]) -> None:
    live = [file(str(number), size) for number, size in enumerate(sizes)]
    for _ in range(len(sizes) + 1):
        groups = merge_groups(live, 100)
        assert all(len(group) > 1 and sum(each.bytes for each in group) <= 100 for group in groups)
        if not groups:
            break
        gone = {each.name for group in groups for each in group}
        live = [each for each in live if each.name not in gone]
        live += [file("+".join(names([group])[0]), sum(each.bytes for each in group)) for group in groups]
    assert merge_groups(live, 100) == []
    assert sum(each.bytes for each in live) == sum(sizes)
