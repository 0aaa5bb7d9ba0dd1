"""Parser of the spec file: TOML to a spec, or an error with the line, the key and the remedy.

A `Section` is one table of the file. The parser reads each key with its expected type. A key that the parser
never read is unknown and rejected, with the closest known key as a hint.

Rule 1: relative paths are relative to the folder of the file, not to the working directory.
Rule 2: `${NAME}` in an address is replaced by an environment variable, so that passwords stay out of the
        file. No message contains a part of an address.
"""

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from penstock.errors import CommandFailed, ConfigError
from penstock.spark.lake.time_partitioning import PartitionBy
from penstock.spark.options.options import ISOLATION_LEVELS, READ_COMMITTED
from penstock.spark.pipelines.etl.address import (
    SCHEMES,
    SQLITE,
    VARIABLE,
    InvalidAddress,
    postgres_settings,
    with_variables,
)
from penstock.spark.pipelines.etl.rows import parse_columns
from penstock.spark.pipelines.etl.spec import (
    EnrichSpec,
    EtlSpec,
    ExtractSpec,
    FromDatabase,
    FromFiles,
    FromTopic,
    LoadSpec,
    PythonFunction,
    ReferenceSpec,
    SqlQuery,
    ToLake,
    ToPostgres,
    ToTopic,
    TransformSpec,
)
from penstock.spark.pipelines.etl.toml_lines import find_line

_NAME: Final = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,200}", re.ASCII)
_KINDS: Final = {
    str: "text in quotes",
    int: "a whole number",
    float: "a number",
    dict: "a table",
    bool: "true or false",
}
_FILE_FORMATS: Final = ("csv", "json", "parquet")
_SAME_VALUE_S_MAX: Final = 3600
"""Upper limit: a run with `--once` waits that long before it reads."""


class InvalidSpec(CommandFailed):
    """Error in the spec file; the message begins with the file and the line."""


class Section:
    """One table of the file; each key is read once."""

    def __init__(self, file: Path, text: str, table: str, values: Mapping[str, Any]) -> None:
        self.file = file
        self._text = text
        self._table = table
        self._values = values
        self._known: list[str] = []

    def error_at(self, key: str | None, problem: str) -> InvalidSpec:
        line = find_line(self._text, self._table, key)
        place = f"{self.file}, line {line}" if line is not None else str(self.file)
        named = " ".join(filter(None, [self._table and f"[{self._table}]", key]))
        return InvalidSpec(f"{place}: {named}: {problem}" if named else f"{place}: {problem}")

    def value(self, key: str, kind: type, example: str | None) -> Any:
        """Return the value, or None if the key is missing; with an `example`, the key is required."""
        self._known.append(key)
        found = self._values.get(key)
        if found is None:
            if example is not None:
                raise self.error_at(key, f"is missing; for example: {key} = {example}")
            return None
        fits = isinstance(found, int | float) if kind is float else isinstance(found, kind)
        # bool is a subclass of int, and true is no number here.
        if not fits or (isinstance(found, bool) and kind is not bool):
            raise self.error_at(key, f"is {found!r} and must be {_KINDS[kind]}")
        return found

    def text(self, key: str, example: str) -> str:
        found = self.optional(key, example)
        assert found is not None, "a value that is missing was refused"
        return found

    def optional(self, key: str, example: str | None = None) -> str | None:
        found = self.value(key, str, example)
        if found is not None and not found.strip():
            raise self.error_at(
                key, f"is empty; {f'for example: {key} = {example}' if example else 'leave it out'}"
            )
        return found if found is None else str(found).strip()

    def columns(self, key: str, example: str | None) -> str | None:
        """Return column declarations in SQL syntax, after checking them."""
        found = self.optional(key, example)
        if found is not None:
            try:
                parse_columns(found)
            except ConfigError as problem:
                raise self.error_at(key, f"{problem}; for example: id bigint, name string") from problem
        return found

    def choice(self, key: str, allowed: Sequence[str], default: str | None = None) -> str:
        self._known.append(key)
        found = self._values.get(key, default)
        if found is None:
            raise self.error_at(key, f"is missing; give one of {', '.join(allowed)}")
        if found not in allowed:
            raise self.error_at(
                key, f"is {found!r} and must be one of {', '.join(allowed)}{_near(found, allowed)}"
            )
        return str(found)

    def whole(self, key: str, default: int) -> int:
        found = self.value(key, int, None)
        if found is not None and found < 1:
            raise self.error_at(key, f"is {found} and must be at least 1")
        return default if found is None else int(found)

    def seconds(self, key: str, default: float) -> float:
        found = self.value(key, float, None)
        if found is not None and found < 0:
            raise self.error_at(key, f"is {found} and must not be negative")
        return default if found is None else float(found)

    def names(self, key: str, example: str | None) -> tuple[str, ...]:
        """Return one name, or a list of names."""
        self._known.append(key)
        found = self._values.get(key)
        if found is None and example is not None:
            raise self.error_at(key, f"is missing; for example: {key} = {example}")
        listed = [found] if isinstance(found, str) else found or []
        if not isinstance(listed, list) or not all(isinstance(each, str) and each for each in listed):
            raise self.error_at(key, f"is {found!r} and must be a name or a list of names")
        return tuple(listed)

    def topic(self, key: str, default: str | None) -> str:
        found = self.optional(key) if default is not None else self.text(key, '"orders"')
        name = found or default or ""
        if _NAME.fullmatch(name) is None:
            raise self.error_at(
                key, f"{name!r} cannot name a topic: use letters, digits, dots, dashes, underscores"
            )
        return name

    def path(self, key: str, example: str) -> Path:
        return self.file.parent / Path(self.text(key, example)).expanduser()

    def address(self, key: str) -> str:
        """Return the address of a database, with its variables replaced."""
        found = self.text(key, '"postgresql://${USER}@127.0.0.1/shop" or "sqlite:///shop.db"')
        names = VARIABLE.findall(found)
        if missing := [name for name in names if name not in os.environ]:
            raise self.error_at(key, f"the variable {missing[0]} is not set in the environment: set it")
        found = with_variables(found, {name: os.environ[name] for name in names})
        if not found.startswith(SCHEMES):
            raise self.error_at(key, f"must begin with one of {', '.join(SCHEMES)}")
        if found.startswith(SQLITE):
            return f"{SQLITE}{self.file.parent / found.removeprefix(SQLITE)}"
        try:
            postgres_settings(found)
        except InvalidAddress as problem:
            raise self.error_at(key, str(problem)) from problem
        return found

    def options(self, key: str) -> dict[str, str]:
        found = self.value(key, dict, None) or {}
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in found.items()
        }

    def section(self, key: str, *, is_required: bool) -> "Section | None":
        self._known.append(key)
        found = self._values.get(key)
        if found is None and not is_required:
            return None
        if found is None:
            raise self.error_at(None, f"the table [{key}] is missing: every etl has one")
        if not isinstance(found, dict):
            raise self.error_at(key, f"must be a table: write [{key}] on a line of its own")
        inner = f"{self._table}.{key}" if self._table else key
        return Section(self.file, self._text, inner, found)

    def check_no_unknown_keys(self) -> None:
        """Raise an error for a key that was never read."""
        for key in self._values:
            if key not in self._known:
                near = _near(key, self._known) or f"; here may stand {', '.join(self._known)}"
                raise self.error_at(key, f"is not known{near}")


def _near(name: Any, names: Sequence[str]) -> str:
    near = get_close_matches(str(name), names, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


def read_spec(file: Path, checkpoint: Path | None = None) -> EtlSpec:
    """Read and parse the file; raises InvalidSpec, or CommandFailed if the file cannot be read."""
    file = file.absolute()
    try:
        text = file.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except OSError as problem:
        raise CommandFailed(f"cannot read {file}: {problem.strerror or problem}") from problem
    except UnicodeDecodeError as problem:
        raise InvalidSpec(
            f"{file}: it is not UTF-8 text ({problem.reason} at byte {problem.start})"
        ) from problem
    except tomllib.TOMLDecodeError as problem:
        raise InvalidSpec(f"{file}: it is not TOML: {problem}") from problem
    return _spec(Section(file, text, "", values), checkpoint)


def _spec(whole: Section, checkpoint: Path | None) -> EtlSpec:
    name = whole.text("name", '"orders"')
    if _NAME.fullmatch(name) is None:
        raise whole.error_at(
            "name", f"is {name!r}: it names topics, so use letters, digits, dots, dashes, underscores"
        )
    key = whole.names("key", None)
    partitions = whole.whole("partitions", 2)
    isolation = whole.choice("isolation", tuple(ISOLATION_LEVELS), READ_COMMITTED)
    dead_letters = whole.topic("dead_letters", f"{name}.dead")
    folder = whole.path("checkpoint", "") if whole.optional("checkpoint") else None
    topics: dict[str, str] = {}
    extract = _extract(_stage(whole, "extract", topics, name))
    transform = enrich = None
    if (section := whole.section("transform", is_required=False)) is not None:
        transform = _transform(_with_output_topic(section, "transform", topics, name))
    if (section := whole.section("enrich", is_required=False)) is not None:
        enrich = _enrich(_with_output_topic(section, "enrich", topics, name))
    section = whole.section("load", is_required=True)
    assert section is not None, "it must be there"
    load = _load(section)
    whole.check_no_unknown_keys()
    key = _stage_key(whole, key, load)
    if isinstance(extract, FromTopic):
        extract = _with_tombstones(whole, extract, load, key)
    _check_topics(whole, [*topics.values(), dead_letters], extract, load)
    return EtlSpec(
        file=whole.file,
        name=name,
        key=key,
        partitions=partitions,
        dead_letters=dead_letters,
        checkpoint=checkpoint or folder or whole.file.parent / f"{name}.checkpoints",
        extract=extract,
        transform=transform,
        enrich=enrich,
        load=load,
        topics=topics,
        isolation=isolation,
    )


def _stage_key(whole: Section, key: tuple[str, ...], load: LoadSpec) -> tuple[str, ...]:
    """Return the key of records between stages: by default, the key of the target's rows."""
    if not isinstance(load, ToPostgres) or not load.key:
        return key
    if load.version is None and not set(key) <= set(load.key):
        raise whole.error_at(
            "key",
            f"is {', '.join(key)}, and [load] tells rows apart by {', '.join(load.key)}: versions of a row "
            "would be in several partitions, and the older one could stay. Leave key out, name columns of "
            "the key of [load], or name a column that grows with every change: [load] version",
        )
    return key or load.key


def _with_tombstones(whole: Section, source: FromTopic, load: LoadSpec, key: tuple[str, ...]) -> FromTopic:
    """Choose the handling of tombstones if the file does not: delete where possible, else dead."""
    problem = _why_no_deletes(source, load, key)
    if source.tombstones == "delete" and problem is not None:
        raise whole.error_at(None, f'[extract] tombstones = "delete": {problem}')
    is_open = not source.tombstones
    deletes = is_open and problem is None and isinstance(load, ToPostgres)
    return source._replace(tombstones="delete" if deletes else "dead") if is_open else source


def _why_no_deletes(source: FromTopic, load: LoadSpec, key: tuple[str, ...]) -> str | None:
    """Return why tombstones cannot delete the rows of their keys, or None if they can."""
    if source.key_column is None:
        return "nothing says which column the key of a record is: name it as key_column"
    if isinstance(load, ToLake):
        return f"rows of a {load.format} table are not deleted: load to PostgreSQL or a topic"
    if key != (source.key_column,):
        return f"rows must be told apart by what the key of a record is: key = {source.key_column!r}"
    if isinstance(load, ToPostgres) and load.key != (source.key_column,):
        return f"rows must be told apart by what the key of a record is: [load] key = {source.key_column!r}"
    if isinstance(load, ToPostgres) and load.version not in (None, source.timestamp_column):
        return "a tombstone has no version: leave [load] version out, or let it be timestamp_column"
    return None


def _stage(whole: Section, stage: str, topics: dict[str, str], name: str) -> Section:
    section = whole.section(stage, is_required=True)
    assert section is not None, "it must be there"
    return _with_output_topic(section, stage, topics, name)


def _with_output_topic(section: Section, stage: str, topics: dict[str, str], name: str) -> Section:
    topics[stage] = section.topic("to_topic", f"{name}.{stage}")
    return section


def _check_topics(whole: Section, ours: Sequence[str], extract: ExtractSpec, load: LoadSpec) -> None:
    ends = [end.topic for end in (extract, load) if isinstance(end, FromTopic | ToTopic)]
    names = [*ours, *ends]
    for name in names:
        if names.count(name) > 1:
            raise whole.error_at(
                None, f"the topic {name} has two uses: give to_topic, dead_letters ... names of their own"
            )


def _extract(section: Section) -> ExtractSpec:
    found: ExtractSpec
    match section.choice("from", ("files", "database", "topic")):
        case "files":
            form = section.choice("format", _FILE_FORMATS)
            found = FromFiles(
                path=str(section.path("path", '"incoming"')),
                format=form,
                schema=section.columns("schema", '"id bigint, name string"') or "",
                options=section.options("options"),
                files_per_batch=section.whole("files_per_batch", 100),
            )
        case "database":
            found = _parse_database(section)
        case _:
            form = section.choice("format", ("json", "avro", "avro-confluent", "protobuf"), "json")
            found = FromTopic(
                topic=section.topic("topic", None),
                format=form,
                schema=_schema_of_topic(section, form),
                message=section.optional("message") if form == "protobuf" else None,
                key_column=section.optional("key_column"),
                timestamp_column=section.optional("timestamp_column"),
                headers_column=section.optional("headers_column"),
                tombstones=_tombstones(section),
            )
    section.check_no_unknown_keys()
    return found


def _parse_database(section: Section) -> FromDatabase:
    found = FromDatabase(
        url=section.address("url"),
        table=section.text("table", '"orders"'),
        column=section.text("column", '"id"'),
        schema=section.columns("schema", None),
        is_unique=bool(section.value("unique", bool, None)),
        same_value_s=section.value("same_value_s", float, None),
    )
    if found.same_value_s is None:
        return found
    key, duration_s = "same_value_s", found.same_value_s
    if not 0 < duration_s <= _SAME_VALUE_S_MAX:
        raise section.error_at(
            key, f"is {duration_s} and must be more than 0 and at most {_SAME_VALUE_S_MAX}"
        )
    if found.is_unique:
        raise section.error_at(key, "says that values come again, and unique that they do not: leave one out")
    # A reader of SQLite cannot see open transactions, so it cannot wait for them.
    if found.url.startswith(SQLITE):
        raise section.error_at(
            key, "needs to know which transactions are open, and SQLite does not tell: leave it out"
        )
    return found._replace(same_value_s=float(duration_s))


def _tombstones(section: Section) -> str:
    """Return the setting, or an empty string if the file has none."""
    is_given = section.optional("tombstones") is not None
    return section.choice("tombstones", ("dead", "row", "delete")) if is_given else ""


def _schema_of_topic(section: Section, form: str) -> str:
    """Return the columns as given, or the path of a schema file."""
    given = section.text("schema", '"id bigint, name string"' if form == "json" else '"orders.avsc"')
    path = section.file.parent / given
    return str(path) if path.suffix in (".json", ".ddl", ".sql", ".avsc", ".desc") else given


def _transform(section: Section) -> TransformSpec:
    sql, python = section.optional("sql"), section.optional("python")
    if (sql is None) == (python is None):
        raise section.error_at(
            None, 'give one of sql = "select ... from rows" and python = "functions.py:clean"'
        )
    section.check_no_unknown_keys()
    if sql is not None:
        return SqlQuery(sql)
    assert python is not None, "it is one of the two"
    module, colon, function = python.rpartition(":")
    if not colon or not module or not function.isidentifier():
        raise section.error_at(
            "python", f"is {python!r} and must be a file and a function: functions.py:clean"
        )
    if not module.endswith(".py"):
        return PythonFunction(None, module, function)
    file = section.file.parent / module
    if not file.is_file():
        raise section.error_at("python", f"there is no file {file}")
    return PythonFunction(file, file.stem, function)


def _enrich(section: Section) -> EnrichSpec:
    form = section.choice("format", (*_FILE_FORMATS, "delta", "database"))
    is_database = form == "database"
    reference = ReferenceSpec(
        format=form,
        place=section.address("url") if is_database else str(section.path("path", '"customers.csv"')),
        table=section.text("table", '"customers"') if is_database else None,
        schema=section.columns("schema", None) if form != "delta" else None,
        options=section.options("options") if form in _FILE_FORMATS else {},
    )
    found = EnrichSpec(
        reference,
        on=section.names("on", '["customer_id"]'),
        missing=section.choice("missing", ("keep", "drop", "dead"), "keep"),
        refresh_s=section.seconds("refresh_s", 60.0),
    )
    section.check_no_unknown_keys()
    return found


def _load(section: Section) -> LoadSpec:
    found: LoadSpec
    match section.choice("to", ("delta", "parquet", "postgresql", "topic")):
        case "postgresql":
            found = ToPostgres(
                section.address("url"),
                section.text("table", '"orders"'),
                section.names("key", None),
                section.optional("version"),
            )
            if found.version is not None and (not found.key or found.version in found.key):
                raise section.error_at(
                    "version", "needs a key, and is no part of it: of rows with that key, the newest stays"
                )
            if found.url.startswith("sqlite"):
                raise section.error_at(
                    "url", "is of SQLite, and rows are loaded to PostgreSQL: postgresql://..."
                )
        case "topic":
            found = ToTopic(section.topic("topic", None))
        case form:
            by = section.choice("partition_by", [each.value for each in PartitionBy], "none")
            example = '"created_at"' if by != "none" else None
            time = section.optional("time_column", example)
            found = ToLake(form, section.path("path", '"lake/orders"'), PartitionBy(by), time or "timestamp")
    section.check_no_unknown_keys()
    return found
