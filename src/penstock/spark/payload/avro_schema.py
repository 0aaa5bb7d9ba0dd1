"""Conversion of an Avro schema (.avsc) to columns.

A union of null and one other type is that type, nullable. Other unions have no single column type. Logical
types decide the type of a column, while decoding uses the underlying types: numbers and bytes become times
and decimals a column at a time.

Rule: Every part of a value takes at least one byte. Otherwise a count in a few bytes could request
      unbounded memory.
"""

import copy
from operator import itemgetter
from typing import Any, Final, NamedTuple

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
from fastavro.schema import SchemaParseException, UnknownType
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.errors import ConfigError
from penstock.spark.payload.ddl import PRECISION_MAX
from penstock.spark.payload.schema_files import SchemaFile
from penstock.spark.payload.shapes import (
    ColumnShape,
    FieldShape,
    LeafShape,
    ListShape,
    MapShape,
    StructShape,
    Values,
    arrow_type,
    decimals,
)

_SIMPLE: Final[dict[str, DataType]] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
    "enum": StringType(),
    "fixed": BinaryType(),
}
_UNITS: Final = {"millis": (1000, 1), "micros": (1, 1), "nanos": (1, 1000)}


class AvroSchema(NamedTuple):
    """Columns of an Avro schema, and how decoded values become columns."""

    schema: StructType
    shape: StructShape
    decoding: Any
    """The schema that fastavro decodes with, without logical types."""


class _AvroType(NamedTuple):
    kind: DataType
    shape: ColumnShape
    may_be_null: bool = False


def parse_avro_schema(file: SchemaFile) -> AvroSchema:
    document = file.document()
    try:
        names: dict[str, Any] = {}
        parsed = fastavro.parse_schema(copy.deepcopy(document), named_schemas=names)
        decoding = fastavro.parse_schema(_without_logical_types(document))
    except UnknownType as error:
        raise file.error_at("", f"there is no type {error.name}") from None
    except SchemaParseException as error:
        raise file.error_at("", str(error)) from None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise file.error_at("", f"it is no Avro schema: {error!r}") from None
    reader = _AvroSchemaReader(file, names)
    top = reader.column_type(parsed, "", ())
    if not isinstance(top.kind, StructType) or not isinstance(top.shape, StructShape) or top.may_be_null:
        raise file.error_at("", "values must be of type record: its fields become the columns")
    return AvroSchema(top.kind, top.shape, decoding)


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical_types(each) for each in schema]
    if isinstance(schema, dict):
        return {name: _without_logical_types(each) for name, each in schema.items() if name != "logicalType"}
    return schema


class _AvroSchemaReader:
    def __init__(self, file: SchemaFile, names: dict[str, Any]) -> None:
        self._file = file
        self._names = names

    def _error_at(self, path: str, problem: str) -> ConfigError:
        return self._file.error_at(f"field {path}" if path else "", problem)

    def column_type(self, schema: Any, path: str, inside: tuple[str, ...]) -> _AvroType:
        """The column type of a schema. `inside` holds the names of the enclosing records."""
        if isinstance(schema, list):
            return self._union(schema, path, inside)
        if isinstance(schema, str):
            return self.column_type(self._names.get(schema, {"type": schema}), path, inside)
        name = schema["type"]
        if isinstance(name, dict | list):
            return self.column_type(name, path, inside)
        match name:
            case "record" | "error":
                return self._record(schema, path, inside)
            case "array":
                element = self.column_type(schema["items"], f"{path}[]", inside)
                kind: DataType = ArrayType(element.kind)
                return _AvroType(kind, ListShape(arrow_type(kind), element.shape))
            case "map":
                value = self.column_type(schema["values"], f"{path}[]", inside)
                kind = MapType(StringType(), value.kind)
                return _AvroType(kind, MapShape(arrow_type(kind), LeafShape(pa.string()), value.shape))
        if name in self._names:
            return self.column_type(self._names[name], path, inside)
        return self._leaf(name, schema, path)

    def _union(self, schemas: list[Any], path: str, inside: tuple[str, ...]) -> _AvroType:
        others = [each for each in schemas if each not in ("null", {"type": "null"})]
        if len(others) != 1:
            found = ", ".join(str(each if isinstance(each, str) else each["type"]) for each in schemas)
            raise self._error_at(path, f"a column has one type: a union is null and one other, not {found}")
        return self.column_type(others[0], path, inside)._replace(may_be_null=len(others) < len(schemas))

    def _record(self, schema: dict[str, Any], path: str, inside: tuple[str, ...]) -> _AvroType:
        name = schema["name"]
        if name in inside:
            raise self._error_at(path, f"record {name} contains itself; a table has no end then")
        if not schema["fields"]:
            raise self._error_at(path, f"record {name} has no fields, and so no columns")
        fields, parts = [], []
        for field in schema["fields"]:
            below = f"{path}.{field['name']}" if path else field["name"]
            column_type = self.column_type(field["type"], below, (*inside, name))
            is_optional = column_type.may_be_null or "default" in field
            fields.append(StructField(field["name"], column_type.kind, nullable=is_optional))
            parts.append(FieldShape(itemgetter(field["name"]), column_type.shape))
        kind = StructType(fields)
        return _AvroType(kind, StructShape(arrow_type(kind), tuple(parts)))

    def _leaf(self, name: str, schema: dict[str, Any], path: str) -> _AvroType:
        if name not in _SIMPLE:
            raise self._error_at(path, f"type {name} makes no column")
        if name == "fixed" and schema["size"] < 1:
            raise self._error_at(path, "a fixed of no bytes makes no column")
        match name, schema.get("logicalType", ""):
            case "int", "date":
                return _AvroType(DateType(), LeafShape(pa.date32(), _dates))
            case "bytes" | "fixed", "decimal":
                return self._decimal(schema, path)
            case "long", str() as logical if logical.startswith(("timestamp-", "local-timestamp-")):
                return self._time(logical)
        return _AvroType(_SIMPLE[name], LeafShape(arrow_type(_SIMPLE[name])))

    def _decimal(self, schema: dict[str, Any], path: str) -> _AvroType:
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if not isinstance(precision, int) or not isinstance(scale, int):
            raise self._error_at(path, "a decimal needs a precision, and a scale if it is not 0")
        if not 1 <= precision <= PRECISION_MAX or not 0 <= scale <= precision:
            raise self._error_at(
                path, f"decimal({precision},{scale}) is more than the 38 digits that Spark can hold"
            )
        kind = DecimalType(precision, scale)
        return _AvroType(
            kind, LeafShape(arrow_type(kind), lambda values: _decimals(values, precision, scale))
        )

    def _time(self, logical: str) -> _AvroType:
        place, _, unit = logical.rpartition("timestamp-")
        if unit not in _UNITS:
            return _AvroType(LongType(), LeafShape(pa.int64()))
        kind = TimestampNTZType() if place else TimestampType()
        arrow = arrow_type(kind)
        times, parts = _UNITS[unit]
        return _AvroType(kind, LeafShape(arrow, lambda values: _times(values, arrow, times, parts)))


def _dates(values: Values) -> pa.Array:
    return pa.array(values, pa.int32()).view(pa.date32())


def _times(values: Values, kind: pa.DataType, times: int, parts: int) -> pa.Array:
    if parts != 1:
        values = [None if value is None else value // parts for value in values]
    return pc.multiply_checked(pa.array(values, pa.int64()), times).view(kind)


def _decimals(values: Values, precision: int, scale: int) -> pa.Array:
    numbers = [None if value is None else int.from_bytes(value, signed=True) for value in values]
    return decimals(numbers, precision, scale)
