"""Tables of PostgreSQL and SQLite, read in chunks by a column that grows.

Rule 1: a range `(after, until]` of that column, once read, is read again with the same rows. So a range ends
        where no row can come any more at or below its end (`settling.py`).
Rule 2: values of the column travel as text. The database compares, in its own order.
Rule 3: a transaction of PostgreSQL is known by its virtual id, which it has from its first statement on. The
        other id comes with the first write, and a number or a time can be taken before that.

SQLite has one writer at a time, so its transactions commit in the order in which they take values.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple, Protocol

import psycopg
from psycopg import sql

from penstock.errors import CommandFailed
from penstock.spark.pipelines.etl.address import CONNECT_S, SQLITE, connect_postgres, without_password
from penstock.spark.pipelines.etl.settling import Look, Repeats, Running

CHUNK_ROWS: Final = 10_000


class Field(NamedTuple):
    name: str
    type: str
    """As Spark writes it."""


class Range(NamedTuple):
    after: str | None
    until: str


class Database(Protocol):
    def fields(self, table: str) -> list[Field]: ...

    def repeats(self, table: str, column: str) -> Repeats:
        """Whether rows can have the same value in the column, as far as the database knows."""

    def look(self, table: str, column: str, repeats: Repeats) -> Look:
        """How far the table goes now, and who can still add rows up to there."""

    def range_end(self, table: str, column: str, wanted: Range, rows_max: int) -> str | None:
        """The end of a range within `wanted` of about so many rows. None if there is nothing in it."""

    def rows(
        self, table: str, fields: Sequence[str], column: str | None, wanted: Range | None
    ) -> Iterator[list[tuple[Any, ...]]]:
        """In chunks, in the order of the column. Without a range the whole table."""

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
_POSTGRES_TIMES: Final = ("timestamp", "timestamp_ntz")
_NUMERIC: Final = 1700
_DECIMAL_DIGITS_MAX: Final = 38


_IS_UNIQUE: Final = """
    select exists (
        select 1 from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
        where i.indrelid = %s::regclass and a.attname = %s and i.indnkeyatts = 1
            and i.indisunique and i.indisvalid and i.indpred is null and i.indexprs is null)
"""
# Not those of other databases, nor of servants of PostgreSQL itself, which have no user and insert nothing: a
# vacuum may take hours. What pg_stat_activity does not know yet counts.
_RUNNING: Final = """
    select l.virtualtransaction from pg_locks l left join pg_stat_activity a on a.pid = l.pid
    where l.locktype = 'virtualxid' and l.mode = 'ExclusiveLock' and l.pid <> pg_backend_pid()
        and (a.pid is null or (a.datname = current_database() and a.usesysid is not null))
"""
_PREPARED: Final = """
    select 'prepared ' || transaction::text from pg_prepared_xacts where database = current_database()
"""


class Postgres:
    def __init__(self, url: str) -> None:
        self._connection = connect_postgres(url, autocommit=True)
        self._connection.execute("set time zone 'UTC'")

    def fields(self, table: str) -> list[Field]:
        query = sql.SQL("select * from {} limit 0").format(self._table(table))
        try:
            found = self._connection.execute(query).description or []
        except psycopg.Error as problem:
            raise CommandFailed(f"cannot read the table {table}: {_first_line(problem)}") from problem
        return [Field(column.name, _postgres_type(column)) for column in found]

    def repeats(self, table: str, column: str) -> Repeats:
        self._check_primary()
        kinds = {field.name: field.type for field in self.fields(table)}
        _check_fields(table, [column], list(kinds))
        if kinds[column] in _POSTGRES_TIMES:
            return Repeats.SAME_TIME
        name = self._table(table).as_string(self._connection)
        found = self._connection.execute(_IS_UNIQUE, (name, column)).fetchone()
        return Repeats.NEVER if found is not None and found[0] else Repeats.ANY_TIME

    def _check_primary(self) -> None:
        found = self._connection.execute("select pg_is_in_recovery()").fetchone()
        if found is not None and found[0]:
            raise CommandFailed(
                "the database is a standby, where transactions of its primary cannot be seen: rows that "
                "commit late would be missed. Give the address of the primary"
            )

    def look(self, table: str, column: str, repeats: Repeats) -> Look:
        largest = sql.SQL("select max({}) from {}").format(sql.Identifier(column), self._table(table))
        if repeats is Repeats.ANY_TIME:
            largest = sql.SQL("{} where {} < ({})").format(largest, sql.Identifier(column), largest)
        # In this order, each with a snapshot of its own: a transaction that is over when it is looked for was
        # visible, and one that has left its session by then is among the prepared ones.
        end = self._one(sql.SQL("select ({})::text").format(largest))
        running = self._connection.execute(_RUNNING).fetchall()
        prepared = self._connection.execute(_PREPARED).fetchall()
        return Look(
            end, Running(frozenset(name for (name,) in running), frozenset(name for (name,) in prepared))
        )

    def range_end(self, table: str, column: str, wanted: Range, rows_max: int) -> str | None:
        name = sql.Identifier(column)
        beyond = (
            sql.SQL("true") if wanted.after is None else sql.SQL("{} > {}").format(name, _typed(wanted.after))
        )
        query = sql.SQL(
            "select max(c)::text from (select {name} c from {table} where {beyond} and {name} <= {until} "
            "order by {name} limit {limit}) taken"
        ).format(
            name=name,
            table=self._table(table),
            beyond=beyond,
            until=_typed(wanted.until),
            limit=sql.Literal(rows_max),
        )
        return self._one(query)

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


_SQLITE_TIMES: Final = ("DATETIME", "TIMESTAMP", "CURRENT_TIMESTAMP")
_SQLITE_UNIQUE: Final = """
    select count(*) from pragma_index_list(?) i where i."unique" and not i.partial
        and (select count(*) from pragma_index_info(i.name)) = 1
        and (select name from pragma_index_info(i.name)) = ?
"""


class Sqlite:
    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=CONNECT_S)
        self._connection.execute("select 1 from sqlite_master limit 1")  # or it is no database

    def fields(self, table: str) -> list[Field]:
        found = self._connection.execute("select name, type from pragma_table_info(?)", (table,)).fetchall()
        if not found:
            raise CommandFailed(f"there is no table {table} in the database")
        return [Field(name, _affinity(declared)) for name, declared in found]

    def repeats(self, table: str, column: str) -> Repeats:
        self._check_growing(table, column)
        query = "select upper(type), upper(dflt_value), pk from pragma_table_info(?) where name = ?"
        kind, default, in_key = self._connection.execute(query, (table, column)).fetchone()
        if any(word in kind for word in _SQLITE_TIMES) or default in _SQLITE_TIMES:
            return Repeats.SAME_TIME
        keys = self._connection.execute(
            "select count(*) from pragma_table_info(?) where pk > 0", (table,)
        ).fetchone()[0]
        indexes = self._connection.execute(_SQLITE_UNIQUE, (table, column)).fetchone()[0]
        return Repeats.NEVER if indexes or (in_key and keys == 1) else Repeats.ANY_TIME

    def look(self, table: str, column: str, repeats: Repeats) -> Look:
        name = _quoted(column)
        query = f"select max({name}) from {_quoted(table)}"  # noqa: S608
        if repeats is Repeats.ANY_TIME:
            query += f" where {name} < ({query})"
        return Look(self._one(query, ()), Running())

    def range_end(self, table: str, column: str, wanted: Range, rows_max: int) -> str | None:
        name = _quoted(column)
        after = [] if wanted.after is None else [wanted.after]
        beyond = f" and {name} > ?" if after else ""
        query = (
            f"select max(c) from (select {name} c from {_quoted(table)} "  # noqa: S608
            f"where {name} <= ?{beyond} order by {name} limit ?)"
        )
        return self._one(query, (wanted.until, *after, rows_max))

    def _one(self, query: str, values: Sequence[str | int]) -> str | None:
        found = self._connection.execute(query, values).fetchone()[0]
        return None if found is None else str(found)

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
