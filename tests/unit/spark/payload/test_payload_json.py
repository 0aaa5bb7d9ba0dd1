"""JSON values as columns, against Python's own JSON."""

import base64
import datetime
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from penstock.errors import ConfigError
from penstock.spark.payload.ddl import parse_ddl
from penstock.spark.payload.json_schema import parse_json_schema
from penstock.spark.payload.payload import ParsedValues, Payload
from penstock.spark.payload.schema_files import SchemaFile

LONG = (-(2**63), 2**63 - 1)
# No lone surrogates: UTF-8 has none.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def payload(schema: str, **options: str) -> Payload:
    made = Payload.from_options({"valueFormat": "json", "valueSchema": schema, **options})
    assert made is not None
    return made


def parse(schema: str, *values: bytes | None) -> ParsedValues:
    return payload(schema).parse(pa.array(values, pa.binary()))


def rows(parsed: ParsedValues) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in parsed.columns), strict=True))


def test_fields_become_columns_and_unknown_ones_are_passed_over() -> None:
    parsed = parse(
        "id bigint, name string, paid boolean, amount double",
        b'{"id": 1, "name": "\xc3\xa9\\u20ac", "paid": true, "amount": 2.5, "more": {"x": [1]}}',
        b' {"amount": 3}\n',
        None,
    )
    assert rows(parsed) == [(1, "é€", True, 2.5), (None, None, None, 3.0), (None, None, None, None)]
    assert parsed.bad == {}


def test_every_type_of_spark_that_json_can_hold() -> None:
    ddl = """
        a tinyint, b smallint, c int, d float, e decimal(6,2), f binary, g date, h timestamp, i timestamp_ntz,
        j array<struct<x:int, `odd name`:string>>, k map<string, array<bigint>>
    """
    value = {
        "a": -128,
        "b": 32767,
        "c": -(2**31),
        "d": 0.5,
        "e": "1234.5",
        "f": base64.b64encode(b"\x00\xff").decode(),
        "g": "2026-02-28",
        "h": "2026-02-28T23:59:59.123456+02:00",
        "i": "2026-02-28T23:59:59",
        "j": [{"x": 1, "odd name": "y"}, None, {}],
        "k": {"one": [1, None], "none": None},
    }
    [row] = rows(parse(ddl, json.dumps(value).encode()))
    zone = datetime.timezone(datetime.timedelta(hours=2))
    assert row == (
        -128,
        32767,
        -(2**31),
        0.5,
        Decimal("1234.50"),
        b"\x00\xff",
        datetime.date(2026, 2, 28),
        datetime.datetime(2026, 2, 28, 23, 59, 59, 123456, zone),
        datetime.datetime(2026, 2, 28, 23, 59, 59),
        [{"x": 1, "odd name": "y"}, None, {"x": None, "odd name": None}],
        [("one", [1, None]), ("none", None)],
    )


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("a bigint", b'{"a": "1"}', "Expected `int | null`, got `str` - at `$.a`"),
        ("a bigint", b'{"a": 1.0}', "got `float`"),
        ("a tinyint", b'{"a": 128}', "<= 127"),
        ("a bigint", b'{"a": 9223372036854775808}', "<= 9223372036854775807"),
        ("a string", b'{"a": 1}', "got `int` - at `$.a`"),
        ("a double", b'{"a": NaN}', "malformed"),
        ("a double", b'{"a": 1e999}', "out of range"),
        ("a float", b'{"a": 1e300}', "too large for a float"),
        ("a string", b'{"a": "\xff"}', "utf-8"),
        ("a string", b'{"a": "\\ud800"}', "truncated"),
        ("a decimal(3,1)", b'{"a": 100.1}', "does not fit decimal(3,1)"),
        ("a decimal(3,1)", b'{"a": 1.25}', "more digits behind the dot"),
        ("a decimal(3,1)", b'{"a": 1e-999999999}', "more digits behind the dot"),
        ("a decimal(3,1)", b'{"a": 1e999999999}', "does not fit"),
        ("a decimal(3,1)", b'{"a": "NaN"}', "does not fit"),
        ("a timestamp", b'{"a": "2026-01-01T00:00:00"}', "timezone"),
        ("a binary", b'{"a": "*"}', "base64"),
        ("a array<int>", b'{"a": [1, "x"]}', "`$.a[1]`"),
        ("a bigint not null", b"{}", "missing required field `a`"),
        ("a bigint", b"[]", "Expected `object`, got `array`"),
        ("a bigint", b"", "truncated"),
        ("a bigint", b"{} {}", "trailing"),
        ("a bigint", b"\x00\x00\x00\x00\x07{}", "a schema registry has framed"),
        ("a bigint", b'{"b":' + b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_value_that_does_not_fit_is_bad_and_its_neighbours_are_not(
    column: str, value: bytes, reason: str
) -> None:
    good = b'{"a": null}' if "not null" not in column else b'{"a": 5}'
    parsed = parse(column, good, value, good)
    assert list(parsed.bad) == [1]
    assert reason in parsed.bad[1]
    assert len(parsed.columns[0]) == 3
    assert parsed.columns[0][1].as_py() is None
    assert parsed.columns[0][0] == parsed.columns[0][2]


def test_bad_rows_are_found_in_every_piece() -> None:
    values = [b'{"a": %d}' % number for number in range(20_000)]
    values[8191] = values[8192] = values[19_999] = b"?"
    parsed = parse("a bigint", *values)
    assert list(parsed.bad) == [8191, 8192, 19_999]
    assert parsed.columns[0][19_998].as_py() == 19_998


# Against Python's json

KINDS: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "bigint": st.integers(*LONG),
    "int": st.integers(-(2**31), 2**31 - 1),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "string": TEXT,
}
SIMPLE = st.sampled_from(sorted(KINDS)).map(lambda name: (name, KINDS[name]))


def structs(inside: Any) -> Any:
    def of(fields: dict[str, tuple[str, Any]]) -> tuple[str, Any]:
        ddl = ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, (kind, _) in fields.items())
        values = {name: st.none() | values for name, (_, values) in fields.items()}
        return f"struct<{ddl}>", st.fixed_dictionaries(values)

    characters = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='\\"')
    names = st.text(characters, min_size=1, max_size=4)
    return st.dictionaries(names, inside, min_size=1, max_size=4).map(of)


def nested(inside: Any) -> Any:
    arrays = inside.map(lambda kind: (f"array<{kind[0]}>", st.lists(st.none() | kind[1], max_size=3)))
    maps = inside.map(
        lambda kind: (f"map<string,{kind[0]}>", st.dictionaries(TEXT, st.none() | kind[1], max_size=3))
    )
    return arrays | maps | structs(inside)


TABLES = structs(st.recursive(SIMPLE, nested, max_leaves=5))


def plain(value: Any, expected: Any) -> Any:
    """Maps as dictionaries: where one is expected, there are pairs."""
    if isinstance(expected, dict) and isinstance(value, list):
        return {key: plain(item, expected[key]) for key, item in value}
    if isinstance(expected, dict) and isinstance(value, dict):
        return {key: plain(item, expected[key]) for key, item in value.items()}
    if isinstance(expected, list):
        return [plain(item, other) for item, other in zip(value, expected, strict=True)]
    return value


@given(st.data())
def test_whatever_json_writes_comes_back(data: st.DataObject) -> None:
    kind, values = data.draw(TABLES)
    written = data.draw(st.lists(values, min_size=1, max_size=5))
    file = SchemaFile("x", kind.removeprefix("struct<").removesuffix(">").encode())
    names = parse_ddl(file).fieldNames()
    if len({name.lower() for name in names}) < len(names):
        return  # Spark would not tell them apart
    ensure_ascii = data.draw(st.booleans())
    lines = [json.dumps(each, ensure_ascii=ensure_ascii).encode() for each in written]
    parsed = parse(file.text, *lines)
    assert parsed.bad == {}
    read = [dict(zip(names, row, strict=True)) for row in rows(parsed)]
    assert [plain(row, other) for row, other in zip(read, written, strict=True)] == written


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | TEXT,
    lambda inside: (
        st.lists(inside, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inside, max_size=4)
    ),
    max_leaves=8,
)


def fits(value: Any) -> bool:
    """By hand, for `a bigint, b string not null, c struct<d array<double>>`."""
    if not isinstance(value, dict) or not isinstance(value.get("b"), str) or not finite(value):
        return False
    number, struct = value.get("a"), value.get("c")
    if number is not None and (type(number) is not int or not LONG[0] <= number <= LONG[1]):
        return False
    if struct is None:
        return True
    array = struct.get("d") if isinstance(struct, dict) else 0
    if array is None:
        return True
    return isinstance(array, list) and all(each is None or type(each) in (int, float) for each in array)


def finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(finite(each) for each in value.values())
    return not isinstance(value, list) or all(finite(each) for each in value)


@given(st.lists(st.one_of(ANYTHING, st.fixed_dictionaries({"b": TEXT, "a": ANYTHING, "c": ANYTHING}))))
def test_a_row_is_good_exactly_if_it_fits_the_schema(values: list[Any]) -> None:
    parsed = parse(
        "a bigint, b string not null, c struct<d array<double>>",
        *(json.dumps(value).encode() for value in values),
    )
    assert list(parsed.bad) == [number for number, value in enumerate(values) if not fits(value)]


@given(st.decimals(allow_nan=False, allow_infinity=False) | st.decimals(-1000, 1000, places=2), st.booleans())
def test_a_decimal_keeps_its_digits_or_is_bad(number: Decimal, as_text: bool) -> None:
    text = f'"{number}"' if as_text else str(number)
    parsed = parse("a decimal(5,2)", f'{{"a": {text}}}'.encode())
    fits = abs(number) < 1000 and number == round(number, 2)
    assert rows(parsed) == [(number if fits else None,)]
    assert bool(parsed.bad) != fits


@given(st.lists(st.binary(max_size=30) | st.none(), max_size=5))
def test_no_bytes_stop_the_parser(values: list[bytes | None]) -> None:
    parsed = parse("a bigint, b array<map<string, decimal(5,2)>>", *values)
    assert all(len(column) == len(values) for column in parsed.columns)


# Schemas


def test_a_json_schema_says_the_columns(tmp_path: Path) -> None:
    file = tmp_path / "orders.json"
    file.write_text(
        json.dumps(
            {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object",
                "required": ["id", "note"],
                "properties": {
                    "id": {"type": "integer"},
                    "count": {"type": "integer", "format": "int32"},
                    "price": {"type": ["number", "null"]},
                    "note": {"type": ["string", "null"]},
                    "at": {"type": "string", "format": "date-time"},
                    "day": {"type": "string", "format": "date"},
                    "blob": {"type": "string", "contentEncoding": "base64"},
                    "state": {"enum": ["new", "paid"]},
                    "tags": {"type": "object", "additionalProperties": {"type": "string"}},
                    "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
                    "address": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/line"}]},
                },
                "$defs": {"line": {"properties": {"sku": {"type": "string"}}}},
            }
        )
    )
    made = payload(str(file))
    assert made.schema.simpleString() == (
        "struct<id:bigint,count:int,price:double,note:string,at:timestamp,day:date,blob:binary,state:string,"
        "tags:map<string,string>,lines:array<struct<sku:string>>,address:struct<sku:string>>"
    )
    assert [field.name for field in made.schema.fields if not field.nullable] == ["id"]
    assert all(field.nullable for field in made.fields())


def test_a_schema_that_spark_printed_is_one_too() -> None:
    schema = StructType.fromJson(payload("a int not null, b array<string>").schema.jsonValue())
    assert payload(schema.json()).schema == schema


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ("{", "no JSON"),
        ('{\n "type": "object",\n}', "line 3, column 1"),
        ("[]", "an object; this is none"),
        ('{"type": "string"}', "must be objects"),
        ('{"type": "object"}', "#: an object needs properties"),
        ('{"properties": {}}', "#/properties: at least one"),
        ('{"properties": {"a": 1}}', "#/properties/a: a schema is an object"),
        ('{"properties": {"a": {}}}', "#/properties/a: one type is needed"),
        ('{"properties": {"a": {"type": ["string", "integer"]}}}', "#/properties/a: one type is needed"),
        ('{"properties": {"a": {"type": "text"}}}', "#/properties/a/type: 'text' is no type"),
        ('{"properties": {"a/b": {"type": "array"}}}', "#/properties/a~1b: an array needs items"),
        ('{"properties": {"a": {"$ref": "#/$defs/x"}}}', "there is no #/\\$defs/x"),
        ('{"properties": {"a": {"$ref": "other.json"}}}', "not in this file"),
        ('{"properties": {"a": {"$ref": "#"}}}', "contains itself"),
        ('{"properties": {"a": {"oneOf": [{"type": "string"}, {"type": "integer"}]}}}', "one type"),
        ('{"properties": {"a": {"allOf": []}}}', "allOf does not say"),
        ('{"properties": {"a": {"type": "string"}}, "required": ["b"]}', "#/required"),
        ('{"type": "struct", "fields": [{"name": "a"}]}', "Spark has written"),
        ('{"properties": {"a": {"type": "string"}, "A": {"type": "string"}}}', "two columns would be named"),
    ],
)
def test_a_wrong_json_schema_is_refused_with_its_place(tmp_path: Path, document: str, problem: str) -> None:
    file = tmp_path / "orders.json"
    file.write_text(document)
    with pytest.raises(ConfigError, match=problem) as refused:
        payload(str(file))
    assert "orders.json" in str(refused.value)


@pytest.mark.parametrize(
    ("ddl", "problem"),
    [
        ("a", "line 1, column 2: 'its end' is no type"),
        ("a int,", "column 7: the name of a column is expected"),
        ("a int b int", "column 7: , is expected"),
        ("a text", "column 3: 'text' is no type"),
        ("a\n array<int", "line 2, column 11: > is expected"),
        ("a struct<>", "without fields"),
        ("a map<int, int>", "keys of a map are strings"),
        ("a decimal(39)", "38 digits"),
        ("a decimal(x)", "number of digits"),
        ("a int not", "null is expected"),
        ("a int comment x", "single quotes"),
        ("a int, a int", "fields a, a"),
        ('`a"` int', "is invalid"),
        ("a int ?", "column 7: '\\?' is not understood"),
        ("orders.avro", "end with .json"),
        (f"a {'array<' * 60}int{'>' * 60}", "too deeply"),
        ("a variant", "no type"),
    ],
)
def test_wrong_ddl_is_refused_with_its_place(ddl: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        payload(ddl)


def test_ddl_may_be_in_a_file_with_comments(tmp_path: Path) -> None:
    file = tmp_path / "orders.ddl"
    file.write_text(
        "-- orders\n id BIGINT NOT NULL COMMENT 'it''s', -- key\n `a b` Decimal(9, 2);\n".replace("''", "")
    )
    assert payload(str(file)).schema.simpleString() == "struct<id:bigint,a b:decimal(9,2)>"


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'nowhere/orders\.json'.*no such file.*on the driver"):
        payload("nowhere/orders.json")


@given(st.text(max_size=30))
def test_no_text_stops_the_parsers_of_schemas(text: str) -> None:
    for parser in (parse_ddl, parse_json_schema):
        try:
            parser(SchemaFile("x", text.encode("utf-8", "replace")))
        except ConfigError:
            continue
