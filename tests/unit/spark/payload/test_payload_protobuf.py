"""Protocol Buffers as columns, against the messages that wrote them."""

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.spark.payload.payload import ParsedValues, Payload

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS: dict[str, tuple[int, st.SearchStrategy[Any]]] = {
    "d": (Field.TYPE_DOUBLE, st.floats(allow_nan=False)),
    "f": (Field.TYPE_FLOAT, st.floats(width=32, allow_nan=False)),
    "i": (Field.TYPE_SINT32, st.integers(-(2**31), 2**31 - 1)),
    "l": (Field.TYPE_INT64, st.integers(-(2**63), 2**63 - 1)),
    "u": (Field.TYPE_UINT32, st.integers(0, 2**32 - 1)),
    "v": (Field.TYPE_FIXED64, st.integers(0, 2**64 - 1)),
    "b": (Field.TYPE_BOOL, st.booleans()),
    "s": (Field.TYPE_STRING, TEXT),
    "y": (Field.TYPE_BYTES, st.binary(max_size=8)),
}


def shop() -> FileDescriptorProto:
    file = FileDescriptorProto(
        name="shop.proto",
        package="shop",
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"],
    )
    state = file.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="PAID", number=3)
    line = file.message_type.add(name="Line")
    for number, (name, (kind, _)) in enumerate(SCALARS.items(), 1):
        line.field.add(name=name, number=number, type=kind, label=Field.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    once, many, message = Field.LABEL_OPTIONAL, Field.LABEL_REPEATED, Field.TYPE_MESSAGE
    order.field.add(name="id", number=1, type=Field.TYPE_INT64, label=once)
    order.field.add(name="line", number=2, type=message, type_name=".shop.Line", label=once)
    order.field.add(name="lines", number=3, type=message, type_name=".shop.Line", label=many)
    order.field.add(name="state", number=4, type=Field.TYPE_ENUM, type_name=".shop.State", label=once)
    order.field.add(name="at", number=5, type=message, type_name=".google.protobuf.Timestamp", label=once)
    order.field.add(name="note", number=6, type=message, type_name=".google.protobuf.StringValue", label=once)
    order.field.add(name="counts", number=7, type=message, type_name=".shop.Order.CountsEntry", label=many)
    order.oneof_decl.add(name="_maybe")
    order.field.add(
        name="maybe", number=8, type=Field.TYPE_INT32, label=once, oneof_index=0, proto3_optional=True
    )
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=Field.TYPE_STRING, label=once)
    entry.field.add(name="value", number=2, type=Field.TYPE_INT32, label=once)
    return file


def files(*ours: FileDescriptorProto) -> FileDescriptorSet:
    known = []
    for module in (timestamp_pb2, wrappers_pb2):
        known.append(FileDescriptorProto())
        module.DESCRIPTOR.CopyToProto(known[-1])
    return FileDescriptorSet(file=[*known, *ours])


def message_class(described: FileDescriptorSet, name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in described.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


ORDER = message_class(files(shop()), "shop.Order")


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Payload:
    path = tmp_path_factory.mktemp("protobuf") / "shop.desc"
    path.write_bytes(files(shop()).SerializeToString())
    return payload(path, "shop.Order")


def payload(path: Path, message: str | None = None) -> Payload:
    options = {"valueFormat": "protobuf", "valueSchema": str(path)}
    made = Payload.from_options(options if message is None else {**options, "valueMessage": message})
    assert made is not None
    return made


def parse(made: Payload, *values: bytes | None) -> ParsedValues:
    return made.parse(pa.array(values, pa.binary()))


def rows(made: Payload, parsed: ParsedValues) -> list[dict[str, Any]]:
    names = made.schema.fieldNames()
    columns = [column.to_pylist() for column in parsed.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def test_a_message_is_a_row(orders: Payload) -> None:
    line = "struct<d:double,f:float,i:int,l:bigint,u:bigint,v:decimal(20,0),b:boolean,s:string,y:binary>"
    assert orders.schema.simpleString() == (
        f"struct<id:bigint,line:{line},lines:array<{line}>,state:string,at:timestamp,note:string,"
        "counts:map<string,int>,maybe:int>"
    )
    full = ORDER(id=5, state=3, maybe=0, counts={"b": 1, "a": 2})
    full.at.FromJsonString("2026-03-01T00:00:00.000001999Z")
    full.note.value = ""
    parsed = parse(orders, full.SerializeToString(), b"", None, ORDER(state=9).SerializeToString())
    first, empty, absent, odd = rows(orders, parsed)
    assert first == {
        "id": 5,
        "line": None,
        "lines": [],
        "state": "PAID",
        "at": datetime.datetime(2026, 3, 1, 0, 0, 0, 1, datetime.UTC),
        "note": "",
        "counts": [("a", 2), ("b", 1)],
        "maybe": 0,
    }
    assert (empty["id"], empty["state"], empty["maybe"], empty["note"]) == (0, "NEW", None, None)
    assert set(absent.values()) == {None}
    assert odd["state"] == "9"


LINES = st.fixed_dictionaries({name: values for name, (_, values) in SCALARS.items()})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(LINES, max_size=3), line=st.none() | LINES, counts=st.dictionaries(TEXT, st.integers(0, 9))
)
def test_whatever_was_set_comes_back(
    orders: Payload, lines: list[Any], line: Any, counts: dict[str, int]
) -> None:
    value = ORDER(lines=lines, line=line, counts=counts).SerializeToString()
    parsed = parse(orders, value, value)
    assert parsed.bad == {}
    for row in rows(orders, parsed):
        assert (row["lines"], row["line"], dict(row["counts"])) == (lines, line, counts)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(st.binary(max_size=20), max_size=5))
def test_no_bytes_stop_the_decoder(orders: Payload, values: list[bytes]) -> None:
    parsed = parse(orders, *values)
    assert all(len(column) == len(values) for column in parsed.columns)


def test_what_is_no_message_is_bad_with_the_reason(orders: Payload) -> None:
    good = ORDER(id=1).SerializeToString()
    late = ORDER()
    late.at.seconds = 2**62
    far = late.SerializeToString()
    parsed = parse(orders, good, b"\x08", b"\x00\x00\x00\x00\x07\x00" + good, far, good)
    assert list(parsed.bad) == [1, 2, 3]
    assert "it is no shop.Order" in parsed.bad[1]
    assert "framed for a schema registry" in parsed.bad[2]
    assert [row["id"] for row in rows(orders, parsed)] == [1, None, None, None, 1]


def test_a_required_field_that_is_missing_makes_a_row_bad(tmp_path: Path) -> None:
    file = FileDescriptorProto(name="old.proto", syntax="proto2")
    message = file.message_type.add(name="Old")
    message.field.add(name="id", number=1, type=Field.TYPE_INT32, label=Field.LABEL_REQUIRED)
    path = tmp_path / "old.desc"
    path.write_bytes(FileDescriptorSet(file=[file]).SerializeToString())
    parsed = parse(payload(path), b"", b"\x08\x07")
    assert parsed.bad == {0: "it is no Old: it lacks id"}
    assert parsed.columns[0].to_pylist() == [None, 7]


def test_large_unsigned_numbers_keep_all_digits(orders: Payload) -> None:
    [row] = rows(orders, parse(orders, ORDER(line={"v": 2**64 - 1}).SerializeToString()))
    assert row["line"]["v"] == Decimal(2**64 - 1)


def recursive() -> FileDescriptorProto:
    file = FileDescriptorProto(name="tree.proto", syntax="proto3")
    node = file.message_type.add(name="Node")
    node.field.add(
        name="next", number=1, type=Field.TYPE_MESSAGE, type_name=".Node", label=Field.LABEL_OPTIONAL
    )
    file.message_type.add(name="Empty")
    return file


@pytest.mark.parametrize(
    ("content", "message", "problem"),
    [
        (b"\xff\xff", None, "no FileDescriptorSet; make one: protoc"),
        (b"", None, "empty FileDescriptorSet"),
        (files(shop()).SerializeToString(), None, "must say which message values are: shop.Line, shop.Order"),
        (files(shop()).SerializeToString(), "shop.Orders", "is not a message in .*; shop.Order is near"),
        (files(shop()).SerializeToString(), "Nothing", "there are shop.Line, shop.Order"),
        (
            FileDescriptorSet(file=[shop()]).SerializeToString(),
            "shop.Order",
            "timestamp.proto is not in the set",
        ),
        (files(recursive()).SerializeToString(), "Node", "field next: message Node contains itself"),
        (files(recursive()).SerializeToString(), "Empty", "has no fields"),
    ],
)
def test_a_wrong_file_or_message_is_refused(
    tmp_path: Path, content: bytes, message: str | None, problem: str
) -> None:
    path = tmp_path / "shop.desc"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=problem):
        payload(path, message)


def test_a_proto_file_is_refused_with_the_command_that_compiles_it(tmp_path: Path) -> None:
    path = tmp_path / "shop.proto"
    path.write_text('syntax = "proto3";')
    with pytest.raises(ConfigError, match=r"protoc --include_imports --descriptor_set_out"):
        payload(path)


def test_a_message_is_found_by_its_short_name(tmp_path: Path) -> None:
    path = tmp_path / "shop.desc"
    path.write_bytes(files(shop()).SerializeToString())
    assert payload(path, "Line").schema.fieldNames() == list(SCALARS)
