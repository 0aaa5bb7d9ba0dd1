"""What rows of counts come to."""

from typing import NamedTuple

from penstock.spark.pipelines.insights.measures import partition_loads, time_slices
from penstock.spark.pipelines.insights.numbers import PartitionLoad, TimeSlice


class Row(NamedTuple):
    slice: int | None
    partition: int
    rows: int
    bytes: int
    keyless: int
    oldest: int | None
    newest: int | None


def test_rows_without_a_time_count_and_are_in_no_slice() -> None:
    found = [Row(None, 0, 2, 20, 1, None, None), Row(1000, 0, 3, 30, 0, 1200, 1900)]
    found += [Row(None, 1, 4, 40, 0, None, None), Row(0, 0, 1, 10, 0, 700, 700)]
    assert partition_loads(found, [0, 1]) == (
        PartitionLoad(0, 6, 60, 1, 700, 1900),
        PartitionLoad(1, 4, 40, 0, None, None),
    )
    assert time_slices(found) == {1000: TimeSlice(1000, 3, 30), 0: TimeSlice(0, 1, 10)}
