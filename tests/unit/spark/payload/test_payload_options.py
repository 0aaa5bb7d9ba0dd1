"""Options about values, bad rows, dead letters and schemas that grow."""

import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from penstock.errors import ConfigError
from penstock.spark.lake.lake_table import LakeTableError
from penstock.spark.lake.schema import new_fields
from penstock.spark.payload import BadValue, Payload
from penstock.spark.payload.ddl import parse_ddl
from penstock.spark.payload.evolution import added_columns, check_and_save_schema
from penstock.spark.payload.schema_files import SchemaFile
from penstock.spark.payload.shapes import arrow_type
from penstock.spark.records.decode import DecodedRecords
from penstock.types import Offset, TopicPartition

SOURCE = TopicPartition("orders", 3)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def payload(schema: str = "a bigint", **options: str) -> Payload:
    made = Payload.from_options({"valueFormat": "json", "valueSchema": schema, **options})
    assert made is not None
    return made


def decoded(*values: bytes | None) -> DecodedRecords:
    count = len(values)
    headers: list[list[dict[str, object]] | None] = [[{"key": "trace", "value": b"\x01"}]] * count
    return DecodedRecords(
        offsets=pa.array(range(100, 100 + count), pa.int64()),
        timestamps_ms=None,
        timestamp_types=None,
        keys=pa.array([b"key"] * count, pa.binary()),
        values=pa.array(values, pa.binary()),
        headers=pa.array(headers, HEADERS),
        next_offset=Offset(100 + count),
    )


def ddl(text: str) -> StructType:
    return parse_ddl(SchemaFile("x", text.encode()))


@pytest.mark.parametrize("options", [{}, {"valueFormat": "raw"}, {"valueformat": "RAW"}, {"subscribe": "a"}])
def test_values_stay_bytes_unless_a_format_is_given(options: dict[str, str]) -> None:
    assert Payload.from_options(options) is None


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"valueFormat": "jsn", "valueSchema": "a int"}, "option valueFormat is 'jsn'.*raw.*json"),
        ({"valueFormat": "json"}, "option valueSchema must say the columns"),
        ({"valueFormat": "json", "valueSchema": "  "}, "option valueSchema must say the columns"),
        ({"valueSchema": "a int"}, "option valueSchema says something about values, and valueFormat is raw"),
        ({"badRows": "null"}, "option badRows says something"),
        ({"valueFormat": "json", "valueSchema": "a int", "badRows": "skip"}, "option badRows is 'skip'"),
        (
            {"valueFormat": "json", "valueSchema": "a int", "valueMessage": "M"},
            "valueMessage is for .*protobuf",
        ),
        (
            {"valueFormat": "json", "valueSchema": "a int", "deadLetterTopic": "d"},
            "deadLetterTopic is for badRows deadletter, and that is fail",
        ),
        (
            {"valueFormat": "json", "valueSchema": "a int", "badRows": "deadletter", "deadLetterTopic": " "},
            "deadLetterTopic is empty",
        ),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Payload.from_options(options)


def test_a_field_with_the_name_of_a_topics_column_gets_a_prefix() -> None:
    names = payload("id int, timestamp bigint, Offset int, deadletter string").names()
    assert names == ["id", "value_timestamp", "value_Offset", "value_deadletter"]
    with pytest.raises(ConfigError, match="two columns would be named value_key"):
        payload("key int, value_key int")


def test_only_wanted_columns_are_given_but_all_are_judged() -> None:
    made = payload("a bigint, b string")
    assert list(made.columns(SOURCE, decoded(b'{"a": 1}'), ["b", "offset"])) == ["b"]
    with pytest.raises(BadValue):
        made.columns(SOURCE, decoded(b'{"a": "x"}'), ["b"])


def test_a_payload_travels_to_other_processes() -> None:
    made = pickle.loads(pickle.dumps(payload("a bigint", badRows="null")))
    assert made.columns(SOURCE, decoded(b'{"a": 1}', b"?"), ["a"])["a"].to_pylist() == [1, None]


def test_a_bad_row_fails_with_its_place_and_the_remedy() -> None:
    with pytest.raises(
        BadValue, match=r"orders/3, offset 101: .*got `str`.*and 1 others of 3.*badRows"
    ) as failed:
        payload().columns(SOURCE, decoded(b'{"a": 1}', b'{"a": "x"}', b"?"), ["a"])
    assert "in option valueSchema" in str(failed.value)


def test_a_bad_row_may_be_null_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    columns = payload(badRows="null").columns(SOURCE, decoded(b'{"a": 1}', b"?"), ["a"])
    assert columns["a"].to_pylist() == [1, None]
    assert "orders/3, offset 101" in caplog.text


def test_a_dead_letter_holds_the_record_and_says_why_and_from_where() -> None:
    made = payload(badRows="deadletter")
    columns = made.columns(SOURCE, decoded(b'{"a": 1}', b"?", None, b"!"), made.names())
    assert columns["a"].to_pylist() == [1, None, None, None]
    first, letter, tombstone, other = columns["deadLetter"].to_pylist()
    assert first is None
    assert tombstone is None
    assert (letter["topic"], letter["key"], letter["value"]) == ("orders.dead", b"key", b"?")
    headers = [(each["key"], each["value"]) for each in letter["headers"]]
    assert headers == [
        ("trace", b"\x01"),
        ("penstock-error", b"JSON is malformed: invalid character (byte 0)"),
        ("penstock-source-topic", b"orders"),
        ("penstock-source-partition", b"3"),
        ("penstock-source-offset", b"101"),
    ]
    assert other["value"] == b"!"


def test_the_dead_letter_topic_can_be_chosen() -> None:
    made = payload(badRows="deadletter", deadLetterTopic="graveyard")
    assert made.needs_headers(made.names())
    assert not made.needs_headers(["a"])
    [letter] = made.columns(SOURCE, decoded(b"?"), made.names())["deadLetter"].to_pylist()
    assert letter["topic"] == "graveyard"


# Schemas that grow


def test_new_optional_fields_widen_a_table() -> None:
    before = ddl("a bigint not null, s struct<x int>, l array<struct<y int>>")
    after = ddl("b string, a bigint, s struct<x int, z date>, l array<struct<y int, w int>>")
    assert added_columns(before, after, "v2 after v1") == ["s.z", "l.w", "b"]
    assert added_columns(before, before, "v1 again") == []


def test_what_widens_a_schema_widens_a_table_of_the_lake() -> None:
    before, after = (pa.schema(list(arrow_type(ddl(text)))) for text in ("a int", "a int, b map<string,int>"))
    assert [field.name for field in new_fields(before, after)] == ["b"]
    with pytest.raises(LakeTableError, match="column a of the table is int32"):
        new_fields(before, pa.schema([("a", pa.int64())]))


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("a int, b int", "a int", "field b was removed. Keep it"),
        ("a int, total int", "a int, totals int", r"field total was removed \(renamed to totals\?\)"),
        ("a int", "a bigint", "field a was int and is bigint now"),
        ("a struct<x int>", "a struct<x string>", "field a.x was int and is string"),
        ("a map<string,int>", "a array<int>", "field a was map<string,int> and is array<int>"),
        ("a int", "a int, b int not null", "field b is new and required"),
        ("a int", "a int not null", "field a was optional and is required now"),
    ],
)
def test_other_changes_are_refused(before: str, after: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"schema v2 after v1: {problem}"):
        added_columns(ddl(before), ddl(after), "v2 after v1")


def test_a_schema_is_remembered_from_run_to_run(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    assert check_and_save_schema(path, ddl("a int")) == []
    assert check_and_save_schema(path, ddl("a int, b int")) == ["b"]
    with pytest.raises(ConfigError, match="field b was removed"):
        check_and_save_schema(path, ddl("a int"))
    assert check_and_save_schema(path, ddl("a int, b int")) == []
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"schema\.json should hold the schema of the last run"):
        check_and_save_schema(path, ddl("a int"))
    assert [each.name for each in tmp_path.iterdir()] == ["schema.json"]
