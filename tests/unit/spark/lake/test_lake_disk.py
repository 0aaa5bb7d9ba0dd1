"""What is synced, and what a disk that is full or knows no links leaves behind."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from sqlalchemy.orm import Session

from penstock.errors import CorruptData
from penstock.spark.lake import disk
from penstock.spark.lake.commit_log import TableCommitLog
from penstock.spark.lake.compaction import CompactionTarget, merge_files
from penstock.spark.lake.delta_table import DeltaLakeTable
from penstock.spark.lake.description import FORMATS
from penstock.spark.lake.lake_table import LakeTableError
from penstock.spark.lake.task_files import FileLayout, TaskFiles, is_penstock_file
from penstock.spark.lake.time_partitioning import PartitionBy
from tests.unit.spark.lake.lake_tables import TestTable, records

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@contextmanager
def synced(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Path]]:
    """What is given to fsync meanwhile."""
    paths: set[Path] = set()
    real = os.fsync

    def fsync(descriptor: int) -> None:
        paths.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        yield paths


def test_files_of_a_task_and_their_names_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = TaskFiles(tmp_path / "table", FileLayout(), batch=0, task=0, flat=False)
    files.write(records(0, 10))
    files.write(records(10, 20, day=1))
    files._write_group(next(iter(files._gathered)))  # so that its folder is made before we look
    with synced(monkeypatch) as paths:
        done = files.close()
    places = {tmp_path / "table" / file.path for file in done}
    assert len(places) == 2
    assert places <= paths
    assert {place.parent for place in places} <= paths


@pytest.mark.parametrize(("form", "log"), [("delta", "_delta_log"), ("iceberg", "metadata")])
def test_what_a_commit_writes_to_the_log_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, log: str
) -> None:
    table = TestTable(tmp_path / "orders", form)
    table.append(0, records(0, 10))
    before = set((table.folder / log).iterdir())
    batch = table.write(1, records(10, 20))
    with synced(monkeypatch) as paths:
        assert table.commit(batch)
    new = set((table.folder / log).iterdir()) - before
    assert new
    assert new <= paths
    assert table.folder / log in paths


@pytest.mark.parametrize(("form", "log"), [("delta", "_delta_log"), ("iceberg", "metadata")])
def test_what_a_compaction_writes_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, log: str
) -> None:
    """Else the next commit makes it last that files are replaced, by files that may not last."""
    table = TestTable(tmp_path / "orders", form)
    for version in range(3):
        table.append(version, records(version * 10, version * 10 + 10))
    before = set(table.folder.rglob("*"))
    opened = table.open()
    with synced(monkeypatch) as paths:
        opened.compact(1 << 20)
    (one,) = opened.files()
    opened.close()
    new = {path for path in set(table.folder.rglob("*")) - before if path.is_file()}
    assert Path(one) in new
    assert new <= paths
    assert {Path(one).parent, table.folder / log} <= paths


def test_a_commit_after_a_compaction_that_is_not_synced_yet_syncs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TestTable(tmp_path / "orders", "delta")
    for version in range(3):
        table.append(version, records(version * 10, version * 10 + 10))
    DeltaTable(str(table.folder)).optimize.compact()
    (one,) = table.paths()
    batch = table.write(3, records(30, 40))
    with synced(monkeypatch) as paths:
        assert table.commit(batch)
    assert {Path(one), Path(one).parent} <= paths


def test_what_an_iceberg_catalog_names_is_synced_before_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite syncs what it is told, so the table would begin with a file that may not last."""
    table = TestTable(tmp_path / "orders", "iceberg")
    table.append(0, records(0, 10))
    metadata = table.folder / "metadata"
    batches = [table.write(version, records(version * 10, version * 10 + 10)) for version in (1, 2)]
    before = set(metadata.iterdir())
    unsafe, real = list[set[Path]](), Session.commit
    opened = table.open()
    with synced(monkeypatch) as paths:

        def commit(session: Session) -> None:
            unsafe.append(set(metadata.iterdir()) - before - paths)
            real(session)

        monkeypatch.setattr(Session, "commit", commit)
        for batch in batches:
            opened.commit(batch)
        opened.compact(1 << 20)
        opened.vacuum(older_than_ms=1 << 50, history_ms=0)
    opened.close()
    assert unsafe == [set()] * 4
    assert metadata in paths


def test_snapshots_that_are_forgotten_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = TestTable(tmp_path / "orders", "iceberg")
    for version in range(3):
        table.append(version, records(version * 10, version * 10 + 10))
    before = set((table.folder / "metadata").iterdir())
    opened = table.open()
    with synced(monkeypatch) as paths:
        opened.vacuum(older_than_ms=1 << 50, history_ms=0)
    opened.close()
    new = set((table.folder / "metadata").iterdir()) - before
    assert new
    assert new | {table.folder / "metadata"} <= paths


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_the_folder_of_a_log_that_is_made_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    table = TestTable(tmp_path / "orders", form)
    batch = table.write(0, records(0, 10))
    with synced(monkeypatch) as paths:
        assert table.commit(batch)
    assert table.folder in paths


def test_columns_that_come_to_a_delta_table_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By themselves: before the rows are committed others may commit, and those are read then."""
    table = TestTable(tmp_path / "orders", "delta")
    table.append(0, records(0, 10))
    before = set((table.folder / "_delta_log").iterdir())
    opened = DeltaLakeTable(table.folder, PartitionBy.DAY)
    there = opened.current_table()
    assert there is not None
    with synced(monkeypatch) as paths:
        assert opened.widen(there, pa.schema([("city", pa.string())]))
    (new,) = set((table.folder / "_delta_log").iterdir()) - before
    assert {new, new.parent} <= paths


def test_files_that_do_not_hold_what_they_are_said_to_are_not_put_together(tmp_path: Path) -> None:
    table = TestTable(tmp_path / "orders", "parquet")
    batch = table.write(0, records(0, 10))
    parts = [table.folder / "_penstock" / "staging" / file.name for file in batch.files]
    with pytest.raises(CorruptData, match="1 files that are said to hold 11 rows hold 10"):
        merge_files(parts, 11, CompactionTarget(tmp_path / "made", "", batch.schema))
    assert list((tmp_path / "made").iterdir()) == []


@pytest.mark.parametrize("act", [disk.create_once, disk.replace])
def test_a_full_disk_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[Path, bytes], object]
) -> None:
    def full(descriptor: int) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        act(tmp_path / "file", b"content")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP])
def test_a_disk_without_links_is_said_to_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def link(source: Path, target: Path) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(LakeTableError, match="does not allow hard links"):
        disk.create_once(tmp_path / "file", b"content")
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_is_listed_while_it_changes_is_listed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TestTable(tmp_path / "orders", "parquet")
    for version in range(3):
        table.append(version, records(version, version + 1))
    real, lists = TableCommitLog.names, list[int]()

    def names(self: TableCommitLog) -> set[tuple[int, bool]]:
        lists.append(1)
        found = real(self)
        return found - {(2, False)} if len(lists) == 1 else found

    monkeypatch.setattr(TableCommitLog, "names", names)
    assert TableCommitLog(table.folder).read().number == 3
    assert len(lists) == 2


SPARKS = "part-00000-b8b1c2d3-0000-4000-8000-000000000000-c000.snappy.parquet"
"""As Spark names the files of its own tables, and Delta those that it has put together."""


@pytest.mark.parametrize("form", FORMATS)
def test_vacuum_removes_only_files_under_names_that_a_table_gives(tmp_path: Path, form: str) -> None:
    table = TestTable(tmp_path / "orders", form)
    for version in range(3):
        table.append(version, records(version * 10, version * 10 + 10))
    (left,) = table.write(3, records(30, 40)).files
    data = "data" if form == "iceberg" else "."
    others = ["checkpoint/metadata", "checkpoint/offsets/7", "notes.txt", f"{data}/theirs.parquet", SPARKS]
    for name in others:
        path = table.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("theirs")
    for path in table.folder.rglob("*"):
        if path.is_file():
            os.utime(path, (1_000_000, 1_000_000))
    opened = table.open()
    gone = opened.vacuum(older_than_ms=1_000_000_000_000)
    opened.close()
    assert [Path(path).name for path in gone] == [left.name]
    assert all((table.folder / name).exists() for name in others)
    assert table.offsets() == list(range(30))


@pytest.mark.parametrize("form", FORMATS)
def test_names_of_files_that_were_put_together_are_ours(tmp_path: Path, form: str) -> None:
    table = TestTable(tmp_path / "orders", form)
    for version in range(3):
        table.append(version, records(version * 10, version * 10 + 10))
    opened = table.open()
    opened.compact(1 << 20)
    (path,) = opened.files()
    opened.close()
    # Delta gives names that are not ours alone; its log says which files it has replaced.
    assert is_penstock_file(Path(path).name) == (form != "delta")
    assert not is_penstock_file("part-0.parquet")
