"""Merging of a lake table's small files into large ones: the choice of files (pure), and the merge itself.

Table formats call this compaction. It is not Kafka's log compaction: all rows stay.

Rule 1: Only files of one folder are merged, in their order, so that the offsets of a partition keep rising
        within a file.
Rule 2: A merged file has as many rows as its parts together. Otherwise nothing is changed.
"""

import os
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import CorruptData
from penstock.limits import MIB
from penstock.spark.lake.disk import make_folder, sync_folder
from penstock.spark.lake.lake_table import DataFile
from penstock.spark.lake.schema import conform_rows
from penstock.spark.lake.task_files import ROW_GROUP_BYTES, ROW_GROUP_ROWS, parquet_writer
from penstock.spark.lake.time_partitioning import has_no_time

TARGET_BYTES: Final = 128 * MIB


def merge_groups(files: Iterable[DataFile], target_bytes: int) -> list[list[DataFile]]:
    """Groups of files to merge. Files of at least half the target size are left as they are."""
    by_folder: dict[str, list[DataFile]] = {}
    for file in files:
        if file.bytes < target_bytes // 2:
            by_folder.setdefault(file.folder, []).append(file)
    return [group for small in by_folder.values() for group in _groups(small, target_bytes) if len(group) > 1]


def _groups(files: Sequence[DataFile], target_bytes: int) -> list[list[DataFile]]:
    groups: list[list[DataFile]] = [[]]
    size = 0
    for file in files:
        if size + file.bytes > target_bytes and groups[-1]:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.bytes
    return groups


class CompactionTarget(NamedTuple):
    """Folder, schema and compression of a merged file."""

    place: Path
    """The folder in which the file is created."""
    folder: str
    """The folder to which the file belongs, as the table names it."""
    schema: pa.Schema
    compression: str = "zstd"

    @property
    def time_columns(self) -> list[str]:
        return [field.name for field in self.schema if pa.types.is_timestamp(field.type)]


def merge_files(parts: Sequence[Path], rows: int, target: CompactionTarget) -> DataFile:
    """Merge the parts into one file, which is synced together with its folder entry."""
    make_folder(target.place)
    path = target.place / f"compacted-{uuid.uuid4().hex}.parquet"
    try:
        with path.open("xb") as file:
            written = _copy(parts, file, target)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        if written != rows:
            raise CorruptData(f"{len(parts)} files that are said to hold {rows} rows hold {written}")
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    # The file's name must be durable before a commit names it.
    sync_folder(target.place)
    return DataFile(target.folder, path.name, written, size)


def _copy(parts: Sequence[Path], file: object, target: CompactionTarget) -> int:
    written = 0
    gathered: list[pa.Table] = []
    without = target.time_columns if has_no_time(target.folder) else ()
    with parquet_writer(file, target.schema, target.compression, without) as writer:
        for part in parts:
            with pq.ParquetFile(part) as source:
                for group in range(source.num_row_groups):
                    gathered.append(conform_rows(source.read_row_group(group), target.schema))
                    if _is_enough(gathered):
                        written += _flush(writer, gathered)
        written += _flush(writer, gathered)
    return written


def _is_enough(gathered: Sequence[pa.Table]) -> bool:
    rows, size = sum(each.num_rows for each in gathered), sum(each.nbytes for each in gathered)
    return bool(rows >= ROW_GROUP_ROWS or size >= ROW_GROUP_BYTES)


def _flush(writer: pq.ParquetWriter, gathered: list[pa.Table]) -> int:
    if not gathered:
        return 0
    rows = pa.concat_tables(gathered)
    gathered.clear()
    writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
    return int(rows.num_rows)
