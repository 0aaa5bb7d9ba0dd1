"""The description of a lake table, `_penstock/table.json`, written when the table is created.

Rule 1: A table is created only in a folder that is empty or missing. Other contents of a folder are not
        ours.
Rule 2: A caller that opens a table names the format it expects. Another format is rejected before anything
        is written.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import CorruptData
from penstock.spark.lake import disk
from penstock.spark.lake.lake_table import METADATA_FOLDER, LakeTable, LakeTableError
from penstock.spark.lake.time_partitioning import PartitionBy

FORMATS: Final = ("parquet", "delta", "iceberg")
LAYOUT: Final = 1
DATA_FOLDER: Final = {"parquet": "", "delta": "", "iceberg": "data"}
"""The subfolder of a table that holds its data files."""


class TableDescription(NamedTuple):
    """Properties of a table that never change after its creation."""

    format: str
    partition_by: PartitionBy
    time_column: str = "timestamp"


def read_description(folder: Path) -> TableDescription | None:
    """The description in a folder. None if the folder has no table."""
    path = folder / METADATA_FOLDER / "table.json"
    try:
        document = json.loads(path.read_bytes())
        if document["layout"] != LAYOUT:
            raise LakeTableError(f"{folder} was made by a version of Penstock that this one cannot read")
        return TableDescription(
            document["format"], PartitionBy(document["partition_by"]), document["time_column"]
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as problem:
        raise CorruptData(f"{path} is not what was written there: {problem!r}") from problem


def check_folder(folder: Path, expected: TableDescription) -> bool:
    """True if the folder already has this table. Rejects a folder that cannot hold it."""
    if folder.exists() and not folder.is_dir():
        raise LakeTableError(f"{folder} is a file: name a folder")
    if expected.format == "iceberg" and set(str(folder)) & set("#?%"):
        raise LakeTableError(
            f"Iceberg names files by addresses, in which # ? % mean something: rename {folder}"
        )
    there = read_description(folder)
    if there is None:
        _check_empty(folder)
        return False
    if there.format != expected.format:
        raise LakeTableError(
            f"{folder} holds a table in the format {there.format}, not {expected.format}: "
            f"give the format {there.format}, or another folder"
        )
    if there != expected:
        raise LakeTableError(
            f"the table in {folder} is partitioned by {there.partition_by.value} of {there.time_column}, "
            f"not by {expected.partition_by.value} of {expected.time_column}: ask for the same, or another"
            " folder"
        )
    return True


def check_checkpoint(folder: Path, checkpoint: Path) -> None:
    """Reject a checkpoint folder among the table's data files.

    Below the table's metadata folder it is allowed.
    """
    place, table = checkpoint.resolve(), folder.resolve()
    if place.is_relative_to(table) and not place.is_relative_to(table / METADATA_FOLDER):
        raise LakeTableError(
            f"the checkpoint {checkpoint} would lie among the files of the table: "
            f"name a folder outside of {folder}, or leave it out and it is kept in {folder / METADATA_FOLDER}"
        )


def _check_empty(folder: Path) -> None:
    # The metadata folder is allowed, because a checkpoint may be there before the table is.
    others = (
        sorted(path.name for path in folder.iterdir() if path.name != METADATA_FOLDER)
        if folder.is_dir()
        else []
    )
    if others:
        raise LakeTableError(
            f"{folder} holds no table of ours but other files ({', '.join(others[:3])}): "
            "name an empty folder or one that is not there yet"
        )


def make_table(folder: Path, expected: TableDescription) -> None:
    """Create the table unless it exists. Two processes may do this at the same time."""
    if check_folder(folder, expected):
        return
    document = {
        "layout": LAYOUT,
        "format": expected.format,
        "partition_by": expected.partition_by.value,
        "time_column": expected.time_column,
    }
    try:
        disk.make_folder(folder / METADATA_FOLDER)
        made = disk.create_once(folder / METADATA_FOLDER / "table.json", json.dumps(document).encode())
    except OSError as problem:
        raise LakeTableError(f"cannot write to {folder}: {problem.strerror or problem}") from problem
    # Another process created the description first: it must describe the same table.
    if not made:
        check_folder(folder, expected)


@contextmanager
def open_table(folder: Path) -> Iterator[LakeTable]:
    description = read_description(folder)
    if description is None:
        raise LakeTableError(f"no table is in {folder}")
    table = table_in_format(folder, description)
    try:
        yield table
    finally:
        table.close()


def table_in_format(folder: Path, description: TableDescription) -> LakeTable:
    """The implementation for a format.

    Its library is imported here, because each is large and serves one format.
    """
    if description.format == "delta":
        from penstock.spark.lake.delta_table import DeltaLakeTable

        return DeltaLakeTable(folder, description.partition_by)
    if description.format == "iceberg":
        from penstock.spark.lake.iceberg_table import IcebergLakeTable

        return IcebergLakeTable(folder, description.partition_by, description.time_column)
    from penstock.spark.lake.parquet_table import ParquetTable

    return ParquetTable(folder)
