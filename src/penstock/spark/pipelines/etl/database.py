"""Tables of PostgreSQL and SQLite, read in chunks by a column that grows.

Rule 1: a range `(after, until]` of that column, once read, is read again with the same rows. So `settled_end`
        gives only values below which nothing new can come.
Rule 2: values of the column travel as text. The database compares, in its own order.

Where new rows can still come below the largest value: in PostgreSQL, somebody who has taken number 7 may
commit after somebody who took 8. So a largest value counts only when all transactions are over that ran when
it was seen. SQLite has one writer at a time.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple, Protocol

import psycopg
from psycopg import sql

from penstock.errors import CommandFailed
from penstock.spark.pipelines.etl.address import CONNECT_S, SQLITE, connect_postgres, without_password

CHUNK_ROWS: Final = 10_000
_PENDING_MAX: Final = 100


class Field(NamedTuple):
    name: str
    type: str
    """As Spark writes it."""


class Range(NamedTuple):
    after: str | None
    until: str


class Database(Protocol):
    def fields(self, table: str) -> list[Field]: ...

    def settled_end(self, table: str, column: str, after: str | None, rows_max: int) -> str | None:
        """The end of a range of about so many rows. None if there is nothing beyond `after`."""

    def rows(
        self, table: str, fields: Sequence[str], column: str | None, wanted: Range | None
    ) -> Iterator[list[tuple[Any, ...]]]:
        """In chunks, in the order of the column. Without a range the whole table."""

    @property
    def is_settling(self) -> bool:
        """Whether something was seen that may not be read yet."""

    def close(self) -> None: ...


def connect(url: str) -> Database:
    """CommandFailed if nobody answers."""
    try:
        if url.startswith(SQLITE):
            return Sqlite(url.removeprefix(SQLITE))
        return Postgres(url)
    except (psycopg.Error, sqlite3.Error) as problem:
        raise CommandFailed(
            f"cannot open the database {without_password(url)}: {_first_line(problem)}"
        ) from problem


def _first_line(problem: Exception) -> str:
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0]


# Types by the number that PostgreSQL gives them. What is not here is read as text.
_POSTGRES_TYPES: Final = {
    16: "boolean",
    17: "binary",
    20: "bigint",
    21: "smallint",
    23: "int",
    700: "float",
    701: "double",
    1082: "date",
    1114: "timestamp_ntz",
    1184: "timestamp",
}
_NUMERIC: Final = 1700
_DECIMAL_DIGITS_MAX: Final = 38


class Postgres:
    def __init__(self, url: str) -> None:
        self._connection = connect_postgres(url, autocommit=True)
        self._connection.execute("set time zone 'UTC'")
        self._pending: list[tuple[int, str]] = []
        self._settled: str | None = None

    def fields(self, table: str) -> list[Field]:
        query = sql.SQL("select * from {} limit 0").format(self._table(table))
        try:
            found = self._connection.execute(query).description or []
        except psycopg.Error as problem:
            raise CommandFailed(f"cannot read the table {table}: {_first_line(problem)}") from problem
        return [Field(column.name, _postgres_type(column)) for column in found]

    def settled_end(self, table: str, column: str, after: str | None, rows_max: int) -> str | None:
        self._look(table, column)
        if self._settled is None:
            return None
        name = sql.Identifier(column)
        beyond = sql.SQL("{} > {}").format(name, _typed(after)) if after is not None else sql.SQL("true")
        query = sql.SQL(
            "select max(c)::text from (select {name} c from {table} where {beyond} and {name} <= {until} "
            "order by {name} limit {limit}) taken"
        ).format(
            name=name,
            table=self._table(table),
            beyond=beyond,
            until=_typed(self._settled),
            limit=sql.Literal(rows_max),
        )
        return self._one(query)

    def _look(self, table: str, column: str) -> None:
        """See what is largest now, and whether what was largest before is settled."""
        seen = self._connection.execute(
            sql.SQL(
                "select pg_snapshot_xmin(pg_current_snapshot())::text::bigint, "
                "pg_snapshot_xmax(pg_current_snapshot())::text::bigint, (select max({})::text from {})"
            ).format(sql.Identifier(column), self._table(table))
        ).fetchone()
        assert seen is not None, "such a query has one row"
        oldest_running, next_number, largest = seen
        if largest is not None and len(self._pending) < _PENDING_MAX:
            self._pending.append((next_number, largest))
        while self._pending and self._pending[0][0] <= oldest_running:
            self._settled = self._pending.pop(0)[1]

    @property
    def is_settling(self) -> bool:
        """Whether something was seen that may not be read yet."""
        return bool(self._pending)

    def rows(
        self, table: str, fields: Sequence[str], column: str | None, wanted: Range | None
    ) -> Iterator[list[tuple[Any, ...]]]:
        kinds = {field.name: field.type for field in self.fields(table)}
        _check_fields(table, [*fields, *([column] if column else [])], list(kinds))
        names = [
            sql.SQL("{}::text" if kinds[name] == "string" else "{}").format(sql.Identifier(name))
            for name in fields
        ]
        query = sql.SQL("select {} from {}").format(sql.SQL(", ").join(names), self._table(table))
        if wanted is not None and column is not None:
            name = sql.Identifier(column)
            query += sql.SQL(" where {} <= {}").format(name, _typed(wanted.until))
            if wanted.after is not None:
                query += sql.SQL(" and {} > {}").format(name, _typed(wanted.after))
            query += sql.SQL(" order by {}").format(name)
        with self._connection.transaction(), self._connection.cursor(name="penstock_rows") as cursor:
            cursor.execute(query)
            while chunk := cursor.fetchmany(CHUNK_ROWS):
                yield chunk

    def close(self) -> None:
        self._connection.close()

    def _one(self, query: sql.Composed) -> str | None:
        row = self._connection.execute(query).fetchone()
        return None if row is None or row[0] is None else str(row[0])

    def _table(self, table: str) -> sql.Identifier:
        return sql.Identifier(*table.split("."))


def _typed(value: str) -> sql.Composable:
    """A literal without a type: PostgreSQL gives it that of what it is compared with."""
    return sql.Literal(value)


def _postgres_type(column: psycopg.Column) -> str:
    if column.type_code == _NUMERIC:
        precision, scale = column.precision, column.scale
        if precision is None or scale is None or precision > _DECIMAL_DIGITS_MAX:
            return "decimal(38,18)"
        return f"decimal({precision},{scale})"
    return _POSTGRES_TYPES.get(column.type_code, "string")


class Sqlite:
    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=CONNECT_S)
        self._connection.execute("select 1 from sqlite_master limit 1")  # or it is no database

    def fields(self, table: str) -> list[Field]:
        found = self._connection.execute("select name, type from pragma_table_info(?)", (table,)).fetchall()
        if not found:
            raise CommandFailed(f"there is no table {table} in the database")
        return [Field(name, _affinity(declared)) for name, declared in found]

    def settled_end(self, table: str, column: str, after: str | None, rows_max: int) -> str | None:
        self._check_growing(table, column)
        name = _quoted(column)
        beyond, values = (f"where {name} > ?", [after]) if after is not None else ("", [])
        query = f"select max(c) from (select {name} c from {_quoted(table)} {beyond} order by {name} limit ?)"  # noqa: S608
        found = self._connection.execute(query, [*values, rows_max]).fetchone()[0]
        return None if found is None else str(found)

    @property
    def is_settling(self) -> bool:
        return False

    def _check_growing(self, table: str, column: str) -> None:
        """Text that comes back is compared as a number only if the column says that it holds numbers."""
        kinds = {field.name: field.type for field in self.fields(table)}
        _check_fields(table, [column], list(kinds))
        if kinds[column] == "binary":
            raise CommandFailed(f"the column {column} of {table} has no type to be ordered by: give it one")

    def rows(
        self, table: str, fields: Sequence[str], column: str | None, wanted: Range | None
    ) -> Iterator[list[tuple[Any, ...]]]:
        known = [field.name for field in self.fields(table)]
        _check_fields(table, [*fields, *([column] if column else [])], known)
        query = f"select {', '.join(map(_quoted, fields))} from {_quoted(table)}"  # noqa: S608
        values: list[str] = []
        if wanted is not None and column is not None:
            query += f" where {_quoted(column)} <= ?"
            values.append(wanted.until)
            if wanted.after is not None:
                query += f" and {_quoted(column)} > ?"
                values.append(wanted.after)
            query += f" order by {_quoted(column)}"
        with closing(self._connection.execute(query, values)) as cursor:
            while chunk := cursor.fetchmany(CHUNK_ROWS):
                yield chunk

    def close(self) -> None:
        self._connection.close()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _affinity(declared: str) -> str:
    """By the rules of SQLite, which takes any word for a type."""
    word = declared.upper()
    if "INT" in word:
        return "bigint"
    if any(part in word for part in ("CHAR", "CLOB", "TEXT")):
        return "string"
    if "BLOB" in word or not word:
        return "binary"
    if "BOOL" in word:
        return "boolean"
    if any(part in word for part in ("REAL", "FLOA", "DOUB", "NUM", "DEC")):
        return "double"
    return "string"


def _check_fields(table: str, wanted: Sequence[str], known: Sequence[str]) -> None:
    if missing := [name for name in wanted if name not in known]:
        raise CommandFailed(f"the table {table} has no column {missing[0]}; it has {', '.join(known)}")
