"""Streams of format("penstock"): checkpoints, limits, what appears and goes, and the group that shows it."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from penstock.spark.source.offsets import parse_stream_position
from penstock.testing import Broker
from penstock.types import TopicPartition
from tests.spark.topics import client_of, committed, create, eventually, fill, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LakeBatch = list[tuple[str, int, int]]
GONE_MS = "2000"
"""After this time a topic that no broker knows counts as deleted."""


class Run:
    """A query that keeps what each of its batches read."""

    def __init__(self, spark: "SparkSession", running: Broker, checkpoint: str, **options: str) -> None:
        self.batches: list[LakeBatch] = []
        name = options.pop("named", "")
        stream = (
            spark.readStream.format("penstock")
            .schema("topic string, partition int, offset bigint")
            .option("kafka.bootstrap.servers", running.bootstrap)
            .options(**{"startingOffsets": "earliest", **options})
            .load()
        )
        self.writer = stream.writeStream.option("checkpointLocation", checkpoint).foreachBatch(self.keep)
        if name:
            self.writer = self.writer.queryName(name)

    def keep(self, frame: Any, batch_id: int) -> None:
        self.batches.append(sorted((row.topic, row.partition, row.offset) for row in frame.collect()))

    @property
    def rows(self) -> LakeBatch:
        return sorted(row for batch in self.batches for row in batch)

    def to_the_end(self) -> "Run":
        self.query = self.writer.trigger(availableNow=True).start()
        self.query.awaitTermination()
        return self

    @contextmanager
    def going(self) -> Iterator["StreamingQuery"]:
        self.query = self.writer.start()
        try:
            yield self.query
        finally:
            self.query.stop()


def expected(topic: str, count: int, start: int = 0, partition: int = 0) -> LakeBatch:
    return [(topic, partition, offset) for offset in range(start, start + count)]


def test_available_now_takes_what_is_there_in_steps_and_goes_on_later(
    spark: "SparkSession", running: Broker, topic: str, checkpoint: str
) -> None:
    create(running, topic)
    fill(running, topic, numbered(10))
    options = {"subscribe": topic, "maxOffsetsPerTrigger": "4"}
    first = Run(spark, running, checkpoint, **options, named=f"q-{topic}").to_the_end()
    assert [len(batch) for batch in first.batches] == [4, 4, 2]
    assert first.rows == expected(topic, 10)
    last = first.query.lastProgress
    assert last is not None
    reached = parse_stream_position(json.loads(last["sources"][0]["endOffset"]))
    assert reached.offsets == {TopicPartition(topic, 0): 10}
    assert reached.ids.keys() == {topic}
    assert json.loads(last["sources"][0]["latestOffset"]) == {topic: {"0": 10}}
    # The group of the query's name is where the query is, after the last batch too.
    assert committed(running, f"q-{topic}", topic) == [10]

    fill(running, topic, numbered(3))
    second = Run(spark, running, checkpoint, **options, named=f"q-{topic}").to_the_end()
    assert second.rows == expected(topic, 3, start=10)
    assert committed(running, f"q-{topic}", topic) == [13]


def test_a_batch_that_was_not_finished_is_read_again_as_it_was(
    spark: "SparkSession", running: Broker, topic: str, checkpoint: str
) -> None:
    create(running, topic)
    fill(running, topic, numbered(6))
    first = Run(spark, running, checkpoint, subscribe=topic, maxOffsetsPerTrigger="3").to_the_end()
    assert len(first.batches) == 2
    for file in ("1", ".1.crc"):  # as if it had crashed before it was done
        Path(checkpoint, "commits", file).unlink()
    fill(running, topic, numbered(2))
    again = Run(spark, running, checkpoint, subscribe=topic).to_the_end()
    assert again.batches == [expected(topic, 3, start=3), expected(topic, 2, start=6)]


def test_topics_and_partitions_that_appear_are_read_from_their_beginning(
    spark: "SparkSession", running: Broker, topic: str, checkpoint: str
) -> None:
    create(running, f"{topic}-a")
    run = Run(
        spark,
        running,
        checkpoint,
        subscribePattern=f"{topic}-.*",
        startingOffsets="latest",
        **{"partition.metadata.cache.ttl.ms": "50", "kafka.group.id": f"g-{topic}"},
    )
    with run.going() as query:
        eventually(lambda: committed(running, f"g-{topic}", f"{topic}-a") == [0])
        fill(running, f"{topic}-a", numbered(2))
        create(running, f"{topic}-b", partitions=2)
        fill(running, f"{topic}-b", numbered(3), partition=1)
        wanted = expected(f"{topic}-a", 2) + expected(f"{topic}-b", 3, partition=1)
        eventually(lambda: run.rows == wanted or not query.isActive)
        assert run.rows == wanted, str(query.exception())[-3000:]
        # An idle stream shows no lag.
        eventually(lambda: committed(running, f"g-{topic}", f"{topic}-b", 2) == [0, 3])
    assert run.rows == wanted


def test_a_stream_without_a_name_is_shown_by_its_id(
    spark: "SparkSession", running: Broker, topic: str, checkpoint: str
) -> None:
    create(running, topic)
    fill(running, topic, numbered(4))
    run = Run(spark, running, checkpoint, subscribe=topic).to_the_end()
    assert committed(running, f"spark-{run.query.id}", topic) == [4]


def test_a_position_that_is_shown_never_moves_back(
    spark: "SparkSession", running: Broker, topic: str, checkpoint: str
) -> None:
    create(running, topic)
    fill(running, topic, numbered(4))
    options = {"subscribe": topic, "named": f"back-{topic}"}
    Run(spark, running, checkpoint, **options).to_the_end()
    shutil.rmtree(checkpoint)
    again = Run(spark, running, checkpoint, **options, maxOffsetsPerTrigger="3")
    seen = []

    def look(frame: Any, batch_id: int) -> None:
        seen.append(committed(running, f"back-{topic}", topic))
        again.keep(frame, batch_id)

    again.writer = again.writer.foreachBatch(look)
    again.to_the_end()
    assert again.rows == expected(topic, 4)
    assert seen == [[4], [4]]


def test_a_group_that_cannot_be_written_does_not_stop_the_query(
    spark: "SparkSession", running: Broker, topic: str, checkpoint: str
) -> None:
    from confluent_kafka import Consumer

    create(running, topic)
    fill(running, topic, numbered(4))
    settings = {"bootstrap.servers": running.bootstrap, "group.id": f"g-{topic}", "enable.auto.commit": False}
    member = Consumer(settings)
    try:
        member.subscribe([topic])
        eventually(lambda: member.poll(0.2) is not None or bool(member.assignment()))
        run = Run(
            spark, running, checkpoint, subscribe=topic, **{"kafka.group.id": f"g-{topic}"}
        ).to_the_end()
    finally:
        member.close()
    assert run.rows == expected(topic, 4)
    assert committed(running, f"g-{topic}", topic) == [None]


def test_bytes_limit_what_a_trigger_takes(
    spark: "SparkSession", running: Broker, topic: str, checkpoint: str
) -> None:
    create(running, topic)
    fill(running, topic, [b"x" * 1000 for _ in range(40)])
    run = Run(spark, running, checkpoint, subscribe=topic, maxBytesPerTrigger="40000").to_the_end()
    assert len(run.rows) == 40
    assert all(15 <= len(batch) <= 25 for batch in run.batches[:-1])  # keys are as long as values


def test_a_topic_that_was_made_anew_is_lost_data(
    spark: "SparkSession", running: Broker, topic: str, checkpoint: str
) -> None:
    create(running, topic)
    fill(running, topic, numbered(5))
    Run(spark, running, checkpoint, subscribe=topic).to_the_end()
    delete(running, topic)
    create(running, topic)
    fill(running, topic, numbered(7))
    options = {"subscribe": topic, "kafka.default.api.timeout.ms": GONE_MS}
    with pytest.raises(PySparkException, match=r"has been deleted and made anew.*failOnDataLoss to false"):
        Run(spark, running, checkpoint, **options).to_the_end()
    lenient = Run(spark, running, checkpoint, **options, failOnDataLoss="false").to_the_end()
    assert lenient.rows == expected(topic, 7)


def test_a_topic_that_was_deleted_is_lost_data(
    spark: "SparkSession", running: Broker, topic: str, checkpoint: str
) -> None:
    for suffix in "ab":
        create(running, f"{topic}-{suffix}")
        fill(running, f"{topic}-{suffix}", numbered(2))
    options = {"subscribePattern": f"{topic}-."}
    Run(spark, running, checkpoint, **options).to_the_end()
    delete(running, f"{topic}-b")
    fill(running, f"{topic}-a", numbered(1))
    options["kafka.default.api.timeout.ms"] = GONE_MS
    with pytest.raises(PySparkException, match=f"topic {topic}-b has been deleted"):
        Run(spark, running, checkpoint, **options).to_the_end()
    lenient = Run(spark, running, checkpoint, **options, failOnDataLoss="false").to_the_end()
    assert lenient.rows == expected(f"{topic}-a", 1, start=2)


def test_the_checkpoint_of_another_source_is_recognised(
    spark: "SparkSession", running: Broker, topic: str, checkpoint: str
) -> None:
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "2").load()
    query = rate.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    eventually(lambda: query.lastProgress is not None)
    query.stop()
    create(running, topic)
    with pytest.raises(PySparkException, match="belongs to another source"):
        Run(spark, running, checkpoint, subscribe=topic).to_the_end()


def test_a_stream_of_an_unknown_topic_says_so(
    spark: "SparkSession", running: Broker, topic: str, checkpoint: str
) -> None:
    with pytest.raises(PySparkException, match=f"there is no topic {topic}"):
        Run(spark, running, checkpoint, subscribe=topic).to_the_end()


def delete(running: Broker, topic: str) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    for future in admin.delete_topics([topic]).values():
        future.result()
    with client_of(running) as client:
        eventually(lambda: topic not in client.topics([topic]))
