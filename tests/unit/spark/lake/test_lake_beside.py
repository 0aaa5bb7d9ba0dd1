"""Tables are put together and tidied up while batches are committed: neither ends the other."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException

from penstock.limits import DAY_MS
from penstock.spark.lake import disk, iceberg_table
from penstock.spark.lake.description import FORMATS, open_table
from penstock.spark.lake.iceberg_table import IcebergLakeTable
from penstock.spark.lake.lake_table import CompactionResult, OffsetSpan
from penstock.spark.lake.time_partitioning import PartitionBy
from penstock.types import TopicPartition
from tests.unit.spark.lake.lake_tables import TestTable, records

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
ALL_MS = 1 << 50
"""Later than anything that a test writes."""
ORDERS = TopicPartition("orders", 0)


def table_of_three(folder: Path, form: str) -> TestTable:
    table = TestTable(folder, form)
    for version in range(3):
        table.append(version, records(version * 10, version * 10 + 10))
    return table


@contextmanager
def iceberg(table: TestTable) -> Iterator[IcebergLakeTable]:
    opened = IcebergLakeTable(table.folder, PartitionBy.DAY, "timestamp")
    try:
        yield opened
    finally:
        opened.close()


def snapshot_ids(table: TestTable) -> list[int]:
    with iceberg(table) as opened:
        there = opened.current_table()
        assert there is not None
        return [snapshot.snapshot_id for snapshot in there.snapshots()]


def test_a_vacuum_that_a_batch_overtakes_forgets_snapshots_another_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of_three(tmp_path / "orders", "iceberg")
    real, outcomes = SqlCatalog._write_metadata, list[bool]()

    def write(*arguments: Any, **options: Any) -> None:
        if not outcomes:
            outcomes.append(False)
            outcomes[0] = table.append(3, records(30, 40))
        real(*arguments, **options)

    monkeypatch.setattr(SqlCatalog, "_write_metadata", staticmethod(write))
    with open_table(table.folder) as opened:
        opened.vacuum(older_than_ms=ALL_MS, history_ms=0)
    assert outcomes == [True]
    assert len(snapshot_ids(table)) == 4
    with open_table(table.folder) as opened:
        opened.vacuum(older_than_ms=ALL_MS, history_ms=0)
    assert len(snapshot_ids(table)) == 1
    assert table.offsets() == list(range(40))


def test_vacuum_leaves_snapshots_that_somebody_has_named(tmp_path: Path) -> None:
    table = table_of_three(tmp_path / "orders", "iceberg")
    first, _, newest = snapshot_ids(table)
    with iceberg(table) as opened:
        there = opened.current_table()
        assert there is not None
        there.manage_snapshots().create_tag(first, "mine").commit()
    with open_table(table.folder) as opened:
        opened.compact(1 << 20)
        removed = opened.vacuum(older_than_ms=ALL_MS, history_ms=0)
    left = snapshot_ids(table)
    assert first in left
    assert newest not in left
    assert len(left) == 2
    assert len(removed) == 2  # of the three files that were put together, the tag names one
    assert table.offsets() == list(range(30))


@pytest.mark.parametrize("form", FORMATS)
def test_vacuum_passes_over_a_file_that_its_task_discards_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    table = table_of_three(tmp_path / "orders", form)
    (left,) = table.write(3, records(30, 40)).files
    real = Path.stat

    def stat(path: Path, **options: Any) -> os.stat_result:
        if path.name == left.name:
            path.unlink(missing_ok=True)
        return real(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    with open_table(table.folder) as opened:
        opened.vacuum(older_than_ms=ALL_MS, history_ms=0)
    monkeypatch.undo()
    assert table.offsets() == list(range(30))


def test_a_compaction_may_replace_a_file_before_its_commit_has_moved_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TestTable(tmp_path / "orders", "parquet")
    table.append(0, records(0, 10))
    batch = table.write(1, records(10, 20))
    (folder,) = {table.folder / file.folder for file in batch.files}
    real, compacted = disk.make_folder, list[CompactionResult]()

    def make_folder(made: Path) -> None:
        real(made)
        if made == folder and not compacted:
            compacted.append(CompactionResult())
            with open_table(table.folder) as opened:
                compacted[0] = opened.compact(1 << 20)

    monkeypatch.setattr(disk, "make_folder", make_folder)
    assert table.commit(batch)
    assert compacted == [CompactionResult(2, 1)]
    assert table.offsets() == list(range(20))


def test_a_file_that_the_table_has_lost_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TestTable(tmp_path / "orders", "parquet")
    batch = table.write(0, records(0, 10))
    real = disk.make_folder

    def make_folder(made: Path) -> None:
        real(made)
        if made == table.folder / batch.files[0].folder:
            (table.folder / "_penstock" / "staging" / batch.files[0].name).unlink()

    monkeypatch.setattr(disk, "make_folder", make_folder)
    with pytest.raises(FileNotFoundError):
        table.commit(batch)


def test_a_compaction_goes_on_beside_batches_that_are_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of_three(tmp_path / "orders", "iceberg")
    real, versions = IcebergLakeTable.replace_files_in, iter((3, 4))

    def exchange(self: IcebergLakeTable, *given: Any) -> None:
        version = next(versions, None)
        if version is not None:
            assert table.append(version, records(version * 10, version * 10 + 10))
        real(self, *given)

    monkeypatch.setattr(IcebergLakeTable, "replace_files_in", exchange)
    with open_table(table.folder) as opened:
        assert opened.compact(1 << 20) == CompactionResult(3, 1)
    assert next(versions, None) is None
    assert len(table.paths()) == 3
    assert table.offsets() == list(range(50))


def test_a_batch_without_rows_does_not_set_a_table_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It changes properties alone: neither it nor a batch beside it makes a snapshot that could tell."""
    table = table_of_three(tmp_path / "orders", "iceberg")
    markers = table.write(3, records(30, 40))._replace(files=())
    more = markers._replace(version=4, spans={ORDERS: OffsetSpan(40, 50)})
    real, outcomes = IcebergLakeTable.append_batch, list[bool]()

    def append(self: IcebergLakeTable, *given: Any) -> None:
        if not outcomes:
            outcomes.append(False)
            outcomes[0] = table.commit(markers) and table.commit(more)
        real(self, *given)

    monkeypatch.setattr(IcebergLakeTable, "append_batch", append)
    assert not table.commit(markers)  # a slow second driver with the same batch
    assert outcomes == [True]
    with open_table(table.folder) as opened:
        assert opened.recorded_query("query").version == 4
        assert opened.ends([ORDERS]) == {ORDERS: 50}


def test_a_commit_that_fails_leaves_no_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of_three(tmp_path / "orders", "iceberg")
    batch = table.write(3, records(30, 40))
    real, outcomes = IcebergLakeTable.append_batch, list[bool]()

    def append(self: IcebergLakeTable, *given: Any) -> None:
        if not outcomes:
            outcomes.append(False)
            outcomes[0] = table.commit(batch)
            there = set((table.folder / "metadata").iterdir())
            with pytest.raises(CommitFailedException):
                real(self, *given)
            assert set((table.folder / "metadata").iterdir()) == there
            raise CommitFailedException("as it would be")
        real(self, *given)

    monkeypatch.setattr(IcebergLakeTable, "append_batch", append)
    assert not table.commit(batch)
    assert outcomes == [True]


OURS_TO_SET = (
    *iceberg_table.METADATA_CLEANUP,
    *iceberg_table.NO_RETRIES,
    iceberg_table.SNAPSHOT_AGE,
    iceberg_table.SNAPSHOTS_MAX,
)


def table_of_another_version(folder: Path) -> TestTable:
    """A table whose maker has set none of the properties that we set today."""
    table = table_of_three(folder, "iceberg")
    with iceberg(table) as opened:
        there = opened.current_table()
        assert there is not None
        with there.transaction() as change:
            change.remove_properties(*dict.fromkeys(OURS_TO_SET))
    return table


def metadata_of(table: TestTable) -> tuple[str, dict[str, str]]:
    """Where it is, and the properties in it, for somebody who does not go through our code."""
    place = f"sqlite:///{table.folder}/_penstock/catalog.db"
    catalog = SqlCatalog("penstock", uri=place)
    try:
        found = catalog.load_table(("lake", table.folder.name))
        return found.metadata_location, found.properties
    finally:
        catalog.close()


def test_whoever_reads_an_iceberg_table_writes_nothing(tmp_path: Path) -> None:
    table = table_of_another_version(tmp_path / "orders")
    before = metadata_of(table)
    with open_table(table.folder) as opened:
        assert opened.recorded_query("query").version == 2
        assert opened.ends([ORDERS]) == {ORDERS: 30}
        assert len(opened.files()) == 3
    assert metadata_of(table) == before


def test_a_table_that_says_no_age_of_snapshots_keeps_them_for_five_days(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of_another_version(tmp_path / "orders")
    opened = IcebergLakeTable(table.folder, PartitionBy.DAY, "timestamp", expired_at_once=1)
    real = iceberg_table.now_ms
    for version, days, left in ((3, 4, 4), (4, 6, 1)):
        monkeypatch.setattr(iceberg_table, "now_ms", lambda days=days: real() + days * DAY_MS)
        assert opened.commit(table.write(version, records(version * 10, version * 10 + 10)))
        assert len(snapshot_ids(table)) == left
    opened.close()
    assert iceberg_table.SNAPSHOT_AGE not in metadata_of(table)[1]
    assert metadata_of(table)[1]["commit.retry.num-retries"] == "0"
    assert table.offsets() == list(range(50))


def test_a_new_table_says_how_many_snapshots_it_keeps_for_how_long(tmp_path: Path) -> None:
    table = table_of_three(tmp_path / "orders", "iceberg")
    properties = metadata_of(table)[1]
    assert properties[iceberg_table.SNAPSHOT_AGE] == str(DAY_MS)
    assert properties["penstock.history.max-snapshots"] == "300"


def test_batches_beside_each_other_write_to_a_table_of_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the table must say for writers is set by the one, while the other is about to."""
    table = table_of_another_version(tmp_path / "orders")
    real, outcomes = SqlCatalog._write_metadata, list[bool]()

    def write(*arguments: Any, **options: Any) -> None:
        if not outcomes:
            outcomes.append(False)
            outcomes[0] = table.append(3, records(30, 40), app="another")
        real(*arguments, **options)

    monkeypatch.setattr(SqlCatalog, "_write_metadata", staticmethod(write))
    assert table.append(3, records(40, 50))
    assert outcomes == [True]
    assert table.offsets() == list(range(50))
