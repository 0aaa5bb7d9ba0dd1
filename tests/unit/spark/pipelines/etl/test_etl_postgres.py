"""A table takes each batch once: against a real PostgreSQL, without Spark."""

import random
import re
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from pyspark.sql.types import StructType

from penstock.errors import CommandFailed
from penstock.spark.pipelines.etl import postgres
from penstock.spark.pipelines.etl.database import ValueRange, connect
from penstock.spark.pipelines.etl.postgres import PostgresTarget, RejectedRow, StagedRow
from penstock.spark.pipelines.etl.postgres_sink import PostgresWriter, StagedRowsMessage, postgres_options
from penstock.spark.pipelines.etl.rows import parse_columns
from tests.spark.postgres_server import postgres_server
from tests.spark.topics import eventually

SCHEMA = parse_columns(
    "id bigint, name string, bytes binary, at timestamp, price decimal(10,2), tags array<string>"
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postgres_server() as address:
        yield address


def target_in(url: str, table: str, *key: str, schema: StructType = SCHEMA) -> PostgresTarget:
    target = PostgresTarget(url, table, tuple(schema.fieldNames()), key, "stage")
    postgres.prepare(target, schema)
    return target


def rows(*numbers: int, partition: int = 0, name: str = "x") -> list[StagedRow]:
    return [StagedRow(partition, number, f'{{"id": {number}, "name": "{name}"}}') for number in numbers]


def staged(target: PostgresTarget, some: list[StagedRow], attempt: str = "one") -> postgres.StagedAttempt:
    return postgres.stage(target, attempt, iter(some))


def committed(target: PostgresTarget, batch: int, some: list[StagedRow], query: str = "") -> bool:
    told = staged(target, some, uuid.uuid4().hex)
    return postgres.commit(target, query or target.table, batch, [told], no_burial)


def no_burial(refused: list[RejectedRow]) -> None:
    raise AssertionError(refused)


def ids(target: PostgresTarget) -> list[int]:
    with psycopg.connect(target.url) as database:
        return [row[0] for row in database.execute(f"select id from {target.table} order by 1")]


def test_values_of_every_type_arrive(url: str) -> None:
    target = target_in(url, "types")
    row = (
        '{"id": 7, "name": "q\\"\\u00e9\\tz", "bytes": "\\\\xDEAD", "at": "2026-11-15T10:00:00.123456Z", '
        '"price": 12.34, "tags": ["a", "b"]}'
    )
    assert committed(target, 0, [StagedRow(0, 0, row), StagedRow(0, 1, "{}")])
    with psycopg.connect(url) as database:
        found = database.execute("select id, name, bytes, at::text, price::text, tags from types").fetchall()
    assert found[0][:3] == (7, 'q"é\tz', b"\xde\xad")
    assert found[0][4:] == ("12.34", ["a", "b"])
    assert found[0][3].startswith("2026-11-15 10:00:00.123456")
    assert found[1] == (None,) * 6


def test_a_batch_that_comes_again_is_not_taken_again(url: str) -> None:
    target = target_in(url, "again")
    assert committed(target, 4, rows(0, 1))
    assert not committed(target, 4, rows(0, 1))
    assert not committed(target, 3, rows(0, 1))
    assert committed(target, 5, rows(2))
    assert ids(target) == [0, 1, 2]
    assert staged_attempts(target) == set()
    with psycopg.connect(url) as database:
        assert database.execute(
            "select batch, rows from penstock_batches where query = 'again'"
        ).fetchall() == [(5, 3)]


def test_a_batch_of_which_a_task_says_nothing_is_not_committed(url: str) -> None:
    target = target_in(url, "silent")
    writer = PostgresWriter(postgres_options(target, {}, "dead"))
    told = StagedRowsMessage("silent", staged(target, rows(0, 1)))
    with pytest.raises(CommandFailed, match="1 of 2 tasks of batch 0 do not say what they staged"):
        writer.commit([told, None], 0)
    assert ids(target) == []
    writer.commit([told], 0)
    assert ids(target) == [0, 1]


def test_rows_of_attempts_that_nobody_told_of_are_not_taken(url: str) -> None:
    target = target_in(url, "zombies")
    staged(target, rows(0, 1, 2), "of a task that was lost")
    told = staged(target, rows(0, 1), "told")
    assert postgres.commit(target, "zombies", 0, [told], no_burial)
    assert ids(target) == [0, 1]


def test_of_two_who_commit_the_same_batch_one_does(url: str) -> None:
    """A run that was thought dead, and the one that took over."""
    target = target_in(url, "two")
    told = [staged(target, rows(0, 1), attempt) for attempt in ("old", "new")]
    with ThreadPoolExecutor(2) as threads:
        done = threads.map(lambda each: postgres.commit(target, "two", 0, [each], no_burial), told)
        assert sorted(done) == [False, True]
    assert ids(target) == [0, 1]


def test_who_comes_second_waits_and_takes_nothing(url: str) -> None:
    """The first holds the query's row while its dead letters are written."""
    target = target_in(url, "second")
    assert committed(target, 0, rows(0))
    bad = StagedRow(0, 2, '{"id": "two"}')
    first, second = (staged(target, [*rows(1), bad], attempt) for attempt in ("first", "second"))
    buried: list[RejectedRow] = []
    with ThreadPoolExecutor(1) as threads:
        later: list[Future[bool]] = []

        def write_rejected(refused: list[RejectedRow]) -> None:
            buried.extend(refused)
            later.append(threads.submit(postgres.commit, target, "second", 1, [second], no_burial))
            eventually(lambda: waits_for_a_lock(url, "penstock_batches"))

        assert postgres.commit(target, "second", 1, [first], write_rejected)
        assert not later[0].result()
    assert ids(target) == [0, 1]
    assert len(buried) == 1


@pytest.mark.parametrize("held", [0, 1])
def test_of_two_queries_that_bring_the_same_offsets_at_once_one_is_refused(url: str, held: int) -> None:
    """Also if the table holds nothing yet: two new checkpoints for one table."""
    target = target_in(url, f"rivals{held}")
    if held:
        assert committed(target, 0, rows(0))
    given = [*rows(held), StagedRow(0, held + 1, '{"id": "one"}')]
    first, second = (staged(target, given, attempt) for attempt in ("first", "second"))
    with ThreadPoolExecutor(1) as threads:
        later: list[Future[bool]] = []

        def write_rejected(refused: list[RejectedRow]) -> None:
            rival = f"rival of {held}"
            later.append(threads.submit(postgres.commit, target, rival, 0, [second], no_burial))
            eventually(lambda: waits_for_a_lock(url, "penstock_offsets"))

        assert postgres.commit(target, target.table, 1, [first], write_rejected)
        with pytest.raises(
            CommandFailed, match=f"up to offset {held + 2} and was given rows from offset {held}"
        ):
            later[0].result()
    assert ids(target) == list(range(held + 1))


def waits_for_a_lock(url: str, table: str) -> bool:
    with psycopg.connect(url) as database:
        found = database.execute(
            "select count(*) from pg_stat_activity "
            "where wait_event_type = 'Lock' and position(%s in query) > 0",
            (table,),
        ).fetchone()
    return found is not None and found[0] > 0


def test_a_checkpoint_that_is_older_than_the_table_is_refused(url: str) -> None:
    """Batch 1 has other rows now than when it was recorded: to take it for known would lose them."""
    target = target_in(url, "older")
    assert committed(target, 0, rows(0, 1))
    assert committed(target, 1, rows(2))
    for batch in (0, 1):
        with pytest.raises(
            CommandFailed,
            match=f"has recorded batch {batch} .* holds stage/0 up to offset 3, and now was given rows up to "
            "offset 5 .* the checkpoint is older than the table",
        ):
            committed(target, batch, rows(2, 3, 4))
    with pytest.raises(CommandFailed, match="holds stage/1 up to offset 0"):
        committed(target, 1, rows(0, partition=1))
    assert ids(target) == [0, 1, 2]
    assert not committed(target, 1, rows(2)), "the one that was taken"


def test_a_commit_does_not_wait_for_a_task_that_hangs(url: str) -> None:
    target = target_in(url, "hanging")
    copy_text = f"copy {target.staging.as_string()} (attempt, part, pos, row) from stdin"
    told = staged(target, rows(0))
    with (
        ThreadPoolExecutor(1) as threads,
        psycopg.connect(url) as zombie,
        zombie.cursor() as cursor,
        cursor.copy(copy_text) as copy,
    ):
        copy.write_row(("zombie", 0, 0, "{}"))
        assert threads.submit(postgres.commit, target, "hanging", 0, [told], no_burial).result(20)
    assert staged_attempts(target) == {"zombie"}


def test_a_lock_that_somebody_keeps_is_told_of(url: str) -> None:
    target = target_in(url, "locked")
    told = staged(target, rows(0))
    with psycopg.connect(url) as keeper:
        keeper.execute("lock table locked")
        with pytest.raises(CommandFailed, match="needs, for more than 1 s: pg_stat_activity and pg_locks"):
            postgres.commit(target, "locked", 0, [told], no_burial, lock_s_max=1)
    assert committed(target, 0, rows(0))


def test_old_rows_of_attempts_that_were_never_told_are_removed(url: str) -> None:
    target = target_in(url, "orphans")
    staged(target, rows(0), "old")
    with psycopg.connect(url) as database:
        database.execute(f"update {target.staging.as_string()} set staged_at = now() - interval '25 hours'")
    staged(target, rows(0), "young")
    assert committed(target, 0, rows(0))
    assert staged_attempts(target) == {"young"}


def staged_attempts(target: PostgresTarget) -> set[str]:
    with psycopg.connect(target.url) as database:
        return {row[0] for row in database.execute(f"select attempt from {target.staging.as_string()}")}


def test_a_table_is_the_same_with_and_without_its_schema(url: str) -> None:
    assert committed(target_in(url, "schemed"), 0, rows(0, 1))
    with pytest.raises(CommandFailed, match="up to offset 2 and was given rows from offset 0 on"):
        committed(target_in(url, "public.schemed"), 0, rows(0, 1))


def test_columns_may_be_named_as_those_of_the_staging_table(url: str) -> None:
    schema = parse_columns("id bigint, attempt string, part int, pos bigint, row string, staged_at timestamp")
    target = target_in(url, "namesakes", "id", schema=schema)
    refused: list[RejectedRow] = []
    some = [
        StagedRow(0, 0, '{"id": 1, "attempt": "x", "part": 7}'),
        StagedRow(0, 1, '{"id": 2, "part": "x"}'),
    ]
    assert postgres.commit(target, "namesakes", 0, [staged(target, some)], refused.extend)
    assert ids(target) == [1]
    assert [each.row.offset for each in refused] == [1]


def test_nothing_is_left_of_a_commit_that_fails(url: str) -> None:
    target = target_in(url, "failing")

    def fails(refused: list[RejectedRow]) -> None:
        raise CommandFailed("the topic of dead letters cannot be reached")

    told = staged(target, [*rows(0), StagedRow(0, 1, '{"id": "many"}')])
    with pytest.raises(CommandFailed):
        postgres.commit(target, "failing", 0, [told], fails)
    assert ids(target) == []
    assert committed(target, 0, rows(0))


def test_rows_that_are_refused_are_found_and_the_others_taken(url: str) -> None:
    with psycopg.connect(url) as database:
        database.execute("create table strict (id bigint unique check (id < 100), name text not null)")
    target = target_in(url, "strict", schema=parse_columns("id bigint, name string"))
    bad = [StagedRow(0, 3, '{"id": 3}'), StagedRow(0, 4, '{"id": "four", "name": "x"}'), *rows(200)]
    refused: list[RejectedRow] = []
    told = staged(target, [*rows(0, 1, 2), *bad, *rows(5, 6)])
    assert postgres.commit(target, "strict", 0, [told], refused.extend)
    assert ids(target) == [0, 1, 2, 5, 6]
    assert [each.row.offset for each in refused] == [3, 4, 200]
    assert "null value in column" in refused[0].reason
    assert "invalid input syntax for type bigint" in refused[1].reason
    assert "violates check constraint" in refused[2].reason


LONG_TEXT = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=12_000))
ID_AND_NAME = parse_columns("id bigint, name string")


@pytest.mark.parametrize(
    ("table", "key", "setup", "bad_name", "reason"),
    [
        ("long_keys", ("name",), "", LONG_TEXT, "index row size|index row requires"),
        (
            "deferred",
            (),
            "create table known (name text primary key); insert into known values ('x'); "
            "create table deferred (id bigint, name text references known deferrable initially deferred)",
            "stranger",
            "violates foreign key constraint",
        ),
        (
            "triggered",
            (),
            "create table triggered (id bigint, name text); "
            "create function no_bad() returns trigger language plpgsql as $$ begin "
            "if new.name = 'bad' then raise exception 'it is bad'; end if; return new; end $$; "
            "create trigger guard before insert on triggered for each row execute function no_bad()",
            "bad",
            "it is bad",
        ),
        (
            "secured",
            (),
            "create table secured (id bigint, name text); alter table secured enable row level security; "
            "create policy readers on secured for select using (true); "
            "create policy guard on secured for insert with check (name = 'x')",
            "y",
            "violates row-level security policy",
        ),
    ],
)
def test_whatever_a_table_has_against_a_row_stops_no_other(
    url: str, table: str, key: tuple[str, ...], setup: str, bad_name: str, reason: str
) -> None:
    """A batch that fails is run again with the same rows: it would fail for ever."""
    if setup:
        with psycopg.connect(url) as database:
            database.execute(setup)
    target = target_in(as_guest(url) if "policy" in setup else url, table, *key, schema=ID_AND_NAME)
    refused: list[RejectedRow] = []
    told = staged(target, [*rows(0), StagedRow(0, 1, f'{{"id": 1, "name": "{bad_name}"}}'), *rows(2)])
    assert postgres.commit(target, table, 0, [told], refused.extend)
    assert ids(target)[-1:] == [2]
    assert [each.row.offset for each in refused] == [1]
    assert re.search(reason, refused[0].reason)


def as_guest(url: str) -> str:
    """Somebody for whom rights and policies count. May do all with the tables that are there."""
    with psycopg.connect(url) as database:
        if database.execute("select 1 from pg_roles where rolname = 'guest'").fetchone() is None:
            database.execute("create role guest login")
        database.execute("grant all on schema public to guest")
        database.execute("grant all on all tables in schema public to guest")
    return re.sub("//[^@]+@", "//guest@", url)


def test_a_right_that_is_missing_is_no_matter_of_rows(url: str) -> None:
    """All of them would become dead letters."""
    target = target_in(url, "revoked", schema=ID_AND_NAME)
    told = staged(target, rows(0, 1))
    guest = target._replace(url=as_guest(url))
    with psycopg.connect(url) as database:
        database.execute("revoke insert on revoked from guest")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for table revoked"):
        postgres.commit(guest, "revoked", 0, [told], no_burial)


@pytest.mark.parametrize("key", [(), ("id",)])
def test_many_rows_that_are_refused_are_found_among_many(
    url: str, key: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces of rows are taken one by one, so the work does not grow with the square of the rows."""
    target = target_in(url, f"many{len(key)}", *key, schema=parse_columns("id bigint, name string"))
    bad = {*range(0, 5_000, 7), *range(2_000, 3_200)}
    given = [
        StagedRow(number % 2, number, f'{{"id": "no {number}"}}' if number in bad else f'{{"id": {number}}}')
        for number in range(5_000)
    ]
    statements = 0
    execute = psycopg.Connection.execute

    def counting(self: Any, *given: Any, **named: Any) -> Any:
        nonlocal statements
        statements += 1
        return execute(self, *given, **named)

    refused: list[RejectedRow] = []
    told = staged(target, given)
    monkeypatch.setattr(psycopg.Connection, "execute", counting)
    assert postgres.commit(target, target.table, 0, [told], refused.extend)
    assert statements < 60
    assert ids(target) == [number for number in range(5_000) if number not in bad]
    assert {each.row.offset for each in refused} == bad
    assert refused[0] == RejectedRow(
        StagedRow(0, 0, '{"id": "no 0"}'),
        'PostgreSQL refuses it: invalid input syntax for type bigint: "no 0"',
    )


def test_with_a_key_the_last_row_of_each_counts(url: str) -> None:
    target = target_in(url, "keyed", "id", schema=parse_columns("id bigint, name string"))
    first = [StagedRow(0, offset, f'{{"id": 1, "name": "{offset}"}}') for offset in range(3)]
    assert committed(target, 0, [*first, StagedRow(0, 3, '{"id": 2, "name": "other"}')])
    assert committed(target, 1, [StagedRow(0, 4, '{"id": 2, "name": "changed"}')])
    with psycopg.connect(url) as database:
        assert database.execute("select id, name from keyed order by id").fetchall() == [
            (1, "2"),
            (2, "changed"),
        ]


def test_with_a_version_the_newest_row_stays_wherever_it_comes_from(url: str) -> None:
    """Rows of one key in two partitions, of which the first has the newer, in one batch and in two."""

    def row(partition: int, offset: int, key: int, version: str) -> StagedRow:
        return StagedRow(partition, offset, f'{{"id": {key}, "version": {version}, "name": "{partition}"}}')

    schema = parse_columns("id bigint, version int, name string")
    target = PostgresTarget(url, "versioned", tuple(schema.fieldNames()), ("id",), "stage", "version")
    postgres.prepare(target, schema)
    assert committed(target, 0, [row(0, 0, 1, "10"), row(1, 0, 1, "9"), row(0, 1, 2, "10")])
    assert committed(target, 1, [row(1, 1, 2, "9"), row(1, 2, 1, "null"), row(0, 2, 1, "10")])
    # The same where one row is refused and the others are taken one by one.
    refused: list[RejectedRow] = []
    told = staged(target, [row(0, 3, 3, "2"), row(1, 3, 3, "1"), StagedRow(0, 4, '{"id": "no"}')], "some")
    assert postgres.commit(target, target.table, 2, [told], refused.extend)
    assert len(refused) == 1
    with psycopg.connect(url) as database:
        found = database.execute("select id, version, name from versioned order by id").fetchall()
    assert found == [(1, 10, "0"), (2, 10, "0"), (3, 2, "0")]


def test_rows_that_say_so_are_deleted_in_their_order(url: str) -> None:
    def put(offset: int, key: int) -> StagedRow:
        return StagedRow(0, offset, f'{{"id": {key}, "name": "{offset}"}}')

    def gone(offset: int, key: int) -> StagedRow:
        return StagedRow(0, offset, f'{{"id": {key}, "_deleted": true}}')

    schema = parse_columns("id bigint, name string")
    target = PostgresTarget(url, "deleting", tuple(schema.fieldNames()), ("id",), "stage", deletes=True)
    postgres.prepare(target, schema)
    # 1 stays; 2 is deleted in the batch that brings it; 3 is there, deleted, and there again; 9 never was.
    assert committed(
        target, 0, [put(0, 1), put(1, 2), gone(2, 2), put(3, 3), gone(4, 3), put(5, 3), gone(6, 9)]
    )
    assert ids(target) == [1, 3]
    assert committed(target, 1, [gone(7, 3), put(8, 4), put(9, 5)])
    assert ids(target) == [1, 4, 5]
    # A row that PostgreSQL refuses to delete is found, and the others are taken one by one.
    with psycopg.connect(url) as database:
        database.execute("create table deleting_children (parent bigint references deleting)")
        database.execute("insert into deleting_children values (4)")
    refused: list[RejectedRow] = []
    told = staged(target, [gone(10, 4), gone(11, 5), put(12, 6)], "with a child")
    assert postgres.commit(target, target.table, 2, [told], refused.extend)
    assert [each.row.offset for each in refused] == [10]
    assert "violates foreign key constraint" in refused[0].reason
    assert ids(target) == [1, 4, 6]


def test_with_a_time_as_version_an_older_tombstone_deletes_nothing(url: str) -> None:
    def row(offset: int, key: int, version: int, rest: str = "") -> StagedRow:
        return StagedRow(0, offset, f'{{"id": {key}, "version": {version}{rest}}}')

    schema = parse_columns("id bigint, version int")
    target = PostgresTarget(url, "old_tombstones", ("id", "version"), ("id",), "stage", "version", True)
    postgres.prepare(target, schema)
    gone = ', "_deleted": true'
    assert committed(target, 0, [row(0, 1, 5), row(1, 2, 5)])
    assert committed(target, 1, [row(2, 1, 4, gone), row(3, 2, 6, gone)])
    assert ids(target) == [1]


def test_offsets_that_the_table_holds_are_refused_whoever_brings_them(url: str) -> None:
    target = target_in(url, "held")
    assert committed(target, 9, rows(0, 1))
    with pytest.raises(CommandFailed, match="up to offset 2 and was given rows from offset 1 on"):
        committed(target, 0, rows(1, 2), query="of a new checkpoint")
    assert ids(target) == [0, 1]
    assert committed(target, 0, rows(2), query="of a new checkpoint")


def test_staged_rows_that_are_gone_are_noticed(url: str) -> None:
    """Tables that are not logged are empty after a crash of PostgreSQL."""
    target = target_in(url, "crashed")
    told = staged(target, rows(0, 1))
    with psycopg.connect(url) as database:
        database.execute(f"truncate {target.staging.as_string()}")
    with pytest.raises(CommandFailed, match="have staged 2 rows for crashed, and 0 are there"):
        postgres.commit(target, "crashed", 0, [told], no_burial)


def test_a_table_that_rows_do_not_fit_is_refused_at_the_start(url: str) -> None:
    with psycopg.connect(url) as database:
        database.execute("create table narrow (id bigint)")
    with pytest.raises(CommandFailed, match="the table narrow has no column name, which rows have"):
        target_in(url, "narrow")
    with pytest.raises(CommandFailed, match="no unique or exclusion constraint matching"):
        target_in(url, "narrow", "id", schema=parse_columns("id bigint"))
    with pytest.raises(CommandFailed, match=r"cannot reach PostgreSQL at postgresql://me@127.0.0.1:1/x: "):
        target_in("postgresql://me:secret@127.0.0.1:1/x", "any")


def test_a_table_of_postgresql_is_read_in_ranges(url: str) -> None:
    with psycopg.connect(url) as setup:
        setup.execute("create table ranges (at timestamptz, n numeric(6,2), u uuid, d date, j jsonb)")
        setup.execute(
            "insert into ranges select '2026-11-15 00:00Z'::timestamptz + n * interval '1 min', n, "
            "gen_random_uuid(), '2026-11-15', '{\"a\": 1}' from generate_series(1, 10) n"
        )
    database = connect(url)
    assert [field.type for field in database.fields("ranges")] == [
        "timestamp",
        "decimal(6,2)",
        "string",
        "date",
        "string",
    ]
    after, seen = None, []
    assert not database.is_unique("ranges", "at")
    until = database.observed_end("ranges", "at", below_largest=False).end
    assert until is not None
    while (end := database.range_end("ranges", "at", ValueRange(after, until), 4)) is not None:
        chunks = database.rows("ranges", ["n", "j"], "at", ValueRange(after, end))
        seen.append([int(row[0]) for chunk in chunks for row in chunk])
        after = end
    assert seen == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]
    with pytest.raises(CommandFailed, match="has no column x; it has at, n, u, d, j"):
        list(database.rows("ranges", ["x"], None, None))
    database.close()
