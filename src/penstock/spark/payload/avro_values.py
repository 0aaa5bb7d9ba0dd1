"""Avro values: plain binary, or framed by a schema registry's clients (a zero byte and a schema number).

A plain value does not contain its schema, so all values must be written with the given one. A framed value
does: `valueSchema` may then name a file for each number, oldest first, and the last file defines the
columns.

Rule: A value is decoded up to its last byte. Otherwise it was written with another schema.
"""

import struct
from io import BytesIO
from itertools import pairwise
from typing import Any, Final

from fastavro import schemaless_reader
from fastavro.read import SchemaResolutionError

from penstock.spark.payload.avro_schema import AvroSchema, parse_avro_schema
from penstock.spark.payload.evolution import added_columns
from penstock.spark.payload.schema_files import OPTION, SchemaVersion

FRAME_BYTES: Final = 5
_FRAME: Final = struct.Struct(">BI")


class InvalidAvroValue(ValueError):
    """A value that the decoder accepted although it does not match the schema."""


class AvroReader:
    """Reader of Avro values."""

    errors: tuple[type[Exception], ...] = (
        EOFError,
        IndexError,
        KeyError,
        ValueError,
        OverflowError,
        MemoryError,
        TypeError,
        struct.error,
        SchemaResolutionError,
    )

    def __init__(self, versions: tuple[SchemaVersion, ...], *, is_framed: bool) -> None:
        self._is_framed = is_framed
        parsed = {version.number: parse_avro_schema(version.file) for version in versions}
        self._check_widening(versions, parsed)
        newest = parsed[versions[-1].number]
        self.schema, self.shape = newest.schema, newest.shape
        self._newest = newest.decoding
        self._writers = {number: schema.decoding for number, schema in parsed.items()}
        self._only = self._writers.get(None)

    def _check_widening(
        self, versions: tuple[SchemaVersion, ...], parsed: dict[int | None, AvroSchema]
    ) -> None:
        for older, newer in pairwise(versions):
            before, after = parsed[older.number].schema, parsed[newer.number].schema
            added_columns(before, after, f"{newer.file.name} after {older.file.name}")

    def read(self, value: bytes) -> Any:
        return self._read_framed(value) if self._is_framed else self._read(value, 0, self._newest)

    def _read_framed(self, value: bytes) -> Any:
        if len(value) < FRAME_BYTES or value[0]:
            raise InvalidAvroValue(
                "it is not framed: a zero byte and the number of a schema are missing in front"
            )
        _, number = _FRAME.unpack_from(value)
        writer = self._writers.get(number, self._only)
        if writer is None:
            known = ", ".join(str(each) for each in self._writers)
            raise InvalidAvroValue(f"it was written with schema {number}, and option {OPTION} has {known}")
        return self._read(value, FRAME_BYTES, writer)

    def _read(self, value: bytes, start: int, writer: Any) -> Any:
        stream = BytesIO(value)
        stream.seek(start)
        # Only a value with an older schema has to be resolved against the newest one.
        reader = None if writer is self._newest else self._newest
        row = schemaless_reader(stream, writer, reader)
        if left := len(value) - stream.tell():
            raise InvalidAvroValue(
                f"{left} of its {len(value)} bytes are left over: it was written with another schema"
            )
        return row

    def reason(self, value: bytes, error: Exception) -> str:
        sentence = (
            str(error)
            if isinstance(error, InvalidAvroValue)
            else f"it is no Avro of this schema: {_error_text(error)}"
        )
        if not self._is_framed and len(value) >= FRAME_BYTES and value[0] == 0:
            number = _FRAME.unpack_from(value)[1]
            return f"{sentence}. It may be framed (schema {number}): try valueFormat avro-confluent"
        return sentence


def _error_text(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "it ends too early"
    if isinstance(error, IndexError | KeyError):
        return "it chooses from a union or an enum what is not there, or ends too early"
    return str(error) or type(error).__name__
