"""What a spec says, and what is said about one that is wrong."""

from pathlib import Path
from textwrap import dedent

import pytest

from penstock.errors import CommandFailed
from penstock.spark.lake.time_partitioning import PartitionBy
from penstock.spark.pipelines.etl.spec import (
    EtlSpec,
    FromDatabase,
    FromFiles,
    FromTopic,
    PythonFunction,
    SqlQuery,
    ToLake,
    ToPostgres,
    ToTopic,
    endpoint_text,
)
from penstock.spark.pipelines.etl.spec_file import InvalidSpec, read_spec
from penstock.spark.pipelines.etl.toml_lines import find_line

FILES = """\
name = "shop"

[extract]
from = "files"
path = "incoming"
format = "csv"
schema = "id bigint, name string"
"""
SQL = """
[transform]
sql = "select * from rows"
"""
ENRICH = """
[enrich]
format = "csv"
path = "customers.csv"
on = "customer"
"""
TO_TOPIC = """
[load]
to = "topic"
topic = "clean"
"""


def spec_of(folder: Path, text: str) -> EtlSpec:
    file = folder / "etl.toml"
    file.write_text(text)
    return read_spec(file)


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(InvalidSpec) as refused:
        spec_of(folder, text)
    return str(refused.value).removeprefix(str(folder / "etl.toml"))


def test_a_small_file_says_all_that_is_needed(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, FILES + SQL + TO_TOPIC)
    assert spec.stages == ("extract", "transform", "load")
    assert spec.extract == FromFiles(str(tmp_path / "incoming"), "csv", "id bigint, name string", {}, 100)
    assert spec.transform == SqlQuery("select * from rows")
    assert spec.load == ToTopic("clean")
    assert spec.topics == {"extract": "shop.extract", "transform": "shop.transform"}
    assert (spec.input_topic("extract"), spec.input_topic("load")) == (None, "shop.transform")
    assert (spec.dead_letters, spec.checkpoint) == ("shop.dead", tmp_path / "shop.checkpoints")
    assert spec.query_name("load") == "shop-load"


def test_how_long_a_value_comes_can_be_said_of_postgresql(tmp_path: Path) -> None:
    text = """
name = "shop"
[extract]
from = "database"
url = "URL"
table = "orders"
column = "at"
LINE
[load]
to = "topic"
topic = "clean"
"""

    def written(line: str, url: str = "postgresql://db/shop") -> str:
        return text.replace("URL", url).replace("LINE", line)

    found = spec_of(tmp_path, written("same_value_s = 2")).extract
    assert isinstance(found, FromDatabase)
    assert found.same_value_s == 2.0
    for wrong in ("0", "-1", "3601"):
        assert f"same_value_s: is {wrong} and must be more than 0 and at most 3600" in refusal(
            tmp_path, written(f"same_value_s = {wrong}")
        )
    both = refusal(tmp_path, written("same_value_s = 2\nunique = true"))
    assert "same_value_s: says that values come again, and unique that they do not" in both
    sqlite = refusal(tmp_path, written("same_value_s = 2", "sqlite:///shop.db"))
    assert "SQLite does not tell: leave it out" in sqlite


def test_every_end_of_an_etl_can_be_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "word")
    (tmp_path / "functions.py").touch()
    spec = spec_of(
        tmp_path,
        dedent("""
            name = "shop"
            key = "id"
            partitions = 4
            dead_letters = "bad"
            checkpoint = "state"
            [extract]
            from = "database"
            url = "sqlite:///shop.db"
            table = "orders"
            column = "id"
            unique = true
            to_topic = "raw"
            [transform]
            python = "functions.py:clean"
            [enrich]
            format = "database"
            url = "postgresql://me:${SECRET}@db/shop"
            table = "customers"
            on = ["customer", "country"]
            missing = "drop"
            refresh_s = 5
            [load]
            to = "postgresql"
            url = "postgresql://me:${SECRET}@db/shop?sslmode=require"
            table = "public.orders"
            key = "id"
        """),
    )
    assert spec.extract == FromDatabase(f"sqlite:///{tmp_path}/shop.db", "orders", "id", None, True)
    assert spec.transform == PythonFunction(tmp_path / "functions.py", "functions", "clean")
    assert spec.enrich is not None
    assert (spec.enrich.on, spec.enrich.missing, spec.enrich.refresh_s) == (
        ("customer", "country"),
        "drop",
        5.0,
    )
    assert spec.load == ToPostgres("postgresql://me:word@db/shop?sslmode=require", "public.orders", ("id",))
    assert (spec.key, spec.partitions, spec.dead_letters) == (("id",), 4, "bad")
    assert (spec.checkpoint, spec.topics["extract"]) == (tmp_path / "state", "raw")
    assert endpoint_text(spec.load) == "postgresql://me@db/shop, table public.orders"
    assert "word" not in str(spec.checkpoint_identity("load"))


def test_a_topic_and_a_lake_are_ends_too(tmp_path: Path) -> None:
    text = dedent("""
        name = "shop"
        [extract]
        from = "topic"
        topic = "orders"
        format = "avro"
        schema = "orders.avsc"
        [load]
        to = "delta"
        path = "lake"
        partition_by = "day"
        time_column = "at"
    """)
    spec = spec_of(tmp_path, text)
    assert spec.extract == FromTopic("orders", "avro", str(tmp_path / "orders.avsc"), None)
    assert spec.load == ToLake("delta", tmp_path / "lake", PartitionBy.DAY, "at")
    assert spec.stages == ("extract", "load")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            'format = "csv"',
            'format = "cvs"',
            ", line 6: [extract] format: is 'cvs' and must be one of csv, json, parquet; did you mean csv?",
        ),
        ('path = "incoming"', "path = 7", ", line 5: [extract] path: is 7 and must be text in quotes"),
        (
            'path = "incoming"',
            'paht = "incoming"',
            ', line 3: [extract] path: is missing; for example: path = "incoming"',
        ),
        (
            'path = "incoming"',
            'path = " "',
            ', line 5: [extract] path: is empty; for example: path = "incoming"',
        ),
        ("[load]", '[load]\ntabel = "x"', ", line 13: [load] tabel: is not known; here may stand to, topic"),
        ("[load]", "[laod]", ", line 1: the table [load] is missing: every etl has one"),
        ('name = "shop"', 'name = "a shop"', ", line 1: name: is 'a shop': it names topics"),
        (
            'name = "shop"',
            'name = "shop"\npartitions = 0',
            ", line 2: partitions: is 0 and must be at least 1",
        ),
        (
            'name = "shop"',
            'name = "shop"\npartitions = true',
            ", line 2: partitions: is True and must be a whole",
        ),
        ('topic = "clean"', 'topic = "shop.dead"', ", line 1: the topic shop.dead has two uses"),
        ('topic = "clean"', 'topic = "cl ean"', ", line 14: [load] topic: 'cl ean' cannot name a topic"),
        ("id bigint", "id bigit", ", line 7: [extract] schema: schema of columns"),
        ("sql = ", "python = 'x'\nsql = ", ", line 9: [transform]: give one of sql"),
        (
            'sql = "select * from rows"',
            'python = "no.py:f"',
            ", line 10: [transform] python: there is no file",
        ),
        (
            'sql = "select * from rows"',
            'python = "no.py"',
            ", line 10: [transform] python: is 'no.py' and must be",
        ),
        (
            'to = "topic"',
            'to = "postgresql"\nurl = "mysql://x"\ntable = "t"',
            ", line 14: [load] url: must begin with one of postgresql://",
        ),
        (
            'to = "topic"',
            'to = "postgresql"\nurl = "postgresql://${NOT_THERE}@x"\ntable = "t"',
            ", line 14: [load] url: the variable NOT_THERE is not set in the environment",
        ),
        (
            'to = "topic"',
            'to = "delta"\npath = "x"\npartition_by = "day"',
            ", line 12: [load] time_column: is missing; for example",
        ),
        ("[extract]", "[extract", ": it is not TOML: "),
    ],
)
def test_what_is_wrong_is_named_with_its_line_and_the_remedy(
    tmp_path: Path, old: str, new: str, told: str
) -> None:
    text = FILES + SQL + TO_TOPIC
    assert old in text
    assert refusal(tmp_path, text.replace(old, new, 1)).startswith(told)


TO_POSTGRES = """
[load]
to = "postgresql"
url = "postgresql://me@db/shop"
table = "orders"
"""


def test_records_between_stages_have_the_key_that_rows_are_told_apart_by(tmp_path: Path) -> None:
    """Else versions of a row would be in several partitions, and the older one could be loaded last."""
    text = FILES + TO_POSTGRES
    assert spec_of(tmp_path, text).key == ()
    assert spec_of(tmp_path, text + 'key = ["id", "name"]').key == ("id", "name")
    keyed = 'key = "name"\n' + text
    within = spec_of(tmp_path, keyed + 'key = ["id", "name"]')
    assert (within.key, within.key_in_every_stage) == (("name",), ("name",))
    told = refusal(tmp_path, keyed + 'key = "id"')
    assert told.startswith(", line 1: key: is name, and [load] tells rows apart by id: versions of a row")
    versioned = spec_of(tmp_path, keyed + 'key = "id"\nversion = "at"')
    assert (versioned.key, versioned.key_in_every_stage) == (("name",), ())
    for wrong in ('version = "at"', 'key = "id"\nversion = "id"'):
        assert "[load] version: needs a key, and is no part of it" in refusal(tmp_path, text + wrong)


FROM_TOPIC = """\
name = "shop"

[extract]
from = "topic"
topic = "orders"
schema = "id bigint, name string"
"""


def tombstones_of(spec: EtlSpec) -> str:
    assert isinstance(spec.extract, FromTopic)
    return spec.extract.tombstones


def test_tombstones_delete_where_the_target_can_and_the_key_is_known(tmp_path: Path) -> None:
    keyed = FROM_TOPIC + 'key_column = "id"\n'
    upsert = TO_POSTGRES + 'key = "id"\n'
    assert tombstones_of(spec_of(tmp_path, keyed + upsert)) == "delete"
    assert tombstones_of(spec_of(tmp_path, keyed + 'tombstones = "row"\n' + upsert)) == "row"
    for left_out in (FROM_TOPIC + upsert, keyed + TO_POSTGRES, keyed + TO_TOPIC):
        assert tombstones_of(spec_of(tmp_path, left_out)) == "dead"
    asked = keyed + 'tombstones = "delete"\n'
    topic = spec_of(tmp_path, 'key = "id"\n' + asked + TO_TOPIC)
    assert (topic.deletes, topic.key_in_every_stage) == (True, ("id",))
    timed = spec_of(tmp_path, asked + 'timestamp_column = "at"\n' + upsert + 'version = "at"')
    assert timed.deletes


@pytest.mark.parametrize(
    ("extract", "load", "told"),
    [
        ("", TO_POSTGRES + 'key = "id"', "nothing says which column the key of a record is"),
        (
            'key_column = "id"\n',
            TO_TOPIC,
            "rows must be told apart by what the key of a record is: key = 'id'",
        ),
        ('key_column = "id"\n', TO_POSTGRES + 'key = "name"', "by what the key of a record is: key = 'id'"),
        (
            'key_column = "id"\n',
            TO_POSTGRES + 'key = "id"\nversion = "at"',
            "a tombstone has no version: leave [load] version out",
        ),
        (
            'key_column = "id"\n',
            '[load]\nto = "delta"\npath = "lake"\n',
            "rows of a delta table are not deleted",
        ),
    ],
)
def test_deletes_that_cannot_be_are_refused(tmp_path: Path, extract: str, load: str, told: str) -> None:
    text = FROM_TOPIC + extract + 'tombstones = "delete"\n' + load
    assert told in refusal(tmp_path, text)


def test_a_file_that_cannot_be_read_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match=r"cannot read .*nowhere.toml: No such file"):
        read_spec(tmp_path / "nowhere.toml")
    (tmp_path / "etl.toml").write_bytes(b"name = '\xff'")
    with pytest.raises(InvalidSpec, match="it is not UTF-8"):
        read_spec(tmp_path / "etl.toml")


def test_enrich_without_a_column_to_join_by_is_refused(tmp_path: Path) -> None:
    text = FILES + ENRICH.replace('on = "customer"', "on = 3") + TO_TOPIC
    assert refusal(tmp_path, text) == ", line 12: [enrich] on: is 3 and must be a name or a list of names"


def test_lines_are_found_past_texts_of_many_lines() -> None:
    text = "a = '''\n[load]\nto = 1\n'''\n[load]\n'to' = 2\n"
    assert find_line(text, "load") == 5
    assert find_line(text, "load", "to") == 6
    assert find_line(text, "load", "nothing") == 5
    assert find_line(text, "nowhere") is None


def test_a_password_of_the_environment_is_unquoted_and_in_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "s3/cr@t")
    load = '\n[load]\nto = "postgresql"\nurl = "postgresql://me:${SECRET}@db/shop"\ntable = "orders"\n'
    spec = spec_of(tmp_path, FILES + SQL + load)
    assert isinstance(spec.load, ToPostgres)
    assert spec.load.url == "postgresql://me:s3%2Fcr%40t@db/shop"
    said = refusal(tmp_path, FILES + SQL + load.replace("${SECRET}", "s3/cr@t"))
    assert said.startswith(", line 14: [load] url: the address of the database cannot be read")
    assert "cr@t" not in said
