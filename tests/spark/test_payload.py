"""Values as columns of Spark tables and streams, beside a real broker."""

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from pyspark.errors import PySparkException

from penstock.spark.payload import split_dead_letters, with_dead_letters
from penstock.testing import Broker
from tests.spark.topics import create, fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JSON = {"valueFormat": "json", "valueSchema": "id bigint, lines array<struct<sku string, n int>>"}


def read(spark: "SparkSession", running: Broker, schema: str | None = None, **options: str) -> "DataFrame":
    reader = spark.read.format("penstock").option("kafka.bootstrap.servers", running.bootstrap)
    return (reader if schema is None else reader.schema(schema)).options(**options).load()


def order(number: int, **more: Any) -> bytes:
    return json.dumps({"id": number, "lines": [{"sku": "a", "n": number}], **more}).encode()


def headers_of(row: Any) -> dict[str, str]:
    return {each.key: bytes(each.value).decode() for each in row.headers}


def letters(spark: "SparkSession", running: Broker, topic: str) -> list[tuple[bytes, str]]:
    """Values and where they are from."""
    rows = read(spark, running, subscribe=topic, includeHeaders="true").orderBy("offset").collect()
    found = [(bytes(row.value), headers_of(row)) for row in rows]
    return [
        (value, f"{said['penstock-source-topic']}/{said['penstock-source-offset']}") for value, said in found
    ]


def test_json_fields_are_columns_beside_those_of_the_topic(
    spark: "SparkSession", running: Broker, topic: str
) -> None:
    create(running, topic)
    fill(running, topic, [order(1), None, order(3)])
    frame = read(spark, running, subscribe=topic, **JSON)
    assert frame.columns == [
        "key",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "id",
        "lines",
    ]
    found = frame.selectExpr("offset", "id", "lines[0].n as n").orderBy("offset").collect()
    assert [tuple(row) for row in found] == [(0, 1, 1), (1, None, None), (2, 3, 3)]
    pruned = read(spark, running, "id bigint, value binary", subscribe=topic, **JSON)
    assert [row.id for row in pruned.where("id > 1").collect()] == [3]
    assert pruned.where("value is null").count() == 1


def test_avro_and_protobuf_are_columns_too(
    spark: "SparkSession", running: Broker, topic: str, tmp_path: Path
) -> None:
    schema = {"type": "record", "name": "O", "fields": [{"name": "id", "type": "long"}]}
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), {"id": 5})
    create(running, topic)
    fill(running, topic, [stream.getvalue()])
    frame = read(spark, running, subscribe=topic, valueFormat="avro", valueSchema=json.dumps(schema))
    assert [row.id for row in frame.collect()] == [5]
    file = FileDescriptorProto(name="o.proto", syntax="proto3")
    file.message_type.add(name="O").field.add(
        name="id", number=1, type=FieldDescriptorProto.TYPE_INT64, label=FieldDescriptorProto.LABEL_OPTIONAL
    )
    path = tmp_path / "o.desc"
    path.write_bytes(FileDescriptorSet(file=[file]).SerializeToString())
    create(running, f"{topic}-2")
    fill(running, f"{topic}-2", [b"\x08\x07"])
    frame = read(spark, running, subscribe=f"{topic}-2", valueFormat="protobuf", valueSchema=str(path))
    assert [row.id for row in frame.collect()] == [7]


def test_a_bad_row_fails_the_query_with_its_offset(
    spark: "SparkSession", running: Broker, topic: str
) -> None:
    create(running, topic)
    fill(running, topic, [order(1), b"{}", b'{"id": "x"}'])
    frame = read(spark, running, subscribe=topic, **JSON)
    with pytest.raises(PySparkException, match=rf"{topic}/0, offset 2: .*got `str` - at `\$\.id`"):
        frame.collect()
    nulls = read(spark, running, subscribe=topic, badRows="null", **JSON)
    assert [row.id for row in nulls.orderBy("offset").collect()] == [1, None, None]


def test_a_wrong_schema_fails_before_anything_is_read(
    spark: "SparkSession", running: Broker, topic: str
) -> None:
    with pytest.raises(PySparkException, match="line 1, column 4: 'text' is no type"):
        read(spark, running, subscribe=topic, valueFormat="json", valueSchema="id text")


def test_reading_writes_no_dead_letters_and_the_query_does(
    spark: "SparkSession", running: Broker, topic: str
) -> None:
    create(running, topic)
    create(running, "graves")
    fill(running, topic, [order(1), b"?", order(3)])
    frame = read(spark, running, subscribe=topic, badRows="deadletter", deadLetterTopic="graves", **JSON)
    assert frame.count() == frame.count() == 3
    good, dead = split_dead_letters(frame)
    assert [row.id for row in good.orderBy("offset").collect()] == [1, 3]
    assert "deadLetter" not in good.columns
    assert read(spark, running, subscribe="graves").count() == 0
    dead.write.format("penstock").option("bootstrap", running.bootstrap).mode("append").save()
    assert letters(spark, running, "graves") == [(b"?", f"{topic}/1")]
    records = frame.selectExpr(
        "coalesce(deadLetter, named_struct('topic', 'paid', 'key', key, "
        "'value', cast(to_json(struct(id)) as binary), "
        "'headers', cast(null as array<struct<key:string,value:binary>>))) as record"
    ).select("record.*")
    assert sorted(row.topic for row in records.collect()) == ["graves", "paid", "paid"]
    [row] = read(spark, running, subscribe="graves", includeHeaders="true").collect()
    assert bytes(row.key) == b"?"
    assert headers_of(row)["penstock-error"].startswith("JSON is malformed")


def test_a_stream_splits_off_dead_letters_and_widens_with_its_schema(
    spark: "SparkSession", running: Broker, topic: str, checkpoint: str, tmp_path: Path
) -> None:
    create(running, topic)
    file = tmp_path / "orders.ddl"
    access = {"bootstrap": running.bootstrap}
    found: list[dict[str, Any]] = []

    def keep(rows: "DataFrame", batch_id: int) -> None:
        found.extend(row.asDict() for row in rows.drop("key", "timestamp").orderBy("offset").collect())

    def run() -> None:
        options = {"subscribe": topic, "startingOffsets": "earliest", "badRows": "deadletter", **access}
        stream = spark.readStream.format("penstock").options(**options)
        stream = stream.options(valueFormat="json", valueSchema=str(file))
        query = stream.load().writeStream.foreachBatch(with_dead_letters(keep, access))
        query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()

    file.write_text("id bigint")
    fill(running, topic, [order(1, note="early"), b"?"])
    run()
    assert [(row["offset"], row["id"]) for row in found] == [(0, 1)]
    assert "note" not in found[0]
    file.write_text("id bigint, note string")
    fill(running, topic, [order(3), order(4, note="late")])
    run()
    assert [(row["offset"], row["id"], row["note"]) for row in found[1:]] == [(2, 3, None), (3, 4, "late")]
    assert letters(spark, running, f"{topic}.dead") == [(b"?", f"{topic}/1")]
