"""Partitioning by time: the folder to which a row belongs.

Strategy: the times of all rows of a batch are divided into whole days or hours at once. Most batches lie
within one unit and are passed on unchanged.

Rule: Rows of two different days never share a file, even for days that no calendar has: Iceberg derives the
      partition of a file from the smallest and the largest time in it.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

DAY_US: Final = 86_400_000_000
HOUR_US: Final = 3_600_000_000
NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
UNKNOWN: Final = np.iinfo(np.int64).min
"""Stands for the day or hour of a row without a time."""


class PartitionBy(Enum):
    NONE = "none"
    DAY = "day"
    HOUR = "hour"

    @property
    def columns(self) -> tuple[str, ...]:
        return {"none": (), "day": ("date",), "hour": ("date", "hour")}[self.value]


class PartitionedRows(NamedTuple):
    """Rows of one day or hour, counted from 1970."""

    unit: int
    """The day or hour, counted from 1970."""
    rows: pa.RecordBatch


def split_by_partition(rows: pa.RecordBatch, by: PartitionBy, time_column: str) -> Iterator[PartitionedRows]:
    if by is PartitionBy.NONE or rows.num_rows == 0:
        yield PartitionedRows(0, rows)
        return
    units = _units(rows.column(time_column), DAY_US if by is PartitionBy.DAY else HOUR_US)
    first = int(units[0])
    if (units == first).all():
        yield PartitionedRows(first, rows)
        return
    # A stable sort keeps the order of offsets within each unit.
    order = np.argsort(units, kind="stable")
    ordered = units[order]
    starts = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1)]
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        yield PartitionedRows(int(ordered[start]), rows.take(pa.array(order[start:end])))


def _units(times: pa.Array, unit_us: int) -> np.ndarray:
    microseconds = times.cast(pa.timestamp("us", tz=times.type.tz)).cast(pa.int64())
    numbers = microseconds.fill_null(UNKNOWN).to_numpy(zero_copy_only=False)
    return np.where(numbers == UNKNOWN, UNKNOWN, np.floor_divide(numbers, unit_us))


def partition_folder(unit: int, by: PartitionBy) -> str:
    if by is PartitionBy.NONE:
        return ""
    moment = _moment(unit, DAY_US if by is PartitionBy.DAY else HOUR_US)
    date = NO_VALUE if moment is None else f"{moment:%Y-%m-%d}"
    if by is PartitionBy.DAY:
        return f"date={date}"
    return f"date={date}/hour={NO_VALUE if moment is None else moment.hour}"


def _moment(unit: int, unit_us: int) -> datetime | None:
    """The start of a day or hour.

    None if no calendar has it: producers may send any number as a timestamp.
    """
    try:
        moment = EPOCH + timedelta(microseconds=unit * unit_us)
    except OverflowError:
        return None
    return moment if moment.year >= 1000 else None  # years below 1000 neither sort nor parse as four digits


def partition_values(folder: str) -> dict[str, str | None]:
    """The values of the partition columns of a file, from the folder that holds it."""
    pairs = (part.split("=", 1) for part in folder.split("/") if "=" in part)
    return {column: None if value == NO_VALUE else value for column, value in pairs}


def has_no_time(folder: str) -> bool:
    """Whether the rows in this folder have no time, or one that no calendar has.

    Pyiceberg fails when it reads such a time from a file's statistics, so the file is written without them.
    """
    return NO_VALUE in folder
