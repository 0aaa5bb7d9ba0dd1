"""An Iceberg table, through pyiceberg; its catalog is a SQLite file beside it.

Strategy: what a query has written and up to which offset each partition is there are properties of the
table. They change in the same commit as the snapshot that adds the files, so they outlive it. The commit
requires that the table is still at the snapshot that was looked at.

Rule: pyiceberg must not try a failed commit again by itself, for then nobody looks whether the batch came
      meanwhile. The table says so in its properties, and `_table` insists on it.
"""

import fcntl
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import parquet_file_to_data_file, schema_to_pyarrow
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import DayTransform, HourTransform, Transform

from penstock.errors import CorruptData
from penstock.spark.lake import disk
from penstock.spark.lake.compaction import Target, merged, merges
from penstock.spark.lake.files import check_written, columns_with_statistics, is_ours
from penstock.spark.lake.partitioning import PartitionBy
from penstock.spark.lake.schema import in_plain_types, in_utc, new_fields, widened
from penstock.spark.lake.table import OURS, Batch, Compacted, DataFile, Ends, Recorded, holds
from penstock.types import TopicPartition

ATTEMPTS_MAX: Final = 100
NAMESPACE: Final = "lake"
NO_RETRIES: Final = {"commit.retry.num-retries": "0"}
FEW_FILES: Final = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.manifest-merge.enabled": "true",
}
"""A table that is committed to every few seconds would else be read through thousands of small files."""
METRICS: Final = "write.metadata.metrics"
DATA: Final = "data"
METADATA: Final = "metadata"
TRANSFORMS: Final[dict[PartitionBy, Transform[Any, Any]]] = {
    PartitionBy.DAY: DayTransform(),
    PartitionBy.HOUR: HourTransform(),
}


class SyncingCatalog(SqlCatalog):
    """Pyiceberg does not sync, but SQLite does: what the catalog names must be safe before it is named."""

    @staticmethod
    def _write_metadata(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        SqlCatalog._write_metadata(metadata, io, metadata_path)
        paths = [metadata_path]
        current = metadata.current_snapshot()
        if current is not None:
            new = [each for each in current.manifests(io) if each.added_snapshot_id == current.snapshot_id]
            paths += [current.manifest_list, *(each.manifest_path for each in new)]
        for path in paths:
            disk.sync_file(Path(_path(path)))
        disk.sync_folder(Path(_path(metadata_path)).parent)


class IcebergLakeTable:
    def __init__(self, folder: Path, by: PartitionBy, time_column: str) -> None:
        self._folder = folder
        self._by = by
        self._time_column = time_column
        self._name = (NAMESPACE, folder.name)
        self._catalog_file = folder / OURS / "catalog.db"
        self._catalog: SqlCatalog | None = None

    def recorded(self, app: str) -> Recorded:
        table = self._table()
        return Recorded() if table is None else _recorded(table, app)

    def ends(self, partitions: Iterable[TopicPartition]) -> Ends:
        table = self._table()
        return {} if table is None else _ends(table, partitions)

    def commit(self, batch: Batch) -> bool:
        check_written((self._folder / file.path, file) for file in batch.files)
        for _ in range(ATTEMPTS_MAX):
            table = self._table() or self._create(batch.schema)
            recorded = _recorded(table, batch.app)
            if holds(recorded, batch.version, batch.spans, _ends(table, batch.spans)):
                return False
            try:
                self._append(table, batch, recorded.after(batch))
            except CommitFailedException:
                continue  # somebody else committed: look at the table again
            return True
        raise CorruptData(f"the table in {self._folder} changes faster than it can be written")

    def files(self) -> list[str]:
        table = self._table()
        return [] if table is None else [_path(each.file_path) for each in _data_files(table)]

    def compact(self, target_bytes: int) -> Compacted:
        table = self._table()
        if table is None:
            return Compacted()
        known = {_path(file.file_path): file for file in _data_files(table)}
        files = [self._described(path, file) for path, file in known.items()]
        before = after = 0
        for group in merges(files, target_bytes):
            target = Target(self._folder / group[0].folder, group[0].folder, _arrow(table))
            parts = [self._folder / file.path for file in group]
            one = merged(parts, sum(file.rows for file in group), target)
            try:
                table = self._exchange(table, [known[str(part)] for part in parts], one)
            except CommitFailedException:
                (self._folder / one.path).unlink()
                break  # somebody else committed; there is another time
            before, after = before + len(group), after + 1
        return Compacted(before, after)

    def vacuum(self, *, older_than_ms: int) -> list[str]:
        table = self._table()
        if table is None:
            return []
        ours = [path for path in (self._folder / DATA).rglob("*.parquet") if is_ours(path.name)]
        found = [path for path in ours if disk.written_ms(path) < older_than_ms]
        table = self._without_old_snapshots(table.refresh(), older_than_ms)
        named = {
            _path(file.file_path) for snapshot in table.snapshots() for file in _data_files(table, snapshot)
        }
        gone = [path for path in found if str(path) not in named]
        for path in gone:
            path.unlink(missing_ok=True)
        return [str(path) for path in gone]

    def _without_old_snapshots(self, table: Table, older_than_ms: int) -> Table:
        """Without those that neither a branch, such as the table as it is, nor a tag stands for."""
        kept = {reference.snapshot_id for reference in table.metadata.refs.values()}
        old = [
            snapshot.snapshot_id
            for snapshot in table.snapshots()
            if snapshot.timestamp_ms < older_than_ms and snapshot.snapshot_id not in kept
        ]
        if old:
            with suppress(CommitFailedException):  # somebody else committed; there is another time
                table.maintenance.expire_snapshots().by_ids(old).commit()
        return table.refresh()

    def close(self) -> None:
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None

    def _opened(self) -> SqlCatalog:
        if self._catalog is None:
            uri, warehouse = f"sqlite:///{self._catalog_file}", f"file://{self._folder}"
            with self._alone():  # it makes its tables in the file, if they are not there
                self._catalog = SyncingCatalog("penstock", uri=uri, warehouse=warehouse)
        return self._catalog

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """For what is done once in the life of a table, and by one process."""
        self._catalog_file.parent.mkdir(parents=True, exist_ok=True)
        with self._catalog_file.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _table(self) -> Table | None:
        if not self._catalog_file.exists():
            return None  # who only reads makes nothing
        try:
            table = self._opened().load_table(self._name)
        except NoSuchTableError:
            return None
        if NO_RETRIES.items() <= table.properties.items():
            return table
        with table.transaction() as change:
            change.set_properties(NO_RETRIES)
        return table.refresh()

    def _create(self, schema: pa.Schema) -> Table:
        catalog = self._opened()
        disk.make_folder(self._folder / METADATA)  # first, so that whoever commits finds it named durably
        with self._alone():
            catalog.create_namespace_if_not_exists(NAMESPACE)
            if not catalog.table_exists(self._name):
                self._create_in(catalog, widened(schema, schema))
        return catalog.load_table(self._name)

    def _create_in(self, catalog: SqlCatalog, schema: pa.Schema) -> None:
        measured = [name for name in columns_with_statistics(schema) if name != self._time_column]
        properties = NO_RETRIES | {
            f"{METRICS}.default": "none",
            f"{METRICS}.column.{self._time_column}": "full",
        }
        properties |= {f"{METRICS}.column.{name}": "truncate(16)" for name in measured}
        transform = TRANSFORMS.get(self._by)
        with (
            catalog.create_table_transaction(
                self._name, schema, location=f"file://{self._folder}", properties=properties
            ) as creation,
            creation.update_spec() as spec,
        ):
            if transform is not None:
                spec.add_field(self._time_column, transform, f"{self._time_column}_{self._by.value}")

    def _append(self, table: Table, batch: Batch, recorded: Recorded) -> None:
        properties = {_app_key(batch.app): json.dumps(recorded._asdict())}
        properties |= {_end_key(partition): str(span.end) for partition, span in batch.spans.items()}
        note = {"penstock.app": batch.app, "penstock.batch": str(batch.version)}
        with table.transaction() as change:
            if new_fields(_arrow(table), batch.schema):
                with change.update_schema() as update:
                    update.union_by_name(batch.schema)
            if batch.files:
                paths = [f"file://{self._folder / file.path}" for file in batch.files]
                change.add_files(paths, snapshot_properties=note, check_duplicate_files=False)
            change.set_properties(properties)

    def _exchange(self, table: Table, parts: Sequence[IcebergFile], one: DataFile) -> Table:
        with table.transaction() as change:
            new = parquet_file_to_data_file(table.io, table.metadata, f"file://{self._folder / one.path}")
            with change.update_snapshot(
                snapshot_properties={"penstock.kind": "compact"}
            ).overwrite() as files:
                for part in parts:
                    files.delete_data_file(part)
                files.append_data_file(new)
        return table.refresh()

    def _described(self, path: str, file: IcebergFile) -> DataFile:
        folder, _, name = str(Path(path).relative_to(self._folder)).rpartition("/")
        return DataFile(folder, name, file.record_count, file.file_size_in_bytes)


def _data_files(table: Table, snapshot: Snapshot | None = None) -> list[IcebergFile]:
    """In the order in which they were committed."""
    snapshot = snapshot or table.current_snapshot()
    manifests = [] if snapshot is None else snapshot.manifests(table.io)
    entries = [entry for each in manifests for entry in each.fetch_manifest_entry(table.io)]
    return [entry.data_file for entry in sorted(entries, key=lambda entry: entry.sequence_number or 0)]


def _recorded(table: Table, app: str) -> Recorded:
    text = table.properties.get(_app_key(app))
    return Recorded() if text is None else Recorded(**json.loads(text))


def _ends(table: Table, partitions: Iterable[TopicPartition]) -> Ends:
    found = {partition: table.properties.get(_end_key(partition)) for partition in partitions}
    return {partition: int(end) for partition, end in found.items() if end is not None}


def _app_key(app: str) -> str:
    return f"penstock.app.{app}"


def _end_key(partition: TopicPartition) -> str:
    return f"penstock.end.{partition.topic}.{partition.partition}"


def _arrow(table: Table) -> pa.Schema:
    """As files are written: Iceberg's own choice would be the large types."""
    return in_utc(in_plain_types(schema_to_pyarrow(table.schema(), include_field_ids=False)))


def _path(uri: str) -> str:
    return uri.removeprefix("file://")
