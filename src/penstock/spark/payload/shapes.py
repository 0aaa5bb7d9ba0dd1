"""Conversion of Python objects to columns, a whole column at a time.

A shape describes how to reach the parts of an object and their Arrow types. Each format creates shapes for
its own objects; converting them to arrays is the same for all formats.

Rule: A part that does not fit its Arrow type raises one of CONVERSION_ERRORS, and no other exception. The
      caller finds the row by converting fewer rows.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

CONVERSION_ERRORS: Final = (pa.ArrowException, OverflowError, ValueError, TypeError)

Values = Sequence[Any]


class LeafShape(NamedTuple):
    """Shape of values without parts: numbers, texts, times."""

    kind: pa.DataType
    convert: Callable[[Values], pa.Array] | None = None
    """A conversion for objects that Arrow does not understand."""


class FieldShape(NamedTuple):
    """One field of a struct: how it is taken from the object, and its shape."""

    get: Callable[[Any], Any]
    shape: "ColumnShape"


class StructShape(NamedTuple):
    """Shape of objects with named fields."""

    kind: pa.StructType
    parts: tuple[FieldShape, ...]


class ListShape(NamedTuple):
    kind: pa.ListType
    element: "ColumnShape"


class MapShape(NamedTuple):
    kind: pa.MapType
    key: "ColumnShape"
    value: "ColumnShape"


ColumnShape = LeafShape | StructShape | ListShape | MapShape


def nullable(kind: DataType) -> DataType:
    """The same type with everything nullable: a row without a value has null in all of its columns."""
    match kind:
        case StructType():
            return StructType([nullable_field(field) for field in kind.fields])
        case ArrayType():
            return ArrayType(nullable(kind.elementType), containsNull=True)
        case MapType():
            return MapType(nullable(kind.keyType), nullable(kind.valueType), valueContainsNull=True)
        case _:
            return kind


def nullable_field(field: StructField) -> StructField:
    return StructField(field.name, nullable(field.dataType), nullable=True)


def arrow_type(kind: DataType) -> pa.DataType:
    """The Arrow type that Spark derives for a column of this type."""
    return to_arrow_type(nullable(kind), timezone="UTC")


def decimals(numbers: Values, precision: int, scale: int) -> pa.Array:
    """A decimal column from whole numbers, whose last `scale` digits are decimal places."""
    limit = 10**precision
    for number in numbers:
        if number is not None and not -limit < number < limit:
            raise ValueError(f"a number has more digits than decimal({precision},{scale})")
    whole = pa.array(numbers, pa.decimal128(precision, 0))
    # The buffer is reinterpreted with the scale, so no value is converted twice.
    return pa.Array.from_buffers(pa.decimal128(precision, scale), len(whole), whole.buffers())


def build_array(shape: ColumnShape, values: Values) -> pa.Array:
    """Convert the objects to one Arrow array of the shape's type."""
    match shape:
        case LeafShape(kind, convert):
            return pa.array(values, kind) if convert is None else convert(values)
        case StructShape():
            columns = struct_columns(shape, values)
            absent = pa.array([value is None for value in values], pa.bool_())
            return pa.StructArray.from_arrays(columns, fields=list(shape.kind), mask=absent)
        case ListShape(kind, element):
            flat = list(chain.from_iterable(value for value in values if value is not None))
            return pa.ListArray.from_arrays(_list_offsets(values), build_array(element, flat), type=kind)
        case MapShape(kind, key, value_shape):
            maps = [value for value in values if value is not None]
            keys = build_array(key, list(chain.from_iterable(maps)))
            items = build_array(value_shape, [item for value in maps for item in value.values()])
            return pa.MapArray.from_arrays(_list_offsets(values), keys, items, type=kind)


def struct_columns(shape: StructShape, values: Values) -> list[pa.Array]:
    """One array for each field of the struct. A value that is None has null in every array."""
    has_no_null = None not in values
    return [
        build_array(part.shape, list(map(part.get, values) if has_no_null else _parts(part, values)))
        for part in shape.parts
    ]


def _parts(part: FieldShape, values: Values) -> Iterable[Any]:
    return (None if value is None else part.get(value) for value in values)


def _list_offsets(values: Values) -> pa.Array:
    """Position at which each list begins in the concatenated lists. Null for a list that is None."""
    borders: list[int | None] = []
    position = 0
    for value in values:
        borders.append(None if value is None else position)
        position += 0 if value is None else len(value)
    borders.append(position)
    return pa.array(borders, pa.int32())
