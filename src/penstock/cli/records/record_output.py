"""Formatter of the records that `penstock consume` prints.

    raw    the value and a newline, byte for byte
    json   an object a line; bytes that are not text appear as key_base64 or value_base64
    TEXT   with %t topic, %p partition, %o offset, %k key, %v value, %h headers, %T milliseconds since
           1970, %% a percent sign; \\n and \\t have their usual meaning

A null key or value is empty in raw and TEXT, and null in JSON.
"""

import json
import re
from base64 import b64encode
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, NamedTuple

from penstock.cli.records.record_input import RecordHeaders


class BytesFormat(StrEnum):
    """Encoding of printed bytes."""

    TEXT = "text"
    HEX = "hex"
    BASE64 = "base64"


class IncomingRecord(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders


class BytesFormats(NamedTuple):
    key: BytesFormat = BytesFormat.TEXT
    value: BytesFormat = BytesFormat.TEXT


AS_TEXT: Final = BytesFormats()

Formatter = Callable[[IncomingRecord], bytes]

RAW: Final = "raw"
JSON: Final = "json"
_ESCAPES: Final = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\\\": "\\"}
_ESCAPE: Final = re.compile(r"\\[ntr\\]")
_DIRECTIVE: Final = re.compile(r"%(.?)", re.DOTALL)


def formatter(name: str, forms: BytesFormats) -> Formatter:
    """Return a formatter; raise ValueError if TEXT has an unknown field."""
    if name == RAW:
        return lambda record: _written(record.value, forms.value) + b"\n"
    if name == JSON:
        return lambda record: json_of(record, forms).encode() + b"\n"
    return _template(name, forms)


def json_of(record: IncomingRecord, forms: BytesFormats) -> str:
    fields: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **content_fields(record.key, record.value, forms),
        "headers": header_pairs(record.headers),
    }
    return json.dumps(fields, ensure_ascii=False)


def content_fields(
    key: bytes | None, value: bytes | None, forms: BytesFormats = AS_TEXT
) -> dict[str, str | None]:
    return {**_field("key", key, forms.key), **_field("value", value, forms.value)}


def header_pairs(headers: RecordHeaders) -> list[list[Any]]:
    return [[name, _header_value(value)] for name, value in headers]


def _field(name: str, content: bytes | None, form: BytesFormat) -> dict[str, str | None]:
    if content is None:
        return {name: None}
    if form is BytesFormat.TEXT:
        try:
            return {name: content.decode()}
        except UnicodeDecodeError:
            form = BytesFormat.BASE64
    return {f"{name}_{form}": _written(content, form).decode()}


def _header_value(value: bytes | None) -> str | dict[str, str] | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}


def _written(content: bytes | None, form: BytesFormat) -> bytes:
    if content is None:
        return b""
    if form is BytesFormat.HEX:
        return content.hex().encode()
    return b64encode(content) if form is BytesFormat.BASE64 else content


def _template(text: str, forms: BytesFormats) -> Formatter:
    parts: dict[str, Formatter] = {
        "t": lambda record: record.topic.encode(),
        "p": lambda record: b"%d" % record.partition,
        "o": lambda record: b"%d" % record.offset,
        "k": lambda record: _written(record.key, forms.key),
        "v": lambda record: _written(record.value, forms.value),
        "h": lambda record: _headers_text(record.headers),
        "T": lambda record: b"%d" % record.timestamp,
        "%": lambda record: b"%",
    }
    text = _ESCAPE.sub(lambda found: _ESCAPES[found[0]], text)
    if not _DIRECTIVE.search(text):
        raise ValueError(f"{text!r} is neither raw nor json, and names nothing of a record (%v is the value)")
    if not text.endswith("\n"):
        text += "\n"
    pieces: list[Formatter] = []
    position = 0
    for found in _DIRECTIVE.finditer(text):
        if found[1] not in parts:
            raise ValueError(f"%{found[1].strip()} means nothing: use %t %p %o %k %v %h %T or %%")
        pieces += [_constant(text[position : found.start()]), parts[found[1]]]
        position = found.end()
    pieces.append(_constant(text[position:]))
    return lambda record: b"".join([piece(record) for piece in pieces])


def _constant(text: str) -> Formatter:
    encoded = text.encode()
    return lambda record: encoded


def _headers_text(headers: RecordHeaders) -> bytes:
    return b",".join(name.encode() + b"=" + (value or b"") for name, value in headers)
