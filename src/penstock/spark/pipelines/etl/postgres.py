"""PostgreSQL table that commits each micro-batch exactly once.

Tasks copy their rows as JSON to a staging table, under the id of their attempt. The driver does all the rest
in ONE transaction: it moves the rows of the attempts that tasks reported from the staging table to the
target, and records the batch number and the offsets of the rows.

    penstock_batches     the last batch of each query
    penstock_offsets     one past the last offset that a target holds, per partition
    penstock_staging_…   staged rows; unlogged. A commit removes its own rows and rows older than a day
    penstock_deleted_…   keys that tombstones deleted, for a target whose rows have versions

Rule 1: a recorded batch is not applied again. The commit holds a lock on the query's row while it checks. If
        the batch has rows that the target lacks, the checkpoint is older than the target, and the commit
        fails.
Rule 2: rows of attempts that no task reported are never applied.
Rule 3: offsets that the target already holds are rejected, so that a new checkpoint cannot load all rows
        again.
Rule 4: a row that PostgreSQL rejects is found and reported; the other rows are applied.
Rule 5: no lock is waited for longer than LOCK_S_MAX. A task that hangs in its COPY does not block a commit.
Rule 6: commits that check for deletions in one target are serialized. Otherwise two queries that load the
        target from two topics would not see each other's uncommitted deletions.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
from psycopg import sql

from penstock.errors import CommandFailed
from penstock.spark.lake.lake_table import OffsetSpan, check_no_overlap
from penstock.spark.pipelines.etl.address import connect_postgres, without_password
from penstock.spark.pipelines.etl.postgres_insert import (
    PostgresTarget,
    RejectedRow,
    StagedRow,
    attempts_filter,
    identifiers,
    insert_rows,
    insert_statement,
    with_detail,
)
from penstock.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

__all__ = [
    "PostgresTarget",
    "RejectedRow",
    "StagedAttempt",
    "StagedRow",
    "commit",
    "connection",
    "prepare",
    "stage",
]

LOCK_S_MAX: Final = 60
ORPHAN_HOURS: Final = 24
_SETUP: Final = """
    create table if not exists penstock_batches (
        query text primary key, batch bigint not null, rows bigint not null,
        committed_at timestamptz not null);
    create table if not exists penstock_offsets (
        target text, topic text, part int, next bigint not null, primary key (target, topic, part))
"""
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


class StagedAttempt(NamedTuple):
    """Rows that one attempt of a task has copied."""

    attempt: str
    rows: int
    spans: dict[TopicPartition, OffsetSpan]


class QueryBatch(NamedTuple):
    """Number of a micro-batch of one query."""

    query: str
    batch: int


def connection(url: str) -> "psycopg.Connection[tuple[Any, ...]]":
    try:
        return connect_postgres(url)
    except psycopg.Error as problem:
        raise CommandFailed(
            f"cannot reach PostgreSQL at {without_password(url)}: {_sentence(problem)}"
        ) from problem


def _sentence(problem: psycopg.Error) -> str:
    first_line = str(problem).strip().partition("\n")[0]
    return with_detail(
        problem.diag.message_primary or first_line or type(problem).__name__, problem.diag.message_detail
    )


def prepare(target: PostgresTarget, schema: "StructType") -> None:
    """Create missing tables, including the target; raise CommandFailed if rows cannot be inserted."""
    staging = sql.SQL(
        "create unlogged table if not exists {} (attempt text, part int, pos bigint, row text, "
        "staged_at timestamptz not null default now(), primary key (attempt, part, pos))"
    ).format(target.staging)
    try:
        with connection(target.url) as connected:
            connected.execute(_SETUP)
            connected.execute(staging)
            connected.execute(_table_ddl(target, schema))
            if target.records_deletions:
                _create_deleted_keys_table(connected, target)
            found = connected.execute(sql.SQL("select * from {} limit 0").format(target.quoted_table))
            known = [column.name for column in found.description or []]
            if missing := [name for name in target.columns if name not in known]:
                raise CommandFailed(
                    f"the table {target.table} has no column {missing[0]}, which rows have: add it, "
                    "or leave it out in [transform]"
                )
            # EXPLAIN checks columns, types and privileges without inserting a row.
            connected.execute(sql.SQL("explain {}").format(insert_statement(target, attempts_filter([]))))
    except psycopg.Error as problem:
        raise CommandFailed(
            f"rows cannot go into the table {target.table}: {_sentence(problem)}"
        ) from problem


def _table_ddl(target: PostgresTarget, schema: "StructType") -> sql.Composed:
    columns: list[sql.Composable] = [
        sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(_column_type(field.dataType)))
        for field in schema
    ]
    if target.key:
        columns.append(sql.SQL("primary key ({})").format(identifiers(target.key)))
    return sql.SQL("create table if not exists {} ({})").format(
        target.quoted_table, sql.SQL(", ").join(columns)
    )


def _create_deleted_keys_table(connected: "psycopg.Connection[Any]", target: PostgresTarget) -> None:
    """Create the table of deletions with the types of the target's columns, which may be user-defined."""
    found = connected.execute("select to_regclass(%s)", (target.deleted.as_string(connected),)).fetchone()
    if found is not None and found[0] is not None:
        return
    assert target.version is not None, "else nothing is remembered"
    columns = identifiers((*target.key, target.version))
    copied = sql.SQL("create table {} as select {} from {} with no data")
    connected.execute(copied.format(target.deleted, columns, target.quoted_table))
    connected.execute(
        sql.SQL("alter table {} add primary key ({})").format(target.deleted, identifiers(target.key))
    )


def _column_type(kind: "DataType") -> Any:
    """Return the column's PostgreSQL type.

    The type is Any: psycopg requires literal strings, and these are composed of literals here.
    """
    name = kind.simpleString()
    if name.startswith("decimal"):
        return name.replace("decimal", "numeric")
    return _TYPES.get(name, "jsonb")


def stage(target: PostgresTarget, attempt: str, rows: Iterator[StagedRow]) -> StagedAttempt:
    """Copy rows to the staging table (runs in a task)."""
    count, spans = 0, dict[TopicPartition, OffsetSpan]()
    copy_text = sql.SQL("copy {} (attempt, part, pos, row) from stdin").format(target.staging)
    with (
        connection(target.url) as connected,
        connected.cursor() as cursor,
        cursor.copy(copy_text) as copy,
    ):
        for row in rows:
            copy.write_row((attempt, *row))
            partition = TopicPartition(target.topic, row.partition)
            known = spans.get(partition, OffsetSpan(row.offset, row.offset + 1))
            spans[partition] = OffsetSpan(min(known.start, row.offset), max(known.end, row.offset + 1))
            count += 1
    return StagedAttempt(attempt, count, spans)


def commit(
    target: PostgresTarget,
    query: str,
    batch: int,
    staged: Sequence[StagedAttempt],
    write_rejected: Callable[[list[RejectedRow]], None],
    *,
    lock_s_max: int = LOCK_S_MAX,
) -> bool:
    """Commit a batch (runs in the driver); False if the table has it. `write_rejected` gets rejected rows."""
    try:
        with connection(target.url) as connected:
            connected.execute(sql.SQL("set local lock_timeout = {}").format(sql.Literal(f"{lock_s_max}s")))
            # A deferred constraint would otherwise fail at the commit, for the whole batch and in every
            # retry.
            connected.execute("set constraints all immediate")
            return _commit_in_transaction(connected, target, QueryBatch(query, batch), staged, write_rejected)
    except psycopg.errors.LockNotAvailable as problem:
        raise CommandFailed(
            f"another session holds a lock that a commit to {target.table} needs, for more than {lock_s_max} "
            "s: pg_stat_activity and pg_locks show it. Nothing was changed; end that session and start again"
        ) from problem


def _commit_in_transaction(
    connected: "psycopg.Connection[Any]",
    target: PostgresTarget,
    numbered: QueryBatch,
    staged: Sequence[StagedAttempt],
    write_rejected: Callable[[list[RejectedRow]], None],
) -> bool:
    # Locks the row of the query: a concurrent commit of the same query waits here (rule 1).
    recorded = _lock_last_batch(connected, numbered.query)
    spans, name = _merged_spans(staged), _full_name(connected, target)
    ends, attempts = _ends(connected, name, spans), [each.attempt for each in staged]
    if recorded >= numbered.batch:
        _check_already_committed(target, numbered, spans, ends)
        _remove(connected, target, attempts)
        return False
    check_no_overlap(spans, ends)
    if target.records_deletions:
        # The lock is held until the transaction ends. It is not a lock on the deletions table, where it would
        # conflict with vacuum.
        connected.execute("select pg_advisory_xact_lock(hashtext('penstock'), hashtext(%s))", (name,))
    rows = sum(each.rows for each in staged)
    _check_staged(connected, target, attempts, rows)
    refused = list(insert_rows(connected, target, attempts))
    if refused:
        # Before the transaction commits: a crash in between writes the dead letters twice, but loses none.
        write_rejected(refused)
    connected.execute(
        "update penstock_batches set batch = %s, rows = rows + %s, committed_at = now() where query = %s",
        (numbered.batch, rows - len(refused), numbered.query),
    )
    _record_ends(connected, name, spans)
    _remove(connected, target, attempts)
    return True


def _remove(connected: "psycopg.Connection[Any]", target: PostgresTarget, attempts: Sequence[str]) -> None:
    """Delete the batch's staged rows, and old rows of failed attempts.

    Other rows may belong to a batch that another query is about to commit. TRUNCATE would wait for running
    tasks.
    """
    gone = sql.SQL("delete from {} where attempt = any(%s) or staged_at < now() - make_interval(hours => %s)")
    connected.execute(gone.format(target.staging), (list(attempts), ORPHAN_HOURS))


def _check_already_committed(
    target: PostgresTarget,
    numbered: QueryBatch,
    spans: Mapping[TopicPartition, OffsetSpan],
    ends: Mapping[TopicPartition, int],
) -> None:
    """Check that a recorded batch has no rows beyond the target's offsets: they would be lost silently."""
    for partition, span in spans.items():
        if span.end > ends[partition]:
            raise CommandFailed(
                f"{target.table} has recorded batch {numbered.batch} of this query and holds "
                f"{partition.topic}/{partition.partition} up to offset {ends[partition]}, and now was given "
                f"rows up to offset {span.end} under that number: the checkpoint is older than the table, "
                "and these rows would be left out. Nothing was changed; use the checkpoint that belongs to "
                "the table, or another table"
            )


def _lock_last_batch(connected: "psycopg.Connection[Any]", query: str) -> int:
    """Return the query's last batch, with its row locked until the transaction ends."""
    connected.execute(
        "insert into penstock_batches values (%s, -1, 0, now()) on conflict do nothing", (query,)
    )
    found = connected.execute(
        "select batch from penstock_batches where query = %s for update", (query,)
    ).fetchone()
    assert found is not None, "it was put there"
    return int(found[0])


def _merged_spans(staged: Sequence[StagedAttempt]) -> dict[TopicPartition, OffsetSpan]:
    spans: dict[TopicPartition, OffsetSpan] = {}
    for each in staged:
        for partition, span in each.spans.items():
            known = spans.get(partition, span)
            spans[partition] = OffsetSpan(min(known.start, span.start), max(known.end, span.end))
    return spans


def _full_name(connected: "psycopg.Connection[Any]", target: PostgresTarget) -> str:
    """Return the table's name with its schema: orders and public.orders are one table."""
    found = connected.execute(
        "select nspname || '.' || relname from pg_class c join pg_namespace n on n.oid = c.relnamespace "
        "where c.oid = %s::regclass",
        (target.quoted_table.as_string(connected),),
    ).fetchone()
    assert found is not None, "a regclass is in pg_class"
    return str(found[0])


def _ends(
    connected: "psycopg.Connection[Any]", name: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the recorded offsets, locked until the transaction ends; missing rows are created first."""
    found = {}
    # Sorted: two commits that lock the same rows in the same order cannot deadlock.
    for partition in sorted(partitions):
        row = (name, *partition)
        connected.execute("insert into penstock_offsets values (%s, %s, %s, 0) on conflict do nothing", row)
        query = "select next from penstock_offsets where (target, topic, part) = (%s, %s, %s) for update"
        end = connected.execute(query, row).fetchone()
        assert end is not None, "it was put there"
        found[partition] = int(end[0])
    return found


def _record_ends(
    connected: "psycopg.Connection[Any]", name: str, spans: Mapping[TopicPartition, OffsetSpan]
) -> None:
    for partition, span in spans.items():
        connected.execute(
            "update penstock_offsets set next = %s where (target, topic, part) = (%s, %s, %s)",
            (span.end, name, *partition),
        )


def _check_staged(
    connected: "psycopg.Connection[Any]", target: PostgresTarget, attempts: Sequence[str], rows: int
) -> None:
    """Check the number of staged rows: a crash of PostgreSQL empties unlogged tables."""
    query = sql.SQL("select count(*) from {} where attempt = any(%s)").format(target.staging)
    found = connected.execute(query, (list(attempts),)).fetchone()
    if found is None or found[0] != rows:
        raise CommandFailed(
            f"tasks have staged {rows} rows for {target.table}, and {found and found[0]} are there: "
            "PostgreSQL was restarted, or a second run of this stage goes on. "
            "Nothing was changed; start it again"
        )
