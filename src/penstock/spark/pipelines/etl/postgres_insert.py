"""Insertion of staged rows into the target, and isolation of the rows that PostgreSQL rejects.

All rows are inserted in one statement. If PostgreSQL rejects the statement, the rows are split in halves,
recursively; chunks of ROWS_SINGLY are inserted row by row by a block inside PostgreSQL. So one bad row among
many costs about one more pass over the rows. If all rows are bad, each row costs its insertion: no round trip
and no search.

Rule 1: every violation is raised within the statement that inserts the row: the caller has set constraints
        immediate.
Rule 2: a missing privilege of the user is not an error of a row. A violated row policy is.
Rule 3: for rows with versions, a deletion is recorded with the version of its tombstone. Otherwise an older
        row that arrives later would find no newer row, and reappear.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import sql

from penstock.spark.pipelines.etl.spec import DELETED

ROWS_SINGLY: Final = 1_000
_READABLE_BYTES_MAX: Final = 40
"""Limit for the target's name within another table's name, with room for an index name: 63 bytes in all."""
ROW_ERRORS: Final = (
    psycopg.DataError,
    psycopg.IntegrityError,
    psycopg.errors.ProgramLimitExceeded,  # for example, a key that is too long for its index
    psycopg.errors.StatementTooComplex,  # for example, a value that is nested too deep
    psycopg.errors.RaiseException,  # raised by a trigger
    psycopg.errors.InsufficientPrivilege,  # raised by a row policy
)
"""Errors of single rows. The block below names the same; its class 54 covers all codes that begin with 54."""
_RESULT: Final = "penstock.refused"
"""Session setting that returns the result: a DO block returns nothing, and a setting needs no privilege."""
_ROW_BY_ROW: Final = """
declare
    penstock_row record;
    penstock_detail text;
    penstock_refused jsonb[] := '{{}}';
begin
    for penstock_row in
        select s.attempt, s.part, s.pos, s.row from {staging} s where {row_filter} order by s.part, s.pos
    loop
        begin
            {insert_statement};
        exception when data_exception or integrity_constraint_violation or program_limit_exceeded
            or raise_exception or insufficient_privilege then
            get stacked diagnostics penstock_detail = pg_exception_detail;
            penstock_refused := array_append(penstock_refused, jsonb_build_array(
                penstock_row.part, penstock_row.pos, penstock_row.row, sqlerrm, penstock_detail));
        end;
    end loop;
    perform set_config({result}, to_jsonb(penstock_refused)::text, true);
end
"""


class PostgresTarget(NamedTuple):
    """Table that rows are loaded into. Plain values: sent to executors."""

    url: str
    table: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    topic: str
    """Topic that the rows come from."""
    version: str | None = None
    """Column by which the largest of rows with the same key is kept. None: the last row is kept."""
    deletes: bool = False
    """Whether rows can request the deletion of the row with their key (`spec.DELETED`)."""

    @property
    def staging(self) -> sql.Identifier:
        named = f"{self.table}/{self.topic}".encode()
        return sql.Identifier(f"penstock_staging_{hashlib.sha256(named).hexdigest()[:16]}")

    @property
    def quoted_table(self) -> sql.Identifier:
        return sql.Identifier(*self.table.split("."))

    @property
    def records_deletions(self) -> bool:
        return self.deletes and self.version is not None

    @property
    def deleted(self) -> sql.Identifier:
        """Name of the table of deleted keys and their versions, in the schema of the target."""
        *schema, name = self.table.split(".")
        if len(name.encode()) > _READABLE_BYTES_MAX:  # PostgreSQL truncates names, and two could collide
            name = hashlib.sha256(name.encode()).hexdigest()[:16]
        return sql.Identifier(*schema, f"penstock_deleted_{name}")


class StagedRow(NamedTuple):
    """Row of the staging table, with the position of its record in the topic."""

    partition: int
    offset: int
    row: str


class RejectedRow(NamedTuple):
    """Row that PostgreSQL rejected."""

    row: StagedRow
    reason: str


RecordPosition = tuple[int, int]
"""Partition and offset."""


def with_detail(message: str, detail: str | None) -> str:
    return f"{message} ({detail})" if detail else message


def identifiers(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def insert_statement(target: PostgresTarget, row_filter: sql.Composable) -> sql.Composed:
    """Return the statement that inserts rows of staging table `s`; of each key, only the newest row."""
    keys = sql.SQL(", ").join(sql.SQL("r.{}").format(sql.Identifier(name)) for name in target.key)
    rows = sql.SQL(
        "select {distinct} {columns}{is_gone} from {staging} s, "
        "json_populate_record(null::{table}, s.row::json) r where {row_filter} order by {order}"
    ).format(
        distinct=sql.SQL("distinct on ({})").format(keys) if target.key else sql.SQL(""),
        columns=sql.SQL(", ").join(sql.SQL("r.{}").format(sql.Identifier(name)) for name in target.columns),
        is_gone=_deletion_column() if target.deletes else sql.SQL(""),
        staging=target.staging,
        table=target.quoted_table,
        row_filter=row_filter,
        order=keys + _newest_first_order(target) if target.key else sql.SQL("s.part, s.pos"),
    )
    if target.deletes:
        before, rows = _deletion_clauses(target, rows)
    else:
        before = sql.Composed([])
    return before + sql.SQL("insert into {} as kept ({}) {} {}").format(
        target.quoted_table, identifiers(target.columns), rows, _conflict_clause(target)
    )


def _deletion_column() -> sql.Composed:
    return sql.SQL(", coalesce((s.row::json ->> {})::boolean, false) penstock_gone").format(
        sql.Literal(DELETED)
    )


def _deletion_clauses(target: PostgresTarget, rows: sql.Composed) -> tuple[sql.Composed, sql.Composed]:
    """Return the clauses that delete rows, which precede the insert, and the rows to insert.

    A key is deleted or inserted, never both: only its newest row counts.
    """
    is_newer, deleted_keys = sql.Composed([]), sql.Composed([])
    if target.version is not None:
        version = sql.Identifier(target.version)
        is_newer = sql.SQL(" and (kept.{0} is null or newest.{0} >= kept.{0})").format(version)
        rows, deleted_keys = (
            _newer_than_tombstone(target, version, rows),
            _deleted_keys_clauses(target, version),
        )
    before = sql.SQL(
        "with newest as ({}), gone as (delete from {} kept using newest where penstock_gone and {}{}){} "
    ).format(rows, target.quoted_table, _same_key(target, "kept", "newest"), is_newer, deleted_keys)
    left = sql.SQL("select {} from newest where not penstock_gone").format(identifiers(target.columns))
    return before, left


def _same_key(target: PostgresTarget, *tables: str) -> sql.Composed:
    one, other = map(sql.Identifier, tables)
    equal = (sql.SQL("{0}.{2} = {1}.{2}").format(one, other, sql.Identifier(name)) for name in target.key)
    return sql.SQL(" and ").join(equal)


def _newer_than_tombstone(
    target: PostgresTarget, version: sql.Identifier, rows: sql.Composed
) -> sql.Composed:
    """Return the rows without a tombstone of a larger version.

    A tombstone of the same version was earlier, so the row counts, as it does against another row.
    """
    return sql.SQL(
        "select found.* from ({rows}) found where not exists (select from {deleted} deleted "
        "where {same_key} and (found.{version} is null or found.{version} < deleted.{version}))"
    ).format(
        rows=rows,
        deleted=target.deleted,
        same_key=_same_key(target, "deleted", "found"),
        version=version,
    )


def _deleted_keys_clauses(target: PostgresTarget, version: sql.Identifier) -> sql.Composed:
    """Return the clauses that update the table of deletions.

    A key is in that table only while the target has no row for it, so the table grows only by keys that stay
    deleted. A tombstone without a version is older than all rows with a version, and is not recorded.
    """
    return sql.SQL(
        ", noted as (insert into {deleted} as deleted ({columns}) select {columns} from newest "
        "where penstock_gone and {version} is not null and not exists "
        "(select from {table} kept where {same_as_kept} and kept.{version} > newest.{version}) "
        "on conflict ({key}) do update set {version} = excluded.{version}), "
        "forgotten as (delete from {deleted} deleted using newest where not penstock_gone and {same_key})"
    ).format(
        deleted=target.deleted,
        columns=sql.SQL(", ").join([*map(sql.Identifier, target.key), version]),
        version=version,
        table=target.quoted_table,
        same_as_kept=_same_key(target, "kept", "newest"),
        same_key=_same_key(target, "deleted", "newest"),
        key=identifiers(target.key),
    )


def _newest_first_order(target: PostgresTarget) -> sql.Composable:
    place = sql.SQL(", s.part desc, s.pos desc")
    if target.version is None:
        return place
    return sql.SQL(", r.{} desc nulls last").format(sql.Identifier(target.version)) + place


def _conflict_clause(target: PostgresTarget) -> sql.Composable:
    if not target.key:
        return sql.SQL("")
    others = [name for name in target.columns if name not in target.key]
    key = identifiers(target.key)
    if not others:
        return sql.SQL("on conflict ({}) do nothing").format(key)
    changes = sql.SQL(", ").join(
        sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in others
    )
    update = sql.SQL("on conflict ({}) do update set {}").format(key, changes)
    if target.version is None:
        return update
    # Rows of several partitions, and batches of them, come in any order, so an older row must not overwrite.
    return update + sql.SQL(" where kept.{0} is null or excluded.{0} >= kept.{0}").format(
        sql.Identifier(target.version)
    )


def attempts_filter(attempts: Sequence[str]) -> sql.Composed:
    return sql.SQL("s.attempt = any({}::text[])").format(sql.Literal(list(attempts)))


def _range_filter(attempts: Sequence[str], first: RecordPosition, last: RecordPosition) -> sql.Composed:
    return sql.SQL("{} and (s.part, s.pos) >= ({}) and (s.part, s.pos) <= ({})").format(
        attempts_filter(attempts), *(sql.SQL(", ").join(map(sql.Literal, place)) for place in (first, last))
    )


def insert_rows(
    connected: "psycopg.Connection[Any]", target: PostgresTarget, attempts: Sequence[str]
) -> Iterator[RejectedRow]:
    """Insert the rows of the attempts; yield the rejected rows."""
    try:
        # A savepoint: after an error, the surrounding transaction of the commit continues.
        with connected.transaction():
            connected.execute(insert_statement(target, attempts_filter(attempts)))
        return
    except ROW_ERRORS as problem:
        if isinstance(problem, psycopg.errors.InsufficientPrivilege):
            _check_rights(connected, target)
        query = sql.SQL("select s.part, s.pos from {} s where {} order by s.part, s.pos")
        places: list[RecordPosition] = connected.execute(
            query.format(target.staging, attempts_filter(attempts))
        ).fetchall()
        # Without statistics on the freshly filled table, the planner would scan all rows for every chunk.
        connected.execute(sql.SQL("analyze {}").format(target.staging))
    yield from _insert_by_halves(connected, target, attempts, places)


def _check_rights(connected: "psycopg.Connection[Any]", target: PostgresTarget) -> None:
    """Raise the error if the whole statement lacks a privilege; EXPLAIN does not evaluate row policies."""
    connected.execute(sql.SQL("explain {}").format(insert_statement(target, attempts_filter([]))))


def _insert_by_halves(
    connected: "psycopg.Connection[Any]",
    target: PostgresTarget,
    attempts: Sequence[str],
    places: Sequence[RecordPosition],
) -> Iterator[RejectedRow]:
    middle = len(places) // 2
    for half in (places[:middle], places[middle:]):
        if not half:
            continue
        row_filter = _range_filter(attempts, half[0], half[-1])
        try:
            with connected.transaction():
                connected.execute(insert_statement(target, row_filter))
        except ROW_ERRORS:
            if len(half) > ROWS_SINGLY:
                yield from _insert_by_halves(connected, target, attempts, half)
            else:
                yield from _insert_singly(connected, target, row_filter)


def _insert_singly(
    connected: "psycopg.Connection[Any]", target: PostgresTarget, row_filter: sql.Composable
) -> Iterator[RejectedRow]:
    this_row = sql.SQL(
        "(s.attempt, s.part, s.pos) = (penstock_row.attempt, penstock_row.part, penstock_row.pos)"
    )
    code = sql.SQL(_ROW_BY_ROW).format(
        staging=target.staging,
        row_filter=row_filter,
        insert_statement=insert_statement(target, this_row),
        result=sql.Literal(_RESULT),
    )
    connected.execute(sql.SQL("do {}").format(sql.Literal(code.as_string(connected))))
    found = connected.execute("select current_setting(%s)", (_RESULT,)).fetchone()
    assert found is not None, "such a query has one row"
    for part, pos, row, message, detail in json.loads(found[0]):
        yield RejectedRow(StagedRow(part, pos, row), f"PostgreSQL refuses it: {with_detail(message, detail)}")
