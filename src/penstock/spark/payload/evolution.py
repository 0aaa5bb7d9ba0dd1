"""Schema evolution: optional fields may be added, and everything else stays.

Older rows must be readable with the newer schema, and queries for the older schema must mean the same with
the newer one. So older rows have null in new columns, and no field is removed, renamed or given another
type.
"""

import json
import os
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from penstock.errors import ConfigError


def added_columns(before: StructType, after: StructType, where: str) -> list[str]:
    """The names of new fields, with dots inside of structs.

    ConfigError if `after` does more than add fields.

    `where` is for messages: it names the two schemas.
    """
    return list(_find_added(before, after, "", where))


def _find_added(before: StructType, after: StructType, path: str, where: str) -> Iterator[str]:
    old = {field.name: field for field in before.fields}
    new = {field.name: field for field in after.fields}
    for name, field in old.items():
        if name not in new:
            raise _missing(path + name, name, [each for each in new if each not in old], where)
        yield from _compare(field, new[name], path + name, where)
    for name, field in new.items():
        if name not in old:
            if not field.nullable:
                problem = f"field {path}{name} is new and required, and older rows lack it; make it optional"
                raise ConfigError(f"schema {where}: {problem}")
            yield path + name


def _missing(full_name: str, name: str, others: list[str], where: str) -> ConfigError:
    near = get_close_matches(name, others, n=1)
    renamed = f" (renamed to {near[0]}?)" if near else ""
    problem = (
        f"field {full_name} was removed{renamed}. Keep it; it may stay empty, and a new name is a new field"
    )
    return ConfigError(f"schema {where}: {problem}")


def _compare(old: StructField, new: StructField, path: str, where: str) -> Iterator[str]:
    if old.nullable and not new.nullable:
        problem = f"field {path} was optional and is required now; older rows may lack it"
        raise ConfigError(f"schema {where}: {problem}")
    yield from _compare_types(old.dataType, new.dataType, path, where)


def _compare_types(old: DataType, new: DataType, path: str, where: str) -> Iterator[str]:
    match old, new:
        case StructType(), StructType():
            yield from _find_added(old, new, f"{path}.", where)
        case ArrayType(), ArrayType():
            yield from _compare_types(old.elementType, new.elementType, path, where)
        case MapType(), MapType() if old.keyType == new.keyType:
            yield from _compare_types(old.valueType, new.valueType, path, where)
        case _:
            if old != new:
                change = f"was {old.simpleString()} and is {new.simpleString()} now"
                raise ConfigError(
                    f"schema {where}: field {path} {change}. Give the new type a field of its own"
                )


def check_and_save_schema(path: Path, schema: StructType) -> list[str]:
    """Compare the schema with the one that the last start saved at `path`, and save it for the next start.

    Returns the names of new columns. ConfigError if the schemas do not fit; the saved schema then stays as
    it is.
    """
    added = []
    if path.exists():
        added = added_columns(_load_schema(path), schema, f"is not a later version of the one in {path}")
    # A replaced file is complete or absent, so that a crash cannot leave a partial schema.
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(schema.jsonValue(), indent=1))
    os.replace(draft, path)
    return added


def _load_schema(path: Path) -> StructType:
    try:
        return StructType.fromJson(json.loads(path.read_text()))
    except (ValueError, KeyError, TypeError) as error:
        problem = (
            f"{path} should hold the schema of the last run, and does not: {error!r}. Remove it to go on"
        )
        raise ConfigError(problem) from None
