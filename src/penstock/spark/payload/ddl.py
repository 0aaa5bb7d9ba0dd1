"""A parser for Spark's DDL schemas: `id bigint not null, items array<struct<sku string, n int>>`.

Spark's own parser runs in the JVM, which a source's Python process cannot call.

Rule: Every message contains the position in the text.
"""

import re
from typing import Final, NamedTuple

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
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.errors import ConfigError
from penstock.spark.payload.schema_files import SchemaFile

SIMPLE: Final[dict[str, DataType]] = {
    "boolean": BooleanType(),
    "tinyint": ByteType(),
    "byte": ByteType(),
    "smallint": ShortType(),
    "short": ShortType(),
    "int": IntegerType(),
    "integer": IntegerType(),
    "bigint": LongType(),
    "long": LongType(),
    "float": FloatType(),
    "real": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "timestamp_ltz": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
}
DECIMALS: Final = ("decimal", "dec", "numeric")
PRECISION_MAX: Final = 38
_DEPTH_MAX: Final = 50
_FILES: Final = " (names of files end with .json, .ddl or .sql)"
_TOKEN: Final = re.compile(
    r"""\s+ | --[^\n]* | (?P<name>\w+) | `(?P<quoted>(?:[^`]|``)+)` | (?P<text>'(?:[^'\\]|\\.)*') """
    r"""| (?P<sign>[<>(),:;])""",
    re.VERBOSE,
)


class _Token(NamedTuple):
    text: str
    kind: str
    position: int


def parse_ddl(file: SchemaFile) -> StructType:
    fields = _DdlParser(file).fields(end="", depth=0)
    if not fields:
        raise file.error_at("", "it names no column")
    return StructType(fields)


class _DdlParser:
    def __init__(self, file: SchemaFile) -> None:
        self._file = file
        self._text = file.text
        self._tokens = self._read_tokens()
        self._next = 0

    def _read_tokens(self) -> list[_Token]:
        tokens, position = [], 0
        while position < len(self._text):
            match = _TOKEN.match(self._text, position)
            if match is None:
                raise self._error_at_position(position, f"{self._text[position]!r} is not understood{_FILES}")
            if (kind := match.lastgroup) is not None:
                text = match[kind].replace("``", "`") if kind == "quoted" else match[kind]
                tokens.append(_Token(text, kind, position))
            position = match.end()
        while tokens and tokens[-1].text == ";" and tokens[-1].kind == "sign":
            tokens.pop()
        return [*tokens, _Token("", "end", len(self._text))]

    def error_at(self, problem: str) -> ConfigError:
        return self._error_at_position(self._token.position, problem)

    def _error_at_position(self, position: int, problem: str) -> ConfigError:
        before = self._text[:position]
        line, column = before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1
        return self._file.error_at(f"line {line}, column {column}", problem)

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _accept(self, *texts: str) -> bool:
        """Whether the next token is one of these. If so, it is consumed."""
        token = self._token
        found = token.kind in ("name", "sign") and token.text.lower() in texts
        self._next += found
        return found

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            found = self._token.text or "its end"
            raise self.error_at(f"{text} is expected here, and there is {found}")

    def fields(self, *, end: str, depth: int) -> list[StructField]:
        """The fields up to `end`, which is consumed. "" is the end of the text."""
        fields: list[StructField] = []
        while not self._is_at(end):
            if fields:
                self._expect(",")
            fields.append(self._field(depth))
        self._next += 1
        return fields

    def _is_at(self, end: str) -> bool:
        if not end:
            return self._token.kind == "end"
        return self._token.kind == "sign" and self._token.text == end

    def _field(self, depth: int) -> StructField:
        token = self._token
        if token.kind not in ("name", "quoted"):
            raise self.error_at(
                f"the name of a column is expected here, and there is {token.text or 'its end'}"
            )
        self._next += 1
        self._accept(":")
        kind = self._type(depth)
        is_required = self._accept("not")
        if is_required:
            self._expect("null")
        if self._accept("comment"):
            if self._token.kind != "text":
                raise self.error_at("a comment in single quotes is expected here")
            self._next += 1
        return StructField(token.text, kind, nullable=not is_required)

    def _type(self, depth: int) -> DataType:
        token = self._token
        name = token.text.lower()
        if depth > _DEPTH_MAX:
            raise self.error_at("it is nested too deeply")
        if token.kind != "name" or name not in (*SIMPLE, *DECIMALS, "array", "map", "struct"):
            known = ", ".join(sorted({*SIMPLE, "decimal(p,s)", "array<>", "map<,>", "struct<>"}))
            raise self.error_at(f"{token.text or 'its end'!r} is no type; there are {known}{_FILES}")
        self._next += 1
        if name in SIMPLE:
            return SIMPLE[name]
        if name in DECIMALS:
            return self._decimal()
        self._expect("<")
        if name == "struct":
            return self._struct(depth)
        return self._array(depth) if name == "array" else self._map(depth)

    def _struct(self, depth: int) -> StructType:
        fields = self.fields(end=">", depth=depth + 1)
        if not fields:
            raise self.error_at("a struct without fields has no columns")
        return StructType(fields)

    def _array(self, depth: int) -> ArrayType:
        element = self._type(depth + 1)
        self._expect(">")
        return ArrayType(element)

    def _map(self, depth: int) -> MapType:
        if not isinstance(self._type(depth + 1), StringType):
            raise self.error_at("the keys of a map are strings")
        self._expect(",")
        value = self._type(depth + 1)
        self._expect(">")
        return MapType(StringType(), value)

    def _decimal(self) -> DecimalType:
        if not self._accept("("):
            return DecimalType(10, 0)
        precision = self._number()
        scale = self._number() if self._accept(",") else 0
        self._expect(")")
        if not 1 <= precision <= PRECISION_MAX or scale > precision:
            raise self.error_at(
                f"decimal({precision},{scale}) is none: 1 to 38 digits, at most all behind the dot"
            )
        return DecimalType(precision, scale)

    def _number(self) -> int:
        token = self._token
        if token.kind != "name" or not token.text.isdecimal():
            raise self.error_at("a number of digits is expected here")
        self._next += 1
        return int(token.text)
