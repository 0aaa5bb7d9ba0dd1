"""Options that define how record values become columns, parsed and validated.

    valueFormat      raw (the default), json, avro, avro-confluent, protobuf
    valueSchema      a file, or the schema itself
    valueMessage     protobuf: which message of the file
    badRows          fail (the default), null, deadletter
    deadLetterTopic  deadletter: the topic for bad rows, by default <topic>.dead

Rule: An option without a meaning beside the others is an error and is not ignored.
"""

import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from penstock.errors import ConfigError
from penstock.spark.options.values import parse_choice
from penstock.spark.payload.schema_files import (
    OPTION,
    SchemaFile,
    SchemaVersion,
    read_schema_file,
    schema_text,
)

MESSAGE_OPTION: Final = "valueMessage"
FORMAT_OPTION: Final = "valueFormat"
BAD_ROWS_OPTION: Final = "badRows"
DEAD_LETTER_OPTION: Final = "deadLetterTopic"
_NUMBERED: Final = re.compile(r"\s*(\d+)\s*=\s*(\S.*?)\s*")


class PayloadFormat(Enum):
    JSON = "json"
    AVRO = "avro"
    AVRO_FRAMED = "avro-confluent"
    PROTOBUF = "protobuf"


class BadRows(Enum):
    FAIL = "fail"
    NULL = "null"
    DEAD_LETTER = "deadletter"


class PayloadSettings(NamedTuple):
    """Plain values, with the content of files: Spark sends them to every executor."""

    format: PayloadFormat
    versions: tuple[SchemaVersion, ...]
    message: str | None
    bad_rows: BadRows
    dead_letter_topic: str | None

    @property
    def file(self) -> SchemaFile:
        return self.versions[-1].file


def payload_settings(options: Mapping[str, str]) -> PayloadSettings | None:
    """The settings of the options. None if values stay bytes."""
    given = {name.lower(): value for name, value in options.items()}

    def text(name: str) -> str | None:
        return given.get(name.lower())

    formats: dict[str, PayloadFormat | None] = {"raw": None, **{each.value: each for each in PayloadFormat}}
    chosen = parse_choice(FORMAT_OPTION, text(FORMAT_OPTION) or "raw", formats)
    if chosen is None:
        _reject_without_format(text)
        return None
    schema_option = (text(OPTION) or "").strip()
    if not schema_option:
        raise ConfigError(
            f"option {OPTION} must say the columns of {FORMAT_OPTION} {chosen.value}: {_EXAMPLES[chosen]}"
        )
    message = text(MESSAGE_OPTION)
    if message is not None and chosen is not PayloadFormat.PROTOBUF:
        raise ConfigError(
            f"option {MESSAGE_OPTION} is for {FORMAT_OPTION} protobuf, and that is {chosen.value}"
        )
    bad_rows = parse_choice(
        BAD_ROWS_OPTION, text(BAD_ROWS_OPTION) or "fail", {each.value: each for each in BadRows}
    )
    topic = _dead_letter_topic(text(DEAD_LETTER_OPTION), bad_rows)
    return PayloadSettings(chosen, _versions(chosen, schema_option), message, bad_rows, topic)


_EXAMPLES: Final = {
    PayloadFormat.JSON: "id bigint, name string, or a file that ends with .json, .ddl or .sql",
    PayloadFormat.AVRO: "a file such as orders.avsc",
    PayloadFormat.AVRO_FRAMED: (
        "a file such as orders.avsc, or one for each schema number: 7=v1.avsc,9=v2.avsc"
    ),
    PayloadFormat.PROTOBUF: "a file such as orders.desc",
}


def _reject_without_format(text: Callable[[str], str | None]) -> None:
    for name in (OPTION, MESSAGE_OPTION, BAD_ROWS_OPTION, DEAD_LETTER_OPTION):
        if text(name) is not None:
            raise ConfigError(
                f"option {name} says something about values, and {FORMAT_OPTION} is raw; give json, avro ..."
            )


def _dead_letter_topic(topic: str | None, bad_rows: BadRows) -> str | None:
    if topic is None:
        return None
    if bad_rows is not BadRows.DEAD_LETTER:
        problem = f"is for {BAD_ROWS_OPTION} deadletter, and that is {bad_rows.value}"
        raise ConfigError(f"option {DEAD_LETTER_OPTION} {problem}")
    if not topic.strip():
        raise ConfigError(f"option {DEAD_LETTER_OPTION} is empty; give a topic, or leave it out")
    return topic.strip()


def _versions(chosen: PayloadFormat, schema_option: str) -> tuple[SchemaVersion, ...]:
    match chosen:
        case PayloadFormat.JSON:
            return (SchemaVersion(None, _json_file(schema_option)),)
        case PayloadFormat.PROTOBUF:
            return (SchemaVersion(None, read_schema_file(schema_option)),)
        case _:
            return _avro_versions(schema_option, is_framed=chosen is PayloadFormat.AVRO_FRAMED)


def _json_file(schema_option: str) -> SchemaFile:
    if schema_option.lower().endswith((".json", ".ddl", ".sql")):
        return read_schema_file(schema_option)
    return schema_text(schema_option)


def _avro_versions(schema_option: str, *, is_framed: bool) -> tuple[SchemaVersion, ...]:
    if schema_option.lstrip().startswith("{"):
        return (SchemaVersion(None, schema_text(schema_option)),)
    if not is_framed or "=" not in schema_option:
        return (SchemaVersion(None, read_schema_file(schema_option)),)
    files: dict[int, str] = {}
    for each in schema_option.split(","):
        match = _NUMBERED.fullmatch(each)
        if match is None or int(match[1]) in files:
            problem = "names a number twice" if match else "has a part without a number"
            raise ConfigError(
                f"option {OPTION} is {schema_option!r}, which {problem}; give one file, or one for each "
                "number, oldest first: 7=v1.avsc,9=v2.avsc"
            )
        files[int(match[1])] = match[2]
    return tuple(SchemaVersion(number, read_schema_file(path)) for number, path in files.items())
