"""Record ids: the parts of a record by which a record of one topic is found again in another topic.

    header:NAME     the value of the record's header NAME
    key             the record's key
    json:FIELD      a field of the record's value, which is JSON; a.b is a nested field
    replay          the source position from the headers that `penstock pipeline replay` writes; for other
                    records, their own position

Several parts form one id: key and json:sequence together identify a record by its number within its key.

Rule: a record that lacks one of the parts has no id, and is counted as a record without an id.
"""

import re
from collections.abc import Sequence
from enum import Enum
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.errors import ConfigError
from penstock.spark.pipelines.replay.report import SOURCE_COLUMNS, SOURCE_HEADER_PREFIX

if TYPE_CHECKING:
    from pyspark.sql import Column

FORMS: Final = "header:NAME, key, json:FIELD or replay"
FIELD: Final = re.compile(r"[\w-]+(\.[\w-]+)*")


class IdKind(Enum):
    HEADER = "header"
    KEY = "key"
    JSON = "json"
    REPLAY = "replay"


class IdPart(NamedTuple):
    """Part of a record id: a header, the key, or a field of a JSON value."""

    kind: IdKind
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.name}" if self.name else self.kind.value


def parse_ids(texts: Sequence[str]) -> tuple[IdPart, ...]:
    """Parse the parts of an id; raise ConfigError with a readable sentence for invalid parts."""
    parts = tuple(_parse(text) for text in texts)
    if len(parts) > 1 and IdPart(IdKind.REPLAY) in parts:
        raise ConfigError("--id replay stands alone: it is the topic, the partition and the offset")
    return parts


def _parse(text: str) -> IdPart:
    word, colon, name = text.partition(":")
    kind = next((each for each in IdKind if each.value == word), None)
    needs_name = kind in (IdKind.HEADER, IdKind.JSON)
    if kind is None or bool(name) != needs_name or (colon and not needs_name):
        raise ConfigError(f"--id {text!r} says not what records are known by: give {FORMS}")
    if kind is IdKind.JSON and FIELD.fullmatch(name) is None:
        raise ConfigError(f"--id {text!r} names no field: give letters, digits, _ and -, with dots between")
    return IdPart(kind, name)


def needs_headers(parts: Sequence[IdPart]) -> bool:
    return any(part.kind in (IdKind.HEADER, IdKind.REPLAY) for part in parts)


def needs_value(parts: Sequence[IdPart]) -> bool:
    return any(part.kind is IdKind.JSON for part in parts)


def id_column(parts: Sequence[IdPart]) -> "Column":
    """Return an array of byte strings, or null if a part is missing."""
    from pyspark.sql import functions as F

    columns = [column for part in parts for column in _columns(part)]
    is_missing = reduce(or_, (column.isNull() for column in columns))
    return F.when(~is_missing, F.array(*columns))


def _columns(part: IdPart) -> "list[Column]":
    from pyspark.sql import functions as F

    match part.kind:
        case IdKind.HEADER:
            return [_header(part.name)]
        case IdKind.KEY:
            return [F.col("key")]
        case IdKind.JSON:
            path = "$" + "".join(f"['{name}']" for name in part.name.split("."))
            return [F.get_json_object(F.decode("value", "UTF-8"), path).cast("binary")]
        case IdKind.REPLAY:
            return [
                F.coalesce(_header(f"{SOURCE_HEADER_PREFIX}{name}"), _as_bytes(name))
                for name in SOURCE_COLUMNS
            ]


def _header(name: str) -> "Column":
    """Return the value of the last header with this name: other readers use the last one, too."""
    from pyspark.sql import functions as F

    found = F.filter("headers", lambda header: header["key"] == name)
    return F.try_element_at(found, F.lit(-1))["value"]


def _as_bytes(column: str) -> "Column":
    from pyspark.sql import functions as F

    return F.col(column).cast("string").cast("binary")
