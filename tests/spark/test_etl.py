"""Rows from everywhere to everywhere, with a real broker and a real database."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from penstock.testing import Broker
from tests.spark.etl_runs import records_of, run_once, settings_for, written
from tests.spark.postgres_server import postgres_server

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
    on = "customer"
    missing = "dead"
    refresh_s = 0

    [load]
    to = "postgresql"
    url = "URL"
    table = "NAME"
"""


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
    assert run_once(spark, settings).stages["extract"].rows == 0
    assert {each.key for each in records_of(running.bootstrap, "shop.enrich")} == {b"1", b"6"}
