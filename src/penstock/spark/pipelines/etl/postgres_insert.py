"""Rows on their way from a staging table to the target, and those among them that PostgreSQL refuses.

Strategy: all rows in one statement. If that is refused, halves of them, and so on; pieces of ROWS_SINGLY are
taken row by row, in PostgreSQL itself. So one bad row among many costs about one more pass over them, and if
all are bad, each costs what a row costs there: no request and no search.

Rule 1: whatever a table has against a row is found in its statement: who calls has set constraints immediate.
Rule 2: a right that the user has not is no matter of rows. Only policies of rows are.
Rule 3: where rows have versions, a deleted one is remembered with that of its tombstone. An older row that
        comes later would otherwise find nothing newer than itself, and come back.
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
"""Of the name of a target within that of another table, with room for the name of an index: 63 in all."""
ROW_ERRORS: Final = (
    psycopg.DataError,
    psycopg.IntegrityError,
    psycopg.errors.ProgramLimitExceeded,  # as a key that is too long for its index
    psycopg.errors.StatementTooComplex,  # as a value that is nested too deep
    psycopg.errors.RaiseException,  # of a trigger
    psycopg.errors.InsufficientPrivilege,  # of a policy
)
"""The block below names the same; there 54000 stands for all that begin with 54."""
_RESULT: Final = "penstock.refused"
"""A setting of the session, which needs no right to make anything: a block of code returns nothing itself."""
_ROW_BY_ROW: Final = """
declare
    penstock_row record;
    penstock_detail text;
    penstock_refused jsonb[] := '{{}}';
begin
    for penstock_row in
        select s.attempt, s.part, s.pos, s.row from {staging} s where {some} order by s.part, s.pos
    loop
        begin
            {taking};
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
    """Plain values: sent to executors."""

    url: str
    table: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    topic: str
    """That rows are from."""
    version: str | None = None
    """Of rows with the same key, the one with the largest value in this column stays. None: the last one."""
    deletes: bool = False
    """Whether rows can say that what their key names is to be deleted (`spec.DELETED`)."""

    @property
    def staging(self) -> sql.Identifier:
        named = f"{self.table}/{self.topic}".encode()
        return sql.Identifier(f"penstock_staging_{hashlib.sha256(named).hexdigest()[:16]}")

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(*self.table.split("."))

    @property
    def remembers_deleted(self) -> bool:
        return self.deletes and self.version is not None

    @property
    def deleted(self) -> sql.Identifier:
        """The table of keys and versions that tombstones have deleted, in the schema of the target."""
        *schema, name = self.table.split(".")
        if len(name.encode()) > _READABLE_BYTES_MAX:  # PostgreSQL cuts names, and two could become one
            name = hashlib.sha256(name.encode()).hexdigest()[:16]
        return sql.Identifier(*schema, f"penstock_deleted_{name}")


class StagedRow(NamedTuple):
    partition: int
    offset: int
    row: str


class RejectedRow(NamedTuple):
    row: StagedRow
    reason: str


RecordPosition = tuple[int, int]
"""Partition and offset."""


def with_detail(message: str, detail: str | None) -> str:
    return f"{message} ({detail})" if detail else message


def names(given: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, given))


def taking(target: PostgresTarget, some: sql.Composable) -> sql.Composed:
    """The statement for those rows of the staging table `s`; of those with the same key only the newest."""
    keys = sql.SQL(", ").join(sql.SQL("r.{}").format(sql.Identifier(name)) for name in target.key)
    rows = sql.SQL(
        "select {distinct} {columns}{is_gone} from {staging} s, "
        "json_populate_record(null::{table}, s.row::json) r where {some} order by {order}"
    ).format(
        distinct=sql.SQL("distinct on ({})").format(keys) if target.key else sql.SQL(""),
        columns=sql.SQL(", ").join(sql.SQL("r.{}").format(sql.Identifier(name)) for name in target.columns),
        is_gone=_deletion_column() if target.deletes else sql.SQL(""),
        staging=target.staging,
        table=target.identifier,
        some=some,
        order=keys + _newest_first(target) if target.key else sql.SQL("s.part, s.pos"),
    )
    if target.deletes:
        before, rows = _deleting(target, rows)
    else:
        before = sql.Composed([])
    return before + sql.SQL("insert into {} as kept ({}) {} {}").format(
        target.identifier, names(target.columns), rows, _on_conflict(target)
    )


def _deletion_column() -> sql.Composed:
    return sql.SQL(", coalesce((s.row::json ->> {})::boolean, false) penstock_gone").format(
        sql.Literal(DELETED)
    )


def _deleting(target: PostgresTarget, rows: sql.Composed) -> tuple[sql.Composed, sql.Composed]:
    """What comes before the insert, and the rows that are inserted. A key is deleted or inserted, never both:
    only its newest row counts."""
    is_newer, remembering = sql.Composed([]), sql.Composed([])
    if target.version is not None:
        version = sql.Identifier(target.version)
        is_newer = sql.SQL(" and (kept.{0} is null or newest.{0} >= kept.{0})").format(version)
        rows, remembering = _newer_than_deleted(target, version, rows), _remembering(target, version)
    before = sql.SQL(
        "with newest as ({}), gone as (delete from {} kept using newest where penstock_gone and {}{}){} "
    ).format(rows, target.identifier, _same_key(target, "kept", "newest"), is_newer, remembering)
    left = sql.SQL("select {} from newest where not penstock_gone").format(names(target.columns))
    return before, left


def _same_key(target: PostgresTarget, *tables: str) -> sql.Composed:
    one, other = map(sql.Identifier, tables)
    equal = (sql.SQL("{0}.{2} = {1}.{2}").format(one, other, sql.Identifier(name)) for name in target.key)
    return sql.SQL(" and ").join(equal)


def _newer_than_deleted(target: PostgresTarget, version: sql.Identifier, rows: sql.Composed) -> sql.Composed:
    """Those rows that no tombstone with a larger version was before. One of the same version was earlier, so
    the row counts, as it does against a row."""
    return sql.SQL(
        "select found.* from ({rows}) found where not exists (select from {deleted} deleted "
        "where {same_key} and (found.{version} is null or found.{version} < deleted.{version}))"
    ).format(
        rows=rows,
        deleted=target.deleted,
        same_key=_same_key(target, "deleted", "found"),
        version=version,
    )


def _remembering(target: PostgresTarget, version: sql.Identifier) -> sql.Composed:
    """Changes to the table of deletions. A key is there only while it has no row, so that the table grows by
    keys that stay deleted. A tombstone without a version is older than all that have one: not noted."""
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
        table=target.identifier,
        same_as_kept=_same_key(target, "kept", "newest"),
        same_key=_same_key(target, "deleted", "newest"),
        key=names(target.key),
    )


def _newest_first(target: PostgresTarget) -> sql.Composable:
    place = sql.SQL(", s.part desc, s.pos desc")
    if target.version is None:
        return place
    return sql.SQL(", r.{} desc nulls last").format(sql.Identifier(target.version)) + place


def _on_conflict(target: PostgresTarget) -> sql.Composable:
    if not target.key:
        return sql.SQL("")
    others = [name for name in target.columns if name not in target.key]
    key = names(target.key)
    if not others:
        return sql.SQL("on conflict ({}) do nothing").format(key)
    changes = sql.SQL(", ").join(
        sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in others
    )
    update = sql.SQL("on conflict ({}) do update set {}").format(key, changes)
    if target.version is None:
        return update
    # Rows of several partitions come in any order, and so do batches of them.
    return update + sql.SQL(" where kept.{0} is null or excluded.{0} >= kept.{0}").format(
        sql.Identifier(target.version)
    )


def of_attempts(attempts: Sequence[str]) -> sql.Composed:
    return sql.SQL("s.attempt = any({}::text[])").format(sql.Literal(list(attempts)))


def _between(attempts: Sequence[str], first: RecordPosition, last: RecordPosition) -> sql.Composed:
    return sql.SQL("{} and (s.part, s.pos) >= ({}) and (s.part, s.pos) <= ({})").format(
        of_attempts(attempts), *(sql.SQL(", ").join(map(sql.Literal, place)) for place in (first, last))
    )


def insert_rows(
    connected: "psycopg.Connection[Any]", target: PostgresTarget, attempts: Sequence[str]
) -> Iterator[RejectedRow]:
    """What was not."""
    try:
        with connected.transaction():
            connected.execute(taking(target, of_attempts(attempts)))
        return
    except ROW_ERRORS as problem:
        if isinstance(problem, psycopg.errors.InsufficientPrivilege):
            _check_rights(connected, target)
        query = sql.SQL("select s.part, s.pos from {} s where {} order by s.part, s.pos")
        places: list[RecordPosition] = connected.execute(
            query.format(target.staging, of_attempts(attempts))
        ).fetchall()
        # What a planner does not know of a table that was just filled, it guesses: all rows, each time.
        connected.execute(sql.SQL("analyze {}").format(target.staging))
    yield from _insert_by_halves(connected, target, attempts, places)


def _check_rights(connected: "psycopg.Connection[Any]", target: PostgresTarget) -> None:
    """Raises if it is the whole statement that is not allowed; policies are asked only about rows."""
    connected.execute(sql.SQL("explain {}").format(taking(target, of_attempts([]))))


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
        some = _between(attempts, half[0], half[-1])
        try:
            with connected.transaction():
                connected.execute(taking(target, some))
        except ROW_ERRORS:
            if len(half) > ROWS_SINGLY:
                yield from _insert_by_halves(connected, target, attempts, half)
            else:
                yield from _insert_singly(connected, target, some)


def _insert_singly(
    connected: "psycopg.Connection[Any]", target: PostgresTarget, some: sql.Composable
) -> Iterator[RejectedRow]:
    this_row = sql.SQL(
        "(s.attempt, s.part, s.pos) = (penstock_row.attempt, penstock_row.part, penstock_row.pos)"
    )
    code = sql.SQL(_ROW_BY_ROW).format(
        staging=target.staging, some=some, taking=taking(target, this_row), result=sql.Literal(_RESULT)
    )
    connected.execute(sql.SQL("do {}").format(sql.Literal(code.as_string(connected))))
    found = connected.execute("select current_setting(%s)", (_RESULT,)).fetchone()
    assert found is not None, "such a query has one row"
    for part, pos, row, message, detail in json.loads(found[0]):
        yield RejectedRow(StagedRow(part, pos, row), f"PostgreSQL refuses it: {with_detail(message, detail)}")
