"""An Iceberg table, written with pyiceberg; its catalog is a SQLite file inside the table's folder.

Strategy: what a query has written, and up to which offset of each partition, are properties of the table.
They change in the same commit as the snapshot that adds the files, and they outlive that snapshot. A commit
requires that these properties still have the values that were checked. A requirement on the snapshot would
not be enough, because a batch without rows changes properties only.

Rule 1: Pyiceberg must not retry a failed commit itself, because it would not check whether the same batch
        was committed meanwhile. A table property turns these retries off, and `_table_for_writing` sets
        that property wherever it is missing.
Rule 2: What a table leaves on disk beside its rows is bounded. Each commit removes old metadata files. When
        EXPIRED_AT_ONCE snapshots exceed the age or count in the table's own properties, a commit removes
        them and the files that only they name. A commit that fails removes what it wrote.
Rule 3: A reader of a table writes nothing. The limits for the age and number of snapshots are set when a
        table is created, never on an existing table: the next commit would remove snapshots that its owner
        meant to keep.
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
from penstock.spark.lake.lake_table import (
    METADATA_FOLDER,
    CompactionResult,
    DataFile,
    EndOffsets,
    LakeBatch,
    RecordedQuery,
    is_already_committed,
)
from penstock.spark.lake.schema import new_fields, widen_schema, with_plain_types, with_utc_timestamps
from penstock.spark.lake.task_files import check_written, columns_with_statistics, is_penstock_file
from penstock.spark.lake.time_partitioning import PartitionBy
from penstock.types import TopicPartition

log = logging.getLogger("penstock.spark")

ATTEMPTS_MAX: Final = 100
NAMESPACE: Final = "lake"
NO_RETRIES: Final = {"commit.retry.num-retries": "0"}
SNAPSHOT_AGE: Final = "history.expire.max-snapshot-age-ms"
SNAPSHOTS_MIN: Final = "history.expire.min-snapshots-to-keep"
SNAPSHOT_AGE_MS: Final = 5 * DAY_MS
"""Iceberg's default for a table without the property."""
SNAPSHOT_AGE_MS_NEW: Final = DAY_MS
"""The maximum age of snapshots in tables that are created here. Their owners may change it."""
SNAPSHOTS_MAX: Final = "penstock.history.max-snapshots"
"""A property of Penstock's: the largest number of snapshots. Iceberg only has a property for the smallest
number. Snapshots count whatever their age. Without this property they expire by age alone.
"""
SNAPSHOTS_MAX_NEW: Final = 300
"""The maximum number of snapshots in tables that are created here. Their owners may change it. Every
metadata file lists every snapshot, and pyiceberg copies all of them about twenty times for each commit.
With 300 snapshots that takes about 0.2 s of processor time; with the 8,640 of a day of commits every 10 s
it took 9 s.
"""
SNAPSHOTS_WARNED: Final = 1_000
"""Above this number a warning is logged, once in each process, if the table does not limit its snapshots."""
METADATA_CLEANUP: Final = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.manifest-merge.enabled": "true",
}
"""Properties that are set on tables written to here, unless they have values of their own. None of these
expires snapshots.
"""
EXPIRED_AT_ONCE: Final = 50
METRICS: Final = "write.metadata.metrics"
DATA: Final = "data"
METADATA: Final = "metadata"
TRANSFORMS: Final[dict[PartitionBy, Transform[Any, Any]]] = {
    PartitionBy.DAY: DayTransform(),
    PartitionBy.HOUR: HourTransform(),
}


_warned_of: Final[set[Path]] = set()
"""Tables for which the warning was logged. A table is opened again for every batch."""


class AssertProperties(ValidatableTableRequirement):
    """A commit requirement: these properties still have the values they had when the commit was decided.

    None: absent.
    """

    type: Literal["penstock-assert-properties"] = "penstock-assert-properties"
    expected: dict[str, str | None]

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        found = {} if base_metadata is None else base_metadata.properties
        for name, value in self.expected.items():
            if found.get(name) != value:
                raise CommitFailedException(f"property {name} of the table was changed by another commit")


class AssertNeedless(ValidatableTableRequirement):
    """A commit requirement: these snapshots exist, and no branch or tag refers to them."""

    type: Literal["penstock-assert-needless"] = "penstock-assert-needless"
    snapshot_ids: list[int]

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        wanted = set(self.snapshot_ids)
        if base_metadata is None or not wanted <= {each.snapshot_id for each in base_metadata.snapshots}:
            raise CommitFailedException("snapshots of the table were removed by another commit")
        if not wanted.isdisjoint(each.snapshot_id for each in base_metadata.refs.values()):
            raise CommitFailedException("a snapshot of the table was named by another commit")


class SyncingCatalog(SqlCatalog):
    """A catalog that syncs metadata files, and removes them if the commit fails. Pyiceberg does neither.

    SQLite syncs its own file, so the files that the catalog names must be durable before it names them.
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
            # Pyiceberg has written the manifests and the metadata file before it rejects the commit.
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
    """Lake table in Iceberg's format."""

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
        """`properties` are set on a table that lacks them; `snapshots_max` is set on a new table."""
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

    def recorded_query(self, app: str) -> RecordedQuery:
        table = self.current_table()
        return RecordedQuery() if table is None else _read_recorded_query(table, app)

    def ends(self, partitions: Iterable[TopicPartition]) -> EndOffsets:
        table = self.current_table()
        return {} if table is None else _ends(table, partitions)

    def commit(self, batch: LakeBatch) -> bool:
        check_written((self._folder / file.path, file) for file in batch.files)
        for _ in range(ATTEMPTS_MAX):
            table = self._table_for_writing() or self._create(batch.schema)
            recorded = _read_recorded_query(table, batch.app)
            if is_already_committed(recorded, batch.version, batch.spans, _ends(table, batch.spans)):
                return False
            try:
                self.append_batch(table, batch, recorded.after(batch))
            except CommitFailedException:
                continue  # another writer committed: read the table again
            # Snapshots expire in groups, because every expiry is one more commit.
            if (
                len(_find_expired_snapshots(table, now_ms() - _snapshot_age_ms(table)))
                >= self._expired_at_once
            ):
                table = self._expire_snapshots(table, now_ms() - _snapshot_age_ms(table))
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
        table = self.current_table()
        return [] if table is None else [_path(each.file_path) for each in _data_files(table)]

    def compact(self, target_bytes: int) -> CompactionResult:
        table = self.current_table()
        if table is None:
            return CompactionResult()
        files = [self._describe_data_file(_path(file.file_path), file) for file in _data_files(table)]
        before = after = 0
        for group in merge_groups(files, target_bytes):
            target = CompactionTarget(self._folder / group[0].folder, group[0].folder, _arrow(table))
            parts = [self._folder / file.path for file in group]
            one = merge_files(parts, sum(file.rows for file in group), target)
            if not self._replace_files([str(part) for part in parts], one):
                (self._folder / one.path).unlink()
                break  # another process is compacting
            before, after = before + len(group), after + 1
        return CompactionResult(before, after)

    def vacuum(self, *, older_than_ms: int, history_ms: int | None = None) -> list[str]:
        table = self.current_table()
        if table is None:
            return []
        kept_ms = _snapshot_age_ms(table) if history_ms is None else history_ms
        # Files are listed before the table is read again: a file committed after the listing is then named
        # by the table.
        ours = [path for path in (self._folder / DATA).rglob("*.parquet") if is_penstock_file(path.name)]
        found = [path for path in ours if disk.modified_ms(path) < older_than_ms]
        table = self._expire_snapshots(table.refresh(), now_ms() - kept_ms)
        # Most manifests belong to many snapshots, so each is read once.
        manifests = {
            each.manifest_path: each for one in table.snapshots() for each in one.manifests(table.io)
        }
        named = {
            _path(file.file_path) for each in manifests.values() for file in _read_manifest_files(table, each)
        }
        gone = [path for path in found if str(path) not in named]
        for path in gone:
            path.unlink(missing_ok=True)
        return [str(path) for path in gone]

    def _expire_snapshots(self, table: Table, before_ms: int) -> Table:
        """Expire snapshots that are too old or too many, and remove the metadata files that only they
        name.
        """
        old = _find_expired_snapshots(table, before_ms)
        if not old:
            return table
        needless = {path for snapshot in old for path in _snapshot_metadata(table, snapshot)}
        kept = _referencing_snapshots(table, {snapshot.snapshot_id for snapshot in old})
        ids = [snapshot.snapshot_id for snapshot in old]
        try:
            with table.transaction() as change:
                # Pyiceberg's own expire_snapshots copies all metadata once for each expired snapshot.
                removal = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": ids})
                # The requirement fails if another commit has put a branch or tag on one of them.
                change._apply((removal,), (AssertNeedless(snapshot_ids=ids),))  # type: ignore[arg-type]
        except CommitFailedException:
            return table.refresh()  # another writer committed; a later commit will expire them
        table = table.refresh()
        # A snapshot that stays may share manifests with an expired one.
        needless -= {path for snapshot in kept for path in _snapshot_metadata(table, snapshot)}
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
            with self._catalog_lock():  # opening creates the tables in the SQLite file
                self._catalog = SyncingCatalog("penstock", uri=uri, warehouse=warehouse)
        return self._catalog

    @contextmanager
    def _catalog_lock(self) -> Iterator[None]:
        """A lock for steps that one process makes once in the life of a table."""
        self._catalog_file.parent.mkdir(parents=True, exist_ok=True)
        with self._catalog_file.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def current_table(self) -> Table | None:
        if not self._catalog_file.exists():
            return None  # a reader creates nothing
        try:
            return self._open_catalog().load_table(self._name)
        except NoSuchTableError:
            return None

    def _table_for_writing(self) -> Table | None:
        """The table, after the properties that commits rely on have been set."""
        for _ in range(ATTEMPTS_MAX):
            table = self.current_table()
            if table is None or not (wanted := self._missing_properties(table)):
                return table
            try:
                with table.transaction() as change:
                    change.set_properties(wanted)
            except CommitFailedException:
                continue  # another writer committed, and may have set them
        raise self._too_fast()

    def _missing_properties(self, table: Table) -> dict[str, str]:
        has = table.properties
        wanted = {name: value for name, value in self._properties.items() if name not in has}
        return wanted | {name: value for name, value in NO_RETRIES.items() if has.get(name) != value}

    def _create(self, schema: pa.Schema) -> Table:
        catalog = self._open_catalog()
        # First, so that the folder's name is durable before any writer commits into it.
        disk.make_folder(self._folder / METADATA)
        with self._catalog_lock():
            catalog.create_namespace_if_not_exists(NAMESPACE)
            if not catalog.table_exists(self._name):
                self._create_in(catalog, widen_schema(schema, schema))
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

    def append_batch(self, table: Table, batch: LakeBatch, recorded: RecordedQuery) -> None:
        properties = {_app_key(batch.app): json.dumps(recorded._asdict())}
        properties |= {_end_key(partition): str(span.end) for partition, span in batch.spans.items()}
        note = {"penstock.app": batch.app, "penstock.batch": str(batch.version)}
        looked_at = AssertProperties(expected={name: table.properties.get(name) for name in properties})
        with table.transaction() as change:
            # pyiceberg's types list only requirements that go over a wire; this catalog is in the same
            # process.
            change._apply((), (looked_at,))  # type: ignore[arg-type]
            if new_fields(_arrow(table), batch.schema):
                with change.update_schema() as update:
                    update.union_by_name(batch.schema)
            if batch.files:
                paths = [f"file://{self._folder / file.path}" for file in batch.files]
                change.add_files(paths, snapshot_properties=note, check_duplicate_files=False)
            change.set_properties(properties)

    def _replace_files(self, parts: Sequence[str], one: DataFile) -> bool:
        """Commit the merged file in place of its parts. False if the table no longer has all of the parts.

        A batch that is committed meanwhile causes a conflict but does not concern these files, so the
        commit is retried.
        """
        for _ in range(ATTEMPTS_MAX):
            table = self._table_for_writing()
            known = {} if table is None else {_path(each.file_path): each for each in _data_files(table)}
            if table is None or not known.keys() >= set(parts):
                return False
            try:
                self.replace_files_in(table, [known[part] for part in parts], one)
            except CommitFailedException:
                continue
            return True
        return False

    def replace_files_in(self, table: Table, parts: Sequence[IcebergFile], one: DataFile) -> None:
        with table.transaction() as change:
            new = parquet_file_to_data_file(table.io, table.metadata, f"file://{self._folder / one.path}")
            with change.update_snapshot(
                snapshot_properties={"penstock.kind": "compact"}
            ).overwrite() as files:
                for part in parts:
                    files.delete_data_file(part)
                files.append_data_file(new)

    def _describe_data_file(self, path: str, file: IcebergFile) -> DataFile:
        folder, _, name = str(Path(path).relative_to(self._folder)).rpartition("/")
        return DataFile(folder, name, file.record_count, file.file_size_in_bytes)


def _data_files(table: Table) -> list[IcebergFile]:
    """The data files, in the order in which they were committed."""
    snapshot = table.current_snapshot()
    manifests = [] if snapshot is None else snapshot.manifests(table.io)
    entries = [entry for each in manifests for entry in each.fetch_manifest_entry(table.io)]
    return [entry.data_file for entry in sorted(entries, key=lambda entry: entry.sequence_number or 0)]


def _read_manifest_files(table: Table, manifest: ManifestFile) -> list[IcebergFile]:
    return [entry.data_file for entry in manifest.fetch_manifest_entry(table.io)]


def _snapshot_age_ms(table: Table) -> int:
    return int(table.properties.get(SNAPSHOT_AGE, SNAPSHOT_AGE_MS))


def _find_expired_snapshots(table: Table, before_ms: int) -> list[Snapshot]:
    """The snapshots to expire: those that are too old, and the oldest of too many.

    A snapshot that a branch or tag refers to stays, the current one among them. Positions of queries are
    table properties, so nothing that Penstock needs is lost with a snapshot.
    """
    oldest_first = sorted(table.snapshots(), key=lambda each: each.sequence_number or 0)
    least = int(table.properties.get(SNAPSHOTS_MIN, 1))
    too_many = len(oldest_first) - int(table.properties.get(SNAPSHOTS_MAX, len(oldest_first)))
    kept = {reference.snapshot_id for reference in table.metadata.refs.values()}
    kept |= {snapshot.snapshot_id for snapshot in oldest_first[-least:]}
    can_go = [each for each in oldest_first if each.snapshot_id not in kept]
    return [each for place, each in enumerate(can_go) if place < too_many or each.timestamp_ms <= before_ms]


def _referencing_snapshots(table: Table, expired: Collection[int]) -> list[Snapshot]:
    """The remaining snapshots that together name every metadata file still shared with an expired one.

    A manifest is in one snapshot and in those after it, until one leaves it out. So in the line that leads
    to the current snapshot, the oldest one that stays names everything that the line shares with older
    ones.
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


def _snapshot_metadata(table: Table, snapshot: Snapshot) -> list[Path]:
    """The manifest list of a snapshot, and the manifests in it."""
    try:
        manifests = snapshot.manifests(table.io)
    except FileNotFoundError:
        return []  # an earlier, interrupted expiry has removed them
    return [Path(_path(each)) for each in (snapshot.manifest_list, *(one.manifest_path for one in manifests))]


def _own_metadata(table: Table, snapshot: Snapshot) -> list[Path]:
    """The metadata files that were written for this snapshot alone."""
    shared = [each for each in snapshot.manifests(table.io) if each.added_snapshot_id != snapshot.snapshot_id]
    needed = {Path(_path(each.manifest_path)) for each in shared}
    return [path for path in _snapshot_metadata(table, snapshot) if path not in needed]


def _read_recorded_query(table: Table, app: str) -> RecordedQuery:
    text = table.properties.get(_app_key(app))
    return RecordedQuery() if text is None else RecordedQuery(**json.loads(text))


def _ends(table: Table, partitions: Iterable[TopicPartition]) -> EndOffsets:
    found = {partition: table.properties.get(_end_key(partition)) for partition in partitions}
    return {partition: int(end) for partition, end in found.items() if end is not None}


def _app_key(app: str) -> str:
    return f"penstock.app.{app}"


def _end_key(partition: TopicPartition) -> str:
    return f"penstock.end.{partition.topic}.{partition.partition}"


def _arrow(table: Table) -> pa.Schema:
    """The table's schema as files are written. Iceberg's own conversion would choose Arrow's large types."""
    return with_utc_timestamps(with_plain_types(schema_to_pyarrow(table.schema(), include_field_ids=False)))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _path(uri: str) -> str:
    return uri.removeprefix("file://")
