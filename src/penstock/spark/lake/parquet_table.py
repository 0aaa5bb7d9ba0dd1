"""A table of plain Parquet files, with a commit log of our own.

    orders/date=2026-11-15/00000007-00001-….parquet     files of the table
    orders/_penstock/log/                               the commit log (commit_log.py)
    orders/_penstock/staging/                           files that tasks have written
    orders/_penstock/removed/                           files that a compaction has replaced

Strategy: tasks write to `staging`. A commit first adds an entry to the log, which makes the batch part of
the table, and then moves the files to their folders. A process that dies in between leaves files of the
table in `staging`; the next commit moves them, and `files` finds them there. So a program that reads the
folder without the log never sees a row twice, except while a compaction replaces files.

Rule: A file is moved only after the log names it.
"""

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from penstock.spark.lake import disk
from penstock.spark.lake.commit_log import SNAPSHOT_EVERY, TableCommit, TableCommitLog, TableState
from penstock.spark.lake.compaction import CompactionTarget, merge_files, merge_groups
from penstock.spark.lake.lake_table import (
    METADATA_FOLDER,
    CompactionResult,
    DataFile,
    EndOffsets,
    LakeBatch,
    RecordedQuery,
    is_already_committed,
)
from penstock.spark.lake.schema import widen_schema
from penstock.spark.lake.task_files import check_written, is_penstock_file
from penstock.types import TopicPartition


def staging_folder(table: Path) -> Path:
    return table / METADATA_FOLDER / "staging"


class ParquetTable:
    """Lake table of plain Parquet files."""

    def __init__(self, folder: Path, snapshot_every: int = SNAPSHOT_EVERY) -> None:
        """`snapshot_every`: the number of commits after which a snapshot of the log is written."""
        self._folder = folder
        self._staging = staging_folder(folder)
        self._removed = folder / METADATA_FOLDER / "removed"
        self._commit_log = TableCommitLog(folder, snapshot_every=snapshot_every)

    def recorded_query(self, app: str) -> RecordedQuery:
        return self._commit_log.read().apps.get(app, RecordedQuery())

    def ends(self, partitions: Iterable[TopicPartition]) -> EndOffsets:
        ends = self._commit_log.read().ends
        return {partition: ends[partition] for partition in partitions if partition in ends}

    def commit(self, batch: LakeBatch) -> bool:
        check_written((self._find(file), file) for file in batch.files)
        # `_append_commit` decides again after each race for a commit number that this process lost.
        after = self._commit_log.change(lambda state: _append_commit(state, batch))
        # Also for a repeated batch: its first commit may have died before it moved its files.
        self._publish(after or self._commit_log.read())
        return after is not None

    def files(self) -> list[str]:
        state = self._commit_log.read()
        self._publish(state)  # so that every returned path exists, even while another commit is under way
        return [str(self._find(file)) for file in state.files.values()]

    def compact(self, target_bytes: int) -> CompactionResult:
        state = self._finish_interrupted_moves()
        before = after = 0
        for group in merge_groups(state.files.values(), target_bytes):
            assert state.schema is not None, "a table with files has columns"
            target = CompactionTarget(self._staging, group[0].folder, state.schema)
            one = merge_files([self._find(file) for file in group], sum(file.rows for file in group), target)
            if not self._replace_files(group, one):
                self._drop(one)
                break  # another process is compacting
            before, after = before + len(group), after + 1
        return CompactionResult(before, after)

    def vacuum(self, *, older_than_ms: int, history_ms: int | None = None) -> list[str]:
        """Remove old files.

        The format has no older versions to read, so replaced files go like uncommitted ones.
        """
        # Files are listed before the log is read: a file committed after the listing is named by the log,
        # and a file created after it is not in the listing.
        self._finish_interrupted_moves()
        found = [path for path in self._candidates() if disk.modified_ms(path) < older_than_ms]
        named = {file.name for file in self._commit_log.read().files.values()}
        gone = [path for path in found if path.name not in named]
        gone += [path for path in self._commit_log.obsolete_files() if disk.modified_ms(path) < older_than_ms]
        for path in gone:
            path.unlink(missing_ok=True)
        return [str(path) for path in gone]

    def close(self) -> None:
        """Do nothing: no file or connection is held open."""

    def _drop(self, one: DataFile) -> None:
        """Remove a merged file unless the table has it: a commit that seemed to fail may have counted."""
        if one.path not in self._commit_log.read().files:
            (self._staging / one.name).unlink(missing_ok=True)

    def _replace_files(self, group: list[DataFile], one: DataFile) -> bool:
        paths = tuple(file.path for file in group)

        def decide(state: TableState) -> TableCommit | None:
            if not all(path in state.files for path in paths):
                return None
            return TableCommit("compact", _now_ms(), (one,), paths)

        after = self._commit_log.change(decide)
        if after is None:
            return False
        # The merged file is in place before its parts are removed, so that no reader misses rows.
        self._publish(after)
        self._move_to_removed([self._folder / path for path in paths])
        return True

    def _finish_interrupted_moves(self) -> TableState:
        """Finish the file moves of a commit or compaction that died. Returns the table's state.

        A file lies outside of `_penstock` only after a commit named it. So a file that the table does not
        name now was replaced. Files are listed before the log is read; otherwise a listed file might be
        newer than the log.
        """
        listed = [
            path for path in self._candidates() if METADATA_FOLDER not in path.relative_to(self._folder).parts
        ]
        state = self._commit_log.read()
        self._publish(state)
        live = {self._folder / file.path for file in state.files.values()}
        self._move_to_removed([path for path in listed if path not in live])
        return state

    def _move_to_removed(self, paths: list[Path]) -> None:
        disk.make_folder(self._removed)
        for path in paths:
            _move(path, self._removed / path.name)
            # Vacuum counts from now, so that a reader that has the file open can finish.
            os.utime(self._removed / path.name)

    def _publish(self, state: TableState) -> None:
        """Move files of the table that are still in `staging` to their folders."""
        staged = set(os.listdir(self._staging)) if self._staging.is_dir() else set()
        waiting = [file for file in state.files.values() if file.name in staged]
        for folder in {file.folder for file in waiting}:
            disk.make_folder(self._folder / folder)
        for file in waiting:
            self._publish_file(file)
        for folder in {file.folder for file in waiting}:
            disk.sync_folder(self._folder / folder)

    def _publish_file(self, file: DataFile) -> None:
        try:
            _move(self._staging / file.name, self._folder / file.path)
        except FileNotFoundError:
            # Otherwise a compaction has replaced the file meanwhile.
            if file.path in self._commit_log.read().files:
                raise

    def _find(self, file: DataFile) -> Path:
        place = self._folder / file.path
        return (
            place if place.exists() or not (self._staging / file.name).exists() else self._staging / file.name
        )

    def _candidates(self) -> Iterator[Path]:
        for parent, folders, names in os.walk(self._folder):
            if Path(parent) == self._folder / METADATA_FOLDER:
                folders[:] = [name for name in folders if name in ("staging", "removed", "log")]
            is_log = Path(parent) == self._commit_log.folder
            for name in names:
                if is_penstock_file(name) or (is_log and name.startswith(disk.TEMPORARY_PREFIX)):
                    yield Path(parent, name)


def _append_commit(state: TableState, batch: LakeBatch) -> TableCommit | None:
    recorded = state.apps.get(batch.app, RecordedQuery())
    if is_already_committed(recorded, batch.version, batch.spans, state.ends):
        return None
    schema = widen_schema(batch.schema if state.schema is None else state.schema, batch.schema)
    return TableCommit(
        "append",
        _now_ms(),
        batch.files,
        app=batch.app,
        recorded=recorded.after(batch),
        ends={partition: span.end for partition, span in batch.spans.items()},
        schema=None if state.schema is not None and schema.equals(state.schema) else schema,
    )


def _move(source: Path, target: Path) -> None:
    try:
        os.rename(source, target)
    except FileNotFoundError:
        if not target.exists():  # otherwise another process has moved the file
            raise


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
