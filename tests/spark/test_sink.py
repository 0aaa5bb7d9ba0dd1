"""Writes of format("penstock"): batch and stream."""

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from penstock.testing import Broker
from tests.spark.topics import create, fill, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


Seen = tuple[bytes | None, bytes | None, Any, Any]


def write(frame: "DataFrame", running: Broker, **options: str) -> None:
    writer = frame.write.format("penstock").option("kafka.bootstrap.servers", running.bootstrap)
    writer.options(**options).mode("append").save()


def consumed(running: Broker, topic: str, count: int) -> list[Seen]:
    """What an independent client sees: key, value, partition, headers."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        {"bootstrap.servers": running.bootstrap, "group.id": f"c-{topic}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: list[Seen] = []
    while len(found) < count:
        messages = consumer.consume(count, timeout=30)
        assert messages, f"only {len(found)} came"
        found += [(m.key(), m.value(), m.partition(), m.headers() or []) for m in messages if not m.error()]
    consumer.close()
    return found


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_rows_become_records_that_other_clients_read(
    spark: "SparkSession", running: Broker, topic: str, codec: str
) -> None:
    create(running, topic, partitions=3)
    rows = spark.range(50).selectExpr("cast(id % 7 as string) as key", "cast(id as string) as value")
    write(rows, running, topic=topic, **{"kafka.compression.type": codec})
    found = consumed(running, topic, 50)
    assert Counter(value for _, value, _, _ in found) == Counter(b"%d" % number for number in range(50))
    assert all(int(value or b"") % 7 == int(key or b"") for key, value, _, _ in found)
    assert len({(key, partition) for key, _, partition, _ in found}) == 7  # a key has one partition


def test_keys_go_where_other_producers_put_them(spark: "SparkSession", running: Broker, topic: str) -> None:
    from confluent_kafka import Producer

    create(running, topic, partitions=5)
    other = Producer({"bootstrap.servers": running.bootstrap, "partitioner": "murmur2_random"})
    keys = [f"customer-{number}" for number in range(40)]
    for key in keys:
        other.produce(topic, key=key, value=b"theirs")
    other.flush()
    write(
        spark.createDataFrame([(key, "ours") for key in keys], "key string, value string"),
        running,
        topic=topic,
    )
    places = {(key, partition) for key, _, partition, _ in consumed(running, topic, 80)}
    assert len(places) == 40


def test_rows_may_name_topic_partition_and_headers(
    spark: "SparkSession", running: Broker, topic: str
) -> None:
    for suffix in "ab":
        create(running, f"{topic}-{suffix}", partitions=2)
    kind = "topic string, partition int, key binary, value binary, "
    kind += "headers array<struct<key:string,value:binary>>"
    rows = [
        (f"{topic}-a", 1, None, bytearray(b"1"), [("h", bytearray(b"x")), ("h", None)]),
        (f"{topic}-b", 0, bytearray(b"k"), None, None),
        (f"{topic}-a", 0, bytearray(b""), bytearray(b""), []),
    ]
    write(spark.createDataFrame(rows, kind), running)
    assert sorted(consumed(running, f"{topic}-a", 2), key=str) == sorted(
        [(None, b"1", 1, [("h", b"x"), ("h", None)]), (b"", b"", 0, [])], key=str
    )
    assert consumed(running, f"{topic}-b", 1) == [(b"k", None, 0, [])]


def test_rows_without_a_key_are_spread(spark: "SparkSession", running: Broker, topic: str) -> None:
    create(running, topic, partitions=4)
    write(spark.range(8000).selectExpr("cast(id as string) as value"), running, topic=topic)
    counts = Counter(partition for _, _, partition, _ in consumed(running, topic, 8000))
    assert sorted(counts) == [0, 1, 2, 3]
    assert min(counts.values()) >= 1000


def test_order_within_a_key_is_kept(spark: "SparkSession", running: Broker, topic: str) -> None:
    create(running, topic, partitions=3)
    columns = ("cast(id % 5 as string) as key", "cast(id as string) as value")
    write(spark.range(3000, numPartitions=1).selectExpr(*columns), running, topic=topic)
    found = consumed_in_order(spark, running, topic)
    for key in (b"0", b"1", b"2", b"3", b"4"):
        values = [int(value) for each, value, _, _ in found if each == key]
        assert values == sorted(values)
        assert len(values) == 600


def consumed_in_order(
    spark: "SparkSession", running: Broker, topic: str
) -> list[tuple[bytes, bytes, int, int]]:
    frame = spark.read.format("penstock").options(bootstrap=running.bootstrap, subscribe=topic).load()
    rows = frame.orderBy("partition", "offset").collect()
    return [(bytes(row.key), bytes(row.value), row.partition, row.offset) for row in rows]


def test_timestamps_are_kept_if_that_is_asked_for(spark: "SparkSession", running: Broker, topic: str) -> None:
    create(running, topic)
    rows = spark.sql("select 'x' as value, timestamp_millis(1700000000123) as timestamp")
    write(rows, running, topic=topic, includeTimestamp="true")
    write(rows, running, topic=topic)
    frame = spark.read.format("penstock").options(bootstrap=running.bootstrap, subscribe=topic).load()
    kept, new = (row[0] for row in frame.orderBy("offset").selectExpr("unix_millis(timestamp)").collect())
    assert kept == 1_700_000_000_123
    assert new > kept + 1000


def test_a_stream_goes_from_topic_to_topic(
    spark: "SparkSession", running: Broker, topic: str, checkpoint: str
) -> None:
    create(running, f"{topic}-in", partitions=2)
    create(running, f"{topic}-out", partitions=2)
    fill(running, f"{topic}-in", numbered(30), partition=0)
    fill(running, f"{topic}-in", numbered(30, 30), partition=1)
    source = spark.readStream.format("penstock").options(
        bootstrap=running.bootstrap,
        subscribe=f"{topic}-in",
        startingOffsets="earliest",
        maxOffsetsPerTrigger="25",
    )
    query = (
        source.load()
        .select("key", "value")
        .writeStream.format("penstock")
        .options(bootstrap=running.bootstrap, topic=f"{topic}-out", checkpointLocation=checkpoint)
        .queryName(topic)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = consumed(running, f"{topic}-out", 60)
    assert Counter(value for _, value, _, _ in found) == Counter(numbered(60))


@pytest.mark.parametrize(
    ("sql", "options", "message"),
    [
        ("select 'k' as key", {"topic": "x"}, "the rows have no column value, only key"),
        ("select 'v' as value", {}, "option topic must say where to write"),
        ("select 1 as value", {"topic": "x"}, "column value is int; cast it to string or binary"),
        (
            "select 'v' as value, 1L as partition",
            {"topic": "x"},
            "column partition is bigint; cast it to int",
        ),
        ("select 'v' as value", {"topic": "no-such-topic"}, "there is no topic no-such-topic; create it"),
        ("select 'v' as value, cast(null as string) as topic", {}, "a row has a null topic"),
        ("select 'v' as value", {"topic": "x", "kafka.compression.type": "rar"}, "give one of none, gzip"),
    ],
)
def test_rows_that_cannot_be_written_are_an_error_that_says_why(
    spark: "SparkSession", running: Broker, sql: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        write(spark.sql(sql), running, **options)


def test_a_partition_that_the_topic_does_not_have_is_named(
    spark: "SparkSession", running: Broker, topic: str
) -> None:
    create(running, topic, partitions=2)
    with pytest.raises(PySparkException, match=f"partition 2 of topic {topic}, which has 2"):
        write(spark.sql("select 'v' as value, 2 as partition"), running, topic=topic)


def test_a_record_that_is_too_large_is_refused_with_the_limit(
    spark: "SparkSession", running: Broker, topic: str
) -> None:
    create(running, topic, max_message_bytes="5000")
    row = spark.sql("select repeat('x', 2000000) as value")
    with pytest.raises(
        PySparkException, match=r"more than a batch may have \(1000000\).*kafka\.max\.request\.size"
    ):
        write(row, running, topic=topic)
    with pytest.raises(PySparkException, match=r"max\.message\.bytes"):
        write(row, running, topic=topic, **{"kafka.max.request.size": "3000000"})


def test_a_topic_is_not_overwritten(spark: "SparkSession", running: Broker, topic: str) -> None:
    create(running, topic)
    writer = spark.sql("select 'v' as value").write.format("penstock")
    with pytest.raises(PySparkException, match="cannot be overwritten; write with mode append"):
        writer.options(bootstrap=running.bootstrap, topic=topic).mode("overwrite").save()
