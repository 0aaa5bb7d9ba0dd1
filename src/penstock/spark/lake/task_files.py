"""The Parquet files that one attempt of a task writes.

Strategy: rows are gathered by day or hour until there are enough for a row group, and then written. Memory
is bounded by the sum of all gathered rows: above the limit, the largest group is written.

Rule 1: No two attempts ever write to the same name, so no committed file is overwritten.
Rule 2: A file that is passed on for a commit has been synced, and so has its folder entry.
"""

import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.limits import MIB
from penstock.spark.lake.disk import make_folder, sync_folder
from penstock.spark.lake.lake_table import DataFile, LakeTableError, OffsetSpan, PlannedRange
from penstock.spark.lake.schema import with_utc_timestamps
from penstock.spark.lake.time_partitioning import (
    PartitionBy,
    has_no_time,
    partition_folder,
    split_by_partition,
)
from penstock.types import TopicPartition

ROW_GROUP_ROWS: Final = 131_072
ROW_GROUP_BYTES: Final = 32 * MIB
GATHERED_BYTES_MAX: Final = 64 * MIB
OPEN_FILES_MAX: Final = 64
FILE_BYTES_MAX: Final = 512 * MIB
COMPRESSIONS: Final = ("snappy", "zstd", "none")

NAMES: Final = re.compile(r"(\d{8,}-\d{5,}-[0-9a-f]{16}-\d{3,}|compacted-[0-9a-f]{32})\.parquet")
"""Names of files that tasks write and that Penstock's own compaction writes. Delta's compaction uses names
that other writers use too (part-00000-…-c000); Delta's log lists those of the table.
"""

# Columns of records, and which encodings are worth it. Statistics of keys and values would store their
# largest values twice more; a dictionary of values saves hardly anything because values rarely repeat.
OFFSET_COLUMNS: Final = ("topic", "partition", "offset")
WITHOUT_DICTIONARY: Final = {"offset", "timestamp", "value"}
WITHOUT_STATISTICS: Final = {"key", "value"}


class FileLayout(NamedTuple):
    """How rows are divided into files, and how files are written."""

    by: PartitionBy = PartitionBy.DAY
    time_column: str = "timestamp"
    batch_column: str | None = None
    """A column to add to every row, with the number of the batch that wrote it."""
    compression: str = "snappy"


class TaskResourceLimits(NamedTuple):
    """How many bytes of rows one task holds in memory, and how many files it keeps open."""

    gathered_bytes_max: int = GATHERED_BYTES_MAX
    open_files_max: int = OPEN_FILES_MAX


TASK_RESOURCE_LIMITS: Final = TaskResourceLimits()


class TaskFiles:
    """The files of one task, all directly in `folder` if `flat`, else each in its partition's folder below
    it.
    """

    def __init__(
        self,
        folder: Path,
        shape: FileLayout,
        *,
        batch: int,
        task: int,
        flat: bool,
        limits: TaskResourceLimits = TASK_RESOURCE_LIMITS,
    ) -> None:
        self._folder = folder
        self._limits = limits
        self._shape = shape
        self._batch = batch
        self._flat = flat
        self._stem = f"{batch:08d}-{task:05d}-{uuid.uuid4().hex[:16]}"
        self._gathered: dict[int, _PendingRows] = {}
        self._open: dict[int, _OpenFile] = {}
        self._finished: list[DataFile] = []
        self._count = 0
        self.spans: dict[TopicPartition, OffsetSpan] = {}
        self.planned_ranges: list[PlannedRange] = []
        self.schema: pa.Schema | None = None
        self.lost = 0

    def set_schema(self, schema: pa.Schema) -> None:
        """Set the schema of the rows, for the case that no rows follow."""
        self.schema = self._columns(schema.empty_table()).schema

    def write(self, rows: pa.RecordBatch) -> None:
        for unit, unit_rows in split_by_partition(rows, self._shape.by, self._shape.time_column):
            gathered = self._gathered.setdefault(unit, _PendingRows())
            gathered.add(unit_rows)
            if gathered.rows >= ROW_GROUP_ROWS or gathered.bytes >= ROW_GROUP_BYTES:
                self._write_group(unit)
        # The limit is on the sum over all units: rows of many days may arrive mixed.
        while sum(each.bytes for each in self._gathered.values()) > self._limits.gathered_bytes_max:
            self._write_group(max(self._gathered, key=lambda unit: self._gathered[unit].bytes))

    def close(self) -> tuple[DataFile, ...]:
        """Write and sync everything. Returns the files that may be committed now."""
        for unit in list(self._gathered):
            self._write_group(unit)
        for unit in list(self._open):
            self._finish(unit)
        # One sync for each folder is enough: it covers the entries of all files in it.
        for folder in {file.folder for file in self._finished}:
            sync_folder(self._place(folder))
        return tuple(self._finished)

    def discard(self) -> None:
        """Delete the files after a failure."""
        for file in self._open.values():
            file.abandon()
        for finished in self._finished:
            (self._place(finished.folder) / finished.name).unlink(missing_ok=True)

    def _write_group(self, unit: int) -> None:
        rows = self._columns(pa.Table.from_batches(self._gathered.pop(unit).batches))
        self.schema = rows.schema
        add_spans(self.spans, offset_spans(rows))
        if unit not in self._open:
            if len(self._open) >= self._limits.open_files_max:
                # The oldest file is finished. Later rows of its unit go to a new file.
                self._finish(next(iter(self._open)))
            self._open[unit] = self._new_file(unit, rows.schema)
        if self._open[unit].write(rows) >= FILE_BYTES_MAX:
            self._finish(unit)

    def _columns(self, rows: pa.Table) -> pa.Table:
        rows = rows.cast(with_utc_timestamps(rows.schema))
        if self._shape.batch_column is not None:
            number = pa.repeat(pa.scalar(self._batch, pa.int64()), rows.num_rows)
            rows = rows.append_column(pa.field(self._shape.batch_column, pa.int64()), number)
        return rows

    def _new_file(self, unit: int, schema: pa.Schema) -> "_OpenFile":
        folder = partition_folder(unit, self._shape.by)
        place = self._place(folder)
        make_folder(place)
        self._count += 1
        return _OpenFile(place, folder, f"{self._stem}-{self._count:03d}.parquet", schema, self._shape)

    def _place(self, folder: str) -> Path:
        return self._folder if self._flat else self._folder / folder

    def _finish(self, unit: int) -> None:
        self._finished.append(self._open.pop(unit).close())


class _PendingRows:
    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.rows = 0
        self.bytes = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self.batches.append(rows)
        self.rows += rows.num_rows
        self.bytes += rows.nbytes


class _OpenFile:
    def __init__(self, place: Path, folder: str, name: str, schema: pa.Schema, shape: FileLayout) -> None:
        self._path = place / name
        self._facts = (folder, name)
        self._rows = 0
        # "x" fails on an existing name, so no file is ever overwritten.
        self._file = self._path.open("xb")
        # Some readers of statistics fail on times that no calendar has: see `has_no_time`.
        without = {shape.time_column} if has_no_time(folder) else set[str]()
        self._writer = parquet_writer(self._file, schema, shape.compression, without)

    def write(self, rows: pa.Table) -> int:
        """Write the rows. Returns the size of the file so far."""
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._rows += rows.num_rows
        return self._file.tell()

    def close(self) -> DataFile:
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        size = self._file.tell()
        self._file.close()
        return DataFile(*self._facts, rows=self._rows, bytes=size)

    def abandon(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


def parquet_writer(
    file: object, schema: pa.Schema, compression: str, without_statistics: Iterable[str] = ()
) -> pq.ParquetWriter:
    plain = [field.name for field in schema if not pa.types.is_nested(field.type)]
    numbers = [field.name for field in schema if _counts_up(field)]
    return pq.ParquetWriter(
        file,
        schema,
        compression=compression,
        use_dictionary=[name for name in plain if name not in WITHOUT_DICTIONARY],
        write_statistics=[name for name in columns_with_statistics(schema) if name not in without_statistics],
        column_encoding=dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
    )


def columns_with_statistics(schema: pa.Schema) -> list[str]:
    plain = [field.name for field in schema if not pa.types.is_nested(field.type)]
    return [name for name in plain if name not in WITHOUT_STATISTICS]


def _counts_up(field: pa.Field) -> bool:
    """Whether the column holds offsets or times of records, which take almost no space as differences."""
    return field.name in WITHOUT_DICTIONARY and (
        pa.types.is_int64(field.type) or pa.types.is_timestamp(field.type)
    )


def offset_spans(rows: pa.Table | pa.RecordBatch) -> dict[TopicPartition, OffsetSpan]:
    """The offsets of the rows by partition, if they have the columns for it."""
    if not set(OFFSET_COLUMNS) <= set(rows.schema.names):
        return {}
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    topic, partition, offset = OFFSET_COLUMNS
    found = rows.group_by([topic, partition]).aggregate([(offset, "min"), (offset, "max")]).to_pylist()
    return {
        TopicPartition(each[topic], each[partition]): OffsetSpan(each["offset_min"], each["offset_max"] + 1)
        for each in found
    }


def is_penstock_file(name: str) -> bool:
    """Whether the name is one that Penstock gives. Other files in a table's folder are never touched."""
    return NAMES.fullmatch(name) is not None


def check_written(files: Iterable[tuple[Path, DataFile]]) -> None:
    """LakeTableError unless the driver sees each file with the size that the task wrote."""
    for path, file in files:
        size = path.stat().st_size if path.is_file() else None
        if size is None:
            raise LakeTableError(
                f"a task wrote {file.name} and the driver does not find it in {path.parent}: "
                "driver and executors need to see the same folder"
            )
        if size != file.bytes:
            raise LakeTableError(
                f"a task wrote {file.bytes} bytes to {path} and the driver sees {size}: "
                "driver and executors need a file system on which they see the same"
            )


def add_spans(spans: dict[TopicPartition, OffsetSpan], more: Mapping[TopicPartition, OffsetSpan]) -> None:
    for partition, span in more.items():
        known = spans.get(partition, span)
        spans[partition] = OffsetSpan(min(known.start, span.start), max(known.end, span.end))


def write_all(rows: Iterator[pa.RecordBatch], files: TaskFiles) -> tuple[DataFile, ...]:
    try:
        for batch in rows:
            files.write(batch)
        return files.close()
    except BaseException:
        files.discard()
        raise
