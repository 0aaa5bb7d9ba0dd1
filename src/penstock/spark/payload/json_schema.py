"""Conversion of a JSON Schema to columns.

    object with properties               struct, or the columns themselves
    object with additionalProperties     map<string, ...>
    array with items                     array
    integer, number, boolean, string     bigint, double, boolean, string
    string with format                   date-time: timestamp, date: date
    string with contentEncoding base64   binary
    integer format int32, number float   int, float

Fields that are not in `required` may be missing or null. The other keywords of JSON Schema (minimum,
pattern, enum) describe values, not columns, and are not checked.

Rule: A schema that would need more than one type for a column is an error that names its position.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import ConfigError
from penstock.spark.payload.schema_files import SchemaFile

_FORMATS: Final[dict[tuple[str, str], DataType]] = {
    ("integer", "int32"): IntegerType(),
    ("number", "float"): FloatType(),
    ("string", "date-time"): TimestampType(),
    ("string", "date"): DateType(),
    ("string", "byte"): BinaryType(),
}
_TYPES: Final[dict[str, DataType]] = {
    "integer": LongType(),
    "number": DoubleType(),
    "boolean": BooleanType(),
    "string": StringType(),
}
_ALL_TYPES: Final = (*_TYPES, "object", "array")
_CHOICES: Final = ("oneOf", "anyOf")
_UNSUPPORTED: Final = ("allOf", "not", "if", "patternProperties", "dependentSchemas", "prefixItems")


class _SchemaPath(NamedTuple):
    """A position in the file as a JSON pointer, and the references that led there."""

    pointer: str = "#"
    references: tuple[str, ...] = ()

    def __truediv__(self, name: str) -> "_SchemaPath":
        return self._replace(pointer=f"{self.pointer}/{name.replace('~', '~0').replace('/', '~1')}")


def parse_json_schema(file: SchemaFile) -> StructType:
    """The columns of a JSON Schema, or of the output of `df.schema.json()`, whose type is "struct"."""
    document = file.document()
    if not isinstance(document, dict):
        raise file.error_at("", "a JSON Schema is an object; this is none")
    if document.get("type") == "struct":
        return _spark_schema(file, document)
    kind = _JsonSchemaReader(file, document).kind(document, _SchemaPath())
    if not isinstance(kind, StructType):
        raise file.error_at("#", "the values must be objects with properties: these become the columns")
    return kind


def _spark_schema(file: SchemaFile, document: dict[str, Any]) -> StructType:
    try:
        return StructType.fromJson(document)
    except (KeyError, TypeError, ValueError, AttributeError, PySparkException) as error:
        raise file.error_at(
            "", f"it looks like a schema that Spark has written, and is none: {error!r}"
        ) from None


class _JsonSchemaReader:
    def __init__(self, file: SchemaFile, root: Mapping[str, Any]) -> None:
        self._file = file
        self._root = root

    def _error_at(self, place: _SchemaPath, problem: str) -> ConfigError:
        return self._file.error_at(place.pointer, problem)

    def kind(self, schema: object, place: _SchemaPath) -> DataType:
        if not isinstance(schema, dict):
            raise self._error_at(place, "a schema is an object here")
        if "$ref" in schema:
            return self._resolve_reference(schema["$ref"], place)
        for word in _UNSUPPORTED:
            if word in schema:
                raise self._error_at(place, f"{word} does not say one type for a column")
        for word in _CHOICES:
            if word in schema:
                return self._choose(schema[word], place / word)
        name = self._type_name(schema, place)
        if name == "object":
            return self._object(schema, place)
        if name == "array":
            if "items" not in schema:
                raise self._error_at(place, "an array needs items, the type of what is in it")
            return ArrayType(self.kind(schema["items"], place / "items"))
        if name == "string" and schema.get("contentEncoding") == "base64":
            return BinaryType()
        return _FORMATS.get((name, str(schema.get("format"))), _TYPES[name])

    def _type_name(self, schema: Mapping[str, Any], place: _SchemaPath) -> str:
        declared = schema.get("type")
        if declared is None and "properties" in schema:
            return "object"
        if declared is None and _is_text(schema.get("enum")):
            return "string"
        names = [name for name in (declared if isinstance(declared, list) else [declared]) if name != "null"]
        if declared is None or len(names) != 1:
            raise self._error_at(place, f"one type is needed, or one and null; type is {declared!r}")
        if names[0] not in _ALL_TYPES:
            raise self._error_at(
                place / "type", f"{names[0]!r} is no type; there are {', '.join(_ALL_TYPES)}"
            )
        return str(names[0])

    def _object(self, schema: Mapping[str, Any], place: _SchemaPath) -> DataType:
        properties = schema.get("properties")
        if properties is None:
            values = schema.get("additionalProperties")
            if not isinstance(values, dict):
                problem = "an object needs properties, or additionalProperties with the type of its values"
                raise self._error_at(place, problem)
            return MapType(StringType(), self.kind(values, place / "additionalProperties"))
        if not isinstance(properties, dict) or not properties:
            raise self._error_at(place / "properties", "at least one property is needed")
        required = schema.get("required", [])
        if not isinstance(required, list) or not all(name in properties for name in required):
            raise self._error_at(place / "required", "it names what is not among the properties")
        inside = place / "properties"
        return StructType(
            [
                StructField(
                    name, self.kind(each, inside / name), nullable=name not in required or _may_be_null(each)
                )
                for name, each in properties.items()
            ]
        )

    def _choose(self, choices: object, place: _SchemaPath) -> DataType:
        if not isinstance(choices, list):
            raise self._error_at(place, "a list of schemas is expected")
        left = [(number, each) for number, each in enumerate(choices) if each != {"type": "null"}]
        if len(left) != 1:
            raise self._error_at(
                place, "a column has one type: one schema is needed, and {'type': 'null'} beside it"
            )
        [(number, schema)] = left
        return self.kind(schema, place / str(number))

    def _resolve_reference(self, reference: object, place: _SchemaPath) -> DataType:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise self._error_at(place / "$ref", f"{reference!r} is not in this file, where all must be")
        if reference in place.references:
            raise self._error_at(place, f"{reference} contains itself; a table has no end then")
        found: object = self._root
        for part in reference.removeprefix("#").split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or name not in found:
                raise self._error_at(place / "$ref", f"there is no {reference}")
            found = found[name]
        return self.kind(found, _SchemaPath(reference, (*place.references, reference)))


def _may_be_null(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type")
    choices = [each for word in _CHOICES for each in schema.get(word, [])]
    return kind == "null" or (isinstance(kind, list) and "null" in kind) or {"type": "null"} in choices


def _is_text(enum: object) -> bool:
    return isinstance(enum, list) and all(each is None or isinstance(each, str) for each in enum)
