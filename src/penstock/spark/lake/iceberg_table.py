"""An Iceberg table, through pyiceberg; its catalog is a SQLite file beside it.

Strategy: what a query has written and up to which offset each partition is there are properties of the
table. They change in the same commit as the snapshot that adds the files, so they outlive it. The commit
requires that those properties are still what was looked at. A requirement on the snapshot would not do: a
batch without rows changes properties alone.

Rule 1: pyiceberg must not try a failed commit again by itself, for then nobody looks whether the batch came
        meanwhile. The table says so in its properties, and `_table_for_writing` insists on it.
Rule 2: what a table leaves on disk beside its rows is bounded. Old metadata files go with each commit, and
        snapshots that are older, or more, than the table's own properties say go with every EXPIRED_AT_ONCE
        of them, together with the files that only they name. A commit that fails removes what it wrote.
Rule 3: who reads a table writes nothing. How long snapshots are kept, and how many, is said when a table is
        made, and never of one that is there: the next commit would remove what its owner meant to keep.
"""

import fcntl
import json
import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import parquet_file_to_data_file, schema_to_pyarrow
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import CommitTableResponse, StagedTable, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    RemoveSnapshotsUpdate,
    TableRequirement,
    TableUpdate,
    ValidatableTableRequirement,
)
from pyiceberg.transforms import DayTransform, HourTransform, Transform

from penstock.errors import CorruptData
from penstock.limits import DAY_MS
from penstock.spark.lake import disk
from penstock.spark.lake.compaction import CompactionTarget, merge_files, merge_groups
from penstock.spark.lake.partitioning import PartitionBy
from penstock.spark.lake.schema import in_plain_types, new_fields, widened, with_utc_timestamps
from penstock.spark.lake.table import (
    METADATA_FOLDER,
    Compacted,
    DataFile,
    EndOffsets,
    LakeBatch,
    QueryRecord,
    is_already_committed,
)
from penstock.spark.lake.task_files import check_written, columns_with_statistics, is_penstock_file
from penstock.types import TopicPartition

log = logging.getLogger("penstock.spark")

ATTEMPTS_MAX: Final = 100
NAMESPACE: Final = "lake"
NO_RETRIES: Final = {"commit.retry.num-retries": "0"}
SNAPSHOT_AGE: Final = "history.expire.max-snapshot-age-ms"
SNAPSHOTS_MIN: Final = "history.expire.min-snapshots-to-keep"
SNAPSHOT_AGE_MS: Final = 5 * DAY_MS
"""What Iceberg takes if a table does not say it."""
SNAPSHOT_AGE_MS_NEW: Final = DAY_MS
"""Of tables that are made here, and for their owners to change."""
SNAPSHOTS_MAX: Final = "penstock.history.max-snapshots"
"""A property of ours: Iceberg has one for the least number to keep, and none for the largest. Snapshots count
whatever their age. Without the property they go by age alone."""
SNAPSHOTS_MAX_NEW: Final = 300
"""Of tables that are made here, and for their owners to change. Every metadata file lists every snapshot, and
pyiceberg copies all of them some twenty times for a commit. With 300 that takes about 0.2 s of a processor;
with the 8,640 of a day of commits every 10 s it took 9 s."""
SNAPSHOTS_WARNED: Final = 1_000
"""Where a table does not bound them, its owner is told from here on, once in a process."""
METADATA_CLEANUP: Final = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.manifest-merge.enabled": "true",
}
"""Of tables that are written to here, unless they say otherwise. No snapshot goes by these."""
EXPIRED_AT_ONCE: Final = 50
METRICS: Final = "write.metadata.metrics"
DATA: Final = "data"
METADATA: Final = "metadata"
TRANSFORMS: Final[dict[PartitionBy, Transform[Any, Any]]] = {
    PartitionBy.DAY: DayTransform(),
    PartitionBy.HOUR: HourTransform(),
}


_warned_of: Final[set[Path]] = set()
"""Tables whose owners were told, since a table is opened anew for every batch."""


class AssertProperties(ValidatableTableRequirement):
    """These properties of the table are what they were when the commit was decided. None: not there."""

    type: Literal["penstock-assert-properties"] = "penstock-assert-properties"
    expected: dict[str, str | None]

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        found = {} if base_metadata is None else base_metadata.properties
        for name, value in self.expected.items():
            if found.get(name) != value:
                raise CommitFailedException(f"property {name} of the table was changed by another commit")


class AssertNeedless(ValidatableTableRequirement):
    """These snapshots are there, and no branch or tag stands for them."""

    type: Literal["penstock-assert-needless"] = "penstock-assert-needless"
    snapshot_ids: list[int]

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        wanted = set(self.snapshot_ids)
        if base_metadata is None or not wanted <= {each.snapshot_id for each in base_metadata.snapshots}:
            raise CommitFailedException("snapshots of the table were removed by another commit")
        if not wanted.isdisjoint(each.snapshot_id for each in base_metadata.refs.values()):
            raise CommitFailedException("a snapshot of the table was named by another commit")


class SyncingCatalog(SqlCatalog):
    """Pyiceberg does not sync, but SQLite does: what the catalog names must be safe before it is named.

    Neither does it remove what it wrote for a commit that failed.
    """

    _staged: Path | None = None

    def _update_and_stage_table(self, *given: Any, **named: Any) -> StagedTable:
        staged = super()._update_and_stage_table(*given, **named)
        self._staged = Path(_path(staged.metadata_location))
        return staged

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        self._staged = None
        try:
            return super().commit_table(table, requirements, updates)
        except CommitFailedException:
            added = [each.snapshot for each in updates if isinstance(each, AddSnapshotUpdate)]
            written = {path for snapshot in added for path in _own_metadata(table, snapshot)}
            for path in (*written, *([] if self._staged is None else [self._staged])):
                path.unlink(missing_ok=True)
            raise

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
    def __init__(
        self,
        folder: Path,
        by: PartitionBy,
        time_column: str,
        *,
        properties: Mapping[str, str] = METADATA_CLEANUP,
        expired_at_once: int = EXPIRED_AT_ONCE,
        snapshots_max: int = SNAPSHOTS_MAX_NEW,
        snapshots_warned: int = SNAPSHOTS_WARNED,
    ) -> None:
        """`properties` are given to a table that does not say otherwise, `snapshots_max` to a new one."""
        self._folder = folder
        self._properties = properties
        self._expired_at_once = expired_at_once
        self._snapshots_max = snapshots_max
        self._snapshots_warned = snapshots_warned
        self._by = by
        self._time_column = time_column
        self._name = (NAMESPACE, folder.name)
        self._catalog_file = folder / METADATA_FOLDER / "catalog.db"
        self._catalog: SqlCatalog | None = None

    def recorded(self, app: str) -> QueryRecord:
        table = self._table()
        return QueryRecord() if table is None else _recorded(table, app)

    def ends(self, partitions: Iterable[TopicPartition]) -> EndOffsets:
        table = self._table()
        return {} if table is None else _ends(table, partitions)

    def commit(self, batch: LakeBatch) -> bool:
        check_written((self._folder / file.path, file) for file in batch.files)
        for _ in range(ATTEMPTS_MAX):
            table = self._table_for_writing() or self._create(batch.schema)
            recorded = _recorded(table, batch.app)
            if is_already_committed(recorded, batch.version, batch.spans, _ends(table, batch.spans)):
                return False
            try:
                self._append(table, batch, recorded.after(batch))
            except CommitFailedException:
                continue  # somebody else committed: look at the table again
            if len(_expired(table, _now_ms() - _snapshot_age_ms(table))) >= self._expired_at_once:
                table = self._expire_snapshots(table, _now_ms() - _snapshot_age_ms(table))
            self._warn_of_many(table)
            return True
        raise self._too_fast()

    def _too_fast(self) -> CorruptData:
        return CorruptData(f"the table in {self._folder} changes faster than it can be written")

    def _warn_of_many(self, table: Table) -> None:
        count = len(table.snapshots())
        is_bounded = SNAPSHOTS_MAX in table.properties
        if count <= self._snapshots_warned or is_bounded or self._folder in _warned_of:
            return
        _warned_of.add(self._folder)
        log.warning(
            "the table in %s keeps %d snapshots, and every commit writes all of them out again: give it the "
            "property %s, such as %d, or a shorter %s",
            self._folder,
            count,
            SNAPSHOTS_MAX,
            SNAPSHOTS_MAX_NEW,
            SNAPSHOT_AGE,
        )

    def files(self) -> list[str]:
        table = self._table()
        return [] if table is None else [_path(each.file_path) for each in _data_files(table)]

    def compact(self, target_bytes: int) -> Compacted:
        table = self._table()
        if table is None:
            return Compacted()
        files = [self._data_file_of(_path(file.file_path), file) for file in _data_files(table)]
        before = after = 0
        for group in merge_groups(files, target_bytes):
            target = CompactionTarget(self._folder / group[0].folder, group[0].folder, _arrow(table))
            parts = [self._folder / file.path for file in group]
            one = merge_files(parts, sum(file.rows for file in group), target)
            if not self._replace_files([str(part) for part in parts], one):
                (self._folder / one.path).unlink()
                break  # somebody else compacts
            before, after = before + len(group), after + 1
        return Compacted(before, after)

    def vacuum(self, *, older_than_ms: int, history_ms: int | None = None) -> list[str]:
        table = self._table()
        if table is None:
            return []
        kept_ms = _snapshot_age_ms(table) if history_ms is None else history_ms
        ours = [path for path in (self._folder / DATA).rglob("*.parquet") if is_penstock_file(path.name)]
        found = [path for path in ours if disk.modified_ms(path) < older_than_ms]
        table = self._expire_snapshots(table.refresh(), _now_ms() - kept_ms)
        # One manifest is in many snapshots, and is read once.
        manifests = {
            each.manifest_path: each for one in table.snapshots() for each in one.manifests(table.io)
        }
        named = {_path(file.file_path) for each in manifests.values() for file in _files_in(table, each)}
        gone = [path for path in found if str(path) not in named]
        for path in gone:
            path.unlink(missing_ok=True)
        return [str(path) for path in gone]

    def _expire_snapshots(self, table: Table, before_ms: int) -> Table:
        """Without snapshots that are older or too many, and without metadata files that only they name."""
        old = _expired(table, before_ms)
        if not old:
            return table
        needless = {path for snapshot in old for path in _metadata_of(table, snapshot)}
        kept = _referencing_snapshots(table, {snapshot.snapshot_id for snapshot in old})
        ids = [snapshot.snapshot_id for snapshot in old]
        try:
            with table.transaction() as change:
                # Pyiceberg's own expire_snapshots copies all metadata once for each snapshot that goes.
                removal = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": ids})
                change._apply((removal,), (AssertNeedless(snapshot_ids=ids),))  # type: ignore[arg-type]
        except CommitFailedException:
            return table.refresh()  # somebody else committed; there is another time
        table = table.refresh()
        needless -= {path for snapshot in kept for path in _metadata_of(table, snapshot)}
        for path in needless:
            path.unlink(missing_ok=True)
        return table

    def close(self) -> None:
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None

    def _open_catalog(self) -> SqlCatalog:
        if self._catalog is None:
            uri, warehouse = f"sqlite:///{self._catalog_file}", f"file://{self._folder}"
            with self._catalog_lock():  # it makes its tables in the file, if they are not there
                self._catalog = SyncingCatalog("penstock", uri=uri, warehouse=warehouse)
        return self._catalog

    @contextmanager
    def _catalog_lock(self) -> Iterator[None]:
        """For what is done once in the life of a table, and by one process."""
        self._catalog_file.parent.mkdir(parents=True, exist_ok=True)
        with self._catalog_file.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _table(self) -> Table | None:
        if not self._catalog_file.exists():
            return None  # who only reads makes nothing
        try:
            return self._open_catalog().load_table(self._name)
        except NoSuchTableError:
            return None

    def _table_for_writing(self) -> Table | None:
        """The table, after it says what commits need."""
        for _ in range(ATTEMPTS_MAX):
            table = self._table()
            if table is None or not (wanted := self._missing_properties(table)):
                return table
            try:
                with table.transaction() as change:
                    change.set_properties(wanted)
            except CommitFailedException:
                continue  # somebody else committed, and may have set them
        raise self._too_fast()

    def _missing_properties(self, table: Table) -> dict[str, str]:
        has = table.properties
        wanted = {name: value for name, value in self._properties.items() if name not in has}
        return wanted | {name: value for name, value in NO_RETRIES.items() if has.get(name) != value}

    def _create(self, schema: pa.Schema) -> Table:
        catalog = self._open_catalog()
        disk.make_folder(self._folder / METADATA)  # first, so that whoever commits finds it named durably
        with self._catalog_lock():
            catalog.create_namespace_if_not_exists(NAMESPACE)
            if not catalog.table_exists(self._name):
                self._create_in(catalog, widened(schema, schema))
        return catalog.load_table(self._name)

    def _create_in(self, catalog: SqlCatalog, schema: pa.Schema) -> None:
        measured = [name for name in columns_with_statistics(schema) if name != self._time_column]
        properties = {
            **NO_RETRIES,
            SNAPSHOT_AGE: str(SNAPSHOT_AGE_MS_NEW),
            SNAPSHOTS_MAX: str(self._snapshots_max),
            **self._properties,
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

    def _append(self, table: Table, batch: LakeBatch, recorded: QueryRecord) -> None:
        properties = {_app_key(batch.app): json.dumps(recorded._asdict())}
        properties |= {_end_key(partition): str(span.end) for partition, span in batch.spans.items()}
        note = {"penstock.app": batch.app, "penstock.batch": str(batch.version)}
        looked_at = AssertProperties(expected={name: table.properties.get(name) for name in properties})
        with table.transaction() as change:
            # Types name those requirements that go over a wire; the catalog here is in this process.
            change._apply((), (looked_at,))  # type: ignore[arg-type]
            if new_fields(_arrow(table), batch.schema):
                with change.update_schema() as update:
                    update.union_by_name(batch.schema)
            if batch.files:
                paths = [f"file://{self._folder / file.path}" for file in batch.files]
                change.add_files(paths, snapshot_properties=note, check_duplicate_files=False)
            change.set_properties(properties)

    def _replace_files(self, parts: Sequence[str], one: DataFile) -> bool:
        """False if the table does not have all of the parts any more.

        Every batch that comes meanwhile is a conflict, and none concerns these files: it is tried again.
        """
        for _ in range(ATTEMPTS_MAX):
            table = self._table_for_writing()
            known = {} if table is None else {_path(each.file_path): each for each in _data_files(table)}
            if table is None or not known.keys() >= set(parts):
                return False
            try:
                self._replace_files_in(table, [known[part] for part in parts], one)
            except CommitFailedException:
                continue
            return True
        return False

    def _replace_files_in(self, table: Table, parts: Sequence[IcebergFile], one: DataFile) -> None:
        with table.transaction() as change:
            new = parquet_file_to_data_file(table.io, table.metadata, f"file://{self._folder / one.path}")
            with change.update_snapshot(
                snapshot_properties={"penstock.kind": "compact"}
            ).overwrite() as files:
                for part in parts:
                    files.delete_data_file(part)
                files.append_data_file(new)

    def _data_file_of(self, path: str, file: IcebergFile) -> DataFile:
        folder, _, name = str(Path(path).relative_to(self._folder)).rpartition("/")
        return DataFile(folder, name, file.record_count, file.file_size_in_bytes)


def _data_files(table: Table) -> list[IcebergFile]:
    """In the order in which they were committed."""
    snapshot = table.current_snapshot()
    manifests = [] if snapshot is None else snapshot.manifests(table.io)
    entries = [entry for each in manifests for entry in each.fetch_manifest_entry(table.io)]
    return [entry.data_file for entry in sorted(entries, key=lambda entry: entry.sequence_number or 0)]


def _files_in(table: Table, manifest: ManifestFile) -> list[IcebergFile]:
    return [entry.data_file for entry in manifest.fetch_manifest_entry(table.io)]


def _snapshot_age_ms(table: Table) -> int:
    return int(table.properties.get(SNAPSHOT_AGE, SNAPSHOT_AGE_MS))


def _expired(table: Table, before_ms: int) -> list[Snapshot]:
    """Snapshots that may go, since they are old or the oldest of too many. Neither a branch, such as the
    table as it is, nor a tag stands for them. Nothing of ours is looked up in them: positions are properties.
    """
    oldest_first = sorted(table.snapshots(), key=lambda each: each.sequence_number or 0)
    least = int(table.properties.get(SNAPSHOTS_MIN, 1))
    too_many = len(oldest_first) - int(table.properties.get(SNAPSHOTS_MAX, len(oldest_first)))
    kept = {reference.snapshot_id for reference in table.metadata.refs.values()}
    kept |= {snapshot.snapshot_id for snapshot in oldest_first[-least:]}
    can_go = [each for each in oldest_first if each.snapshot_id not in kept]
    return [each for place, each in enumerate(can_go) if place < too_many or each.timestamp_ms <= before_ms]


def _referencing_snapshots(table: Table, expired: Collection[int]) -> list[Snapshot]:
    """Snapshots that stay and that tell which metadata files of the expired ones are still needed.

    A manifest is in a snapshot and in those that follow it, until one leaves it out. So of the line that
    leads to the table as it is, the oldest that stays names whatever the others share with older ones.
    """
    line: list[Snapshot] = []
    each = table.current_snapshot()
    while each is not None and each.snapshot_id not in expired:
        line.append(each)
        parent = each.parent_snapshot_id
        each = None if parent is None else table.metadata.snapshot_by_id(parent)
    in_line = {snapshot.snapshot_id for snapshot in line}
    beside = [snapshot for snapshot in table.snapshots() if snapshot.snapshot_id not in {*expired, *in_line}]
    return [*line[-1:], *beside]


def _metadata_of(table: Table, snapshot: Snapshot) -> list[Path]:
    """The manifest list of a snapshot, and the manifests in it."""
    try:
        manifests = snapshot.manifests(table.io)
    except FileNotFoundError:
        return []  # a run that was interrupted has removed them
    return [Path(_path(each)) for each in (snapshot.manifest_list, *(one.manifest_path for one in manifests))]


def _own_metadata(table: Table, snapshot: Snapshot) -> list[Path]:
    """What was written for this snapshot alone."""
    shared = [each for each in snapshot.manifests(table.io) if each.added_snapshot_id != snapshot.snapshot_id]
    needed = {Path(_path(each.manifest_path)) for each in shared}
    return [path for path in _metadata_of(table, snapshot) if path not in needed]


def _recorded(table: Table, app: str) -> QueryRecord:
    text = table.properties.get(_app_key(app))
    return QueryRecord() if text is None else QueryRecord(**json.loads(text))


def _ends(table: Table, partitions: Iterable[TopicPartition]) -> EndOffsets:
    found = {partition: table.properties.get(_end_key(partition)) for partition in partitions}
    return {partition: int(end) for partition, end in found.items() if end is not None}


def _app_key(app: str) -> str:
    return f"penstock.app.{app}"


def _end_key(partition: TopicPartition) -> str:
    return f"penstock.end.{partition.topic}.{partition.partition}"


def _arrow(table: Table) -> pa.Schema:
    """As files are written: Iceberg's own choice would be the large types."""
    return with_utc_timestamps(in_plain_types(schema_to_pyarrow(table.schema(), include_field_ids=False)))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _path(uri: str) -> str:
    return uri.removeprefix("file://")
