"""A table of PostgreSQL that takes each micro-batch once.

Strategy: tasks copy their rows to a staging table, as JSON, under the name of their attempt. The driver then
does all that counts in ONE transaction: rows of the attempts that it was told of go from the staging table to
the target, and the number of the batch and the offsets of its rows are recorded.

    penstock_batches     the last batch of each query
    penstock_offsets     one past the last offset that a target holds of each partition
    penstock_staging_…   rows on their way; unlogged, emptied by each commit

Rule 1: a batch that is recorded is not taken again. Who asks holds a lock on the query's row.
Rule 2: rows of attempts that nobody told of are never taken.
Rule 3: offsets that the target holds are refused, so that a new checkpoint does not bring all rows again.
Rule 4: a row that PostgreSQL refuses is found by halves, and reported; the others are taken.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
from psycopg import sql

from penstock.errors import CommandFailed
from penstock.spark.lake.table import Span, check_spans
from penstock.spark.pipelines.etl.spec import without_password
from penstock.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_CONNECT_S: Final = 10
_SETUP: Final = """
    create table if not exists penstock_batches (
        query text primary key, batch bigint not null, rows bigint not null,
        committed_at timestamptz not null);
    create table if not exists penstock_offsets (
        target text, topic text, part int, next bigint not null, primary key (target, topic, part))
"""
_REFUSED: Final = (psycopg.DataError, psycopg.IntegrityError)
_TYPES: Final = {
    "string": "text",
    "bigint": "bigint",
    "int": "integer",
    "smallint": "smallint",
    "tinyint": "smallint",
    "float": "real",
    "double": "double precision",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
    "binary": "bytea",
}


class Target(NamedTuple):
    """Plain values: sent to executors."""

    url: str
    table: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    topic: str
    """That rows are from."""

    @property
    def staging(self) -> sql.Identifier:
        named = f"{self.table}/{self.topic}".encode()
        return sql.Identifier(f"penstock_staging_{hashlib.sha256(named).hexdigest()[:16]}")

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(*self.table.split("."))


class StagedRow(NamedTuple):
    partition: int
    offset: int
    row: str


class Staged(NamedTuple):
    """What one attempt of a task has copied."""

    attempt: str
    rows: int
    spans: dict[TopicPartition, Span]


class Refused(NamedTuple):
    row: StagedRow
    reason: str


def connection(url: str) -> "psycopg.Connection[tuple[Any, ...]]":
    try:
        return psycopg.connect(url, connect_timeout=_CONNECT_S)
    except psycopg.Error as problem:
        raise CommandFailed(
            f"cannot reach PostgreSQL at {without_password(url)}: {_sentence(problem)}"
        ) from problem


def _sentence(problem: psycopg.Error) -> str:
    told = problem.diag.message_primary or str(problem).strip().partition("\n")[0] or type(problem).__name__
    return f"{told} ({problem.diag.message_detail})" if problem.diag.message_detail else told


def prepare(target: Target, schema: "StructType") -> None:
    """Make what is missing, the target too. CommandFailed if rows cannot go into the table."""
    staging = sql.SQL(
        "create unlogged table if not exists {} (attempt text, part int, pos bigint, row text)"
    ).format(target.staging)
    try:
        with connection(target.url) as connected:
            connected.execute(_SETUP)
            connected.execute(staging)
            connected.execute(_table_ddl(target, schema))
            found = connected.execute(sql.SQL("select * from {} limit 0").format(target.identifier))
            names = [column.name for column in found.description or []]
            if missing := [name for name in target.columns if name not in names]:
                raise CommandFailed(
                    f"the table {target.table} has no column {missing[0]}, which rows have: add it, "
                    "or leave it out in [transform]"
                )
            connected.execute(sql.SQL("explain {}").format(_taking(target, [], None)))
    except psycopg.Error as problem:
        raise CommandFailed(
            f"rows cannot go into the table {target.table}: {_sentence(problem)}"
        ) from problem


def _table_ddl(target: Target, schema: "StructType") -> sql.Composed:
    columns: list[sql.Composable] = [
        sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(_column_type(field.dataType)))
        for field in schema
    ]
    if target.key:
        columns.append(sql.SQL("primary key ({})").format(_names(target.key)))
    return sql.SQL("create table if not exists {} ({})").format(
        target.identifier, sql.SQL(", ").join(columns)
    )


def _column_type(kind: "DataType") -> Any:
    """Any: psycopg wants words that stand in the code, and these are put together here from such."""
    name = kind.simpleString()
    if name.startswith("decimal"):
        return name.replace("decimal", "numeric")
    return _TYPES.get(name, "jsonb")


def _names(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def stage(target: Target, attempt: str, rows: Iterator[StagedRow]) -> Staged:
    """A task's work."""
    count, spans = 0, dict[TopicPartition, Span]()
    copy_text = sql.SQL("copy {} (attempt, part, pos, row) from stdin").format(target.staging)
    with (
        connection(target.url) as connected,
        connected.cursor() as cursor,
        cursor.copy(copy_text) as copy,
    ):
        for row in rows:
            copy.write_row((attempt, *row))
            partition = TopicPartition(target.topic, row.partition)
            known = spans.get(partition, Span(row.offset, row.offset + 1))
            spans[partition] = Span(min(known.start, row.offset), max(known.end, row.offset + 1))
            count += 1
    return Staged(attempt, count, spans)


def commit(
    target: Target, query: str, batch: int, staged: Sequence[Staged], bury: Callable[[list[Refused]], None]
) -> bool:
    """The driver's work. False if the table has the batch already. `bury` gets what was refused."""
    with connection(target.url) as connected:
        if _recorded(connected, query) >= batch:
            return False
        spans = _together(staged)
        check_spans(spans, _ends(connected, target))
        attempts = [each.attempt for each in staged]
        _check_staged(connected, target, attempts, sum(each.rows for each in staged))
        refused = list(_taken(connected, target, attempts))
        if refused:
            bury(refused)
        rows = sum(each.rows for each in staged) - len(refused)
        connected.execute(
            "update penstock_batches set batch = %s, rows = rows + %s, committed_at = now() where query = %s",
            (batch, rows, query),
        )
        _record_ends(connected, target, spans)
        connected.execute(sql.SQL("truncate {}").format(target.staging))
    return True


def _recorded(connected: "psycopg.Connection[Any]", query: str) -> int:
    """And locked, until the transaction ends."""
    connected.execute(
        "insert into penstock_batches values (%s, -1, 0, now()) on conflict do nothing", (query,)
    )
    found = connected.execute(
        "select batch from penstock_batches where query = %s for update", (query,)
    ).fetchone()
    assert found is not None, "it was put there"
    return int(found[0])


def _together(staged: Sequence[Staged]) -> dict[TopicPartition, Span]:
    spans: dict[TopicPartition, Span] = {}
    for each in staged:
        for partition, span in each.spans.items():
            known = spans.get(partition, span)
            spans[partition] = Span(min(known.start, span.start), max(known.end, span.end))
    return spans


def _ends(connected: "psycopg.Connection[Any]", target: Target) -> dict[TopicPartition, int]:
    found = connected.execute(
        "select part, next from penstock_offsets where target = %s and topic = %s for update",
        (target.table, target.topic),
    )
    return {TopicPartition(target.topic, part): int(end) for part, end in found}


def _record_ends(
    connected: "psycopg.Connection[Any]", target: Target, spans: Mapping[TopicPartition, Span]
) -> None:
    for partition, span in spans.items():
        connected.execute(
            "insert into penstock_offsets values (%s, %s, %s, %s) "
            "on conflict (target, topic, part) do update set next = excluded.next",
            (target.table, partition.topic, partition.partition, span.end),
        )


def _check_staged(
    connected: "psycopg.Connection[Any]", target: Target, attempts: Sequence[str], rows: int
) -> None:
    """A crash of PostgreSQL empties tables that are not logged."""
    query = sql.SQL("select count(*) from {} where attempt = any(%s)").format(target.staging)
    found = connected.execute(query, (list(attempts),)).fetchone()
    if found is None or found[0] != rows:
        raise CommandFailed(
            f"tasks have staged {rows} rows for {target.table}, and {found and found[0]} are there: "
            "PostgreSQL was restarted, or a second run of this stage goes on. "
            "Nothing was changed; start it again"
        )


# Rows go from the staging table to the target


Bounds = tuple[tuple[int, int], tuple[int, int]]
"""Partition and offset of the first and of the last row."""


def _taking(target: Target, attempts: Sequence[str], bounds: Bounds | None) -> sql.Composed:
    """All rows of these attempts; those with the same key only once, the last of them."""
    columns = sql.SQL(", ").join(sql.SQL("r.{}").format(sql.Identifier(name)) for name in target.columns)
    keys = sql.SQL(", ").join(sql.SQL("r.{}").format(sql.Identifier(name)) for name in target.key)
    within: sql.Composable = sql.SQL("")
    if bounds is not None:
        (first, last) = (sql.SQL(", ").join(map(sql.Literal, each)) for each in bounds)
        within = sql.SQL(" and (part, pos) >= ({}) and (part, pos) <= ({})").format(first, last)
    rows = sql.SQL(
        "select {distinct} {columns} from {staging} s, "
        "json_populate_record(null::{table}, s.row::json) r where attempt = any({attempts}){within} "
        "order by {order}"
    ).format(
        distinct=sql.SQL("distinct on ({})").format(keys) if target.key else sql.SQL(""),
        columns=columns,
        staging=target.staging,
        table=target.identifier,
        attempts=sql.Literal(list(attempts)) + sql.SQL("::text[]"),
        within=within,
        order=keys + sql.SQL(", part desc, pos desc") if target.key else sql.SQL("part, pos"),
    )
    return sql.SQL("insert into {} ({}) {} {}").format(
        target.identifier, _names(target.columns), rows, _on_conflict(target)
    )


def _on_conflict(target: Target) -> sql.Composable:
    if not target.key:
        return sql.SQL("")
    others = [name for name in target.columns if name not in target.key]
    key = _names(target.key)
    if not others:
        return sql.SQL("on conflict ({}) do nothing").format(key)
    changes = sql.SQL(", ").join(
        sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in others
    )
    return sql.SQL("on conflict ({}) do update set {}").format(key, changes)


def _taken(
    connected: "psycopg.Connection[Any]", target: Target, attempts: Sequence[str]
) -> Iterator[Refused]:
    """What was not."""
    try:
        with connected.transaction():
            connected.execute(_taking(target, attempts, None))
        return
    except _REFUSED:
        query = sql.SQL("select part, pos, row from {} where attempt = any(%s) order by part, pos")
        rows = [StagedRow(*row) for row in connected.execute(query.format(target.staging), (list(attempts),))]
    yield from _taken_by_halves(connected, target, attempts, rows)


def _taken_by_halves(
    connected: "psycopg.Connection[Any]", target: Target, attempts: Sequence[str], rows: Sequence[StagedRow]
) -> Iterator[Refused]:
    bounds = (rows[0][:2], rows[-1][:2])
    try:
        with connected.transaction():
            connected.execute(_taking(target, attempts, bounds))
    except _REFUSED as problem:
        if len(rows) == 1:
            yield Refused(rows[0], f"PostgreSQL refuses it: {_sentence(problem)}")
            return
        middle = len(rows) // 2
        yield from _taken_by_halves(connected, target, attempts, rows[:middle])
        yield from _taken_by_halves(connected, target, attempts, rows[middle:])
