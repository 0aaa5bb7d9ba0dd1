"""Conversion of a message in a FileDescriptorSet to columns.

    protoc --include_imports --descriptor_set_out=orders.desc orders.proto

    repeated, map                   array, map
    message, group                  struct
    enum                            string: the name, or the number if it has none
    uint32, fixed32                 bigint
    uint64, fixed64                 decimal(20,0)
    google.protobuf.Timestamp       timestamp
    google.protobuf.*Value          the wrapped type, nullable

A field with presence (`optional`, a message, one of a oneof) is null when absent. Any other field then has
its default, as Protocol Buffers define it.
"""

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from operator import attrgetter
from typing import Any, Final, NamedTuple

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
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
from penstock.spark.payload.settings import MESSAGE_OPTION
from penstock.spark.payload.shapes import (
    ColumnShape,
    FieldShape,
    LeafShape,
    ListShape,
    MapShape,
    StructShape,
    Values,
    arrow_type,
)

_MAKE: Final = "protoc --include_imports --descriptor_set_out=FILE.desc FILE.proto"
_OURS_NOT: Final = "google.protobuf."
_LEAVES: Final[dict[int, DataType]] = {
    FieldDescriptor.CPPTYPE_BOOL: BooleanType(),
    FieldDescriptor.CPPTYPE_INT32: IntegerType(),
    FieldDescriptor.CPPTYPE_UINT32: LongType(),
    FieldDescriptor.CPPTYPE_INT64: LongType(),
    FieldDescriptor.CPPTYPE_UINT64: DecimalType(20, 0),
    FieldDescriptor.CPPTYPE_FLOAT: FloatType(),
    FieldDescriptor.CPPTYPE_DOUBLE: DoubleType(),
    FieldDescriptor.CPPTYPE_STRING: StringType(),
}
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)


class MessageSchema(NamedTuple):
    """Columns of a message, and how decoded messages become columns."""

    schema: StructType
    shape: StructShape
    message: Any
    """The message class."""
    has_required: bool


class _ProtobufType(NamedTuple):
    kind: DataType
    shape: ColumnShape


def parse_protobuf_schema(file: SchemaFile, message: str | None) -> MessageSchema:
    if file.name.endswith(".proto"):
        raise file.error_at("", f"a compiled file is needed: {_MAKE}")
    described = descriptor_pb2.FileDescriptorSet()
    try:
        described.ParseFromString(file.content)
    except DecodeError:
        raise file.error_at("", f"it is no FileDescriptorSet; make one: {_MAKE}") from None
    if not described.file:
        raise file.error_at("", f"it is an empty FileDescriptorSet; make one: {_MAKE}")
    pool = _pool(file, described)
    descriptor = pool.FindMessageTypeByName(_choose_message(file, described, message))
    kind, shape = _MessageReader(file).record(descriptor, "", ())
    return MessageSchema(kind, shape, message_factory.GetMessageClass(descriptor), _has_required(descriptor))


def _pool(file: SchemaFile, described: descriptor_pb2.FileDescriptorSet) -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    there: set[str] = set()
    for each in described.file:
        # A file must come after its imports, which is the order in which protoc writes them.
        if lacking := [name for name in each.dependency if name not in there]:
            raise file.error_at(each.name, f"{lacking[0]} is not in the set; make it with imports: {_MAKE}")
        try:
            pool.AddSerializedFile(each.SerializeToString())
        except (TypeError, DecodeError) as error:
            raise file.error_at(each.name, f"{error}".strip()) from None
        there.add(each.name)
    return pool


def _choose_message(file: SchemaFile, described: descriptor_pb2.FileDescriptorSet, wanted: str | None) -> str:
    names = [
        name
        for each in described.file
        for name in _message_names(each.package, each.message_type)
        if not name.startswith(_OURS_NOT)
    ]
    if wanted is None:
        if len(names) == 1:
            return names[0]
        raise ConfigError(f"option {MESSAGE_OPTION} must say which message values are: {_list_names(names)}")
    full = [name for name in names if name == wanted or name.endswith(f".{wanted}")]
    if wanted in full or len(full) == 1:
        return wanted if wanted in full else full[0]
    near = get_close_matches(wanted, names, n=1)
    hint = f"; {near[0]} is near" if near else f"; there are {_list_names(names)}"
    problem = "is not a message" if not full else "is more than one message"
    raise ConfigError(f"option {MESSAGE_OPTION} is {wanted!r}, which {problem} in {file.name}{hint}")


def _message_names(package: str, messages: Any) -> Iterator[str]:
    for message in messages:
        if not message.options.map_entry:
            name = f"{package}.{message.name}" if package else message.name
            yield name
            yield from _message_names(name, message.nested_type)


def _list_names(names: list[str]) -> str:
    return ", ".join(names[:10]) + (" ..." if len(names) > 10 else "") or "none"


def _has_required(descriptor: Descriptor) -> bool:
    """Whether the message or a nested one has a required field. Recursive messages were rejected before."""
    return any(
        field.is_required or (field.message_type is not None and _has_required(field.message_type))
        for field in descriptor.fields
    )


class _MessageReader:
    def __init__(self, file: SchemaFile) -> None:
        self._file = file

    def record(
        self, message: Descriptor, path: str, inside: tuple[str, ...]
    ) -> tuple[StructType, StructShape]:
        """The struct of a message. `inside` holds the names of the enclosing messages."""
        name = message.full_name
        if name in inside:
            raise self._file.error_at(
                f"field {path}", f"message {name} contains itself; a table has no end then"
            )
        if not message.fields:
            place = f"field {path}" if path else ""
            raise self._file.error_at(place, f"message {name} has no fields, and so no columns")
        fields, parts = [], []
        for field in message.fields:
            below = f"{path}.{field.name}" if path else field.name
            typed = self._field(field, below, (*inside, name))
            fields.append(StructField(field.name, typed.kind, nullable=not field.is_required))
            parts.append(FieldShape(_getter(field), typed.shape))
        kind = StructType(fields)
        return kind, StructShape(arrow_type(kind), tuple(parts))

    def _field(self, field: FieldDescriptor, path: str, inside: tuple[str, ...]) -> _ProtobufType:
        if not field.is_repeated:
            return self._one(field, path, inside)
        if _is_map(field):
            entry = field.message_type.fields_by_name
            key = self._one(entry["key"], f"{path}.key", inside)
            value = self._one(entry["value"], f"{path}.value", inside)
            kind: DataType = MapType(key.kind, value.kind)
            return _ProtobufType(kind, MapShape(arrow_type(kind), key.shape, value.shape))
        element = self._one(field, f"{path}[]", inside)
        kind = ArrayType(element.kind)
        return _ProtobufType(kind, ListShape(arrow_type(kind), element.shape))

    def _one(self, field: FieldDescriptor, path: str, inside: tuple[str, ...]) -> _ProtobufType:
        if field.enum_type is not None:
            return _ProtobufType(StringType(), LeafShape(pa.string(), _namer(field.enum_type)))
        message = field.message_type
        if message is None:
            is_bytes = field.type == FieldDescriptor.TYPE_BYTES
            kind = BinaryType() if is_bytes else _LEAVES[field.cpp_type]
            return _ProtobufType(kind, LeafShape(arrow_type(kind)))
        if message.full_name == "google.protobuf.Timestamp":
            return _ProtobufType(TimestampType(), LeafShape(arrow_type(TimestampType()), _instants))
        if message.full_name in _WRAPPERS:
            kind, shape = self._one(message.fields_by_name["value"], path, inside)
            return _ProtobufType(kind, LeafShape(shape.kind, _unwrapper(shape.kind)))
        return _ProtobufType(*self.record(message, path, inside))


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _getter(field: FieldDescriptor) -> Callable[[Any], Any]:
    get, name = attrgetter(field.name), field.name
    if _is_map(field):
        return lambda message: dict(
            sorted(get(message).items())
        )  # so that a row is the same whenever it is read
    if field.is_repeated or not field.has_presence:
        return get
    return lambda message: get(message) if message.HasField(name) else None


def _namer(enum: EnumDescriptor) -> Callable[[Values], pa.Array]:
    names: dict[int | None, str | None] = {None: None}
    for value in enum.values:
        names.setdefault(value.number, value.name)

    def named(values: Values) -> pa.Array:
        return pa.array([names[each] if each in names else str(each) for each in values], pa.string())

    return named


def _unwrapper(kind: pa.DataType) -> Callable[[Values], pa.Array]:
    return lambda values: pa.array([None if each is None else each.value for each in values], kind)


def _instants(values: Values) -> pa.Array:
    microseconds = [
        None if each is None else each.seconds * 1_000_000 + each.nanos // 1000 for each in values
    ]
    return pa.array(microseconds, pa.int64()).view(pa.timestamp("us", "UTC"))
