"""A deleted row stays deleted for older versions, wherever batches end: against a real PostgreSQL."""

import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import psycopg
import pytest

from penstock.errors import CommandFailed
from penstock.spark.pipelines.etl import postgres
from penstock.spark.pipelines.etl.postgres import PostgresTarget, RejectedRow, StagedRow
from penstock.spark.pipelines.etl.rows import parse_columns
from tests.spark.postgres_server import postgres_server
from tests.spark.topics import eventually

SCHEMA = parse_columns("id bigint, version int")


class Change(NamedTuple):
    """Change of one row, as a record of a topic states it."""

    version: int | None
    is_tombstone: bool = False


PUT_5, PUT_9, PUT_11, UNDATED = Change(5), Change(9), Change(11), Change(None)
GONE_10 = Change(10, is_tombstone=True)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postgres_server() as address:
        yield address


def target_in(url: str, table: str, topic: str = "stage") -> PostgresTarget:
    target = PostgresTarget(url, table, ("id", "version"), ("id",), topic, "version", deletes=True)
    postgres.prepare(target, SCHEMA)
    return target


def remembered(target: PostgresTarget, key: int = 1) -> list[int]:
    with psycopg.connect(target.url) as database:
        query = f"select version from {target.deleted.as_string()} where id = %s"
        return [row[0] for row in database.execute(query, (key,))]


class Loading:
    """A query that brings changes in batches, each of one key."""

    def __init__(self, target: PostgresTarget) -> None:
        self.target = target
        self._offsets = itertools.count()
        self._batches = itertools.count()

    def load(self, key: int, changes: Iterable[tuple[int, Change]], *, bad_rows: bool = False) -> None:
        """`changes` with their partitions. Bad rows make PostgreSQL take all of them one by one."""
        refused: list[RejectedRow] = []
        assert self.commit(self.staged(key, changes, bad_rows=bad_rows), refused.extend)
        assert len(refused) == (2 if bad_rows else 0)

    def staged(
        self, key: int, changes: Iterable[tuple[int, Change]], *, bad_rows: bool = False
    ) -> postgres.StagedAttempt:
        rows = [self._row(partition, key, change) for partition, change in changes]
        if bad_rows:  # first and last, for rows are taken in halves before they are taken singly
            rows = [self._bad(0), *rows, self._bad(9)]
        return postgres.stage(self.target, uuid.uuid4().hex, iter(rows))

    def commit(
        self,
        staged: postgres.StagedAttempt,
        write_rejected: Callable[[list[RejectedRow]], None],
        *,
        lock_s_max: int = 60,
    ) -> bool:
        query = f"{self.target.table} from {self.target.topic}"
        batch = next(self._batches)
        return postgres.commit(self.target, query, batch, [staged], write_rejected, lock_s_max=lock_s_max)

    def versions(self, key: int) -> list[int | None]:
        with psycopg.connect(self.target.url) as database:
            query = f"select version from {self.target.table} where id = %s"
            return [row[0] for row in database.execute(query, (key,))]

    def _row(self, partition: int, key: int, change: Change) -> StagedRow:
        version = "null" if change.version is None else change.version
        rest = ', "_deleted": true' if change.is_tombstone else ""
        return StagedRow(partition, next(self._offsets), f'{{"id": {key}, "version": {version}{rest}}}')

    def _bad(self, partition: int) -> StagedRow:
        return StagedRow(partition, next(self._offsets), '{"id": "no"}')


def splits(changes: Sequence[tuple[int, Change]]) -> Iterator[list[Sequence[tuple[int, Change]]]]:
    """Every way to cut them into batches."""
    for cuts in itertools.product((False, True), repeat=len(changes) - 1):
        ends = [place for place, is_cut in enumerate(cuts, start=1) if is_cut]
        yield [changes[start:end] for start, end in itertools.pairwise([0, *ends, len(changes)])]


@pytest.mark.parametrize("bad_rows", [False, True])
@pytest.mark.parametrize(
    ("table", "changes", "left"),
    [
        ("deleted_last", (PUT_5, GONE_10, PUT_9), []),
        ("put_last", (PUT_5, GONE_10, PUT_11), [11]),
        ("undated", (UNDATED, GONE_10, PUT_9), []),
        ("undated_tombstone", (PUT_5, Change(None, is_tombstone=True), GONE_10), []),
        ("two_tombstones", (PUT_9, GONE_10, Change(7, is_tombstone=True)), []),
    ],
)
def test_what_is_left_depends_neither_on_batches_nor_on_order(
    url: str, table: str, changes: tuple[Change, ...], left: list[int], bad_rows: bool
) -> None:
    """Each change is from a partition of its own, and partitions are read in any order."""
    loading = Loading(target_in(url, f"{table}_{bad_rows:d}".lower()))
    keys = itertools.count()
    for ordered in itertools.permutations(list(enumerate(changes, start=1))):
        for batches in splits(ordered):
            key = next(keys)
            for batch in batches:
                loading.load(key, batch, bad_rows=bad_rows)
            assert loading.versions(key) == left, batches


@pytest.mark.parametrize("bad_rows", [False, True])
@pytest.mark.parametrize(
    ("table", "tombstones", "left"), [("put", (True, False), [5]), ("gone", (False, True), [])]
)
def test_of_equal_versions_the_one_that_comes_last_counts(
    url: str, table: str, tombstones: tuple[bool, ...], left: list[int], bad_rows: bool
) -> None:
    """As for rows: records of one partition can have the same time."""
    loading = Loading(target_in(url, f"equal_{table}_{bad_rows:d}"))
    changes = [(1, Change(5, is_tombstone)) for is_tombstone in (False, *tombstones)]
    for key, batches in enumerate(splits(changes)):
        for batch in batches:
            loading.load(key, batch, bad_rows=bad_rows)
        assert loading.versions(key) == left, batches


def test_a_deletion_is_remembered_only_while_its_row_is_gone(url: str) -> None:
    loading = Loading(target_in(url, "remembering"))
    loading.load(1, [(1, PUT_9)])
    loading.load(1, [(1, Change(8, is_tombstone=True))])
    assert remembered(loading.target) == [], "a newer row stays, and says it as well"
    loading.load(1, [(1, GONE_10)])
    loading.load(1, [(1, Change(12, is_tombstone=True))])
    loading.load(1, [(1, PUT_11)])
    assert remembered(loading.target) == [12]
    loading.load(1, [(1, Change(13))])
    assert (remembered(loading.target), loading.versions(1)) == ([], [13])


def test_a_tombstone_that_is_refused_is_not_remembered(url: str) -> None:
    loading = Loading(target_in(url, "parents"))
    loading.load(1, [(1, PUT_5)])
    with psycopg.connect(url) as database:
        database.execute("create table children (parent bigint references parents)")
        database.execute("insert into children values (1)")
    refused: list[RejectedRow] = []
    assert loading.commit(loading.staged(1, [(1, GONE_10)]), refused.extend)
    assert (len(refused), remembered(loading.target)) == (1, [])
    assert loading.versions(1) == [5]


def test_the_table_of_deletions_is_beside_the_target_and_named_after_it(url: str) -> None:
    with psycopg.connect(url) as database:
        database.execute("create schema shop")
    for table, expected in (
        ("orders", "penstock_deleted_orders"),
        ("shop.orders", "shop.penstock_deleted_orders"),
        ("o" * 60, "penstock_deleted_%"),
    ):
        target = target_in(url, table)
        target_in(url, table)  # a second start finds it
        with psycopg.connect(url) as database:
            query = "select to_regclass(%s)::text like %s"
            assert database.execute(query, (target.deleted.as_string(), expected)).fetchone() == (True,)
    with psycopg.connect(url) as database:
        kinds = database.execute(
            "select column_name::text, data_type::text from information_schema.columns "
            "where table_name = 'penstock_deleted_orders' and table_schema = 'shop' order by 1"
        ).fetchall()
    assert kinds == [("id", "bigint"), ("version", "integer")]


@pytest.mark.parametrize(
    ("table", "version", "deletes"), [("no_version", None, True), ("keeps", "version", False)]
)
def test_no_deletions_are_remembered_where_nothing_asks_for_them(
    url: str, table: str, version: str | None, deletes: bool
) -> None:
    target = PostgresTarget(url, table, ("id", "version"), ("id",), "stage", version, deletes)
    postgres.prepare(target, SCHEMA)
    with psycopg.connect(url) as database:
        found = database.execute("select to_regclass(%s)", (target.deleted.as_string(),)).fetchone()
    assert found == (None,)


def test_two_queries_that_load_one_table_do_not_miss_each_others_deletions(url: str) -> None:
    """The second would look for deletions before the first has committed its own."""
    first, second = (Loading(target_in(url, "shared", topic)) for topic in ("one", "two"))
    first.load(1, [(1, PUT_5)])
    deleting, putting = first.staged(1, [(1, GONE_10)], bad_rows=True), second.staged(1, [(1, PUT_9)])
    with ThreadPoolExecutor(1) as threads:
        later: list[Future[bool]] = []

        def write_rejected(refused: Sequence[RejectedRow]) -> None:
            with pytest.raises(CommandFailed, match="needs, for more than 1 s"):
                second.commit(putting, none_refused, lock_s_max=1)
            later.append(threads.submit(second.commit, putting, none_refused))
            eventually(lambda: waits_for_a_lock(url))

        assert first.commit(deleting, write_rejected)
        assert later[0].result()
    assert second.versions(1) == []


def none_refused(refused: Sequence[RejectedRow]) -> None:
    raise AssertionError(refused)


def waits_for_a_lock(url: str) -> bool:
    with psycopg.connect(url) as database:
        query = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
        return database.execute(query).fetchone() == (1,)
