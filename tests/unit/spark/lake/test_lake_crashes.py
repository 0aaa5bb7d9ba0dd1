"""Whoever writes a table of plain Parquet may die at any step, and no row is lost or there twice.

Every call that changes the disk is counted, and at the n-th the process "dies": for n = 1, 2, 3, ... until
the operation gets through. Delta and Iceberg have logs of their own; the tests with real processes that
are killed (tests/spark) are for them as well.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from penstock.errors import CorruptData
from penstock.spark.lake.commit_log import TableCommitLog
from penstock.spark.lake.description import open_table
from tests.unit.spark.lake.lake_tables import OftenSnapshotted, TestTable, records

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # the dead close no files
STEPS = ("fsync", "link", "rename", "replace", "unlink", "mkdir", "utime")


class Died(BaseException):
    """As a kill: nobody handles it."""


@contextmanager
def dying_at(monkeypatch: pytest.MonkeyPatch, step: int, *, after: bool) -> Iterator[list[str]]:
    """At the given step the process is gone, before or after the step took effect. Nothing is tidied up."""
    taken: list[str] = []

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if len(taken) >= step:
                raise Died  # the dead do nothing more
            taken.append(name)
            if len(taken) == step and not after:
                raise Died
            outcome = real(*arguments, **options)
            if len(taken) == step:
                raise Died
            return outcome

        return call

    with monkeypatch.context() as patch:
        for name in STEPS:
            patch.setattr(os, name, counted(name, getattr(os, name)))
        yield taken


def plainly_read(folder: Path) -> list[int]:
    found = ds.dataset(folder, partitioning="hive").to_table()
    return sorted(found["offset"].to_pylist()) if found.num_rows else []


@pytest.mark.parametrize("after", [False, True])
def test_a_batch_is_whole_or_not_there_wherever_its_writer_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    steps = 0
    for step in range(1, 100):
        table = TestTable(tmp_path / f"orders-{step}", "parquet")
        table.append(0, records(0, 10))
        with dying_at(monkeypatch, step, after=after) as taken:
            try:
                table.append(1, records(10, 20), records(20, 30, day=1))
            except Died:
                steps += 1
        seen = table.offsets()
        assert seen in (list(range(10)), list(range(30))), f"died at {taken}"
        assert len(plainly_read(table.folder)) == len(set(plainly_read(table.folder)))
        # The next run of the query writes the same batch again.
        table.append(1, records(10, 20), records(20, 30, day=1))
        assert table.offsets() == plainly_read(table.folder) == list(range(30)), f"died at {taken}"
        if len(taken) < step:
            break
    assert steps > 8


@pytest.mark.parametrize("after", [False, True])
def test_a_compaction_loses_nothing_wherever_it_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    steps = 0
    for step in range(1, 100):
        table = TestTable(tmp_path / f"orders-{step}", "parquet")
        for version in range(3):
            table.append(version, records(version * 10, version * 10 + 10))
        with dying_at(monkeypatch, step, after=after) as taken, open_table(table.folder) as opened:
            try:
                opened.compact(1 << 20)
            except Died:
                steps += 1
        assert table.offsets() == list(range(30)), f"died at {taken}"
        table.append(3, records(30, 40))
        with open_table(table.folder) as opened:
            opened.compact(1 << 20)
        assert table.offsets() == plainly_read(table.folder) == list(range(40)), f"died at {taken}"
        if len(taken) < step:
            break
    assert steps > 8


def test_commits_that_a_snapshot_stands_for_are_removed_in_time(tmp_path: Path) -> None:
    table = OftenSnapshotted(tmp_path / "orders", snapshot_every=4)
    for version in range(10):
        table.append(version, records(version, version + 1))
    before = TableCommitLog(table.folder).read()
    for path in TableCommitLog(table.folder).folder.iterdir():
        os.utime(path, (0, 0))
    with open_table(table.folder) as opened:
        opened.vacuum(older_than_ms=1_000_000)
    names = sorted(path.name.lstrip("0") for path in TableCommitLog(table.folder).folder.iterdir())
    assert names == ["10.json", "8.snapshot.json", "9.json"]
    assert TableCommitLog(table.folder).read() == before
    assert table.append(10, records(10, 11))
    assert table.offsets() == list(range(11))


def test_a_damaged_log_is_not_guessed_at(tmp_path: Path) -> None:
    table = TestTable(tmp_path / "orders", "parquet")
    for version in range(3):
        table.append(version, records(version, version + 1))
    log = TableCommitLog(table.folder).folder
    second = log / f"{2:020d}.json"
    good = second.read_bytes()
    for bad in (good[:-5], b"[]", b'{"kind":"append"}'):
        second.write_bytes(bad)
        with pytest.raises(CorruptData, match="is not what was written there"):
            table.offsets()
    second.unlink()
    with pytest.raises(CorruptData, match="commit 2 is missing"):
        table.offsets()
