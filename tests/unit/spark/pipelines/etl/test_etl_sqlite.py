"""Tables of SQLite, read by a column that grows; and rows that do not fit what was declared."""

import json
import sqlite3
from pathlib import Path

import pytest

from penstock.errors import CommandFailed
from penstock.spark.payload.dead_letters import DEAD_LETTER_COLUMN
from penstock.spark.pipelines.etl.database import ValueRange, connect
from penstock.spark.pipelines.etl.database_source import add_dead_letter_field, to_record_batch
from penstock.spark.pipelines.etl.rows import parse_columns


@pytest.fixture
def url(tmp_path: Path) -> str:
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute('create table orders (id integer primary key, "the name" varchar(9), price real, x)')
        database.executemany(
            "insert into orders values (?, ?, ?, null)",
            [(number, f"n{number}", number / 2) for number in range(1, 13)],
        )
    database.close()
    return f"sqlite:///{tmp_path / 'shop.db'}"


def test_ranges_are_as_large_as_asked_and_numbers_are_ordered_as_numbers(url: str) -> None:
    database = connect(url)
    assert [field.type for field in database.fields("orders")] == ["bigint", "string", "double", "binary"]
    after, seen = None, []
    assert database.observed_end("orders", "id", below_largest=True).end == "11"
    observed_end = database.observed_end("orders", "id", below_largest=False)
    assert observed_end.end == "12"
    while (end := database.range_end("orders", "id", ValueRange(after, observed_end.end), 5)) is not None:
        seen.append(
            [
                row[0]
                for chunk in database.rows("orders", ["id"], "id", ValueRange(after, end))
                for row in chunk
            ]
        )
        after = end
    assert seen == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11, 12]]
    assert len(next(database.rows("orders", ["the name"], None, None))) == 12
    database.close()


def test_what_is_not_there_is_named(url: str, tmp_path: Path) -> None:
    database = connect(url)
    with pytest.raises(CommandFailed, match="there is no table nothing"):
        database.fields("nothing")
    with pytest.raises(CommandFailed, match="the column x of orders has no type to be ordered by"):
        database.is_unique("orders", "x")
    with pytest.raises(CommandFailed, match="has no column y; it has id, the name, price, x"):
        database.is_unique("orders", "y")
    database.close()
    with pytest.raises(CommandFailed, match=r"cannot open the database sqlite:///.*unable to open"):
        connect(f"sqlite:///{tmp_path / 'nowhere.db'}")
    (tmp_path / "text").write_text("no database at all" * 100)
    with pytest.raises(CommandFailed, match="file is not a database"):
        connect(f"sqlite:///{tmp_path / 'text'}")


def test_rows_that_do_not_fit_have_a_dead_letter() -> None:
    schema = parse_columns("id bigint, name string")
    batch = to_record_batch(
        [(1, "a"), ("many", "b"), (None, None)], add_dead_letter_field(schema), "shop.dead"
    )
    assert batch.column("id").to_pylist() == [1, None, None]
    first, second, third = batch.column(DEAD_LETTER_COLUMN).to_pylist()
    assert (first, third) == (None, None)
    assert json.loads(second["value"]) == {"id": "many", "name": "b"}
    headers = {each["key"]: each["value"].decode() for each in second["headers"]}
    assert headers["penstock-error"].startswith("column id is no int64: ")
    with pytest.raises(CommandFailed, match="a row does not fit struct<id:bigint,name:string>"):
        to_record_batch([("many", "b")], schema, "")
