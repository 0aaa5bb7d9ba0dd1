"""Tables of PostgreSQL and SQLite, read in ranges of an increasing column.

Rule 1: a range `(after, until]` of the column is read again with the same rows after a retry. So a range ends
        where no further row can appear at or below its end (`settled_end.py`).
Rule 2: values of the column are passed as text. The database compares them, in its own order.
Rule 3: a PostgreSQL transaction is identified by its virtual id, which exists from its first statement on.
        The regular id is assigned at the first write, and a transaction can take a sequence number or a time
        before that.
Rule 4: a column is unique if no value is ever used twice, even after its row was deleted. A unique index of
        SQLite guarantees less: SQLite reuses the rowid of a deleted row, unless AUTOINCREMENT forbids it.

SQLite has one writer at a time, so rows are committed in the order in which inserts take values. A reader of
SQLite cannot distinguish one writer from the next, so it cannot wait for the writers that were open at a
given time.
"""

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple, Protocol

import psycopg
from psycopg import sql

from penstock.errors import CommandFailed
from penstock.spark.pipelines.etl.address import CONNECT_S, SQLITE, connect_postgres, without_password
from penstock.spark.pipelines.etl.settled_end import ObservedEnd, OpenTransactions

CHUNK_ROWS: Final = 10_000
DATABASE_ERRORS: Final = (psycopg.Error, sqlite3.Error)


class TableColumn(NamedTuple):
    """Column of a table, with its type in Spark's DDL."""

    name: str
    type: str
    """Type in Spark's DDL."""


class ValueRange(NamedTuple):
    """Range of values of the column that a table is read by."""

    after: str | None
    until: str


class NewestRows(NamedTuple):
    """Rows with the largest value of a column."""

    rows: int
    value: str


class Database(Protocol):
    """Database that tables are read from."""

    def fields(self, table: str) -> list[TableColumn]: ...

    def is_unique(self, table: str, column: str) -> bool:
        """Return whether no value is ever used twice, as far as the database guarantees.

        Raises CommandFailed for a table that cannot be read by this column.
        """

    def read_warnings(self, table: str, column: str, *, is_unique: bool = False) -> list[str]:
        """Return warnings about rows that a reader by this column can miss, with remedies.

        `is_unique`: the user declares that no value is used twice.
        """

    def observed_end(self, table: str, column: str, *, below_largest: bool) -> ObservedEnd:
        """Return the table's largest value, and the open transactions that can still add rows up to it."""

    def newest(self, table: str, column: str, after: str | None) -> NewestRows | None:
        """Return the rows with the largest value; None if it is not above `after`, or the table is empty."""

    def range_end(self, table: str, column: str, wanted: ValueRange, rows_max: int) -> str | None:
        """Return the end of a range within `wanted` of about `rows_max` rows; None if it has no rows."""

    def rows(
        self, table: str, fields: Sequence[str], column: str | None, wanted: ValueRange | None
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows in chunks, in the order of the column; without a range, the whole table."""

    def close(self) -> None: ...


def connect(url: str) -> Database:
    """Open a database by its address; raise CommandFailed if that fails."""
    try:
        if url.startswith(SQLITE):
            return SqliteDatabase(url.removeprefix(SQLITE))
        return PostgresDatabase(url)
    except DATABASE_ERRORS as problem:
        raise CommandFailed(
            f"cannot open the database {without_password(url)}: {_first_line(problem)}"
        ) from problem


def _first_line(problem: Exception) -> str:
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0]


# Types by PostgreSQL's type OID. Other types are read as text.
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
_NO_ZONE: Final = (
    "{column} of {table} is a timestamp without time zone. If it holds the time of a place with summer time, "
    "its clock goes back an hour in autumn, and rows of the second hour are not read: let it hold UTC, or be "
    "timestamptz"
)
_DRAWN_AHEAD: Final = (
    "{column} of {table} is numbered by the sequence {sequence}, of which a session draws {cache} numbers at "
    "once: rows that it inserts later can have numbers below those that were read, which are not read. Draw "
    "one at a time (alter sequence {sequence} cache 1; a session keeps what it has drawn until it ends), or "
    "read the table by a time of change"
)
# Sequences that the column owns (serial and identity), or that its default value uses.
_SEQUENCES_CACHED: Final = """
    select seqrelid::regclass::text, seqcache from pg_sequence where seqcache > 1 and seqrelid in (
        select pg_get_serial_sequence(%(table)s, %(column)s)::regclass
        union select d.refobjid from pg_attrdef f
            join pg_attribute a on a.attrelid = f.adrelid and a.attnum = f.adnum
            join pg_depend d on d.classid = 'pg_attrdef'::regclass and d.objid = f.oid
                and d.refclassid = 'pg_class'::regclass
            where f.adrelid = %(table)s::regclass and a.attname = %(column)s)
    order by 1
"""
_TEXT_FORMAT: Final = (
    "set time zone 'UTC'; set datestyle to 'ISO, YMD'; set intervalstyle to 'postgres'; "
    "set extra_float_digits to 1"
)
_NUMERIC: Final = 1700
_DECIMAL_DIGITS_MAX: Final = 38


_IS_UNIQUE: Final = """
    select exists (
        select 1 from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
        where i.indrelid = %s::regclass and a.attname = %s and i.indnkeyatts = 1
            and i.indisunique and i.indisvalid and i.indpred is null and i.indexprs is null)
"""
# Transactions of other databases are excluded, and those of PostgreSQL's background processes, which have no
# user and insert nothing: a vacuum may take hours. A process that pg_stat_activity does not list yet counts.
_RUNNING: Final = """
    select l.virtualtransaction from pg_locks l left join pg_stat_activity a on a.pid = l.pid
    where l.locktype = 'virtualxid' and l.mode = 'ExclusiveLock' and l.pid <> pg_backend_pid()
        and (a.pid is null or (a.datname = current_database() and a.usesysid is not null))
"""
_PREPARED: Final = """
    select 'prepared ' || transaction::text from pg_prepared_xacts where database = current_database()
"""


class PostgresDatabase:
    """Tables of a PostgreSQL database."""

    def __init__(self, url: str) -> None:
        self._connection = connect_postgres(url, autocommit=True)
        # Values are exchanged as text, also with later sessions: the settings of the role, which change how
        # text is written and understood, must not matter.
        self._connection.execute(_TEXT_FORMAT)

    def fields(self, table: str) -> list[TableColumn]:
        query = sql.SQL("select * from {} limit 0").format(self._table(table))
        try:
            found = self._connection.execute(query).description or []
        except psycopg.Error as problem:
            raise CommandFailed(f"cannot read the table {table}: {_first_line(problem)}") from problem
        return [TableColumn(column.name, _postgres_type(column)) for column in found]

    def is_unique(self, table: str, column: str) -> bool:
        self._check_primary()
        _check_fields(table, [column], [field.name for field in self.fields(table)])
        name = self._table(table).as_string(self._connection)
        found = self._connection.execute(_IS_UNIQUE, (name, column)).fetchone()
        return found is not None and bool(found[0])

    def read_warnings(self, table: str, column: str, *, is_unique: bool = False) -> list[str]:
        kinds = {field.name: field.type for field in self.fields(table)}
        _check_fields(table, [column], list(kinds))
        named = {"table": self._table(table).as_string(self._connection), "column": column}
        found = self._connection.execute(_SEQUENCES_CACHED, named).fetchall()
        # The sequence warning also applies to unique numbers: uniqueness does not guarantee that they come in
        # order.
        told = [
            _DRAWN_AHEAD.format(column=column, table=table, sequence=sequence, cache=cache)
            for sequence, cache in found
        ]
        if kinds[column] == "timestamp_ntz" and not is_unique:
            told.append(_NO_ZONE.format(column=column, table=table))
        return told

    def _check_primary(self) -> None:
        found = self._connection.execute("select pg_is_in_recovery()").fetchone()
        if found is not None and found[0]:
            raise CommandFailed(
                "the database is a standby, where transactions of its primary cannot be seen: rows that "
                "commit late would be missed. Give the address of the primary"
            )

    def observed_end(self, table: str, column: str, *, below_largest: bool) -> ObservedEnd:
        largest = sql.SQL("select max({}) from {}").format(sql.Identifier(column), self._table(table))
        if below_largest:
            largest = sql.SQL("{} where {} < ({})").format(largest, sql.Identifier(column), largest)
        # The order matters, and each query has its own snapshot. A transaction that has ended before the
        # second query had its rows visible in the first, and one that left its session by then is listed as
        # prepared.
        end = self._one(sql.SQL("select ({})::text").format(largest))
        running = self._connection.execute(_RUNNING).fetchall()
        prepared = self._connection.execute(_PREPARED).fetchall()
        return ObservedEnd(
            end,
            OpenTransactions(frozenset(name for (name,) in running), frozenset(name for (name,) in prepared)),
        )

    def newest(self, table: str, column: str, after: str | None) -> NewestRows | None:
        name = sql.Identifier(column)
        query = sql.SQL(
            "select count(*), max({name})::text from {table} "
            "where {name} = (select max({name}) from {table}) and {beyond}"
        ).format(name=name, table=self._table(table), beyond=_beyond(name, after))
        return _newest(self._connection.execute(query).fetchone())

    def range_end(self, table: str, column: str, wanted: ValueRange, rows_max: int) -> str | None:
        name = sql.Identifier(column)
        query = sql.SQL(
            "select max(c)::text from (select {name} c from {table} where {beyond} and {name} <= {until} "
            "order by {name} limit {limit}) taken"
        ).format(
            name=name,
            table=self._table(table),
            beyond=_beyond(name, wanted.after),
            until=_untyped_literal(wanted.until),
            limit=sql.Literal(rows_max),
        )
        return self._one(query)

    def rows(
        self, table: str, fields: Sequence[str], column: str | None, wanted: ValueRange | None
    ) -> Iterator[list[tuple[Any, ...]]]:
        kinds = {field.name: field.type for field in self.fields(table)}
        _check_fields(table, [*fields, *([column] if column else [])], list(kinds))
        # Types without a Spark equivalent are read as text.
        names = [
            sql.SQL("{}::text" if kinds[name] == "string" else "{}").format(sql.Identifier(name))
            for name in fields
        ]
        query = sql.SQL("select {} from {}").format(sql.SQL(", ").join(names), self._table(table))
        if wanted is not None and column is not None:
            name = sql.Identifier(column)
            query += sql.SQL(" where {} <= {}").format(name, _untyped_literal(wanted.until))
            if wanted.after is not None:
                query += sql.SQL(" and {} > {}").format(name, _untyped_literal(wanted.after))
            query += sql.SQL(" order by {}").format(name)
        # A server-side cursor, so that a large range is not held in memory.
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


def _newest(found: Sequence[Any] | None) -> NewestRows | None:
    return NewestRows(found[0], str(found[1])) if found is not None and found[0] else None


def _beyond(name: sql.Identifier, after: str | None) -> sql.Composable:
    return sql.SQL("true") if after is None else sql.SQL("{} > {}").format(name, _untyped_literal(after))


def _untyped_literal(value: str) -> sql.Composable:
    """Return a literal without a type: PostgreSQL infers the type from the other operand."""
    return sql.Literal(value)


def _postgres_type(column: psycopg.Column) -> str:
    if column.type_code == _NUMERIC:
        precision, scale = column.precision, column.scale
        if precision is None or scale is None or precision > _DECIMAL_DIGITS_MAX:
            return "decimal(38,18)"
        return f"decimal({precision},{scale})"
    return _POSTGRES_TYPES.get(column.type_code, "string")


_SQLITE_QUOTED: Final = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]|--[^\n]*|/\*.*?(?:\*/|$)""", re.DOTALL
)
_SQLITE_WORD: Final = re.compile(r"[\w$]+")
_NUMBERS_REUSED: Final = (
    "SQLite gives the number of a deleted row of {table} again if no row has a larger one, and a row with a "
    "{column} that was read before is not read. Declare {column} as integer primary key autoincrement, or "
    "read the table by a time of change; if rows are never deleted, say so: unique = true"
)


class SqliteDatabase:
    """Tables of a SQLite file."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=CONNECT_S)
        self._connection.execute("select 1 from sqlite_master limit 1")  # fails if the file is no database

    def fields(self, table: str) -> list[TableColumn]:
        found = self._connection.execute("select name, type from pragma_table_info(?)", (table,)).fetchall()
        if not found:
            raise CommandFailed(f"there is no table {table} in the database")
        return [TableColumn(name, _affinity(declared)) for name, declared in found]

    def is_unique(self, table: str, column: str) -> bool:
        self._check_growing(table, column)
        return self._is_only_key(table, column) and "AUTOINCREMENT" in self._words(table)

    def read_warnings(self, table: str, column: str, *, is_unique: bool = False) -> list[str]:
        words = self._words(table)
        is_numbered = self._is_only_key(table, column) and not {"WITHOUT", "ROWID"} <= words
        is_given_again = is_numbered and "AUTOINCREMENT" not in words and not is_unique
        return [_NUMBERS_REUSED.format(table=table, column=column)] if is_given_again else []

    def _is_only_key(self, table: str, column: str) -> bool:
        """Return whether the column is SQLite's rowid."""
        query = "select name, upper(type) from pragma_table_info(?) where pk > 0"
        return self._connection.execute(query, (table,)).fetchall() == [(column, "INTEGER")]

    def _words(self, table: str) -> set[str]:
        """Return the words of the CREATE TABLE statement, without quoted names, strings and comments."""
        query = "select sql from sqlite_master where type = 'table' and name = ? collate nocase"
        found = self._connection.execute(query, (table,)).fetchone()
        return (
            set() if found is None else set(_SQLITE_WORD.findall(_SQLITE_QUOTED.sub(" ", found[0]).upper()))
        )

    def observed_end(self, table: str, column: str, *, below_largest: bool) -> ObservedEnd:
        name = _quote(column)
        query = f"select max({name}) from {_quote(table)}"  # noqa: S608
        if below_largest:
            query += f" where {name} < ({query})"
        return ObservedEnd(self._one(query, ()), OpenTransactions())

    def newest(self, table: str, column: str, after: str | None) -> NewestRows | None:
        name, place = _quote(column), _quote(table)
        beyond = "" if after is None else f" and {name} > ?"
        query = (
            f"select count(*), max({name}) from {place} "  # noqa: S608
            f"where {name} = (select max({name}) from {place}){beyond}"
        )
        return _newest(self._connection.execute(query, () if after is None else (after,)).fetchone())

    def range_end(self, table: str, column: str, wanted: ValueRange, rows_max: int) -> str | None:
        name = _quote(column)
        after = [] if wanted.after is None else [wanted.after]
        beyond = f" and {name} > ?" if after else ""
        query = (
            f"select max(c) from (select {name} c from {_quote(table)} "  # noqa: S608
            f"where {name} <= ?{beyond} order by {name} limit ?)"
        )
        return self._one(query, (wanted.until, *after, rows_max))

    def _one(self, query: str, values: Sequence[str | int]) -> str | None:
        found = self._connection.execute(query, values).fetchone()[0]
        return None if found is None else str(found)

    def _check_growing(self, table: str, column: str) -> None:
        """Reject columns without a type: SQLite compares a text value as a number only in numeric columns."""
        kinds = {field.name: field.type for field in self.fields(table)}
        _check_fields(table, [column], list(kinds))
        if kinds[column] == "binary":
            raise CommandFailed(f"the column {column} of {table} has no type to be ordered by: give it one")

    def rows(
        self, table: str, fields: Sequence[str], column: str | None, wanted: ValueRange | None
    ) -> Iterator[list[tuple[Any, ...]]]:
        known = [field.name for field in self.fields(table)]
        _check_fields(table, [*fields, *([column] if column else [])], known)
        query = f"select {', '.join(map(_quote, fields))} from {_quote(table)}"  # noqa: S608
        values: list[str] = []
        if wanted is not None and column is not None:
            query += f" where {_quote(column)} <= ?"
            values.append(wanted.until)
            if wanted.after is not None:
                query += f" and {_quote(column)} > ?"
                values.append(wanted.after)
            query += f" order by {_quote(column)}"
        with closing(self._connection.execute(query, values)) as cursor:
            while chunk := cursor.fetchmany(CHUNK_ROWS):
                yield chunk

    def close(self) -> None:
        self._connection.close()


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _affinity(declared: str) -> str:
    """Map the declared type by SQLite's affinity rules; SQLite accepts any word as a type."""
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
