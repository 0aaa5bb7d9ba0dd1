"""Avro values as columns, against fastavro."""

import datetime
import io
import json
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.spark.payload.payload import ParsedValues, Payload

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ORDER = {
    "type": "record",
    "name": "shop.Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]}],
}
ORDER_2 = {**ORDER, "fields": [*ORDER["fields"], {"name": "paid", "type": "boolean", "default": False}]}


def payload(schema: Any, value_format: str = "avro") -> Payload:
    said = schema if isinstance(schema, str) else json.dumps(schema)
    made = Payload.from_options({"valueFormat": value_format, "valueSchema": said})
    assert made is not None
    return made


def written(schema: Any, row: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
    return stream.getvalue()


def rows(parsed: ParsedValues) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in parsed.columns), strict=True))


def record(*types: Any) -> dict[str, Any]:
    fields = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(types)]
    return {"type": "record", "name": "Row", "fields": fields}


def parse(made: Payload, *values: bytes | None) -> ParsedValues:
    return made.parse(pa.array(values, pa.binary()))


def test_logical_types_are_columns_of_their_own() -> None:
    schema = record(
        {"type": "int", "logicalType": "date"},
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "long", "logicalType": "timestamp-micros"},
        {"type": "long", "logicalType": "local-timestamp-micros"},
        {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
        {"type": "string", "logicalType": "uuid"},
        {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]},
        {"type": "fixed", "name": "Hash", "size": 2},
        ["null", {"type": "fixed", "name": "Price", "size": 3, "logicalType": "decimal", "precision": 5}],
    )
    made = payload(schema)
    assert made.schema.simpleString() == (
        "struct<f0:date,f1:timestamp,f2:timestamp,f3:timestamp_ntz,f4:decimal(6,2),f5:string,f6:string,f7:binary,"
        "f8:decimal(5,0)>"
    )
    at = datetime.datetime(2026, 3, 1, 12, 30, 0, 5000, datetime.UTC)
    row = {
        "f0": datetime.date(1969, 12, 31),
        "f1": at,
        "f2": at,
        "f3": at.replace(tzinfo=None),
        "f4": Decimal("-1234.56"),
        "f5": "0b0e7cbb-0000-4000-8000-000000000000",
        "f6": "PAID",
        "f7": b"\x00\xff",
        "f8": Decimal(-7),
    }
    assert rows(parse(made, written(schema, row))) == [tuple(row.values())]


KINDS: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": TEXT,
    "bytes": st.binary(max_size=8),
}
LEAVES = st.sampled_from(sorted(KINDS)).map(lambda name: (name, KINDS[name]))


def compound(inside: Any) -> Any:
    arrays = inside.map(lambda each: ({"type": "array", "items": each[0]}, st.lists(each[1], max_size=3)))
    maps = inside.map(
        lambda each: ({"type": "map", "values": each[0]}, st.dictionaries(TEXT, each[1], max_size=3))
    )
    optional = LEAVES.map(lambda each: (["null", each[0]], st.none() | each[1]))
    return arrays | maps | optional


def pairs_as_dictionary(value: Any, schema: Any) -> Any:
    if isinstance(schema, dict) and schema["type"] == "map":
        return {key: pairs_as_dictionary(item, schema["values"]) for key, item in value}
    if isinstance(schema, dict) and schema["type"] == "array":
        return [pairs_as_dictionary(item, schema["items"]) for item in value]
    return value


@given(st.data())
def test_whatever_fastavro_writes_comes_back(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.recursive(LEAVES, compound, max_leaves=3), min_size=1, max_size=4))
    schema = record(*(kind for kind, _ in kinds))
    expected = data.draw(st.lists(st.tuples(*(values for _, values in kinds)), min_size=1, max_size=4))
    values = [written(schema, {f"f{n}": part for n, part in enumerate(row)}) for row in expected]
    parsed = parse(payload(schema), *values)
    assert parsed.bad == {}
    types = [field["type"] for field in schema["fields"]]
    read = [tuple(map(pairs_as_dictionary, row, types)) for row in rows(parsed)]
    assert read == expected


@given(st.lists(st.binary(max_size=24), max_size=5))
def test_no_bytes_stop_the_decoder(values: list[bytes]) -> None:
    schema = record(
        "long",
        ["null", "string"],
        {"type": "map", "values": {"type": "array", "items": "int"}},
        "bytes",
        {"type": "enum", "name": "E", "symbols": ["A"]},
        {"type": "bytes", "logicalType": "decimal", "precision": 3},
        {"type": "long", "logicalType": "timestamp-millis"},
    )
    parsed = parse(payload(schema), *values)
    assert all(len(column) == len(values) for column in parsed.columns)


def test_what_does_not_fit_is_bad_with_the_reason() -> None:
    good = written(ORDER, {"id": 1, "note": None})
    parsed = parse(payload(ORDER), good, good + b"x", b"\x02", b"", b"\x02\x08\x02a", None, good)
    assert list(parsed.bad) == [1, 2, 3, 4]
    assert "1 of its 3 bytes are left over" in parsed.bad[1]
    assert "ends too early" in parsed.bad[2]
    assert rows(parsed)[0] == rows(parsed)[6] == (1, None)


def test_a_value_beyond_what_spark_holds_is_bad_its_neighbours_not() -> None:
    schema = record(
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "bytes", "logicalType": "decimal", "precision": 2},
    )
    plain = record("long", "bytes")
    values = [(0, b"\x05"), (2**62, b"\x05"), (5, b"\x7f\xff"), (7, b"\x07")]
    parsed = parse(payload(schema), *(written(plain, {"f0": a, "f1": b}) for a, b in values))
    assert list(parsed.bad) == [1, 2]
    assert "overflow" in parsed.bad[1]
    assert "more digits than decimal(2,0)" in parsed.bad[2]
    assert [row[1] for row in rows(parsed)] == [5, None, None, 7]


# Framed values


def framed(number: int, value: bytes) -> bytes:
    return struct.pack(">BI", 0, number) + value


def test_a_framed_value_among_plain_ones_is_recognised() -> None:
    value = framed(7, written(ORDER, {"id": 1, "note": "x"}))
    [reason] = parse(payload(ORDER), value).bad.values()
    assert "may be framed (schema 7): try valueFormat avro-confluent" in reason
    assert rows(parse(payload(ORDER, "avro-confluent"), value)) == [(1, "x")]


def test_each_framed_value_is_read_with_the_schema_of_its_number(tmp_path: Path) -> None:
    (tmp_path / "v1.avsc").write_text(json.dumps(ORDER))
    (tmp_path / "v2.avsc").write_text(json.dumps(ORDER_2))
    made = payload(f"7={tmp_path}/v1.avsc, 9={tmp_path}/v2.avsc", "avro-confluent")
    parsed = parse(
        made,
        framed(7, written(ORDER, {"id": 1, "note": None})),
        framed(9, written(ORDER_2, {"id": 2, "note": None, "paid": True})),
        framed(8, b"\x02\x00"),
        b"\x02\x00",
    )
    assert rows(parsed)[:2] == [(1, None, False), (2, None, True)]
    assert "schema 8, and option valueSchema has 7, 9" in parsed.bad[2]
    assert "not framed" in parsed.bad[3]


def test_versions_that_do_more_than_add_are_refused(tmp_path: Path) -> None:
    (tmp_path / "v1.avsc").write_text(json.dumps(ORDER_2))
    (tmp_path / "v2.avsc").write_text(json.dumps(ORDER))
    with pytest.raises(ConfigError, match=r"v2\.avsc after .*v1\.avsc: field paid was removed"):
        payload(f"7={tmp_path}/v1.avsc,9={tmp_path}/v2.avsc", "avro-confluent")


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("7=a.avsc,b.avsc", "part without a number; give one file, or one for each"),
        ("7=a.avsc,7=b.avsc", "number twice"),
        ("nowhere.avsc", "no such file"),
        ('{"type": "string"}', "must be of type record"),
        ('{"type": "record"', "line 1, column 18: it is no JSON"),
        ('{"type": "record"}', "no Avro schema|name"),
        (json.dumps(record("text")), "no type text"),
        (json.dumps(record(["string", "int"])), "field f0: a column has one type.*string, int"),
        (json.dumps(record("null")), "field f0: type null makes no column"),
        (json.dumps(record({"type": "array", "items": "Row"})), r"field f0\[\]: record Row contains itself"),
        (
            json.dumps(record({"type": "record", "name": "E", "fields": []})),
            "field f0: record E has no fields",
        ),
        (json.dumps(record({"type": "fixed", "name": "E", "size": 0})), "of no bytes"),
        (json.dumps(record({"type": "bytes", "logicalType": "decimal", "precision": 40})), "38 digits"),
        (json.dumps(record({"type": "bytes", "logicalType": "decimal"})), "precision"),
    ],
)
def test_a_wrong_schema_is_refused_with_its_place(said: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        payload(said, "avro-confluent")
