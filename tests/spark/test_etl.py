"""Rows from everywhere to everywhere, with a real broker and a real database."""

import json
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark import TaskContext
from pyspark.sql.pandas.types import to_arrow_type

from penstock.errors import CommandFailed
from penstock.protocol.compression import Codec
from penstock.spark.pipelines.common.run_lock import run_lock
from penstock.spark.pipelines.etl import stages
from penstock.spark.pipelines.etl.spec import FromDatabase
from penstock.spark.pipelines.etl.stage_sink import DeadLetterTarget
from penstock.spark.pipelines.etl.stage_topic import StageTopic
from penstock.spark.records.encode import encode
from penstock.spark.topic_table import HEADERS_TYPE
from penstock.testing import Broker
from penstock.types import TopicPartition
from tests.spark.etl_runs import records_of, run_once, settings_for, written
from tests.spark.postgres_server import postgres_server
from tests.spark.topics import client_of, create, fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with postgres_server() as url:
        yield url


SHOP = """
    name = "NAME"
    key = "id"

    [extract]
    from = "files"
    path = "incoming"
    format = "csv"
    schema = "id bigint, customer int, amount decimal(10,2), at timestamp"

    [transform]
    sql = '''
        select id, customer, amount * 2 as amount, at,
               case when amount < 0 then 'the amount is negative' end as _error
        from rows where amount <> 0
    '''

    [enrich]
    format = "csv"
    path = "customers.csv"
    schema = "customer int, city string"
    on = "customer"
    missing = "dead"
    refresh_s = 0

    [load]
    to = "postgresql"
    url = "URL"
    table = "NAME"
"""


TO_TOPIC = """
    name = "NAME"

    [extract]
    from = "files"
    path = "incoming"
    format = "json"
    schema = "id bigint, text string"

    [load]
    to = "topic"
    topic = "NAME-loaded"
"""


def test_rows_that_are_too_large_become_dead_letters_and_the_others_arrive(
    spark: "SparkSession", running: Broker, tmp_path: Path
) -> None:
    spec = written(tmp_path, TO_TOPIC, NAME="large")
    (tmp_path / "incoming").mkdir()
    lines = [
        json.dumps({"id": number, "text": "x" * size}) for number, size in ((1, 5), (2, 1_200_000), (3, 5))
    ]
    (tmp_path / "incoming" / "a.json").write_text("\n".join([*lines, "no row" + "y" * 1_200_000, ""]))
    settings = settings_for(spec, running.bootstrap)
    report = run_once(spark, settings)
    assert report.dead_letters == 2
    assert {
        json.loads(each.value or b"")["id"] for each in records_of(running.bootstrap, "large-loaded")
    } == {1, 3}
    letters = {(each.value or b"")[:6]: each for each in records_of(running.bootstrap, "large.dead")}
    assert letters[b'{"id":'].headers["penstock-error"].startswith("too large for topic large.extract")
    assert "penstock-cut" in letters[b"no row"].headers


def test_a_file_of_last_month_that_is_moved_in_today_is_read(
    spark: "SparkSession", running: Broker, tmp_path: Path
) -> None:
    spec = written(tmp_path, TO_TOPIC, NAME="aged")
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / "new.json").write_text('{"id": 1}\n')
    settings = settings_for(spec, running.bootstrap, "extract")
    assert run_once(spark, settings).stages["extract"].rows == 1
    old = tmp_path / "old.json"
    old.write_text('{"id": 2}\n')
    month_ago = time.time() - 30 * 24 * 3600
    os.utime(old, (month_ago, month_ago))
    old.rename(tmp_path / "incoming" / "old.json")
    assert run_once(spark, settings).stages["extract"].rows == 1
    assert run_once(spark, settings).stages["extract"].rows == 0


def test_two_runs_of_a_stage_at_the_same_time_are_refused(
    spark: "SparkSession", running: Broker, tmp_path: Path
) -> None:
    spec = written(tmp_path, TO_TOPIC, NAME="twice")
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / "a.json").write_text('{"id": 1}\n')
    settings = settings_for(spec, running.bootstrap)
    settings.checkpoint("load").mkdir(parents=True)
    with (
        run_lock(settings.checkpoint("load"), "stage", ""),
        pytest.raises(CommandFailed, match=r"another run of this stage \(load\) is under way"),
    ):
        run_once(spark, settings)
    assert run_once(spark, settings).stages["load"].rows == 1


def test_csv_files_reach_postgresql_through_all_stages(
    spark: "SparkSession", running: Broker, postgres: str, tmp_path: Path
) -> None:
    spec = written(tmp_path, SHOP, NAME="shop", URL=postgres)
    (tmp_path / "customers.csv").write_text("customer,city\n1,Oslo\n2,Rome\n")
    (tmp_path / "incoming").mkdir()
    lines = ["id,customer,amount,at", "1,1,10.50,2026-11-15T10:00:00.123456Z", "2,2,0,", "3,1,-1,", "4,9,5,"]
    (tmp_path / "incoming" / "a.csv").write_text("\n".join([*lines, "five,1,1,", ""]))
    settings = settings_for(spec, running.bootstrap)
    report = run_once(spark, settings)
    assert {stage: told.rows for stage, told in report.stages.items()} == {
        "extract": 5,
        "transform": 4,
        "enrich": 2,
        "load": 1,
    }
    assert report.dead_letters == 3
    with psycopg.connect(postgres) as database:
        rows = database.execute("select id, customer, amount::text, at at time zone 'UTC', city from shop")
        assert [(*row[:3], str(row[3]), row[4]) for row in rows] == [
            (1, 1, "21.00", "2026-11-15 10:00:00.123456", "Oslo")
        ]
    dead = {each.headers["penstock-stage"]: each for each in records_of(running.bootstrap, "shop.dead")}
    assert dead["extract"].value == b"five,1,1,"
    assert "is not a row of struct<id:bigint" in dead["extract"].headers["penstock-error"]
    assert dead["extract"].headers["penstock-source-file"].endswith("/incoming/a.csv")
    assert dead["transform"].headers["penstock-error"] == "the amount is negative"
    assert json.loads(dead["transform"].value or b"")["id"] == 3
    assert dead["enrich"].headers["penstock-error"] == "the reference has nothing for customer 9"
    # New files and a new customer: only what is new goes through.
    (tmp_path / "customers.csv").write_text("customer,city\n1,Oslo\n9,Bern\n")
    (tmp_path / "incoming" / "b.csv").write_text("id,customer,amount,at\n6,9,1,\n")
    again = run_once(spark, settings)
    assert again.stages["load"].rows == 1
    with psycopg.connect(postgres) as database:
        found = database.execute("select id, city from shop order by id").fetchall()
    assert found == [(1, "Oslo"), (6, "Bern")]
    assert run_once(spark, settings._replace(stages=("extract",))).stages["extract"].rows == 0
    assert {each.key for each in records_of(running.bootstrap, "shop.enrich")} == {b"1", b"6"}


def test_a_table_of_sqlite_reaches_a_topic_and_not_twice_after_a_crash(
    spark: "SparkSession", running: Broker, tmp_path: Path
) -> None:
    """A run writes part of a batch and dies. The newest row waits, and the report says so."""
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("create table orders (id integer primary key, name text)")
        database.executemany("insert into orders values (?, ?)", [(n, f"n{n % 3}") for n in range(1, 31)])
    database.close()
    spec = written(
        tmp_path,
        """
        name = "sqlite"
        key = "name"
        partitions = 1
        [extract]
        from = "database"
        url = "sqlite:///shop.db"
        table = "orders"
        column = "id"
        [load]
        to = "topic"
        topic = "sqlite-target"
        """,
    )
    settings = settings_for(spec, running.bootstrap, rows_per_batch=20)
    report = run_once(spark, settings)
    assert (report.stages["extract"].rows, report.stages["extract"].batches) == (29, 2)
    assert report.document()["held_back"] == {"rows": 1, "value": "30"}
    assert any(line.startswith("held back") and "largest value, 30:" in line for line in report.lines())
    before = records_of(running.bootstrap, "sqlite-target")
    assert [json.loads(each.value or b"")["id"] for each in before] == list(range(1, 30))
    assert {each.key for each in before} == {b"n0", b"n1", b"n2"}
    # Some more, of which a run that dies writes ten before its batch is over.
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.executemany("insert into orders values (?, ?)", [(n, "x") for n in range(31, 61)])
    database.close()
    # Whoever says that no number comes twice is given the newest row too.
    assert isinstance(spec.extract, FromDatabase)
    spec = spec._replace(extract=spec.extract._replace(is_unique=True))
    settings = settings._replace(spec=spec)
    assert run_once(spark, settings._replace(stages=("extract",))).held_back is None
    load = settings._replace(stages=("load",), rows_per_batch=31)
    ten = [json.loads(each.value or b"") for each in records_of(running.bootstrap, "sqlite.extract")[29:39]]
    batch = 1 + max(int(path.name) for path in (settings.checkpoint("load") / "commits").glob("[0-9]*"))
    dying = stages.stage_topic(load, "load")
    dying.write(spark.createDataFrame(ten, "id bigint, name string").coalesce(1), batch)
    assert len(records_of(running.bootstrap, "sqlite-target")) == 39
    run_once(spark, load)
    after = records_of(running.bootstrap, "sqlite-target")
    assert [json.loads(each.value or b"")["id"] for each in after] == list(range(1, 61))


def test_records_name_their_batch_and_the_task_that_wrote_them(
    spark: "SparkSession", running: Broker, tmp_path: Path
) -> None:
    """By which a task that is tried again knows its own."""

    def with_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            task = pa.array([context.partitionId()] * len(batch), pa.int32())
            yield pa.RecordBatch.from_arrays([batch.column(0), task], ["id", "task"])

    create(running, "etl-tasks", 2)
    access = {"kafka.bootstrap.servers": running.bootstrap}
    stage = StageTopic(
        "etl-tasks",
        query="shop-extract",
        key=(),
        access=access,
        checkpoint=tmp_path,
        dead=DeadLetterTarget("etl-tasks.dead", "extract"),
    )
    stage.write(spark.range(0, 30, 1, 3).mapInArrow(with_task, "id bigint, task int"), 7)
    assert tasks_told(running, "shop-extract/7/") == {(str(task), task) for task in range(3)}
    # A run that comes after one that died: one task writes what is missing.
    stage.write(spark.range(0, 60, 1, 3).selectExpr("id", "int(id div 10) as task"), 7)
    found = records_of(running.bootstrap, "etl-tasks")
    assert sorted(json.loads(each.value or b"")["id"] for each in found) == list(range(60))
    assert tasks_told(running, "shop-extract/7/") == {
        *((str(task), task) for task in range(3)),
        *(("0", task) for task in range(3, 6)),
    }
    assert len({each.headers["penstock-batch"].split("/")[2] for each in found}) == 2
    # A note outlives its topic: one that was made anew has no such place.
    (tmp_path / "penstock-outputs" / "7.json").write_text('{"etl-tasks": {"0": 9000, "1": 9000}}')
    stage.write(spark.range(0, 60, 1, 3).selectExpr("id", "int(id div 10) as task"), 7)
    assert len(records_of(running.bootstrap, "etl-tasks")) == 60


def tasks_told(running: Broker, start: str) -> set[tuple[str, int]]:
    """What headers say, and what is true."""
    found = records_of(running.bootstrap, "etl-tasks")
    assert all(each.headers["penstock-batch"].startswith(start) for each in found)
    return {
        (each.headers["penstock-batch"].split("/")[-1], json.loads(each.value or b"")["task"])
        for each in found
    }


def test_a_topic_reaches_a_lake_through_a_function(
    spark: "SparkSession", running: Broker, tmp_path: Path
) -> None:
    create(running, "etl-orders", 2)
    fill(running, "etl-orders", [b'{"id": %d, "at": "2026-11-15T00:00:0%dZ"}' % (n, n) for n in range(5)])
    fill(running, "etl-orders", [b"no json", b'{"id": 9}'], partition=1)
    (tmp_path / "functions.py").write_text(FUNCTION)
    spec = written(tmp_path, TO_LAKE)
    settings = settings_for(spec, running.bootstrap)
    report = run_once(spark, settings)
    assert (report.stages["load"].rows, report.dead_letters) == (6, 1)
    for path in (settings.checkpoint("load") / "commits").iterdir():
        path.unlink()
    run_once(spark, settings)
    found = DeltaTable(tmp_path / "lake").to_pyarrow_table().sort_by("id").to_pylist()
    assert [(row["id"], row["twice"]) for row in found] == [(n, f"{n} and {n}") for n in (0, 1, 2, 3, 4, 9)]
    (dead,) = records_of(running.bootstrap, "lake.dead")
    assert (dead.value, dead.headers["penstock-source-topic"]) == (b"no json", "etl-orders")
    with pytest.raises(CommandFailed, match=r"holds rows, and the checkpoint .* is new"):
        run_once(spark, settings._replace(spec=spec._replace(checkpoint=tmp_path / "another")))


FUNCTION = """
from pyspark.sql import functions as f
from pyspark.sql.functions import udf

def text(number):
    return f"{number} and {number}"

def clean(rows):
    return rows.withColumn("twice", udf(text)("id"))
"""
TO_LAKE = """
    name = "lake"
    [extract]
    from = "topic"
    topic = "etl-orders"
    schema = "id bigint, at timestamp"
    [transform]
    python = "functions.py:clean"
    [load]
    to = "delta"
    path = "lake"
    partition_by = "day"
    time_column = "at"
"""


TOMBSTONES = """
    name = "NAME"
    [extract]
    from = "topic"
    topic = "NAME-source"
    schema = "id bigint, text string"
    key_column = "id"
    timestamp_column = "sent_at"
    headers_column = "sent_with"
    [transform]
    sql = "select *, upper(text) as loud from rows"
    [enrich]
    format = "csv"
    path = "texts.csv"
    schema = "text string, meaning string"
    on = "text"
    missing = "drop"
"""
TOMBSTONES_TO_POSTGRES = """
    [load]
    to = "postgresql"
    url = "URL"
    table = "NAME"
    key = "id"
"""


def produce_with_tombstones(running: Broker, topic: str) -> None:
    create(running, topic, 1)
    records = [
        (b"1", b'{"id": 1, "text": "a"}'),
        (b"2", b'{"id": 2, "text": "a"}'),
        (b"2", None),
        (b"3", None),
        (b"3", b'{"id": 3, "text": "b"}'),
        (b"no number", None),
        (None, None),
    ]
    headers = pa.array([[{"key": "by", "value": b"me"}]] * len(records), to_arrow_type(HEADERS_TYPE))
    batches = encode(
        pa.array([key for key, _ in records], pa.binary()),
        pa.array([value for _, value in records], pa.binary()),
        headers,
        pa.array([1_600_000_000_000] * len(records), pa.int64()),
        codec=Codec.NONE,
        batch_bytes_max=100_000,
    )
    with client_of(running) as client:
        client.produce(TopicPartition(topic, 0), batches)


def test_a_tombstone_deletes_in_postgresql_what_its_key_names(
    spark: "SparkSession", running: Broker, postgres: str, tmp_path: Path
) -> None:
    (tmp_path / "texts.csv").write_text("text,meaning\na,first\nb,second\n")
    produce_with_tombstones(running, "gone-source")
    spec = written(tmp_path, TOMBSTONES + TOMBSTONES_TO_POSTGRES, NAME="gone", URL=postgres)
    report = run_once(spark, settings_for(spec, running.bootstrap))
    with psycopg.connect(postgres) as database:
        found = database.execute(
            "select id, loud, meaning, extract(epoch from sent_at)::int, sent_with from gone order by id"
        ).fetchall()
    sent_with = [{"key": "by", "value": "bWU="}]
    assert found == [
        (1, "A", "first", 1_600_000_000, sent_with),
        (3, "B", "second", 1_600_000_000, sent_with),
    ]
    letters = {each.key: each for each in records_of(running.bootstrap, "gone.dead")}
    assert report.dead_letters == len(letters) == 2
    assert letters[b"no number"].headers["penstock-error"] == "the key of the record is no bigint"
    assert letters[None].headers["penstock-error"] == "a tombstone without a key: of what?"
    # A query that leaves the mark out would lose deletions without a word.
    careless = TOMBSTONES.replace("select *, upper(text) as loud", "select id, text") + TOMBSTONES_TO_POSTGRES
    spec = written(tmp_path, careless, NAME="gone", URL=postgres)
    with pytest.raises(CommandFailed, match="leaves out the column _deleted, which says that a row"):
        run_once(spark, settings_for(spec, running.bootstrap, "extract"))


def test_a_tombstone_is_a_dead_letter_or_a_tombstone_elsewhere(
    spark: "SparkSession", running: Broker, tmp_path: Path
) -> None:
    produce_with_tombstones(running, "kept-source")
    plain = TOMBSTONES[: TOMBSTONES.index("[transform]")]
    load = '[load]\n    to = "topic"\n    topic = "NAME-loaded"\n'
    spec = written(tmp_path, f'    key = "id"{plain}{load}', NAME="kept")
    assert run_once(spark, settings_for(spec, running.bootstrap)).dead_letters == 4
    assert len(records_of(running.bootstrap, "kept-loaded")) == 3
    letters = records_of(running.bootstrap, "kept.dead")
    assert {each.headers["penstock-error"] for each in letters} == {
        "the record has no value: it is a tombstone"
    }
    (tmp_path / "asked").mkdir()
    asked = plain.replace("key_column", 'tombstones = "delete"\n    key_column').replace(
        "NAME-source", "kept-source"
    )
    spec = written(tmp_path / "asked", f'    key = "id"{asked}{load}', NAME="kept-asked")
    assert run_once(spark, settings_for(spec, running.bootstrap)).dead_letters == 2
    found = [
        (each.key, each.value and json.loads(each.value)["text"])
        for each in records_of(running.bootstrap, "kept-asked-loaded")
    ]
    assert sorted(found, key=str) == sorted(
        [(b"1", "a"), (b"2", "a"), (b"2", None), (b"3", None), (b"3", "b")], key=str
    )


def test_what_only_spark_can_see_is_said_in_one_sentence(
    spark: "SparkSession", running: Broker, tmp_path: Path
) -> None:
    def refusal(old: str, new: str) -> str:
        assert old in SHOP
        nowhere = "postgresql://nobody@127.0.0.1:1/x"
        spec = written(tmp_path, SHOP.replace(old, new, 1), NAME="wrong", URL=nowhere)
        with pytest.raises(CommandFailed) as refused:
            run_once(spark, settings_for(spec, running.bootstrap, "enrich"))
        return str(refused.value)

    (tmp_path / "customers.csv").write_text("customer,city\n1,Oslo\n1,Rome\n")
    assert "[transform] sql: " in refusal("select id", "select idd")
    assert "idd" in refusal("select id", "select idd")
    assert "has no column client; it has customer, city" in refusal('on = "customer"', 'on = "client"')
    assert "has 2 rows for customer 1: rows would multiply" in refusal("amount", "amount")
    assert "Path does not exist" in refusal("customers.csv", "nowhere.csv")


def test_of_several_versions_of_a_row_the_newest_is_loaded(
    spark: "SparkSession", running: Broker, postgres: str, tmp_path: Path
) -> None:
    """Only [load] says by what rows are told apart: all versions of a row must stay in one partition."""
    with psycopg.connect(postgres) as database:
        database.execute("create table stock (id int, version int, updated_at timestamptz)")
        database.execute(
            "insert into stock select id, version, timestamptz '2020-01-01' + version * interval '1 s' "
            "from generate_series(1, 21) id, generate_series(1, 3) version"
        )
    spec = written(
        tmp_path,
        """
        name = "stock"
        [extract]
        from = "database"
        url = "URL"
        table = "stock"
        column = "updated_at"
        same_value_s = 0.1
        [load]
        to = "postgresql"
        url = "URL"
        table = "stock_loaded"
        key = "id"
        """,
        URL=postgres,
    )
    run_once(spark, settings_for(spec, running.bootstrap, rows_per_batch=21))
    keys = {each.key for each in records_of(running.bootstrap, "stock.extract")}
    assert keys == {b"%d" % number for number in range(1, 22)}
    with psycopg.connect(postgres) as database:
        found = database.execute("select id, version from stock_loaded order by id").fetchall()
    assert found == [(number, 3) for number in range(1, 22)]
