"""A topic as a table: its columns in Spark's types and in Arrow's.

The columns are those of Spark's own Kafka source, and one more that a schema may request: BEYOND has the
time of a record in milliseconds where `timestamp` cannot hold it, and is null elsewhere. A user's schema
with fewer columns saves time: Spark requests every column of the schema from a Python source, whatever the
query uses, and columns that are not requested are not even extracted from the batches.

Rule: Data for Spark has exactly the Arrow schema that Spark derives from the table's. Spark checks the
      first batch and would misread the others.
"""

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import ConfigError
from penstock.spark.records.decode import ColumnSelection, DecodedRecords
from penstock.types import TopicPartition

HEADERS_TYPE: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
_TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS_TYPE,
}
BEYOND: Final = "timestampBeyond"
_HEADERS: Final = "headers"
_US_PER_MS: Final = 1000
_MS_END: Final = ((1 << 63) - 1) // _US_PER_MS
"""Spark stores microseconds in 64 bits."""


def full_schema(*, include_headers: bool, include_beyond: bool = False) -> StructType:
    names = [name for name in _TYPES if include_headers or name != _HEADERS]
    beyond = [StructField(BEYOND, LongType())] if include_beyond else []
    return StructType([StructField(name, _TYPES[name]) for name in names] + beyond)


class ValueColumns(Protocol):
    """Parser of record values into columns, which `payload.Payload` implements."""

    def fields(self) -> list[StructField]: ...

    def needs_headers(self, wanted: Collection[str]) -> bool: ...

    def columns(
        self, partition: TopicPartition, decoded: DecodedRecords, wanted: Collection[str]
    ) -> dict[str, pa.Array]: ...


class TopicTable:
    """The columns that a query requests, made from decoded records."""

    def __init__(self, schema: StructType, payload: ValueColumns | None = None) -> None:
        self._schema = schema
        self._payload = payload
        fields = [] if payload is None else payload.fields()
        _check(schema, _TYPES | {BEYOND: LongType()} | {field.name: field.dataType for field in fields})
        self._of_payload = {field.name for field in fields} & set(schema.fieldNames())

    @property
    def columns(self) -> ColumnSelection:
        wanted = set(self._schema.fieldNames())
        all_of_it = self._payload is not None and self._payload.needs_headers(self._of_payload)
        return ColumnSelection(
            key="key" in wanted or all_of_it,
            value="value" in wanted or bool(self._of_payload),
            headers=_HEADERS in wanted or all_of_it,
            timestamp=bool({"timestamp", BEYOND} & wanted),
            timestamp_type="timestampType" in wanted,
        )

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        return to_arrow_schema(self._schema, timezone="UTC")

    def record_batch(self, partition: TopicPartition, decoded: DecodedRecords) -> pa.RecordBatch:
        of_payload: dict[str, pa.Array] = {}
        if self._payload is not None and self._of_payload:
            of_payload = self._payload.columns(partition, decoded, self._of_payload)
        arrays = []
        for field in self.arrow_schema:
            array = of_payload.get(field.name)
            if array is None:
                array = _column(field.name, partition, decoded)
            arrays.append(array if array.type == field.type else array.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)


def _column(name: str, partition: TopicPartition, decoded: DecodedRecords) -> pa.Array:
    count = len(decoded.offsets)
    match name:
        case "key":
            return decoded.keys
        case "value":
            return decoded.values
        case "offset":
            return decoded.offsets
        case "topic":
            return pa.repeat(pa.scalar(partition.topic, pa.string()), count)
        case "partition":
            return pa.repeat(pa.scalar(partition.partition, pa.int32()), count)
        case "timestamp":
            return _timestamps(decoded.timestamps_ms)
        case "timestampBeyond":
            return _beyond(decoded.timestamps_ms)
        case "timestampType":
            return decoded.timestamp_types
        case _:
            return decoded.headers


def _timestamps(milliseconds: pa.Int64Array) -> pa.Array:
    """Timestamps, null where one does not fit: one such record must not block every reader of the topic."""
    try:
        us = pc.multiply_checked(milliseconds, _US_PER_MS)
    except pa.ArrowInvalid:
        us = pc.multiply(pc.if_else(_fits(milliseconds), milliseconds, None), _US_PER_MS)
    return us.view(pa.timestamp("us", "UTC"))


def _beyond(milliseconds: pa.Int64Array) -> pa.Array:
    """The milliseconds where `_timestamps` has null."""
    return pc.if_else(_fits(milliseconds), None, milliseconds)


def _fits(milliseconds: pa.Int64Array) -> pa.Array:
    return pc.and_(pc.greater_equal(milliseconds, -_MS_END), pc.less_equal(milliseconds, _MS_END))


def _check(schema: StructType, known: Mapping[str, DataType]) -> None:
    for field in schema.fields:
        if field.name not in known:
            raise ConfigError(f"a topic has no column {field.name}; its columns are {', '.join(known)}")
        expected = known[field.name]
        # SimpleString does not contain nullability.
        if field.dataType.simpleString() != expected.simpleString():
            raise ConfigError(
                f"column {field.name} of a topic is {expected.simpleString()}, "
                f"and the schema says {field.dataType.simpleString()}; use its own type, and cast later"
            )
