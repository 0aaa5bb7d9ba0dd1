"""The number of snapshots of an Iceberg table is bounded, and nothing that is needed goes with old ones."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from penstock.limits import DAY_MS
from penstock.spark.lake.iceberg_table import (
    SNAPSHOT_AGE,
    SNAPSHOTS_MAX,
    SNAPSHOTS_MIN,
    AssertNeedless,
    IcebergLakeTable,
    _data_files,
)
from penstock.spark.lake.lake_table import LakeTableError
from penstock.spark.lake.time_partitioning import PartitionBy
from penstock.types import TopicPartition
from tests.unit.spark.lake.lake_tables import TestTable, offsets_in, records

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
KEPT, AT_ONCE, COMMITS, ROWS = 6, 3, 25, 2
ALL_MS = 1 << 50
"""Later than anything that a test writes."""
ORDERS = TopicPartition("orders", 0)


@contextmanager
def opened(table: TestTable, *, warned: int = 1_000) -> Iterator[IcebergLakeTable]:
    """With a small bound, and the age that tables have by default."""
    there = IcebergLakeTable(
        table.folder,
        PartitionBy.DAY,
        "timestamp",
        expired_at_once=AT_ONCE,
        snapshots_max=KEPT,
        snapshots_warned=warned,
    )
    try:
        yield there
    finally:
        there.close()


def looked_at(there: IcebergLakeTable) -> Table:
    table = there.current_table()
    assert table is not None
    return table


def commit(table: TestTable, there: IcebergLakeTable, versions: range) -> list[int]:
    """How many snapshots there are after each commit."""
    counts = []
    for version in versions:
        batch = table.write(version, records(version * ROWS, (version + 1) * ROWS))
        assert there.commit(batch)
        counts.append(len(looked_at(there).snapshots()))
    return counts


def set_property(there: IcebergLakeTable, name: str, value: str | None) -> None:
    with looked_at(there).transaction() as change:
        if value is None:
            change.remove_properties(name)
        else:
            change.set_properties({name: value})


def test_there_are_never_more_snapshots_than_the_table_says_however_young(tmp_path: Path) -> None:
    table = TestTable(tmp_path / "orders", "iceberg")
    with opened(table) as there:
        counts = commit(table, there, range(COMMITS))
        assert looked_at(there).properties[SNAPSHOT_AGE] == str(DAY_MS)
    assert max(counts) < KEPT + AT_ONCE
    assert min(counts[KEPT:]) == KEPT
    metadata = [path.name for path in (table.folder / "metadata").iterdir()]
    assert sum(name.startswith("snap-") for name in metadata) == counts[-1]


def test_positions_and_rows_outlive_the_snapshots_that_brought_them(tmp_path: Path) -> None:
    table = TestTable(tmp_path / "orders", "iceberg")
    with opened(table) as there:
        once = table.write(0, records(0, ROWS, topic="payments"), app="another")
        assert there.commit(once)
        commit(table, there, range(COMMITS))
        assert there.ends([ORDERS, TopicPartition("payments", 0)]) == {
            ORDERS: COMMITS * ROWS,
            TopicPartition("payments", 0): ROWS,
        }
        assert there.recorded_query("query").version == COMMITS - 1
        assert not there.commit(once), "its snapshot is long gone"
        with pytest.raises(LakeTableError, match=f"holds orders/0 up to offset {COMMITS * ROWS}"):
            there.commit(table.write(0, records(0, ROWS), app="a new checkpoint"))
    assert table.offsets() == sorted([*range(ROWS), *range(COMMITS * ROWS)])


def test_a_reader_sees_its_snapshot_through_as_many_commits_as_are_kept(tmp_path: Path) -> None:
    table = TestTable(tmp_path / "orders", "iceberg")
    with opened(table) as there, opened(table) as reader:
        commit(table, there, range(COMMITS))
        seen = looked_at(reader)
        last = COMMITS + KEPT - 3
        commit(table, there, range(COMMITS, last))
        assert there.compact(1 << 20).files_before == last
        counts = commit(table, there, range(last, last + 1))
        assert counts == [KEPT]
        there.vacuum(older_than_ms=ALL_MS)
        paths = [file.file_path.removeprefix("file://") for file in _data_files(seen)]
    assert offsets_in(paths) == list(range(COMMITS * ROWS))


def test_files_replaced_by_compaction_stay_while_a_snapshot_names_them(
    tmp_path: Path,
) -> None:
    table = TestTable(tmp_path / "orders", "iceberg")
    with opened(table) as there:
        commit(table, there, range(KEPT))
        assert there.compact(1 << 20).files_before == KEPT
        assert there.vacuum(older_than_ms=ALL_MS) == []
        commit(table, there, range(KEPT, KEPT + COMMITS))
        assert len(there.vacuum(older_than_ms=ALL_MS)) == KEPT
    assert table.offsets() == list(range((KEPT + COMMITS) * ROWS))


@pytest.mark.parametrize("other", ["removes", "tags"])
def test_who_removes_snapshots_yields_to_who_was_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """Between the look at the table and the commit, another process removes or names the same snapshots."""
    table = TestTable(tmp_path / "orders", "iceberg")
    with opened(table) as there, opened(table) as faster:
        commit(table, there, range(KEPT))
        oldest = looked_at(there).snapshots()[0].snapshot_id
        validate, outcomes = AssertNeedless.validate, list[int]()

        def overtaken(self: AssertNeedless, base: TableMetadata | None) -> None:
            if not outcomes:  # the first time is before the commit, with what was looked at
                outcomes.append(0)
                if other == "removes":
                    faster.vacuum(older_than_ms=ALL_MS, history_ms=0)
                else:
                    looked_at(faster).manage_snapshots().create_tag(oldest, "mine").commit()
                outcomes[0] = len(looked_at(faster).snapshots())
            validate(self, base)

        monkeypatch.setattr(AssertNeedless, "validate", overtaken)
        there.vacuum(older_than_ms=ALL_MS, history_ms=0)
        left = [each.snapshot_id for each in looked_at(there).snapshots()]
        assert outcomes == [len(left)] == [1 if other == "removes" else KEPT]
        assert (oldest in left) is (other == "tags")
    assert table.offsets() == list(range(KEPT * ROWS))


def test_the_owner_of_a_table_says_how_many_snapshots_it_keeps(tmp_path: Path) -> None:
    table = TestTable(tmp_path / "orders", "iceberg")
    with opened(table) as there:
        commit(table, there, range(1))
        set_property(there, SNAPSHOTS_MAX, "12")
        assert max(commit(table, there, range(1, COMMITS))) == 12 + AT_ONCE - 1
        set_property(there, SNAPSHOTS_MAX, "1")
        set_property(there, SNAPSHOTS_MIN, "4")  # Iceberg's own, which is a promise
        assert commit(table, there, range(COMMITS, COMMITS + 1)) == [4]


def test_a_foreign_table_keeps_its_snapshots_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = TestTable(tmp_path / "orders", "iceberg")
    caplog.set_level(logging.WARNING, "penstock.spark")
    with opened(table, warned=10) as there:
        commit(table, there, range(1))
        set_property(there, SNAPSHOTS_MAX, None)
        commit(table, there, range(1, 10))
        assert caplog.messages == []
    with opened(table, warned=10) as there:
        commit(table, there, range(10, 11))
    with opened(table, warned=10) as there:
        assert commit(table, there, range(11, 13)) == [12, 13]
    (said,) = [message for message in caplog.messages if str(table.folder) in message]
    assert "keeps 11 snapshots" in said
    assert f"the property {SNAPSHOTS_MAX}, such as 300" in said
