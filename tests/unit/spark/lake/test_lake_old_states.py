"""A table, a checkpoint or a driver that is older than the others: nothing is lost without a word."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.spark.lake.commit_log import TableCommit, TableCommitLog
from penstock.spark.lake.delta_table import DeltaLakeTable
from penstock.spark.lake.description import FORMATS, open_table
from penstock.spark.lake.lake_sink import AlreadyCommitted, LakeWriter, WrittenFiles
from penstock.spark.lake.lake_table import (
    LakeBatch,
    LakeTableError,
    OffsetSpan,
    RecordedQuery,
    is_already_committed,
)
from penstock.types import TopicPartition
from tests.unit.spark.lake.lake_tables import OftenSnapshotted, TestTable, records

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
FIRST = TopicPartition("orders", 0)


@pytest.fixture(params=FORMATS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> TestTable:
    return TestTable(tmp_path / "orders", request.param)


def test_a_known_number_with_more_rows_is_refused(table: TestTable) -> None:
    table.append(0, records(0, 10))
    table.append(1, records(10, 20))
    with pytest.raises(
        LakeTableError,
        match=r"holds batch 1, and orders/0 up to offset 20; now that batch goes up to offset 30. The check"
        r"point is older than the table",
    ):
        table.append(1, records(10, 30))
    with pytest.raises(LakeTableError, match="holds batch 0"):
        table.append(0, records(0, 10), records(0, 5, partition=1))
    assert not table.append(1, records(10, 20))
    assert not table.append(0, records(0, 10))
    assert table.append(2, records(20, 40))
    assert table.offsets() == list(range(40))


def test_rows_that_are_no_records_come_again_only_with_the_newest_number() -> None:
    assert not is_already_committed(RecordedQuery(3), 4, {}, {})
    assert is_already_committed(RecordedQuery(3), 3, {}, {})
    with pytest.raises(
        LakeTableError, match="batch 2 was to be written, and the table holds batches up to 3"
    ):
        is_already_committed(RecordedQuery(3), 2, {}, {})


def writer_of(table: TestTable, **options: str) -> LakeWriter:
    given = {"path": str(table.folder), "lakeFormat": table.form, **options}
    return LakeWriter(given, ["topic", "partition", "offset", "timestamp", "value", "headers"])


def test_what_tasks_did_not_write_is_compared_with_what_the_table_holds(table: TestTable) -> None:
    table.append(0, records(0, 10))
    writer = writer_of(table)
    told = writer.spans(iter([records(0, 4), records(4, 10)]))
    assert told == {FIRST: OffsetSpan(0, 10)}
    writer.commit([AlreadyCommitted("query", told)], 0)
    # A second task reads on where the table ends: the checkpoint is an old one.
    with pytest.raises(LakeTableError, match="older than the table"):
        writer.commit(
            [AlreadyCommitted("query", told), AlreadyCommitted("query", {FIRST: OffsetSpan(10, 12)})], 0
        )
    with pytest.raises(LakeTableError, match="held batch 1 and no longer does"):
        writer.commit([AlreadyCommitted("query", {FIRST: OffsetSpan(10, 12)})], 1)


def test_a_batch_partly_found_in_the_table_is_not_committed_in_part(table: TestTable) -> None:
    table.append(0, records(0, 10))
    again = table.write(0, records(5, 10))
    told = [
        AlreadyCommitted("query", {FIRST: OffsetSpan(0, 5)}),
        WrittenFiles("query", again.files, again.spans, again.schema),
    ]
    before = table.parquet_files()
    writer_of(table).commit(list(told), 0)
    assert table.offsets() == list(range(10))
    assert len(table.parquet_files()) == len(before) - 1


def test_the_record_of_a_row_may_be_told_by_a_column_that_is_not_written(table: TestTable) -> None:
    place = pa.array([{"partition": 0, "offset": 7}, {"partition": 2, "offset": 3}])
    rows = pa.record_batch([pa.array([1, 2]), place], names=["amount", "_record"])
    options = {"recordTopic": "stage", "recordColumn": "_record", "partitionBy": "none"}
    writer = LakeWriter({"path": str(table.folder) + "-2", "lakeFormat": table.form, **options}, ["amount"])
    expected = {TopicPartition("stage", 0): OffsetSpan(7, 8), TopicPartition("stage", 2): OffsetSpan(3, 4)}
    assert writer.spans(iter([rows])) == expected

    class Files:
        spans: dict[TopicPartition, OffsetSpan] = {}  # noqa: RUF012 (of one test)

    (written,) = writer.rows(iter([rows]), Files())  # type: ignore[arg-type]
    assert written.schema.names == ["amount"]
    assert Files.spans == expected
    with pytest.raises(LakeTableError, match="go together"):
        writer_of(table, recordTopic="stage")


def test_a_batch_without_files_is_recorded_with_what_was_lost(table: TestTable) -> None:
    table.append(0, records(0, 10))
    batch = table.write(1, records(10, 11))
    assert table.commit(LakeBatch("query", 1, (), {FIRST: OffsetSpan(10, 50)}, batch.schema, lost=40))
    with open_table(table.folder) as opened:
        recorded = opened.recorded_query("query")
        assert opened.ends([FIRST]) == {FIRST: 50}
    assert (recorded.version, recorded.rows, recorded.lost) == (1, 10, 40)
    assert table.append(2, records(50, 60))
    assert table.offsets() == [*range(10), *range(50, 60)]


def test_a_table_is_decided_about_again_after_columns_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another driver commits the batch while the first is about to add a column."""
    table = TestTable(tmp_path / "orders", "delta")
    table.append(0, records(0, 10))
    wider = records(10, 20).append_column("city", pa.array(["Berlin"] * 10))
    slow, quick = table.write(1, wider), table.write(1, records(10, 20))
    outcomes: list[bool] = []
    real = DeltaLakeTable.widen

    def widen(self: DeltaLakeTable, *arguments: Any) -> bool:
        if not outcomes:
            outcomes.append(True)
            outcomes[0] = table.commit(quick)
        return real(self, *arguments)

    monkeypatch.setattr(DeltaLakeTable, "widen", widen)
    assert not table.commit(slow)
    assert outcomes == [True]
    assert table.offsets() == list(range(20))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, "the driver does not find it in"),
        (cut, r"a task wrote \d+ bytes to .* and the driver sees"),
    ],
)
def test_files_that_the_driver_does_not_see_as_written_are_not_committed(
    table: TestTable, damage: Callable[[Path], None], message: str
) -> None:
    table.append(0, records(0, 10))
    batch = table.write(1, records(10, 20))
    (path,) = table.folder.rglob(batch.files[0].name)
    damage(path)
    with pytest.raises(LakeTableError, match=message):
        table.commit(batch)
    assert table.offsets() == list(range(10))


def test_a_commit_whose_number_was_given_away_comes_after_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = OftenSnapshotted(tmp_path / "orders", snapshot_every=4)
    table.append(0, records(0, 1))
    slow = table.write(0, records(0, 5, partition=1), app="slow")
    real, slept = TableCommitLog.create, list[bool]()

    def create(self: TableCommitLog, number: int, entry: TableCommit) -> bool:
        if entry.app == "slow" and not slept:
            slept.append(True)
            for version in range(1, 9):
                table.append(version, records(version, version + 1))
            for path in self.folder.iterdir():
                os.utime(path, (0, 0))
            with open_table(table.folder) as opened:
                opened.vacuum(older_than_ms=1_000_000)
        return real(self, number, entry)

    monkeypatch.setattr(TableCommitLog, "create", create)
    assert table.commit(slow)
    assert table.offsets() == sorted([*range(9), *range(5)])
