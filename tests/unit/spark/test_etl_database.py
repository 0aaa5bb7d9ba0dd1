"""A table that grows, read as a stream by a column: no row is missed, and a bounded run ends.

The planner's side of the source is driven as Spark drives it, against a real PostgreSQL and SQLite.
"""

import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.errors import CommandFailed
from penstock.spark.pipelines.etl.database_source import SETTLE_S_MAX, DatabaseReader, with_letters
from penstock.spark.pipelines.etl.rows import columns_of
from penstock.spark.pipelines.etl.settling import SAME_TIME_S
from tests.spark.postgres_server import postgres_server
from tests.spark.topics import eventually


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postgres_server() as address:
        yield address


@pytest.fixture
def streams() -> Iterator["Streams"]:
    made = Streams()
    yield made
    for stream in made.all:
        stream.reader.stop()


class Streams:
    def __init__(self) -> None:
        self.all: list[Stream] = []

    def __call__(
        self,
        url: str,
        table: str,
        column: str,
        *,
        rows_max: int = 100,
        unique: str = "",
        settle_s_max: float = SETTLE_S_MAX,
    ) -> "Stream":
        options = {"url": url, "table": table, "column": column, "rowsPerBatch": str(rows_max)}
        options |= {"deadTopic": "dead", **({"unique": unique} if unique else {})}
        self.all.append(Stream(options, settle_s_max))
        return self.all[-1]


class Stream:
    """A streaming query over one table, as Spark's micro-batches drive it."""

    def __init__(self, options: dict[str, str], settle_s_max: float) -> None:
        self.reader = DatabaseReader(options, with_letters(columns_of("name string")), settle_s_max)
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
        """Long enough that what was seen at the beginning counts, if nothing holds it back."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.batch()
            time.sleep(0.05)


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


def test_a_time_taken_by_a_transaction_that_writes_late_is_not_missed(url: str, streams: Streams) -> None:
    """now() is when the transaction began, however late the row is inserted."""
    made(url, "create table timed (at timestamptz default now(), name text)")
    stream = streams(url, "timed", "at")
    with psycopg.connect(url) as slow:
        slow.execute("select 1")
        put(url, "insert into timed (name) values ('quick')")
        stream.read_for(SAME_TIME_S + 0.5)
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


def test_a_row_that_comes_later_with_the_same_time_is_not_missed(url: str, streams: Streams) -> None:
    made(url, "create table seconds (at timestamp(0), name text)")
    stream = streams(url, "seconds", "at")
    put(url, "insert into seconds values ('2020-01-01', 'first')")
    stream.batch()
    put(url, "insert into seconds values ('2020-01-01', 'second')")
    stream.read_until(["first", "second"])
    put(url, "insert into seconds values ('2020-01-02', 'third')")
    stream.read_until(["first", "second", "third"])


@pytest.mark.parametrize("kind", ["date", "int"])
def test_the_largest_of_values_that_repeat_waits_for_a_larger_one(
    url: str, streams: Streams, kind: str
) -> None:
    values = {"date": ("2020-01-01", "2020-01-02"), "int": (1, 2)}[kind]
    made(url, f"create table days_{kind} (at {kind}, name text)")
    stream = streams(url, f"days_{kind}", "at")
    put(url, f"insert into days_{kind} values (%s, 'first')", values[0])
    stream.read_for(SAME_TIME_S + 0.5)
    assert stream.names == []
    put(url, f"insert into days_{kind} values (%s, 'second')", values[0])
    put(url, f"insert into days_{kind} values (%s, 'third')", values[1])
    stream.read_until(["first", "second"])
    # A view has no index; whoever knows that its numbers are unique says so.
    put(url, f"create view days_{kind}_view as select * from days_{kind}")
    assert streams(url, f"days_{kind}_view", "at", unique="true").batch() == 3


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
