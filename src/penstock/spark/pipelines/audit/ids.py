"""By what a record in one topic is known again in another.

    header:NAME     the value of its header NAME
    key             its key
    json:FIELD      a field of its value, which is JSON; a.b is a field within a field
    replay          where `penstock pipeline replay` took it from; for others, where they are

Several make one: key and json:sequence is the number of a record among those of its key.

Rule: a record in which one of them is missing has none, and is counted as such.
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
    kind: IdKind
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.name}" if self.name else self.kind.value


def parse_ids(texts: Sequence[str]) -> tuple[IdPart, ...]:
    """ConfigError, with a sentence, for what is no part of an id."""
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
    """An array of byte strings; null if one is missing."""
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
    """The last of that name counts, as with other readers."""
    from pyspark.sql import functions as F

    found = F.filter("headers", lambda header: header["key"] == name)
    return F.try_element_at(found, F.lit(-1))["value"]


def _as_bytes(column: str) -> "Column":
    from pyspark.sql import functions as F

    return F.col(column).cast("string").cast("binary")
