"""A Delta table, written with the deltalake library.

Strategy: a commit carries application transactions. One holds the batch number under the query's name. One
for each topic partition holds one past the last offset. Delta keeps the newest value of each for ever, and
rejects a commit whose application has committed since the table was read. So two writers cannot both commit
the same batch, and two queries cannot both commit the same rows.

Rule: After a rejected commit, and after columns were added, the table is read again and every check is made
      again.
"""

import json
import time
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction

from penstock.errors import CorruptData
from penstock.spark.lake import disk
from penstock.spark.lake.lake_table import (
    CompactionResult,
    DataFile,
    EndOffsets,
    LakeBatch,
    RecordedQuery,
    is_already_committed,
)
from penstock.spark.lake.schema import new_fields, widen_schema
from penstock.spark.lake.task_files import check_written, is_penstock_file
from penstock.spark.lake.time_partitioning import PartitionBy, partition_values
from penstock.types import TopicPartition

ATTEMPTS_MAX: Final = 100
KEY: Final = "penstock"
LOG: Final = "_delta_log"
PARTITION_TYPES: Final = {"date": pa.date32(), "hour": pa.int32()}
HISTORY_STEP: Final = 50
HOUR_MS: Final = 3_600_000


class DeltaLakeTable:
    """Lake table in Delta's format."""

    def __init__(self, folder: Path, by: PartitionBy) -> None:
        self._folder = folder
        self._by = by

    def recorded_query(self, app: str) -> RecordedQuery:
        table = self.current_table()
        return RecordedQuery() if table is None else _read_recorded_query(table, app)

    def ends(self, partitions: Iterable[TopicPartition]) -> EndOffsets:
        table = self.current_table()
        return {} if table is None else _ends(table, partitions)

    def commit(self, batch: LakeBatch) -> bool:
        check_written((self._folder / file.path, file) for file in batch.files)
        for _ in range(ATTEMPTS_MAX):
            try:
                table = self.current_table() or self._create(batch.schema)
                recorded = _read_recorded_query(table, batch.app)
                if is_already_committed(recorded, batch.version, batch.spans, _ends(table, batch.spans)):
                    return False
                if self.widen(table, batch.schema):
                    # Adding columns read the log again, and with it commits that were not checked above.
                    continue
                read_version = table.version()
                self.append_batch(table, batch, recorded.after(batch))
            except CommitFailedError:
                continue  # another writer committed: read the table again
            # Spark records the batch as committed once this call returns, so the commit must be durable
            # before.
            self._sync_log(read_version)
            return True
        raise CorruptData(f"the log of {self._folder} changes faster than it can be written")

    def files(self) -> list[str]:
        table = self.current_table()
        return [] if table is None else sorted(uri.removeprefix("file://") for uri in table.file_uris())

    def compact(self, target_bytes: int) -> CompactionResult:
        table = self.current_table()
        if table is None:
            return CompactionResult()
        read_version = table.version()
        try:
            done = table.optimize.compact(target_size=target_bytes)
        except CommitFailedError:
            return CompactionResult()  # another process is compacting
        self._sync_log(read_version)
        return CompactionResult(done["numFilesRemoved"], done["numFilesAdded"])

    def vacuum(self, *, older_than_ms: int, history_ms: int | None = None) -> list[str]:
        table = self.current_table()
        if table is None:
            return []
        # None: the table's delta.deletedFileRetentionDuration, or Delta's default of a week. Delta counts
        # whole hours, so the number is rounded up.
        hours = None if history_ms is None else -(-history_ms // HOUR_MS)
        is_enforced = history_ms is None
        # Both calls are dry runs, because Delta would also remove files in the folder that it does not own.
        # Files that a commit replaced were the table's, whichever program wrote them. Among files that no
        # commit ever named, only files of our own tasks are removed.
        replaced = table.vacuum(hours, dry_run=True, enforce_retention_duration=is_enforced, full=False)
        unnamed = table.vacuum(hours, dry_run=True, enforce_retention_duration=is_enforced, full=True)
        left = [path for path in unnamed if path not in replaced and is_penstock_file(Path(path).name)]
        gone = [self._folder / path for path in replaced]
        gone += [path for each in left if disk.modified_ms(path := self._folder / each) < older_than_ms]
        for path in gone:
            path.unlink(missing_ok=True)
        return [str(path) for path in gone]

    def close(self) -> None:
        """Do nothing: no file or connection is held open."""

    def current_table(self) -> DeltaTable | None:
        try:
            return DeltaTable(str(self._folder))
        except TableNotFoundError:
            return None

    def _create(self, schema: pa.Schema) -> DeltaTable:
        columns = [pa.field(name, PARTITION_TYPES[name]) for name in self._by.columns]
        wanted = pa.schema([*widen_schema(schema, schema), *columns])
        # First, so that the folder's name is durable before any writer commits into it.
        disk.make_folder(self._folder / LOG)
        return DeltaTable.create(
            str(self._folder), schema=wanted, partition_by=list(self._by.columns), mode="ignore"
        )

    def widen(self, table: DeltaTable, schema: pa.Schema) -> bool:
        """Add the columns that the table lacks. True if there were any."""
        read_version = table.version()
        added = new_fields(_arrow(table), schema)
        if added:
            table.alter.add_columns(Schema.from_arrow(pa.schema(added)).fields)
            self._sync_log(read_version)
        return bool(added)

    def _sync_log(self, since_version: int) -> None:
        """Sync the log entries written since `since_version`, because deltalake does not sync.

        Spark treats the batch as done once this commit returns. The log may contain another process's
        compaction that is not synced yet; its entry must not become durable before the files that it names.
        """
        log = self._folder / LOG
        for version in count(since_version):
            path = log / f"{version:020d}.json"
            if not path.exists():
                break
            self._sync_compacted(path)
            disk.sync_file(path)
        disk.sync_folder(log)

    def _sync_compacted(self, entry: Path) -> None:
        """Sync the files that a compaction wrote. deltalake writes those; all others were synced by their
        task.
        """
        files = [self._folder / name for name in _compacted_names(entry)]
        for path in files:
            if path.is_file():  # other programs may keep their files elsewhere
                disk.sync_file(path)
        for folder in {path.parent for path in files if path.is_file()}:
            disk.sync_folder(folder)

    def append_batch(self, table: DeltaTable, batch: LakeBatch, recorded: RecordedQuery) -> None:
        transactions = [Transaction(batch.app, batch.version, now_ms())]
        for partition, span in batch.spans.items():
            transactions.append(Transaction(_end_app(partition), span.end, now_ms()))
        table.create_write_transaction(
            [self._action(file) for file in batch.files],
            "append",
            table.schema(),
            list(self._by.columns),
            commit_properties=CommitProperties(
                app_transactions=transactions,
                custom_metadata={KEY: {"app": batch.app, "recorded": recorded._asdict()}},
            ),
        )

    def _action(self, file: DataFile) -> AddAction:
        return AddAction(
            path=file.path,
            size=file.bytes,
            partition_values=partition_values(file.folder),
            modification_time=now_ms(),
            data_change=True,
            stats=json.dumps({"numRecords": file.rows}),
        )


def _compacted_names(entry: Path) -> list[str]:
    """The names of files that a commit adds without adding rows, which are the results of a compaction."""
    added = [json.loads(line).get("add") for line in entry.read_bytes().splitlines()]
    return [unquote(each["path"]) for each in added if each is not None and not each["dataChange"]]


def _read_recorded_query(table: DeltaTable, app: str) -> RecordedQuery:
    """Read what the table records about the query.

    Only the batch number is essential; row and byte counts come from the table's history, for as long as
    Delta keeps it.
    """
    version = table.transaction_version(app)
    if version is None:
        return RecordedQuery()
    for commit in _history(table):
        note = commit.get(KEY)
        if isinstance(note, dict) and note.get("app") == app:
            return RecordedQuery(**note["recorded"])._replace(version=version)
    return RecordedQuery(version)


def _history(table: DeltaTable) -> Iterable[dict[str, Any]]:
    """The commits, newest first, read in two steps because the first step is nearly always enough."""
    newest = table.history(HISTORY_STEP)
    yield from newest
    if len(newest) == HISTORY_STEP:
        yield from table.history()[HISTORY_STEP:]


def _ends(table: DeltaTable, partitions: Iterable[TopicPartition]) -> EndOffsets:
    found = {partition: table.transaction_version(_end_app(partition)) for partition in partitions}
    return {partition: end for partition, end in found.items() if end is not None}


def _end_app(partition: TopicPartition) -> str:
    return f"penstock/{partition.topic}/{partition.partition}"


def _arrow(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


def now_ms() -> int:
    return time.time_ns() // 1_000_000
