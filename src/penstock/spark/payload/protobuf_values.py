"""Protocol Buffers values. Fields that the descriptor does not have are ignored."""

from typing import Any, Final

from google.protobuf.message import DecodeError

from penstock.spark.payload.protobuf_schema import parse_protobuf_schema
from penstock.spark.payload.schema_files import SchemaFile

_FRAMED: Final = b"\x00"
"""No message begins with a zero byte, because there is no field 0."""


class ProtobufReader:
    """Reader of Protocol Buffers values."""

    errors: tuple[type[Exception], ...] = (DecodeError,)

    def __init__(self, file: SchemaFile, message: str | None) -> None:
        parsed = parse_protobuf_schema(file, message)
        self.schema, self.shape = parsed.schema, parsed.shape
        self._name = parsed.message.DESCRIPTOR.full_name
        self._parse = parsed.message.FromString
        self._has_required = parsed.has_required

    def read(self, value: bytes) -> Any:
        message = self._parse(value)
        if self._has_required and not message.IsInitialized():
            raise DecodeError(f"it lacks {', '.join(message.FindInitializationErrors())}")
        return message

    def reason(self, value: bytes, error: Exception) -> str:
        if value.startswith(_FRAMED):
            return (
                f"it is no {self._name}: it begins with a zero byte, as values framed for a schema registry"
            )
        return f"it is no {self._name}: {error}"
