"""Batch reads of format("penstock"): Spark beside a real broker."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from penstock.protocol.compression import Codec
from penstock.spark.records.encode import encode
from penstock.testing import Broker
from penstock.types import TopicPartition
from tests.spark.topics import client_of, create, fill, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def read(
    spark: "SparkSession", running: Broker, schema: "str | StructType | None" = None, **options: str
) -> "DataFrame":
    reader = spark.read.format("penstock").option("kafka.bootstrap.servers", running.bootstrap)
    if schema is not None:
        reader = reader.schema(schema)
    return reader.options(**options).load()


def offsets(frame: "DataFrame") -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())


def test_a_topic_is_a_table_with_the_columns_of_the_official_source(
    spark: "SparkSession", running: Broker, topic: str
) -> None:
    create(running, topic, partitions=2)
    fill(running, topic, [b"one", None], partition=1, codec=Codec.ZSTD)
    frame = read(spark, running, subscribe=topic)
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]
    first, second = frame.orderBy("offset").collect()
    assert (bytes(first.key), bytes(first.value), first.topic) == (b"one", b"one", topic)
    assert (first.partition, first.offset, first.timestampType) == (1, 0, 0)
    assert frame.selectExpr("cast(max(timestamp) as double)").first()[0] == 1.0  # type: ignore[index]
    assert (second.key, second.value, second.offset) == (None, None, 1)


def test_headers_come_if_they_are_asked_for(spark: "SparkSession", running: Broker, topic: str) -> None:
    create(running, topic)
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[{"key": "trace", "value": b"\x01"}, {"key": "none", "value": None}], None], kind)
    values = pa.array([b"a", b"b"], pa.binary())
    batches = encode(None, values, headers, pa.array([0, 0]), codec=Codec.NONE, batch_bytes_max=10_000)
    with client_of(running) as client:
        client.produce(TopicPartition(topic, 0), batches)
    rows = read(spark, running, subscribe=topic, includeHeaders="true").orderBy("offset").collect()
    assert [(each.key, each.value and bytes(each.value)) for each in rows[0].headers] == [
        ("trace", b"\x01"),
        ("none", None),
    ]
    assert rows[1].headers is None


def test_a_schema_leaves_columns_out(spark: "SparkSession", running: Broker, topic: str) -> None:
    create(running, topic)
    fill(running, topic, numbered(5))
    frame = read(spark, running, "offset bigint, key binary", subscribe=topic)
    assert [(row.offset, bytes(row.key)) for row in frame.collect()] == [
        (number, b"%d" % number) for number in range(5)
    ]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("value string", "column value of a topic is binary, and the schema says string"),
        ("id int", "no column id"),
    ],
)
def test_a_schema_that_no_topic_has_is_refused(
    spark: "SparkSession", running: Broker, topic: str, schema: str, message: str
) -> None:
    create(running, topic)
    with pytest.raises(PySparkException, match=message):
        read(spark, running, schema, subscribe=topic).collect()


def test_a_frame_stays_what_it_was_when_it_was_planned(
    spark: "SparkSession", running: Broker, topic: str
) -> None:
    create(running, topic)
    fill(running, topic, numbered(3))
    frame = read(spark, running, subscribe=topic)
    assert frame.count() == 3
    fill(running, topic, numbered(3))
    assert frame.count() == 3
    assert frame.where("offset = 1").count() == 1
    assert frame.count() == 3
    assert read(spark, running, subscribe=topic).count() == 6


def test_one_partition_is_read_by_several_tasks(spark: "SparkSession", running: Broker, topic: str) -> None:
    create(running, topic)
    fill(running, topic, numbered(10))
    by_number = read(spark, running, subscribe=topic, minPartitions="3")
    assert by_number.rdd.getNumPartitions() == 3
    by_size = read(spark, running, subscribe=topic, maxRecordsPerPartition="4")
    assert [len(part) for part in by_size.rdd.glom().collect()] == [3, 3, 4]
    assert offsets(by_number) == offsets(by_size) == [(0, number) for number in range(10)]


def test_a_range_of_offsets_is_read(spark: "SparkSession", running: Broker, topic: str) -> None:
    create(running, topic, partitions=2)
    fill(running, topic, numbered(9), partition=0)
    fill(running, topic, numbered(9), partition=1)
    frame = read(
        spark,
        running,
        subscribe=topic,
        startingOffsets=f'{{"{topic}":{{"0":7,"1":-2}}}}',
        endingOffsets=f'{{"{topic}":{{"0":-1,"1":2}}}}',
    )
    assert offsets(frame) == [(0, 7), (0, 8), (1, 0), (1, 1)]


def test_a_range_of_time_is_read(spark: "SparkSession", running: Broker, topic: str) -> None:
    create(running, topic)
    fill(running, topic, numbered(9))
    frame = read(spark, running, subscribe=topic, startingTimestamp="3500", endingTimestamp="6000")
    assert offsets(frame) == [(0, 4), (0, 5)]
    assert frame.selectExpr("min(timestamp)").first()[0].replace(tzinfo=UTC) == datetime(  # type: ignore[index]
        1970, 1, 1, 0, 0, 4, tzinfo=UTC
    )
    late = {"subscribe": topic, "startingTimestamp": "99000"}
    with pytest.raises(PySparkException, match="no record at or after timestamp 99000"):
        read(spark, running, **late).collect()
    assert read(spark, running, **late, startingOffsetsByTimestampStrategy="latest").count() == 0


def test_topics_are_found_by_pattern_and_partitions_by_number(
    spark: "SparkSession", running: Broker, topic: str
) -> None:
    for suffix in ("a", "b", "other"):
        create(running, f"{topic}-{suffix}", partitions=2)
        fill(running, f"{topic}-{suffix}", numbered(2), partition=1)
    assert read(spark, running, subscribePattern=f"{topic}-[ab]").count() == 4
    assert read(spark, running, assign=f'{{"{topic}-a":[1]}}').count() == 2
    assert read(spark, running, assign=f'{{"{topic}-a":[0]}}').count() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "no-such-topic"}, "there is no topic no-such-topic; create it"),
        ({"assign": '{"no-such-topic":[0]}'}, "there is no partition no-such-topic-0"),
        ({"subscribe": "x", "startingOffset": "earliest"}, "did you mean startingOffsets"),
        ({}, "one of the options subscribe, subscribePattern, assign"),
    ],
)
def test_what_cannot_be_read_is_an_error_that_says_why(
    spark: "SparkSession", running: Broker, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        read(spark, running, **options).collect()


def test_offsets_that_name_other_partitions_are_refused(
    spark: "SparkSession", running: Broker, topic: str
) -> None:
    create(running, topic, partitions=2)
    with pytest.raises(PySparkException, match=f"leaves out {topic}-1"):
        read(spark, running, subscribe=topic, startingOffsets=f'{{"{topic}":{{"0":0}}}}').collect()


def test_a_broker_that_is_not_there_is_named(spark: "SparkSession", topic: str) -> None:
    options = {"bootstrap": "127.0.0.1:1", "subscribe": topic, "kafka.default.api.timeout.ms": "300"}
    with pytest.raises(PySparkException, match=r"127\.0\.0\.1:1"):
        spark.read.format("penstock").options(**options).load().collect()


def test_records_that_retention_removed_are_an_error_or_left_out(
    spark: "SparkSession", running: Broker, topic: str
) -> None:
    create(running, topic)
    fill(running, topic, numbered(6))
    delete_before(running, topic, 4)
    start = f'{{"{topic}":{{"0":1}}}}'
    with pytest.raises(
        PySparkException, match=rf"offset 1 of {topic}-0 is gone.*begin at offset 4.*failOnDataLoss"
    ):
        read(spark, running, subscribe=topic, startingOffsets=start).collect()
    lenient = read(spark, running, subscribe=topic, startingOffsets=start, failOnDataLoss="false")
    assert offsets(lenient) == [(0, 4), (0, 5)]


def test_records_that_go_while_they_are_read_are_noticed(
    spark: "SparkSession", running: Broker, topic: str
) -> None:
    create(running, topic)
    fill(running, topic, numbered(6))
    frames = [read(spark, running, subscribe=topic, failOnDataLoss=each) for each in ("true", "false")]
    assert [frame.rdd.getNumPartitions() for frame in frames] == [1, 1]  # which plans them
    delete_before(running, topic, 5)
    with pytest.raises(PySparkException, match=rf"offset 0 of {topic}-0 is gone"):
        frames[0].collect()
    assert offsets(frames[1]) == [(0, 5)]


def delete_before(running: Broker, topic: str, offset: int) -> None:
    from confluent_kafka import TopicPartition as KafkaPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    for future in admin.delete_records([KafkaPartition(topic, 0, offset)]).values():
        future.result()
