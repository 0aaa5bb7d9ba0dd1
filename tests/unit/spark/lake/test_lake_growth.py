"""What a table leaves on disk beside its rows, after many commits."""

import os
import time
from pathlib import Path

import pytest

from penstock.spark.lake import commit_log
from penstock.spark.lake.commit_log import (
    SNAPSHOT_EVERY,
    TableCommit,
    TableCommitLog,
    TableState,
    apply_commits,
)
from penstock.spark.lake.iceberg_table import METADATA_CLEANUP, SNAPSHOT_AGE, IcebergLakeTable
from penstock.spark.lake.lake_table import DataFile
from penstock.spark.lake.time_partitioning import PartitionBy
from tests.unit.spark.lake.lake_tables import TestTable, records

COMMITS = 6 * SNAPSHOT_EVERY + 3
FILES_EACH = 4
ICEBERG_COMMITS = 130


def added(number: int) -> TableCommit:
    files = tuple(
        DataFile("date=2026-11-15", f"{number:08d}-{task:05d}.parquet", 10, 1_000)
        for task in range(FILES_EACH)
    )
    return TableCommit("append", number, files)


def commit(log: TableCommitLog, count: int) -> None:
    for _ in range(count):
        log.change(lambda state: added(state.number + 1))


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_a_log_of_many_commits_holds_the_files_about_once(tmp_path: Path) -> None:
    log = TableCommitLog(tmp_path, keep_ms=0)
    commit(log, COMMITS)
    assert len(log.read().files) == COMMITS * FILES_EACH
    names = sorted(path.name for path in log.folder.iterdir())
    assert sum(name.endswith(".snapshot.json") for name in names) == 1
    assert len(names) == 1 + COMMITS % SNAPSHOT_EVERY
    newest = max(log.folder.iterdir(), key=lambda path: path.stat().st_size)
    assert bytes_in(log.folder) < 1.1 * newest.stat().st_size


def test_commits_are_kept_for_a_minute_after_a_snapshot_stands_for_them(tmp_path: Path) -> None:
    """Whoever has listed the log reads on without listing it again."""
    log = TableCommitLog(tmp_path)
    commit(log, 2 * SNAPSHOT_EVERY)
    assert len(list(log.folder.iterdir())) == 2 * SNAPSHOT_EVERY + 2
    old = time.time() - 61
    for path in log.folder.iterdir():
        os.utime(path, (old, old))
    commit(log, SNAPSHOT_EVERY)
    # The last snapshot, and the commits that were made just now.
    assert len(list(log.folder.iterdir())) == SNAPSHOT_EVERY + 1
    assert log.read().number == 3 * SNAPSHOT_EVERY


def test_reading_a_log_copies_the_files_of_the_table_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = TableCommitLog(tmp_path)
    commit(log, SNAPSHOT_EVERY - 1)
    calls = 0

    def counted(state: TableState, entries: list[TableCommit]) -> TableState:
        nonlocal calls
        calls += 1
        return apply_commits(state, entries)

    monkeypatch.setattr(commit_log, "apply_commits", counted)
    assert len(log.read().files) == (SNAPSHOT_EVERY - 1) * FILES_EACH
    assert calls == 1


def test_metadata_of_an_iceberg_table_stays_within_bounds(tmp_path: Path) -> None:
    """Without --compact and without anybody who tidies up."""
    properties = {**METADATA_CLEANUP, SNAPSHOT_AGE: "0", "commit.manifest.min-count-to-merge": "10"}
    table = TestTable(tmp_path / "orders", "iceberg")
    opened = IcebergLakeTable(
        table.folder, PartitionBy.DAY, "timestamp", properties=properties, expired_at_once=20
    )
    for version in range(ICEBERG_COMMITS):
        assert opened.commit(table.write(version, records(version * 2, version * 2 + 2)))
    opened.close()
    names = [path.name for path in (table.folder / "metadata").iterdir()]
    counts = {kind: sum(name.endswith(kind) for name in names) for kind in (".metadata.json", ".avro")}
    # 20 earlier versions of the metadata and this one; a manifest list and a manifest for each snapshot.
    assert counts[".metadata.json"] <= 21
    assert counts[".avro"] <= 2 * 20 + 10
    assert table.offsets() == list(range(2 * ICEBERG_COMMITS))
    assert len(list((table.folder / "data").rglob("*.parquet"))) == ICEBERG_COMMITS
