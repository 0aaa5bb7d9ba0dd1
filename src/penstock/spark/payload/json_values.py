"""JSON values: one decoder for the whole schema, which msgspec builds from its types.

The decoder parses and validates in one pass, rejects a value that does not fit, and returns the position of
the error. Fields that the schema does not have are ignored.

Rule 1: No value is converted. A number is no string, 1.0 is no integer, a time has a zone unless the column
        is timestamp_ntz. Only decimals may be numbers or strings.
Rule 2: Of two fields with the same name in an object, the last one counts.
"""

import datetime
import decimal
from collections.abc import Callable
from operator import attrgetter
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.spark.payload.ddl import PRECISION_MAX, parse_ddl
from penstock.spark.payload.json_schema import parse_json_schema
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

_SIMPLE: Final[dict[type[DataType], Any]] = {
    BooleanType: bool,
    FloatType: float,
    DoubleType: float,
    DecimalType: decimal.Decimal,
    StringType: str,
    BinaryType: bytes,
    DateType: datetime.date,
    TimestampType: Annotated[datetime.datetime, msgspec.Meta(tz=True)],
    TimestampNTZType: Annotated[datetime.datetime, msgspec.Meta(tz=False)],
}
_BITS: Final[dict[type[DataType], int]] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_FRAMED: Final = b"\x00"
_EXACT: Final = decimal.Context(prec=PRECISION_MAX, traps=[decimal.Inexact])
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)


class JsonReader:
    """Reader of JSON values."""

    def __init__(self, file: SchemaFile) -> None:
        is_json = file.content.lstrip().startswith((b"{", b"["))
        self.schema = parse_json_schema(file) if is_json else parse_ddl(file)
        kind = _object_type(self.schema, file)
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(kind).decode
        self.shape = _struct_shape(self.schema)

    def read(self, value: bytes) -> Any:
        return self._decode(value)

    errors: tuple[type[Exception], ...] = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

    def reason(self, value: bytes, error: Exception) -> str:
        if value.startswith(_FRAMED):
            return "it is no JSON: it begins with a zero byte, as values that a schema registry has framed"
        if isinstance(error, RecursionError):
            return "it is nested too deeply"
        return str(error)


def _object_type(struct: StructType, file: SchemaFile) -> type[msgspec.Struct]:
    """A msgspec type for a struct.

    Its Python fields are named f0, f1 ..., because JSON names may be any text.
    """
    fields: list[Any] = []
    for number, field in enumerate(struct.fields):
        kind = _python_type(field.dataType, file)
        if field.nullable:
            fields.append((f"f{number}", kind | None, msgspec.field(name=field.name, default=None)))
        else:
            fields.append((f"f{number}", kind, msgspec.field(name=field.name)))
    try:
        # These objects cannot be part of a reference cycle, so the garbage collector need not track them.
        return msgspec.defstruct("Value", fields, gc=False, kw_only=True)
    except ValueError as error:  # duplicate names, or names with quotes or control characters
        raise file.error_at(f"fields {', '.join(struct.fieldNames())}", str(error)) from None


def _python_type(kind: DataType, file: SchemaFile) -> Any:
    match kind:
        case StructType():
            return _object_type(kind, file)
        case ArrayType():
            return list[_or_null(kind.elementType, file, kind.containsNull)]  # type: ignore[misc]
        case MapType(keyType=StringType()):
            return dict[str, _or_null(kind.valueType, file, kind.valueContainsNull)]  # type: ignore[misc]
    if bits := _BITS.get(type(kind)):
        return Annotated[int, msgspec.Meta(ge=-(1 << bits - 1), le=(1 << bits - 1) - 1)]
    if type(kind) not in _SIMPLE:
        raise file.error_at("", f"{kind.simpleString()} has no form in JSON; choose another type")
    return _SIMPLE[type(kind)]


def _or_null(kind: DataType, file: SchemaFile, may_be_null: bool) -> Any:
    python = _python_type(kind, file)
    return python | None if may_be_null else python


def _struct_shape(struct: StructType) -> StructShape:
    parts = [
        FieldShape(attrgetter(f"f{number}"), _shape(each.dataType))
        for number, each in enumerate(struct.fields)
    ]
    return StructShape(arrow_type(struct), tuple(parts))


def _shape(kind: DataType) -> ColumnShape:
    arrow = arrow_type(kind)
    match kind:
        case StructType():
            return _struct_shape(kind)
        case ArrayType():
            return ListShape(arrow, _shape(kind.elementType))
        case MapType():
            return MapShape(arrow, LeafShape(pa.string()), _shape(kind.valueType))
        case TimestampType():
            return LeafShape(arrow, _instants)
        case DecimalType():
            return LeafShape(arrow, lambda values: _decimals(values, kind.precision, kind.scale))
        case FloatType():
            return LeafShape(arrow, _floats)
        case _:
            return LeafShape(arrow)


def _instants(values: Values) -> pa.Array:
    """Timestamps with zones that differ from row to row, which Arrow's own conversion rejects."""
    epoch, microsecond = _EPOCH, _MICROSECOND
    microseconds = [None if value is None else (value - epoch) // microsecond for value in values]
    return pa.array(microseconds, pa.int64()).view(pa.timestamp("us", "UTC"))


def _floats(values: Values) -> pa.Array:
    """Convert to 32-bit floats.

    A number that is too large would become infinite, which JSON does not have.
    """
    floats = pa.array(values, pa.float64()).cast(pa.float32())
    if pc.any(pc.is_inf(floats)).as_py():
        raise ValueError("a number is too large for a float")
    return floats


def _decimals(values: Values, precision: int, scale: int) -> pa.Array:
    """Convert decimals that were checked here: pyarrow crashes on exponents such as that of 1e-999999999."""
    return decimals([_digits(value, precision, scale) for value in values], precision, scale)


def _digits(value: decimal.Decimal | None, precision: int, scale: int) -> int | None:
    if value is None or not value:
        return None if value is None else 0
    if not value.is_finite() or value.adjusted() >= precision - scale:
        raise ValueError(f"a number does not fit decimal({precision},{scale})")
    try:
        return int(_EXACT.scaleb(_EXACT.quantize(value, decimal.Decimal((0, (1,), -scale))), scale))
    except decimal.Inexact:
        raise ValueError(
            f"a number has more digits behind the dot than decimal({precision},{scale})"
        ) from None
