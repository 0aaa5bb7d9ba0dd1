"""Values as columns in any format, and the handling of values that cannot be read.

The columns are added to those of the topic (key, topic, partition, offset ...) and replace `value`, which a
schema of the user's can still request. A field with the name of one of these columns gets the prefix
`value_`.

Rule 1: If a query reads any of the columns, a row is validated against the whole schema, so that a row is
        good or bad for every query alike. If a query reads none of them, values are not parsed.
Rule 2: A null value (a tombstone) is a good row with null in all of the columns. A query can recognise it
        by the column `value`.
Rule 3: At most some thousand values are Python objects at a time, however many were fetched.
"""

import logging
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from penstock.errors import ConfigError
from penstock.spark.payload import dead_letters
from penstock.spark.payload.dead_letters import SourceRecords, dead_letter_array
from penstock.spark.payload.settings import BadRows, PayloadFormat, PayloadSettings, payload_settings
from penstock.spark.payload.shapes import CONVERSION_ERRORS, StructShape, nullable_field, struct_columns
from penstock.spark.records.decode import DecodedRecords
from penstock.spark.topic_table import full_schema
from penstock.types import TopicPartition

log = logging.getLogger("penstock.spark")

PREFIX: Final = "value_"
ROWS_AT_ONCE: Final = 8192


class ValueReader(Protocol):
    """The reader of one format. `read` raises one of `errors` if a value does not match the schema."""

    schema: StructType
    shape: StructShape
    errors: tuple[type[Exception], ...]

    def read(self, value: bytes) -> Any: ...

    def reason(self, value: bytes, error: Exception) -> str: ...


class BadValue(Exception):
    """A value does not match its schema. The message names the record and the remedy."""


class ParsedValues(NamedTuple):
    """Columns of some values, and the rows whose values cannot be read."""

    columns: list[pa.Array]
    """One array for each field of the schema, in its order; null in bad rows."""
    bad: dict[int, str]
    """The reason for each bad row, by its number."""


class Payload:
    """The parser of values. Created on the driver and pickled for the executors."""

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> "Payload | None":
        """The parser that the options describe. None if values stay bytes (valueFormat raw)."""
        settings = payload_settings(options)
        if settings is None:
            return None
        payload = cls(settings)
        payload.fields()  # reads the schema now, so that its errors are reported on the driver
        return payload

    def __init__(self, settings: PayloadSettings) -> None:
        self._settings = settings

    def __getstate__(self) -> dict[str, Any]:
        """The settings only: decoders cannot be pickled and are created again."""
        return {"_settings": self._settings}

    @property
    def schema(self) -> StructType:
        """The schema as in the file, with required fields. `evolution.check_and_save_schema` takes it."""
        return self._reader.schema

    def fields(self) -> list[StructField]:
        """The columns that a table gets. All of them are nullable."""
        fields = [
            StructField(name, nullable_field(field).dataType)
            for name, field in zip(self._names, self.schema.fields, strict=True)
        ]
        if self._settings.bad_rows is BadRows.DEAD_LETTER:
            fields.append(StructField(dead_letters.DEAD_LETTER_COLUMN, dead_letters.DEAD_LETTER_TYPE))
        return fields

    def names(self) -> list[str]:
        return [field.name for field in self.fields()]

    def needs_headers(self, wanted: Collection[str]) -> bool:
        """Whether headers and keys are needed, which is only the case for dead letters.

        Values are needed if any of `names()` is in `wanted`.
        """
        return dead_letters.DEAD_LETTER_COLUMN in wanted and self._settings.bad_rows is BadRows.DEAD_LETTER

    def columns(
        self, partition: TopicPartition, decoded: DecodedRecords, wanted: Collection[str]
    ) -> dict[str, pa.Array]:
        """The wanted columns among `names()`. BadValue if a row is bad and bad rows are not allowed."""
        origin = SourceRecords(partition, decoded.offsets, decoded.values, decoded.keys, decoded.headers)
        parsed = self.parse(origin.values)
        self._check_bad_rows(origin, parsed.bad)
        columns = {
            name: each for name, each in zip(self._names, parsed.columns, strict=True) if name in wanted
        }
        if self.needs_headers(wanted):
            topic = self._settings.dead_letter_topic
            columns[dead_letters.DEAD_LETTER_COLUMN] = dead_letter_array(origin, parsed.bad, topic)
        return columns

    def parse(self, values: pa.Array) -> ParsedValues:
        """Parse the values; a null value gives a row of nulls."""
        pieces, bad = [], dict[int, str]()
        for start in range(0, max(len(values), 1), ROWS_AT_ONCE):
            columns, bad_here = self._parse_rows(values[start : start + ROWS_AT_ONCE].to_pylist())
            pieces.append(columns)
            bad |= {start + row: reason for row, reason in bad_here.items()}
        if len(pieces) == 1:
            return ParsedValues(pieces[0], bad)
        return ParsedValues([pa.concat_arrays(column) for column in zip(*pieces, strict=True)], bad)

    @cached_property
    def _reader(self) -> ValueReader:
        settings = self._settings
        match settings.format:
            case PayloadFormat.JSON:
                from penstock.spark.payload.json_values import JsonReader

                return JsonReader(settings.file)
            case PayloadFormat.PROTOBUF:
                from penstock.spark.payload.protobuf_values import ProtobufReader

                return ProtobufReader(settings.file, settings.message)
            case _:
                from penstock.spark.payload.avro_values import AvroReader

                return AvroReader(settings.versions, is_framed=settings.format is PayloadFormat.AVRO_FRAMED)

    @cached_property
    def _names(self) -> list[str]:
        taken = {field.name.lower() for field in full_schema(include_headers=True)} | {
            dead_letters.DEAD_LETTER_COLUMN.lower()
        }
        names = [PREFIX + name if name.lower() in taken else name for name in self.schema.fieldNames()]
        seen: set[str] = set()
        for name in names:
            if name.lower() in seen:  # Spark ignores case
                raise ConfigError(
                    f"schema {self._settings.file.name}: two columns would be named {name}; rename one field"
                )
            seen.add(name.lower())
        return names

    # Bad rows

    def _parse_rows(self, values: list[bytes | None]) -> ParsedValues:
        rows, bad = self._read(values)
        shape = self._reader.shape
        try:
            return ParsedValues(struct_columns(shape, rows), bad)
        except CONVERSION_ERRORS:
            # The conversion of all rows failed: find the bad ones by bisection.
            misfits = dict(_unconvertible_rows(shape, rows, 0))
        for row in misfits:
            rows[row] = None
        return ParsedValues(struct_columns(shape, rows), dict(sorted({**bad, **misfits}.items())))

    def _read(self, values: list[bytes | None]) -> tuple[list[Any], dict[int, str]]:
        reader = self._reader
        read, errors = reader.read, reader.errors
        rows, bad = list[Any](), dict[int, str]()
        for value in values:
            try:
                rows.append(None if value is None else read(value))
            except errors as error:
                assert value is not None
                bad[len(rows)] = reader.reason(value, error)
                rows.append(None)
        return rows, bad

    def _check_bad_rows(self, origin: SourceRecords, bad: Mapping[int, str]) -> None:
        if not bad or self._settings.bad_rows is BadRows.DEAD_LETTER:
            return
        row, reason = next(iter(bad.items()))
        partition, offset = origin.partition, origin.offsets[row].as_py()
        problem = (
            f"{partition.topic}/{partition.partition}, offset {offset}: the value is not as schema "
            f"{self._settings.file.name} says: {reason}"
        )
        if len(bad) > 1:
            problem += f" (and {len(bad) - 1} others of {len(origin.values)})"
        if self._settings.bad_rows is BadRows.FAIL:
            raise BadValue(
                f"{problem}. Correct the schema, or let such rows pass with badRows deadletter or null"
            )
        log.warning("%s. Its columns are null", problem)


def _unconvertible_rows(shape: StructShape, rows: list[Any], first: int) -> Iterator[tuple[int, str]]:
    """The rows that Arrow cannot convert, found by bisection. `first` is the number of the first row."""
    try:
        struct_columns(shape, rows)
    except CONVERSION_ERRORS as error:
        if len(rows) == 1:
            yield first, str(error)
            return
        middle = len(rows) // 2
        yield from _unconvertible_rows(shape, rows[:middle], first)
        yield from _unconvertible_rows(shape, rows[middle:], first + middle)
