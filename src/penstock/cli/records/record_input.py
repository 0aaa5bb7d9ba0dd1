"""Parser of input lines into the records that `penstock produce` sends.

A line is a record: the value alone, key and value around a separator, or a JSON object. The JSON form is that
of `penstock consume --format json`, so that records can be copied from one topic to another:

    key, value                  text or null
    key_base64, value_base64    the same for bytes that are not text
    key_hex, value_hex          likewise
    headers                     {"name": "text"} or [["name", "text"], ...]; a value may also be null
                                or {"base64": "..."}
    partition, timestamp        numbers; milliseconds since 1970
    topic, offset               allowed and ignored

Rule: a line that cannot be parsed is rejected with its line number; the parser never guesses.
"""

import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final, NamedTuple

from penstock.errors import CommandFailed
from penstock.limits import INT_MAX, LONG_MAX, REQUEST_BYTES_MAX

RecordHeaders = tuple[tuple[str, bytes | None], ...]

LINE_BYTES_MAX: Final = REQUEST_BYTES_MAX
"""Longest line: a longer one would not fit into a request."""
INTEGER_DIGITS_MAX: Final = 20
ANY_PARTITION: Final = -1
NO_TIME: Final = 0
"""Value with which librdkafka uses the time of sending."""


class OutgoingRecord(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: RecordHeaders = ()
    partition: int = ANY_PARTITION
    timestamp: int = NO_TIME


def numbered_lines(source: BinaryIO, bytes_max: int = LINE_BYTES_MAX) -> Iterator[tuple[int, bytes]]:
    """Yield lines without their newline, numbered from 1."""
    number = 0
    while line := _line_of(source, bytes_max):
        number += 1
        if len(line) > bytes_max:
            raise CommandFailed(f"line {number} is longer than {bytes_max} bytes.")
        yield number, line.removesuffix(b"\n")


def _line_of(source: BinaryIO, bytes_max: int) -> bytes:
    try:
        # One byte more than allowed shows that the line is too long.
        return source.readline(bytes_max + 1)
    except OSError as problem:
        raise CommandFailed(f"cannot read the input: {problem.strerror}.") from problem


def plain_records(
    source: BinaryIO, pattern: OutgoingRecord, separator: bytes | None
) -> Iterator[OutgoingRecord]:
    """Yield a record for each line; `pattern` holds the fields that all records share."""
    for number, line in numbered_lines(source):
        if separator is None:
            yield pattern._replace(value=line)
            continue
        key, found, value = line.partition(separator)
        if not found:
            text = separator.decode(errors="replace")
            raise CommandFailed(f"line {number} has no key: {text!r} does not occur in it.")
        yield pattern._replace(key=key, value=value)


def json_records(
    source: BinaryIO, pattern: OutgoingRecord, *, ignore_partitions: bool = False
) -> Iterator[OutgoingRecord]:
    for number, line in numbered_lines(source):
        if not line.strip():
            continue
        try:
            record = record_of_json(fields_of(line), pattern)
        except ValueError as problem:
            raise CommandFailed(f"line {number} is not a record: {problem}.") from problem
        yield record._replace(partition=pattern.partition) if ignore_partitions else record


def fields_of(line: bytes) -> Any:
    """Parse a JSON line; raise ValueError in terms of the line, not of the parser."""
    try:
        return json.loads(line.decode(), object_pairs_hook=_unrepeated, parse_int=_integer)
    except UnicodeDecodeError as problem:
        raise ValueError(f"byte {problem.start + 1} is not UTF-8") from problem
    except json.JSONDecodeError as problem:
        raise ValueError(f"from character {problem.pos + 1} on it is not JSON") from problem
    except RecursionError as problem:
        raise ValueError("it is nested too deeply") from problem


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"{name!a} is given twice (headers that repeat a name go in a list of pairs)")
        fields[name] = value
    return fields


def _integer(digits: str) -> int:
    if len(digits) > INTEGER_DIGITS_MAX:
        raise ValueError(f"the number {digits[:INTEGER_DIGITS_MAX]}... is too long")
    return int(digits)


def record_of_json(fields: Any, pattern: OutgoingRecord) -> OutgoingRecord:
    """Convert a JSON object; raise ValueError with the problem. Missing fields come from `pattern`."""
    if not isinstance(fields, dict):
        raise ValueError("a JSON object is needed")
    if unknown := sorted(fields.keys() - _FIELDS):
        raise ValueError(f"{unknown[0]!r} is no field of a record (known are {', '.join(sorted(_FIELDS))})")
    has_value, value = _content(fields, "value")
    if not has_value:
        raise ValueError("it has no value (null is one)")
    has_key, key = _content(fields, "key")
    return OutgoingRecord(
        value,
        key if has_key else pattern.key,
        pattern.headers + headers_of_json(fields.get("headers")),
        _number(fields, "partition", pattern.partition, INT_MAX),
        _number(fields, "timestamp", pattern.timestamp, LONG_MAX),
    )


def headers_of_json(given: Any) -> RecordHeaders:
    pairs = list(given.items()) if isinstance(given, dict) else given
    if pairs is None:
        return ()
    if not isinstance(pairs, list) or not all(map(_is_header, pairs)):
        raise ValueError('headers must be {"name": "value"} or [["name", "value"]]')
    return tuple((_text(name).decode(), _header_value(value)) for name, value in pairs)


def _is_header(pair: Any) -> bool:
    return isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str)


def _header_value(given: Any) -> bytes | None:
    if isinstance(given, dict) and given.keys() == {"base64"}:
        try:
            return _from_base64(given["base64"])
        except _Malformed as problem:
            raise ValueError(f"the value of a header is not {problem}") from problem
    return None if given is None else _text(given)


def _content(fields: dict[str, Any], name: str) -> tuple[bool, bytes | None]:
    """Return whether the field is present, and its content."""
    given = [suffix for suffix in _FORMS if name + suffix in fields]
    if not given:
        return False, None
    if len(given) > 1:
        raise ValueError(f"{name} is given twice")
    content = fields[name + given[0]]
    if content is None:
        return True, None
    try:
        return True, _FORMS[given[0]](content)
    except _Malformed as problem:
        raise ValueError(f"{name}{given[0]} is not {problem}") from problem


def _number(fields: dict[str, Any], name: str, default: int, maximum: int) -> int:
    number = fields.get(name)
    if number is None:
        return default
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= maximum:
        raise ValueError(f"{name} must be a whole number from 0 to {maximum}")
    return number


def _text(given: Any) -> bytes:
    if not isinstance(given, str):
        raise ValueError(f"{json.dumps(given)[:40]} is not a text: put it in quotes")
    try:
        return given.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{ascii(given)[:40]} holds half of a surrogate pair, which is no text") from None


class _Malformed(ValueError):
    """Encoding error; the message is the name of the expected encoding."""


def _from_base64(given: Any) -> bytes:
    text = _text(given)
    try:
        return b64decode(text, validate=True)
    except ValueError as problem:
        raise _Malformed("base64") from problem


def _from_hex(given: Any) -> bytes:
    text = _text(given).decode()
    try:
        return bytes.fromhex(text)
    except ValueError as problem:
        raise _Malformed("hexadecimal: use an even number of 0 to 9 and a to f") from problem


_FORMS: Final[dict[str, Callable[[Any], bytes]]] = {"": _text, "_base64": _from_base64, "_hex": _from_hex}
_FIELDS: Final = {name + form for name in ("key", "value") for form in _FORMS} | {
    "headers",
    "partition",
    "timestamp",
    "topic",
    "offset",
}
