"""A table that grows, read as a stream by a column: no row is missed, and a bounded run ends.

The planner's side of the source is driven as Spark drives it, against a real PostgreSQL and SQLite.
"""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.errors import CommandFailed
from penstock.spark.pipelines.etl import database_source
from penstock.spark.pipelines.etl.database import NewestRows, connect
from penstock.spark.pipelines.etl.database_source import (
    SETTLE_S_MAX,
    DatabaseReader,
    IncrementalTable,
    add_dead_letter_field,
    database_options,
)
from penstock.spark.pipelines.etl.extract import held_back, source_notes
from penstock.spark.pipelines.etl.rows import parse_columns
from penstock.spark.pipelines.etl.spec import FromDatabase
from tests.spark.postgres_server import postgres_server
from tests.spark.topics import eventually


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postgres_server() as address:
        yield address


class Clock:
    """Real time, that can be moved ahead."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def move(self, seconds: float) -> None:
        self._ahead_s += seconds

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead_s

    def sleep(self, seconds: float) -> None:
        self.move(seconds)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Iterator["Streams"]:
    clock = Clock()
    monkeypatch.setattr(database_source, "time", clock)
    made = Streams(clock)
    yield made
    for stream in made.all:
        stream.reader.stop()


class Streams:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.all: list[Stream] = []

    def __call__(
        self,
        url: str,
        table: str,
        column: str,
        *,
        rows_max: int = 100,
        is_unique: bool = False,
        same_value_s: float | None = None,
        settle_s_max: float = SETTLE_S_MAX,
    ) -> "Stream":
        growing = IncrementalTable(table, column, is_unique, same_value_s)
        self.all.append(Stream(url, growing, rows_max, self._clock, settle_s_max))
        return self.all[-1]


class Stream:
    """A streaming query over one table, as Spark's micro-batches drive it."""

    def __init__(
        self, url: str, growing: IncrementalTable, rows_max: int, clock: Clock, settle_s_max: float
    ) -> None:
        options = database_options(url, growing) | {"rowsPerBatch": str(rows_max), "deadTopic": "dead"}
        self.url = url
        self._clock = clock
        self.reader = DatabaseReader(
            options, add_dead_letter_field(parse_columns("name string")), settle_s_max
        )
        self.position: dict[str, Any] = self.reader.initialOffset()
        self.names: list[str] = []

    def batch(self) -> int:
        """Reads one micro-batch and returns how many rows it had."""
        end = self.reader.latestOffset(self.position, ReadAllAvailable())
        if end == self.position:
            return 0
        before = len(self.names)
        for partition in self.reader.partitions(self.position, end):
            for batch in self.reader.read(partition):
                self.names += batch.column("name").to_pylist()
        self.position = end
        return len(self.names) - before

    def read_until(self, names: list[str]) -> None:
        def arrived() -> bool:
            self.batch()
            return len(self.names) >= len(names)

        eventually(arrived)
        assert sorted(self.names) == sorted(names)

    def read_for(self, seconds: float) -> None:
        """Reads now, when the time has passed, and once more: what was seen before it is waited for."""
        self.batch()
        self._clock.move(seconds)
        self.batch()
        self.batch()


def made(url: str, ddl: str) -> None:
    with psycopg.connect(url) as setup:
        setup.execute(ddl)


def put(url: str, statement: str, *values: Any) -> None:
    with psycopg.connect(url) as database:
        database.execute(statement, values)


def test_a_number_drawn_before_the_first_write_is_not_missed(url: str, streams: Streams) -> None:
    """PostgreSQL gives a transaction an id at its first write; this one has drawn its number before."""
    made(url, "create table drawn (id bigint primary key, name text); create sequence drawn_ids")
    stream = streams(url, "drawn", "id")
    with psycopg.connect(url) as slow:
        number = slow.execute("select nextval('drawn_ids')").fetchone()
        assert number is not None
        put(url, "insert into drawn select nextval('drawn_ids'), 'quick'")
        for _ in range(3):
            assert stream.batch() == 0
        slow.execute("insert into drawn values (%s, 'slow')", number)
        slow.commit()
    stream.read_until(["slow", "quick"])


def test_values_are_written_alike_whatever_the_settings_of_a_role(url: str) -> None:
    """They are compared with those in the checkpoint, which another setting would read as other days."""
    with psycopg.connect(url) as database:
        database.execute("create table days (at timestamptz, ratio double precision)")
        database.execute("insert into days values ('2026-04-03 12:00:00Z', 0.1::float8 + 0.2::float8)")
    for settings in ("datestyle%3DSQL,DMY", "extra_float_digits%3D-5", "datestyle%3DGerman"):
        with closing(connect(f"{url}?options=-c%20{settings}")) as database:
            found = [
                database.observed_end("days", column, below_largest=False).end for column in ("at", "ratio")
            ]
        assert found == ["2026-04-03 12:00:00+00", "0.30000000000000004"], settings


def test_a_time_taken_by_a_transaction_that_writes_late_is_not_missed(url: str, streams: Streams) -> None:
    """now() is when the transaction began, however late the row is inserted."""
    made(url, "create table timed (at timestamptz default now(), name text)")
    stream = streams(url, "timed", "at")
    with psycopg.connect(url) as slow:
        slow.execute("select 1")
        put(url, "insert into timed (name) values ('quick')")
        put(url, "insert into timed (name) values ('newest')")
        stream.read_for(3600)
        assert stream.names == []
        slow.execute("insert into timed (name) values ('slow')")
        slow.commit()
    stream.read_until(["slow", "quick"])


def test_a_transaction_that_is_prepared_meanwhile_is_waited_for(url: str, streams: Streams) -> None:
    made(url, "create table prepared (id bigint primary key, name text)")
    stream = streams(url, "prepared", "id")
    with psycopg.connect(url) as slow:
        slow.execute("select 1")
        put(url, "insert into prepared values (8, 'quick')")
        assert stream.batch() == 0
        slow.execute("insert into prepared values (7, 'slow')")
        slow.execute("prepare transaction 'later'")
    for _ in range(3):
        assert stream.batch() == 0
    with psycopg.connect(url, autocommit=True) as database:
        database.execute("commit prepared 'later'")
    stream.read_until(["slow", "quick"])


def test_transactions_of_other_roles_hold_back_and_of_other_databases_not(url: str, streams: Streams) -> None:
    made(url, "create table roles (id bigint primary key, name text); create role reader login")
    made(url, "grant select on roles to reader")
    with psycopg.connect(url, autocommit=True) as setup:
        setup.execute("create database another")
    rest = url.partition("@")[2]
    stream = streams(f"postgresql://reader@{rest}", "roles", "id")
    with (
        psycopg.connect(url) as slow,
        psycopg.connect(f"{url.rpartition('/')[0]}/another") as elsewhere,
    ):
        elsewhere.execute("select 1")
        slow.execute("select 1")
        put(url, "insert into roles values (8, 'quick')")
        assert stream.batch() == 0
        slow.execute("insert into roles values (7, 'slow')")
        slow.commit()
        stream.read_until(["slow", "quick"])


def test_after_so_long_only_the_newest_rows_of_a_value_are_read(url: str, streams: Streams) -> None:
    made(url, "create table seconds (at timestamp(0), name text)")
    stream = streams(url, "seconds", "at", same_value_s=2)
    put(url, "insert into seconds values ('2020-01-01', 'first')")
    stream.read_for(1.5)
    assert stream.names == []
    put(url, "insert into seconds values ('2020-01-01', 'second')")
    stream.read_for(1.5)
    assert sorted(stream.names) == ["first", "second"]
    put(url, "insert into seconds values ('2020-01-02', 'third')")
    stream.read_for(2)
    assert sorted(stream.names) == ["first", "second", "third"]


def test_a_transaction_that_is_open_for_a_while_is_waited_for(url: str, streams: Streams) -> None:
    made(url, "create table stamped (at timestamp(0), name text)")
    stream = streams(url, "stamped", "at", same_value_s=2)
    put(url, "insert into stamped values ('2020-01-01', 'quick')")
    stream.batch()
    with psycopg.connect(url) as slow:
        slow.execute("insert into stamped values ('2020-01-01', 'slow')")
        stream.read_for(60)
        assert stream.names == []
    stream.read_until(["quick", "slow"])


def test_a_bounded_run_waits_as_long_as_a_value_comes(url: str, streams: Streams) -> None:
    made(url, "create table waited (at timestamp(0), name text)")
    put(url, "insert into waited values ('2020-01-01', 'only')")
    stream = streams(url, "waited", "at", same_value_s=90)
    stream.reader.prepareForTriggerAvailableNow()
    assert stream.batch() == 1


@pytest.mark.parametrize("kind", ["date", "int"])
def test_the_largest_of_values_that_repeat_waits_for_a_larger_one(
    url: str, streams: Streams, kind: str
) -> None:
    values = {"date": ("2020-01-01", "2020-01-02"), "int": (1, 2)}[kind]
    made(url, f"create table days_{kind} (at {kind}, name text)")
    stream = streams(url, f"days_{kind}", "at")
    put(url, f"insert into days_{kind} values (%s, 'first')", values[0])
    stream.read_for(3600)
    assert stream.names == []
    put(url, f"insert into days_{kind} values (%s, 'second')", values[0])
    put(url, f"insert into days_{kind} values (%s, 'third')", values[1])
    stream.read_until(["first", "second"])
    # A view has no index; whoever knows that its numbers are unique says so.
    put(url, f"create view days_{kind}_view as select * from days_{kind}")
    assert streams(url, f"days_{kind}_view", "at", is_unique=True).batch() == 3


class Shop:
    """A file of SQLite with one table."""

    def __init__(self, folder: Path, ddl: str) -> None:
        self._path = folder / "shop.db"
        self.url = f"sqlite:///{self._path}"
        self.run(ddl)

    def run(self, statement: str, *values: Any) -> None:
        with sqlite3.connect(self._path) as database:
            database.execute(statement, values)
        database.close()

    def open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, isolation_level=None)


def test_of_sqlite_a_row_that_is_committed_seconds_later_is_not_missed(
    tmp_path: Path, streams: Streams
) -> None:
    """SQLite does not tell that a transaction is open."""
    shop = Shop(tmp_path, "create table orders (at text default current_timestamp, name text)")
    stream = streams(shop.url, "orders", "at")
    shop.run("insert into orders values ('2020-01-01 00:00:00', 'quick')")
    stream.batch()
    with closing(shop.open()) as slow:
        slow.execute("begin immediate")
        slow.execute("insert into orders values ('2020-01-01 00:00:00', 'slow')")
        stream.read_for(2.5)
        slow.execute("commit")
    shop.run("insert into orders values ('2020-01-01 00:00:03', 'next')")
    stream.read_until(["quick", "slow"])


def test_of_sqlite_a_number_that_is_given_again_is_not_missed(tmp_path: Path, streams: Streams) -> None:
    shop = Shop(tmp_path, "create table orders (id integer primary key, name text)")
    stream = streams(shop.url, "orders", "id")
    shop.run("insert into orders (name) values ('a'), ('b')")
    stream.read_for(0.1)
    shop.run("delete from orders where name = 'b'")
    shop.run("insert into orders (name) values ('c')")
    shop.run("insert into orders (name) values ('d')")
    stream.read_until(["a", "c"])


def test_of_sqlite_numbers_that_are_never_given_again_are_read_at_once(
    tmp_path: Path, streams: Streams
) -> None:
    shop = Shop(tmp_path, "create table orders (id integer primary key autoincrement, name text)")
    stream = streams(shop.url, "orders", "id")
    shop.run("insert into orders (name) values ('a'), ('b')")
    stream.read_until(["a", "b"])
    shop.run("delete from orders where name = 'b'")
    shop.run("insert into orders (name) values ('c')")
    stream.read_until(["a", "b", "c"])


def test_of_sqlite_a_file_that_nobody_may_write_to_is_read(tmp_path: Path, streams: Streams) -> None:
    shop = Shop(tmp_path, "create table orders (at datetime, name text)")
    shop.run("insert into orders values ('2020-01-01 00:00:00', 'a'), ('2020-01-01 00:00:01', 'b')")
    (tmp_path / "shop.db").chmod(0o444)
    streams(shop.url, "orders", "at").read_until(["a"])


def test_a_late_row_with_the_minute_of_another_is_not_missed(
    url: str, tmp_path: Path, streams: Streams
) -> None:
    ddl = "create table minutes (at timestamp, name text)"
    made(url, ddl)
    shop = Shop(tmp_path, ddl)
    for stream in (streams(url, "minutes", "at"), streams(shop.url, "minutes", "at")):
        insert = shop.run if stream.url == shop.url else partial(put, url)
        insert("insert into minutes values ('2020-01-01 12:00:00', 'first')")
        stream.read_for(2.6)
        insert("insert into minutes values ('2020-01-01 12:00:00', 'second')")
        stream.read_for(2.6)
        insert("insert into minutes values ('2020-01-01 12:01:00', 'third')")
        stream.read_until(["first", "second"])


def test_of_sqlite_a_row_of_the_same_second_is_not_missed(tmp_path: Path, streams: Streams) -> None:
    def insert(name: str, at: str) -> None:
        with sqlite3.connect(tmp_path / "shop.db") as database:
            database.execute("insert into orders values (?, ?)", (at, name))
        database.close()

    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("create table orders (at text default current_timestamp, name text)")
        database.execute("create table versions (version int, name text)")
        database.execute("insert into versions values (1, 'a'), (2, 'b'), (2, 'c')")
    database.close()
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    stream = streams(url, "orders", "at")
    insert("first", "2020-01-01 00:00:00")
    stream.batch()
    insert("second", "2020-01-01 00:00:00")
    insert("third", "2020-01-01 00:00:01")
    stream.read_until(["first", "second"])
    versions = streams(url, "versions", "version")
    versions.read_until(["a"])


def test_a_bounded_run_ends_although_the_table_grows(url: str, streams: Streams) -> None:
    made(url, "create table busy (id bigserial primary key, name text)")
    put(url, "insert into busy (name) select 'old' from generate_series(1, 25)")
    stream = streams(url, "busy", "id", rows_max=10)
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(url, autocommit=True) as database:
            while not stop.is_set():
                database.execute("insert into busy (name) select 'new' from generate_series(1, 20)")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        began = time.monotonic()
        stream.reader.prepareForTriggerAvailableNow()
        assert time.monotonic() - began < 30
        batches = 0
        with psycopg.connect(url) as database:
            found = database.execute("select max(id) from busy").fetchone()
        while stream.batch():
            batches += 1
            assert batches < 1000, "the run follows a table that grows"
    finally:
        stop.set()
        writer.join()
    assert found is not None
    assert 25 <= len(stream.names) <= found[0]


def test_a_bounded_run_reads_no_more_of_the_table_than_its_ends(url: str, streams: Streams) -> None:
    made(url, "create table large (id bigint primary key, name text)")
    put(url, "insert into large select n, 'x' from generate_series(1, 20000) n")
    made(url, "analyze large")
    stream = streams(url, "large", "id")
    before = rows_read(url)
    stream.reader.prepareForTriggerAvailableNow()
    stream.reader.stop()  # a session tells what it has read when it ends
    assert rows_read(url) - before < 100


def rows_read(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as database:
        database.execute("select pg_stat_force_next_flush()")
        found = database.execute(
            "select seq_tup_read + idx_tup_fetch from pg_stat_user_tables where relname = 'large'"
        ).fetchone()
    assert found is not None
    return int(found[0])


def test_a_bounded_run_tells_of_a_transaction_that_does_not_end(url: str, streams: Streams) -> None:
    made(url, "create table held (id bigint primary key, name text)")
    put(url, "insert into held values (1, 'x')")
    with psycopg.connect(url) as slow:
        slow.execute("select 1")
        with pytest.raises(CommandFailed, match=r"held: .* open for .* pg_stat_activity"):
            streams(url, "held", "id", settle_s_max=0.3).reader.prepareForTriggerAvailableNow()


def test_a_bounded_run_ends_without_the_newest_rows_and_they_are_counted(
    url: str, tmp_path: Path, streams: Streams
) -> None:
    ddl = "create table counted (at timestamp, name text)"
    made(url, ddl)
    shop = Shop(tmp_path, ddl)
    for place, insert in ((url, partial(put, url)), (shop.url, shop.run)):
        source = FromDatabase(place, "counted", "at", None)
        assert held_back(source, None) is None
        insert("insert into counted values ('2020-01-01', 'a'), ('2020-01-02', 'b'), ('2020-01-02', 'c')")
        stream = streams(place, "counted", "at")
        stream.reader.prepareForTriggerAvailableNow()
        assert (stream.batch(), stream.batch(), stream.names) == (1, 0, ["a"])
        largest = "2020-01-02 00:00:00" if place == url else "2020-01-02"
        assert held_back(source, stream.position["after"]) == NewestRows(2, largest)
        assert held_back(source, largest) is None
        assert held_back(source._replace(is_unique=True), None) is None


@pytest.mark.parametrize(
    ("ddl", "is_unique"),
    [
        ("id integer primary key autoincrement", True),
        ("id INTEGER PRIMARY KEY /* not */ AutoIncrement", True),
        ("id integer primary key", False),
        ("id integer primary key -- autoincrement\n", False),
        ("id integer primary key, [autoincrement] text", False),
        ("id integer primary key, a text default 'it''s autoincrement'", False),
        ("id integer unique", False),
        ("id text primary key", False),
        ("other integer primary key autoincrement, id integer", False),
    ],
)
def test_of_sqlite_only_numbers_that_are_never_given_again_are_unique(
    tmp_path: Path, ddl: str, is_unique: bool
) -> None:
    shop = Shop(tmp_path, f"create table orders ({ddl})")
    with closing(connect(shop.url)) as database:
        assert database.is_unique("orders", "id") is is_unique


def test_whoever_reads_a_table_is_told_what_waits_and_what_can_be_missed(url: str, tmp_path: Path) -> None:
    made(url, "create table told (id bigint primary key, at timestamptz, here timestamp)")
    shop = Shop(tmp_path, "create table told (id integer primary key, name text)")
    shop.run("create table counting (id integer primary key autoincrement)")
    told = FromDatabase(url, "told", "id", None)
    assert source_notes(told) == []
    (waits,) = source_notes(told._replace(column="at"))
    assert waits.startswith("rows of told with the largest at are read when there is a larger one")
    _, hour = source_notes(told._replace(column="here"))
    assert "here of told is a timestamp without time zone" in hour
    assert source_notes(told._replace(column="at", same_value_s=2.0)) == []
    numbers = FromDatabase(shop.url, "told", "id", None)
    _, again = source_notes(numbers)
    assert "SQLite gives the number of a deleted row of told again" in again
    assert source_notes(numbers._replace(is_unique=True)) == []
    assert source_notes(numbers._replace(table="counting")) == []


@pytest.mark.parametrize(
    ("table", "ddl", "sequence"),
    [
        ("cached_serial", "create table cached_serial (id serial primary key)", "cached_serial_id_seq"),
        (
            "Cached identity",
            'create table "Cached identity" (id bigint generated always as identity primary key)',
            '"Cached identity_id_seq"',
        ),
        (
            "cached_default",
            "create sequence shared_numbers; "
            "create table cached_default (id bigint primary key default 1000 + nextval('shared_numbers'))",
            "shared_numbers",
        ),
    ],
)
def test_whoever_reads_by_numbers_that_are_drawn_ahead_is_told(
    url: str, table: str, ddl: str, sequence: str
) -> None:
    """A session with smaller numbers in its cache inserts rows below those that were read."""
    made(url, ddl)
    source = FromDatabase(url, table, "id", None)
    assert source_notes(source) == []
    made(url, f"alter sequence {sequence} cache 20")
    (ahead,) = source_notes(source)
    assert f"id of {table} is numbered by the sequence {sequence}, of which a session draws 20" in ahead
    assert f"alter sequence {sequence} cache 1" in ahead
    assert source_notes(source._replace(is_unique=True)) == [ahead], "it says nothing about an order"
    made(url, f'create view "view of {table}" as select * from "{table}"')
    assert len(source_notes(source._replace(table=f"view of {table}"))) == 1, "of a view it is not known"
