"""A response as plain values, without what varies from run to run.

Ids, ports, directories, sizes of file systems and times chosen by the broker are replaced by a word in angle
brackets. Error messages are replaced by their presence: null, empty or `<text>`. Everything else stays as it
was on the wire, with the fields of the version in use.

Records become their batches, field by field, and the number of bytes after the last whole batch.
"""

import re
from collections.abc import Callable, Mapping

import msgspec

from penstock.errors import CorruptData
from penstock.protocol.batches import HEADER_BYTES, crc_matches, split_batches
from penstock.protocol.schema import Blob, Nested, fields_of
from penstock.types import Buffer
from tools.differential.compare import Plain

CLOSED = "(connection closed)"
NO_REPLY = "(no answer)"

UNKNOWN_TOPIC_ID = b"\x01" * 16
NO_TOPIC_ID = bytes(16)

_BROKER_TIME_MS_FIRST = 1_750_000_000_000
_BROKER_TIME_MS_LAST = 4_000_000_000_000
"""Bounds of timestamps chosen by a broker: scenarios send only timestamps outside of them."""

_LOG_APPEND_TIME_BIT = 8
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_UUID_AS_KAFKA_WRITES_IT = re.compile(r"^[A-Za-z0-9_-]{22}$")

_SETTINGS_THAT_NAME_PLACES = frozenset(
    {"listeners", "advertised.listeners", "controller.quorum.voters", "log.dir", "log.dirs"}
)


def plain(message: msgspec.Struct, version: int, topic_ids: Mapping[bytes, str]) -> dict[str, Plain]:
    """The fields of a message in this version, by name."""
    values: dict[str, Plain] = {}
    for field in fields_of(type(message)):
        if not field.is_in(version):
            continue
        value = getattr(message, field.name)
        if isinstance(field.kind, Blob) and field.kind.is_records:
            values[field.name] = _records(value)
        elif isinstance(field.kind, Blob):
            values[field.name] = None if value is None else bytes(value).hex()
        elif isinstance(field.kind, Nested):
            values[field.name] = _nested(value, version, topic_ids)
        elif isinstance(value, bytes):
            values[field.name] = _uuid(value, topic_ids)
        else:
            values[field.name] = _steady(type(message).__name__, field.name, value)
    if values.get("name") in _SETTINGS_THAT_NAME_PLACES and values.get("value"):
        values["value"] = "<place>"
    return values


def renamed(value: Plain, made_up: Mapping[str, str]) -> Plain:
    """The response with generated ids replaced by the names that the scenario uses."""
    if isinstance(value, dict):
        return {key: renamed(inner, made_up) for key, inner in value.items()}
    if isinstance(value, list):
        return [renamed(element, made_up) for element in value]
    if not isinstance(value, str):
        return value
    shape = _UUID.sub("<uuid>", value)
    if value not in made_up:
        return shape
    return f"<{made_up[value]}: {_UUID_AS_KAFKA_WRITES_IT.sub('<uuid>', shape)}>"


def _nested(value: object, version: int, topic_ids: Mapping[bytes, str]) -> Plain:
    if isinstance(value, list):
        return [plain(element, version, topic_ids) for element in value]
    return plain(value, version, topic_ids) if isinstance(value, msgspec.Struct) else None


def _uuid(value: bytes, topic_ids: Mapping[bytes, str]) -> Plain:
    if value == NO_TOPIC_ID:
        return "<no id>"
    if value == UNKNOWN_TOPIC_ID:
        return "<unknown id>"
    return f"<id of {topic_ids[value]}>" if value in topic_ids else "<id>"


def _steady(message: str, field: str, value: Plain) -> Plain:
    rule = _VOLATILE.get(f"{message}.{field}") or _VOLATILE.get(field)
    return rule(value) if rule else value


def _text(value: Plain) -> Plain:
    return "<text>" if value else value


def _not_negative(word: str) -> Callable[[Plain], Plain]:
    return lambda value: word if isinstance(value, int) and value >= 0 else value


def _truthy(word: str) -> Callable[[Plain], Plain]:
    return lambda value: word if value else value


def _time(value: Plain) -> Plain:
    is_recent = isinstance(value, int) and _BROKER_TIME_MS_FIRST <= value <= _BROKER_TIME_MS_LAST
    return "<now>" if is_recent else value


_VOLATILE: dict[str, Callable[[Plain], Plain]] = {
    "throttle_time_ms": _not_negative("<ms>"),
    "port": _not_negative("<port>"),
    "cluster_id": _truthy("<cluster>"),
    "log_dir": _truthy("<directory>"),
    "total_bytes": _not_negative("<bytes>"),
    "usable_bytes": _not_negative("<bytes>"),
    "session_id": _truthy("<session>"),
    "finalized_features_epoch": _not_negative("<epoch>"),
    "error_message": _text,
    "batch_index_error_message": _text,
    "documentation": _text,
    "log_append_time_ms": _time,
    "timestamp": _time,
    "last_timestamp": _time,
    "InitProducerIdResponse.producer_id": _not_negative("<producer>"),
}


def _records(value: Buffer | None) -> Plain:
    if value is None:
        return None
    walk = split_batches(value)
    batches: list[Plain] = []
    try:
        for position, header in walk:
            is_append_time = header.attributes & _LOG_APPEND_TIME_BIT
            fields: dict[str, Plain] = {**header._asdict(), "crc": crc_matches(value, header, position)}
            fields["max_timestamp"] = _time(header.max_timestamp) if is_append_time else header.max_timestamp
            fields["payload"] = bytes(value[position + HEADER_BYTES : walk.position]).hex()
            batches.append(fields)
    except CorruptData as problem:
        return f"(not batches: {problem})"
    tail_bytes = len(value) - walk.position
    return [*batches, {"bytes_of_an_incomplete_batch": tail_bytes}] if tail_bytes else batches
