"""What holds for a table of every format."""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.spark.lake.description import FORMATS, TableDescription, check_folder, make_table, open_table
from penstock.spark.lake.lake_table import LakeTableError, RecordedQuery
from penstock.spark.lake.parquet_table import ParquetTable
from penstock.spark.lake.time_partitioning import PartitionBy
from penstock.types import TopicPartition
from tests.unit.spark.lake.lake_tables import TestTable, records

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
FIRST = TopicPartition("orders", 0)
NOW_MS = int(time.time() * 1000)
LATER_MS = NOW_MS + 7_200_000


@pytest.fixture(params=FORMATS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> TestTable:
    return TestTable(tmp_path / "orders", request.param)


def age(paths: set[Path]) -> None:
    """Let them be older than a week, for which Delta keeps what no commit names."""
    for path in paths:
        os.utime(path, (time.time() - 8 * 86_400,) * 2)


def test_what_is_committed_is_there(table: TestTable) -> None:
    assert table.append(0, records(0, 100))
    assert table.append(1, records(100, 150), records(150, 160, day=1))
    assert table.offsets() == list(range(160))
    with open_table(table.folder) as opened:
        recorded = opened.recorded_query("query")
        assert opened.ends([FIRST, TopicPartition("orders", 1)]) == {FIRST: 160}
    assert (recorded.version, recorded.rows, recorded.files) == (1, 160, 3)
    assert recorded.bytes == sum(os.path.getsize(path) for path in table.paths())


def test_what_is_not_committed_is_not_there(table: TestTable) -> None:
    table.append(0, records(0, 100))
    table.write(1, records(100, 200))
    assert table.offsets() == list(range(100))


def test_a_batch_is_taken_once_whoever_writes_it_again(table: TestTable) -> None:
    table.append(0, records(0, 100))
    assert not table.append(0, records(0, 100))
    assert table.append(1, records(100, 200))
    assert not table.append(0, records(0, 100))
    assert table.offsets() == list(range(200))


def test_of_many_who_commit_the_same_batch_one_succeeds(table: TestTable) -> None:
    for version in range(3):
        rows = records(version * 10, version * 10 + 10)
        batches = [table.write(version, rows) for _ in range(4)]
        with ThreadPoolExecutor(4) as threads:
            outcomes = list(threads.map(table.commit, batches))
        assert sorted(outcomes) == [False, False, False, True]
    assert table.offsets() == list(range(30))


def test_queries_that_commit_at_the_same_time_all_succeed(table: TestTable) -> None:
    def run(number: int) -> list[bool]:
        return [
            table.append(version, records(version, version + 1, partition=number), app=f"query-{number}")
            for version in range(5)
        ]

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(run, range(3))) == [[True] * 5] * 3
    assert table.offsets() == sorted([*range(5)] * 3)


def test_rows_that_are_there_are_refused_from_another_query(table: TestTable) -> None:
    table.append(0, records(0, 100))
    with pytest.raises(
        LakeTableError, match="holds orders/0 up to offset 100 and was given rows from offset 50"
    ):
        table.append(0, records(50, 150), app="another")
    assert table.append(0, records(100, 150), app="another")
    assert table.offsets() == list(range(150))


def test_small_files_are_put_together(table: TestTable) -> None:
    for version in range(6):
        table.append(version, records(version * 10, version * 10 + 10, day=version % 2))
    with open_table(table.folder) as opened:
        assert opened.compact(1 << 20) == (6, 2)
        assert opened.compact(1 << 20) == (0, 0)
        assert len(opened.files()) == 2
    assert table.offsets() == list(range(60))
    assert not table.append(5, records(50, 60, day=1))
    assert table.append(6, records(60, 70))
    assert table.offsets() == list(range(70))


@pytest.mark.parametrize("form", ["parquet", "iceberg"])  # Delta's own compaction has its own order
def test_rows_keep_their_order_when_files_are_put_together(form: str, tmp_path: Path) -> None:
    table = TestTable(tmp_path / "orders", form)
    for version in range(4):
        table.append(version, records(version * 10, version * 10 + 10))
    with open_table(table.folder) as opened:
        opened.compact(1 << 20)
        (path,) = opened.files()
    assert pq.ParquetFile(path).read(["offset"])[0].to_pylist() == list(range(40))


def test_vacuum_removes_what_failed_attempts_left_and_nothing_else(table: TestTable) -> None:
    table.append(0, records(0, 10))
    table.write(1, records(10, 20))
    table.append(1, records(10, 20))
    before = table.parquet_files()
    with open_table(table.folder) as opened:
        assert opened.vacuum(older_than_ms=NOW_MS - 3_600_000) == []
        assert table.parquet_files() == before
        age(before)
        assert len(opened.vacuum(older_than_ms=NOW_MS - 3_600_000)) == 1
    assert len(table.parquet_files()) == 2
    assert table.offsets() == list(range(20))


def test_vacuum_removes_what_was_put_together_only_after_a_while(table: TestTable) -> None:
    for version in range(4):
        table.append(version, records(version * 10, version * 10 + 10))
    age(table.parquet_files())
    with open_table(table.folder) as opened:
        opened.compact(1 << 20)
        assert opened.vacuum(older_than_ms=NOW_MS - 3_600_000) == []
        assert len(table.parquet_files()) == 5
    assert table.offsets() == list(range(40))


def test_a_column_may_come_and_older_rows_have_null_in_it(table: TestTable) -> None:
    table.append(0, records(0, 10))
    wider = records(10, 20).append_column("city", pa.array(["Berlin"] * 10))
    table.append(1, wider)
    table.append(2, records(20, 30))
    with open_table(table.folder) as opened:
        opened.compact(1 << 20)
        (path,) = opened.files()
    cities = pq.ParquetFile(path).read(["city"])[0].to_pylist()
    assert cities == [None] * 10 + ["Berlin"] * 10 + [None] * 10


def test_a_column_cannot_become_another_type(table: TestTable) -> None:
    table.append(0, records(0, 10))
    rows = records(10, 20)
    changed = rows.set_column(4, "value", pa.array(range(10), pa.int64()))
    with pytest.raises(
        LakeTableError, match=r"column value of the table is .*binary and cannot become int64"
    ):
        table.append(1, changed)
    assert table.offsets() == list(range(10))


def test_hours_have_folders_of_their_own(tmp_path: Path) -> None:
    for form in FORMATS:
        table = TestTable(tmp_path / form, form, PartitionBy.HOUR)
        table.append(0, records(0, 10), records(10, 20, day=1))
        folders = {Path(path).parent.relative_to(table.folder) for path in table.paths()}
        data = "data/" if form == "iceberg" else ""
        assert folders == {Path(f"{data}date=2026-11-{day}/hour=12") for day in (15, 16)}
        assert table.offsets() == list(range(20))


def test_rows_with_times_beyond_every_calendar_are_kept(table: TestTable) -> None:
    rows = records(0, 3)
    times = pa.array([-(2**62), None, 2**62], pa.timestamp("us", tz="UTC"))
    strange = rows.set_column(3, pa.field("timestamp", times.type), times)
    assert table.append(0, strange)
    with open_table(table.folder) as opened:
        opened.compact(1 << 20)
    assert table.offsets() == [0, 1, 2]


def test_a_folder_that_is_not_this_table_is_refused(tmp_path: Path) -> None:
    wanted = TableDescription("parquet", PartitionBy.DAY)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(LakeTableError, match="is a file: name a folder"):
        check_folder(file, wanted)
    with pytest.raises(LakeTableError, match=r"holds no table of ours but other files \(file\)"):
        check_folder(tmp_path, wanted)
    make_table(tmp_path / "lake", wanted)
    assert check_folder(tmp_path / "lake", wanted)
    with pytest.raises(LakeTableError, match="holds a table in the format parquet, not delta"):
        make_table(tmp_path / "lake", wanted._replace(format="delta"))
    with pytest.raises(LakeTableError, match="is partitioned by day of timestamp, not by hour"):
        make_table(tmp_path / "lake", wanted._replace(partition_by=PartitionBy.HOUR))
    with pytest.raises(LakeTableError, match="no table is in"), open_table(tmp_path / "elsewhere"):
        pass


def test_other_programs_read_a_delta_table_with_its_partitions(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    table = TestTable(tmp_path / "orders", "delta")
    table.append(0, records(0, 10), records(10, 15, day=1))
    rows = DeltaTable(str(table.folder)).to_pyarrow_table()
    assert sorted(rows["offset"].to_pylist()) == list(range(15))
    assert sorted({str(date) for date in rows["date"].to_pylist()}) == ["2026-11-15", "2026-11-16"]


def test_other_programs_read_an_iceberg_table_with_its_partitions(tmp_path: Path) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    table = TestTable(tmp_path / "orders", "iceberg")
    table.append(0, records(0, 10), records(10, 15, day=1))
    catalog = SqlCatalog("penstock", uri=f"sqlite:///{table.folder}/_penstock/catalog.db")
    read = catalog.load_table("lake.orders").scan(row_filter="timestamp >= '2026-11-16T00:00:00+00:00'")
    assert len(list(read.plan_files())) == 1
    assert sorted(read.to_arrow()["offset"].to_pylist()) == list(range(10, 15))
    catalog.close()


def test_a_plain_folder_reads_as_parquet(tmp_path: Path) -> None:
    import pyarrow.dataset as ds

    table = TestTable(tmp_path / "orders", "parquet")
    table.append(0, records(0, 10))
    table.write(1, records(10, 20))
    table.append(1, records(10, 20), records(20, 25, day=1))
    rows = ds.dataset(table.folder, partitioning="hive").to_table()
    assert sorted(rows["offset"].to_pylist()) == list(range(25))
    assert set(rows["date"].to_pylist()) == {"2026-11-15", "2026-11-16"}


def test_a_table_that_nothing_was_written_to_is_empty(table: TestTable) -> None:
    with open_table(table.folder) as opened:
        assert opened.recorded_query("query") == RecordedQuery()
        assert opened.ends([FIRST]) == {}
        assert opened.files() == []
        assert opened.compact(1 << 20) == (0, 0)
        assert opened.vacuum(older_than_ms=NOW_MS) == []


def test_the_description_of_a_table_is_plain_json(table: TestTable) -> None:
    document = json.loads((table.folder / "_penstock" / "table.json").read_text())
    assert document == {
        "layout": 1, "format": table.form, "partition_by": "day", "time_column": "timestamp",
    }  # fmt: skip


def test_files_are_named_where_they_stay_while_a_commit_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TestTable(tmp_path / "orders", "parquet")
    batch = table.write(0, records(0, 10))
    with monkeypatch.context() as patch:  # the commit counts, and its files are still to be moved
        patch.setattr(ParquetTable, "_publish", lambda self, state: None)
        assert table.commit(batch)
    with open_table(table.folder) as reader:
        (path,) = reader.files()
    with open_table(table.folder) as writer:
        writer.compact(1)
    assert pq.ParquetFile(path).read(["offset"])[0].to_pylist() == list(range(10))


def test_replaced_files_stay_as_long_as_the_table_says(table: TestTable) -> None:
    """Those who read an older version of a Delta or Iceberg table need them: a week, or five days."""
    for version in range(4):
        table.append(version, records(version * 10, version * 10 + 10))
    with open_table(table.folder) as opened:
        opened.compact(1 << 20)
        assert opened.vacuum(older_than_ms=NOW_MS + 3_600_000) == [] or table.form == "parquet"
        assert len(table.parquet_files()) == (1 if table.form == "parquet" else 5)
        assert len(opened.vacuum(older_than_ms=NOW_MS + 3_600_000, history_ms=0)) in (0, 4)
    assert len(table.parquet_files()) == 1
    assert table.offsets() == list(range(40))
