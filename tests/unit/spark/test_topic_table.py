"""What was decoded, as columns of Spark."""

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from penstock.spark.records.decode import DecodedRecords
from penstock.spark.topic_table import TopicTable
from penstock.types import Offset, TopicPartition

MS_END = (2**63 - 1) // 1000
PARTITION = TopicPartition("orders", 0)


def microseconds(milliseconds: list[int]) -> list[int | None]:
    return column_of(StructField("timestamp", TimestampType()), milliseconds)


def column_of(field: StructField, milliseconds: list[int]) -> list[int | None]:
    table = TopicTable(StructType([field]))
    assert table.columns.timestamp
    offsets = pa.array(range(len(milliseconds)), pa.int64())
    stamps = pa.array(milliseconds, pa.int64())
    decoded = DecodedRecords(offsets, stamps, None, None, None, None, Offset(len(milliseconds)))
    column = table.record_batch(PARTITION, decoded).column(0)
    found: list[int | None] = column.cast(pa.int64()).to_pylist()
    return found


def test_times_are_those_of_records() -> None:
    assert microseconds([0, -1, 1_700_000_000_123]) == [0, -1000, 1_700_000_000_123_000]


@pytest.mark.parametrize("beyond", [-(10**16), MS_END + 1, -MS_END - 1, 2**63 - 1, -(2**63)])
def test_a_time_that_spark_cannot_hold_is_null_and_no_other_is(beyond: int) -> None:
    """Otherwise one record would stop all who read the topic, for good."""
    given = [5, beyond, MS_END, -MS_END]
    assert microseconds(given) == [5000, None, MS_END * 1000, -MS_END * 1000]
    assert column_of(StructField("timestampBeyond", LongType()), given) == [None, beyond, None, None]
